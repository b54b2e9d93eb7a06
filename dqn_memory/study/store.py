"""Whether a run is finished, told from its folder alone and without torch, which a worker need not load."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import RAW, sha256, write_atomic
from dqn_memory.runs.migration import KINDS
from dqn_memory.study.definition import Definition, Label

HASHES = "hashes.json"  # SHA-256 of the raw files when their run was finished


def finished(folder: Path) -> bool:
    """Whether the last checkpoint is the final one: the metrics that it vouches for end on a final evaluation.

    Where the checkpoint is gone, or was never here because a record holds none, the hashes tell: only a finished run
    has them. Raises UserError where the manifest or the metrics are damaged.
    """
    saved = checkpoint(folder)
    if saved is None and not (folder / HASHES).is_file():
        return False
    line = final_metrics(folder)
    return any(name.startswith("final/") for name in line) and (saved is None or line.get("step") == saved["step"])


def checkpoint(folder: Path) -> dict[str, Any] | None:
    """What the manifest of a run's checkpoint says (None: there is none yet); a UserError names a damaged one."""
    path = folder / "checkpoints" / "manifest.json"
    try:
        content = json.loads(path.read_bytes())["content"]
        return {"step": content["step"], "metrics_bytes": content["metrics_bytes"]}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def write_checksums(folder: Path) -> None:
    """Write down what a finished run's raw files are, so that later damage is noticed."""
    found = {name: sha256((folder / name).read_bytes()) for name in RAW if (folder / name).is_file()}
    write_atomic(folder / HASHES, json.dumps(found, indent=1).encode())


def read_checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each raw file as `vouch` saw it, nothing where it did not; a UserError names a damaged list."""
    path = folder / HASHES
    try:
        return {str(name): str(digest) for name, digest in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def final_metrics(folder: Path) -> dict[str, Any]:
    """The line of a finished run's final evaluation: the last that its checkpoint vouches for, if it has one."""
    saved = checkpoint(folder)
    return _last_line(folder / "metrics.jsonl", None if saved is None else saved["metrics_bytes"])


def last_step(folder: Path) -> int:
    """Environment steps of the last line that a run has logged so far, 0 where it has none."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError, TypeError):  # a run that is being written, or not yet begun
        return 0


def _last_line(path: Path, length: int | None) -> dict[str, Any]:
    """The last line of the first `length` bytes (None: of all); a UserError names a file with less or other content."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if length is not None and len(data) < length:
        raise UserError(f"{path} is damaged: it has {len(data)} bytes, fewer than the saved {length}")
    try:
        return dict(json.loads((data[:length].splitlines() or [b"{}"])[-1]))
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged: its last line is not a JSON object") from None


PATIENCE = 10.0  # seconds that a dying holder has to let go


def acquire_lock(path: Path, patience: float = PATIENCE) -> int | None:
    """An open descriptor that holds the lock until all its copies are closed, or None where somebody has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + patience
    while not _lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > until:
            os.close(descriptor)
            return None
        time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    note = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
    os.write(descriptor, json.dumps(note).encode())
    return descriptor


def lock_holder(path: Path) -> dict[str, Any] | None:
    """Who holds a lock: {"pid", "host", "since"}, or None where nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return None
        note = json.loads(os.read(descriptor, 4096) or b"{}")
    except ValueError:  # between its two writes
        note = {}
    finally:
        os.close(descriptor)
    return {"pid": note.get("pid"), "host": note.get("host"), "since": note.get("since")}


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


State = Literal["waiting", "running", "finished", "failed", "stopped"]


FORMAT = "dqn-memory study 1"


STATE = "study.sqlite3"


HOME = Path("runs/studies")  # where `study.run` puts a study that is given no folder


SCHEMA = (
    "create table if not exists study (key text primary key, value text not null)",
    "create table if not exists runs (name text primary key, position integer not null, listed integer not null, "
    "axes text not null, steps integer not null, state text not null, attempts integer not null, seconds real, "
    "error text not null)",
)


@dataclass(frozen=True)
class RunState:
    """One run of a study. `stopped`: it was begun and nobody works on it; it continues from its last checkpoint."""

    name: str
    axes: dict[str, Label]
    state: State
    folder: Path
    config: Path
    log: Path
    steps: int
    """Environment steps that the run shall have."""
    attempts: int
    """Times that its trainer was started."""
    seconds: float | None
    """Wall-clock time of the finished run, all attempts that lived to log it."""
    error: str
    """Why it failed or stopped: the last lines of its log."""

    @property
    def world(self) -> str:
        return str(self.axes["world"])

    @property
    def architecture(self) -> str:
        return str(self.axes["architecture"])

    @property
    def seed(self) -> int:
        return int(self.axes["seed"])


