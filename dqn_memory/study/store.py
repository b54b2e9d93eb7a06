"""The folder of a study: readable while it runs and after a crash.

STUDY/
  study.toml       the definition, as its author wrote it     configs/<run>.toml   complete config of a run
  study.sqlite3    which run is where; only `study.run` writes  runs/<run>/          run folder of the trainer
  locks/           who is at work, released by any death      logs/<run>.log       what the trainer said

study = Study.open(Path("runs/studies/smoke"))
[run.folder for run in study.runs() if run.state == "finished"]
"""

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
from dqn_memory.runs.metrics import RAW
from dqn_memory.runs.migration import KINDS
from dqn_memory.runs.toml import from_record
from dqn_memory.study.definition import Definition, Label, Planned
from envs.files import disk_errors, sha256, write_atomic

State = Literal["waiting", "running", "finished", "failed", "stopped"]
FORMAT = "dqn-memory study 1"
STATE = "study.sqlite3"
HOME = Path("runs/studies")  # where `study.run` puts a study that is given no folder
HASHES = "hashes.json"  # SHA-256 of the raw files when their run was finished
ARCHIVES = ("archive.json", "record.json")  # files that tell the archive of a study, the second one of schema 1
PATIENCE = 10.0  # seconds that a dying holder of a lock has to let go
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
    """Give a folder as it is given, or that of a study which `study.run` carried out here under that name."""
    here = HOME / study
    return here if len(study.parts) == 1 and not study.exists() and here.is_dir() else study


def run_folder(study: Path, name: str) -> Path:
    """Say where a run of a study, or of its archive, lies."""
    return study / "runs" / name


