"""The state of a study, in its own folder: readable while it runs and after a crash.

STUDY/
  study.toml       the definition, as its author wrote it     configs/<run>.toml   complete config of a run
  study.sqlite3    which run is where; only `study.run` writes  runs/<run>/          run folder of the trainer
  locks/           who is at work, released by any death      logs/<run>.log       what the trainer said

study = Study.open(Path("runs/studies/smoke"))
[run.folder for run in study.runs() if run.state == "finished"]
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import write_atomic
from dqn_memory.study import locks
from dqn_memory.study.definition import Definition, Label

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
        """Module of the trainer, such as dqn_memory.train."""
        return str(self._facts["kind"])

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
        return locks.holder(self.lock) is not None

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