def study_folder(study: Path) -> Path:
    """A folder as it is given, or that of a study which `study.run` carried out here under that name."""
    here = HOME / study
    return here if len(study.parts) == 1 and not study.exists() and here.is_dir() else study


def run_folder(study: Path, name: str) -> Path:
    """Where a run of a study, or of a record of one, lies."""
    return study / "runs" / name


class Study:
    """A study's folder: `open` finds one, `create` makes or extends one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._facts: dict[str, Any] = {}

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Find a study; raises UserError where there is none or its state is damaged."""
        study = cls(folder)
        if not study._path.is_file():
            raise UserError(f"{folder} is no study: it has no {study._path.name}")
        with study._connected() as state:
            study._facts = {key: json.loads(value) for key, value in state.execute("select key, value from study")}
        if study._facts.get("format") != FORMAT:
            raise UserError(f"{study._path} is foreign: it is not a '{FORMAT}'")
        return study

    @classmethod
    def create(cls, folder: Path, definition: Definition, runs: Sequence[tuple[str, dict[str, Label], int]]) -> Self:
        """Make the folder, or list other runs in the one that is there; `runs` are (name, axes, steps)."""
        folder.mkdir(parents=True, exist_ok=True)
        study = cls(folder)
        facts = {
            "format": FORMAT, "name": definition.name, "title": definition.title, "about": definition.about,
            "kind": definition.kind, "smoke": definition.smoke, "axes": list(definition.axes),
        }  # fmt: skip
        with study._connected() as state:
            for table in SCHEMA:
                state.execute(table)
            state.execute("update runs set listed = 0")
            for key, value in facts.items():
                state.execute("insert or replace into study values (?, ?)", (key, json.dumps(value)))
            for position, (name, axes, steps) in enumerate(runs):
                state.execute(
                    "insert into runs values (?, ?, 1, ?, ?, 'waiting', 0, null, '') on conflict (name) "
                    "do update set position = excluded.position, listed = 1, axes = excluded.axes",
                    (name, position, json.dumps(axes), steps),
                )
        write_atomic(folder / "study.toml", definition.text.encode())
        return cls.open(folder)

    @property
    def name(self) -> str:
        """The study's name, that of its file, with `-smoke` for its cut."""
        return str(self._facts["name"])

    @property
    def title(self) -> str:
        return str(self._facts["title"])

    @property
    def about(self) -> str:
        return str(self._facts["about"])

    @property
    def kind(self) -> str:
        """The trainer, such as q_network."""
        kind = str(self._facts["kind"])
        return KINDS.get(kind, kind)

    @property
    def smoke(self) -> bool:
        return bool(self._facts["smoke"])

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in the order of the file."""
        return tuple(self._facts["axes"])

    @property
    def lock(self) -> Path:
        """Held by the `study.run` that is at work."""
        return self.folder / "locks" / "study.lock"

    @property
    def lives(self) -> bool:
        """Whether `study.run` is at work now."""
        return lock_holder(self.lock) is not None

    def runs(self) -> list[RunState]:
        """All runs of the study in the order of its expansion."""
        lives = self.lives
        with self._connected() as state:
            rows = state.execute(
                "select name, axes, steps, state, attempts, seconds, error from runs where listed order by position"
            ).fetchall()
        return [self._run(row, lives) for row in rows]

    def mark(self, name: str, state: State, error: str = "", seconds: float | None = None, begun: bool = False) -> None:
        """Note where a run is; `begun` counts one more start of its trainer."""
        with self._connected() as connection:
            connection.execute(
                "update runs set state = ?, error = ?, seconds = ?, attempts = attempts + ? where name = ?",
                (state, error, seconds, int(begun), name),
            )

    def config_of(self, name: str) -> Path:
        """Where the complete config of a run is."""
        return self.folder / "configs" / f"{name}.toml"

    def _run(self, row: Sequence[Any], lives: bool) -> RunState:
        name, axes, steps, state, attempts, seconds, error = row
        if state == "running" and not lives:
            state = "stopped"
        return RunState(
            name=name, axes=json.loads(axes), state=state, folder=run_folder(self.folder, name),
            config=self.config_of(name), log=self.folder / "logs" / f"{name}.log", steps=steps, attempts=attempts,
            seconds=seconds, error=error,
        )  # fmt: skip

    @property
    def _path(self) -> Path:
        return self.folder / STATE

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """One transaction. Who may not write may still read: then the file is opened as it lies on the disk."""
        mode = "" if os.access(self.folder, os.W_OK) else "?mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(f"{self._path.resolve().as_uri()}{mode}", timeout=30, uri=True)
            with closing(connection), connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise UserError(f"{self._path} cannot be used: {error}") from None