class Study:
    """A study's folder: `open` finds one, `create` makes or extends one.

    Its facts are attributes: name (that of its file, with `-smoke` for its cut), title, about, kind (of the trainer,
    such as q_network), smoke, and axes (names in the order of the file).
    """

    name: str
    title: str
    about: str
    kind: str
    smoke: bool
    axes: tuple[str, ...]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Find a study; raises UserError where there is none or its state is damaged."""
        study = cls(folder)
        if not study._path.is_file():
            raise UserError(f"{folder} is no study: it has no {study._path.name}")
        with study._connected() as state:
            facts = {key: json.loads(value) for key, value in state.execute("select key, value from study")}
        if facts.get("format") != FORMAT:
            raise UserError(f"{study._path} is foreign: it is not a '{FORMAT}'")
        study.name, study.title, study.about = (str(facts[key]) for key in ("name", "title", "about"))
        study.kind = KINDS.get(facts["kind"], str(facts["kind"]))
        study.smoke, study.axes = bool(facts["smoke"]), tuple(facts["axes"])
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
            for index, (name, axes, steps) in enumerate(runs):
                state.execute(
                    "insert into runs values (?, ?, 1, ?, ?, 'waiting', 0, null, '') on conflict (name) "
                    "do update set position = excluded.position, listed = 1, axes = excluded.axes",
                    (name, index, json.dumps(axes), steps),
                )
        write_atomic(folder / "study.toml", definition.text.encode())
        return cls.open(folder)

    @property
    def lock(self) -> Path:
        """Held by the `study.run` that is at work."""
        return self.folder / "locks" / "study.lock"

    @property
    def lives(self) -> bool:
        """Whether `study.run` is at work now."""
        return lock_holder(self.lock) is not None

    def runs(self) -> list[RunState]:
        """List all runs of the study in the order of its expansion."""
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
        """Say where the complete config of a run is."""
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
        """Open one transaction. Who may not write may still read: then the file is opened as it lies on the disk."""
        mode = "" if os.access(self.folder, os.W_OK) else "?mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(f"{self._path.resolve().as_uri()}{mode}", timeout=30, uri=True)
            with closing(connection), connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise UserError(f"{self._path} cannot be used: {error}") from None


# A folder that a study may be carried out in


def prepare(folder: Path, definition: Definition, planned: Sequence[Planned]) -> Study:
    """Make or extend the study in `folder`; what is finished there stays.

    Raises UserError as `check_study_folder` does.
    """
    check_study_folder(folder, definition, planned)
    listed = [(run.name, run.axes, run.config.total_steps) for run in planned]
    with disk_errors(folder):
        study = Study.create(folder, definition, listed)
        (folder / "configs").mkdir(exist_ok=True)
    for run in planned:
        path = study.config_of(run.name)
        if not path.exists():
            write_atomic(path, run.toml.encode())
    return study


def check_study_folder(folder: Path, definition: Definition, planned: Sequence[Planned]) -> None:
    """Refuse, with nothing written, a folder in which the study would lie among strangers.

    Raises UserError where the folder is none or holds something else or another study, and where a run of the same
    name was made with another config: its numbers would not belong here.
    """
    with disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--folder {folder} is no folder; name another")
        if (folder / STATE).exists():
            _check_study(folder, definition, planned)
        elif folder.exists():
            _check_empty(folder)
        for run in planned:
            _check_same(folder / "configs" / f"{run.name}.toml", run)


def _check_empty(folder: Path) -> None:
    if any((folder / name).exists() for name in ARCHIVES):
        raise UserError(f"{folder} is the archive of a study: give another --folder, and --take-from {folder}")
    strange = sorted(path.name for path in folder.iterdir() if path.name != "locks")
    if strange:
        raise UserError(f"{folder} is not empty and no study ({strange[0]} is in it); give another --folder")


def _check_study(folder: Path, definition: Definition, planned: Sequence[Planned]) -> None:
    """Refuse a study that is not this one: of its title, and with a run in common."""
    there, hint = Study.open(folder), "give another --folder"
    if there.title != definition.title:
        raise UserError(f"{folder} holds the study '{there.title}', not '{definition.title}'; {hint}")
    made = {path.stem for path in (folder / "configs").glob("*.toml")}
    if made and made.isdisjoint(run.name for run in planned):
        raise UserError(f"the study in {folder} has none of these runs but others, such as {min(made)}; {hint}")


def _check_same(path: Path, run: Planned) -> None:
    """Refuse a run whose config is not the one it was made with, and name the first line that differs."""
    if not path.exists():
        return
    made = from_record(type(run.config), path.read_text(encoding="utf-8"), str(path))
    if made != run.config:
        ours, theirs = run.toml.splitlines(), Planned(run.name, run.axes, made).toml.splitlines()
        pairs = ((old, new) for old, new in zip(theirs, ours, strict=False) if old != new)
        old, new = next(pairs, (f"{len(theirs)} lines", f"{len(ours)} lines"))
        raise UserError(
            f"the study in {path.parent.parent} was made with other settings of {run.name} ({old}, now {new}); "
            "give another --folder, or the definition it was made with"
        )


# What the folder of a run tells


def finished(folder: Path) -> bool:
    """Tell whether the last checkpoint is the final one: the metrics that it names end on a final evaluation.

    Where the checkpoint is gone, or was never here because an archive holds none, the hashes tell: only a finished run
    has them. Raises UserError where the manifest or the metrics are damaged.
    """
    saved = checkpoint(folder)
    if saved is None and not (folder / HASHES).is_file():
        return False
    line = final_metrics(folder)
    return any(name.startswith("final/") for name in line) and (saved is None or line.get("step") == saved["step"])


def checkpoint(folder: Path) -> dict[str, Any] | None:
    """Read what the manifest of a run's checkpoint says (None: there is none yet); a UserError names a damaged one."""
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
    """Read the SHA-256 of each raw file when its run was finished, nothing before; a UserError names a damaged list."""
    path = folder / HASHES
    try:
        return {str(name): str(digest) for name, digest in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def final_metrics(folder: Path) -> dict[str, Any]:
    """Read the line of a finished run's final evaluation: the last that its checkpoint, if it has one, names.

    Raises:
        UserError: the file has less or other content.
    """
    saved, path = checkpoint(folder), folder / "metrics.jsonl"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    length = len(data) if saved is None else saved["metrics_bytes"]
    if len(data) < length:
        raise UserError(f"{path} is damaged: it has {len(data)} bytes, fewer than the saved {length}")
    try:
        return dict(json.loads((data[:length].splitlines() or [b"{}"])[-1]))
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged: its last line is not a JSON object") from None


def last_step(folder: Path) -> int:
    """Count the environment steps of the last line that a run has logged so far, 0 where it has none."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError, TypeError):  # a run that is being written, or not yet begun
        return 0


# Locks that end with their holder, however it ends: held through an open file, which a child process inherits. On a
# network file system that emulates such locks a child does not inherit them; there a trainer is told to end with its
# parent (see `child`), so nobody is left who would have to be noticed.


def acquire_lock(path: Path, patience: float = PATIENCE) -> int | None:
    """Open a descriptor that holds the lock until all its copies are closed; None where somebody has it."""
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
    """Say who holds a lock: {"pid", "host", "since"}, or None where nobody does."""
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


# Figures as people say them


def in_words(seconds: float | None) -> str:
    """Say a time: 40 s, 12 min, 3.4 h, 2.1 days."""
    if seconds is None:
        return "unknown"
    for unit, least, size in (("days", 86_400 * 2, 86_400), ("h", 5_400, 3_600), ("min", 90, 60)):
        if seconds >= least:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def size_in_words(megabytes: float | None) -> str:
    """Say a size on a disk."""
    if megabytes is None:
        return "unknown"
    return f"{megabytes / 1000:.3g} GB" if megabytes >= 1000 else f"{megabytes:.3g} MB"
