"""Create, read and update the folder of a study, which is readable while the study runs and after a crash.

STUDY/
  study.toml    the definition, as its author wrote it      configs/<run>.toml   complete config of a run
  study.json    state of each run; `study.run` writes it    runs/<run>/          run folder of the trainer
  locks/        locks, which end with their processes       logs/<run>.log       output of the trainer

study = Study.open(Path("runs/studies/smoke"))
[run.folder for run in study.runs() if run.state == "finished"]
"""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.lock import lock_holder
from dqn_memory.runs.metrics import is_count, is_number
from dqn_memory.runs.toml import flat, from_toml, to_toml
from dqn_memory.study.definition import MAX_TEXT, Definition, Label, Planned
from envs.files import (
    MAX_TEXT_BYTES,
    check_inside,
    disk_errors,
    make_inside,
    parse_json,
    portable_name,
    read_bytes,
    read_text,
    write_atomic,
)

State = Literal["finished", "running", "waiting", "stopped", "failed"]
FORMAT = "dqn-memory study 2"
STATE, DEFINITION = "study.json", "study.toml"
MAX_LABEL = 1_000  # characters of a value of an axis, so that a report is drawn in reasonable time
LOCK = Path("locks/study.lock")  # held by the running `study.run`
HOME = Path("runs/studies")  # default folder for studies
INDEX = "archive.json"  # marks a folder as the archive of a study
FOLDERS = ("configs", "runs", "logs", "locks")


@dataclass(frozen=True)
class RunState:
    """One run of a study. A `stopped` run was started and continues from its last checkpoint."""

    name: str
    axes: dict[str, Label]
    state: State
    folder: Path
    steps: int
    """Environment steps of the complete run."""
    attempts: int = 0
    """Number of starts of its trainer."""
    seconds: float | None = None
    """Wall-clock time of the finished run, including all attempts."""
    error: str = ""
    """Reason why it failed or stopped: the last lines of its log."""

    @property
    def world(self) -> str:
        return str(self.axes["world"])

    @property
    def architecture(self) -> str:
        return str(self.axes["architecture"])

    @property
    def seed(self) -> int:
        return int(self.axes["seed"])

    @property
    def study(self) -> Path:
        """Folder of its study."""
        return self.folder.parents[1]

    @property
    def log(self) -> Path:
        """File with the output of the trainer in all attempts."""
        return self.study / "logs" / f"{self.name}.log"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a study; `axes` are in the order of its file."""

    name: str
    """Name of its file, with `-smoke` added for the cut."""
    title: str
    about: str
    kind: str
    """Kind of the trainer, such as q_network."""
    smoke: bool
    axes: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Give the facts by name."""
        return {field.name: getattr(self, field.name) for field in fields(Facts)}


def read_facts(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `Facts.plain`; a KeyError says that a fact is missing, a TypeError that it has another type."""
    texts = [plain[name] for name in ("name", "title", "about", "kind")]
    if not isinstance(plain["axes"], list) or not isinstance(plain["smoke"], bool):
        raise TypeError("axes is a list, and smoke is a truth value")
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in (*texts, *plain["axes"])):
        raise TypeError(f"name, title, about, kind and each axis are texts of at most {MAX_TEXT:,} characters")
    return {field.name: plain[field.name] for field in fields(Facts)} | {"axes": tuple(plain["axes"])}


def checked_run(run: RunState, axes: Sequence[str]) -> RunState:
    """Check a run that was read from a file; a TypeError names the fact of another type."""
    if not isinstance(run.name, str) or portable_name(run.name) != run.name or run.name.startswith("."):
        raise TypeError(f"{run.name!r:.99} is no name of a run")
    labels = isinstance(run.axes, dict) and all(
        isinstance(label, str) or is_number(label) or isinstance(label, bool) for label in run.axes.values()
    )
    if not labels or not {"world", "architecture", "seed", *axes} <= run.axes.keys() or not is_count(run.axes["seed"]):
        raise TypeError(f"the axes of {run.name} are not those of the study, with a whole number as the seed")
    if any(len(str(label)) > MAX_LABEL for label in run.axes.values()):
        raise TypeError(f"an axis of {run.name} has a value of more than {MAX_LABEL:,} characters")
    if run.state not in get_args(State) or not isinstance(run.error, str):
        raise TypeError(f"the state of {run.name} is unknown")
    if not (is_count(run.steps) and is_count(run.attempts) and (run.seconds is None or is_number(run.seconds))):
        raise TypeError(f"steps, attempts and seconds of {run.name} are not all numbers")
    return run


@dataclass(frozen=True, kw_only=True)
class Study(Facts):
    """A study's folder: `open` reads one, `create` makes or extends one."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a study; a UserError says that there is none, or that its state is damaged."""
        check_inside(folder, *FOLDERS)
        return cls(folder=folder, **_read_state(folder)["study"])

    @classmethod
    def create(cls, folder: Path, definition: Definition, planned: Sequence[Planned]) -> Self:
        """Make the folder, or list other runs in an existing one; finished runs stay."""
        check_inside(folder, *FOLDERS)
        make_inside(folder, "configs")
        facts = {name: getattr(definition, name) for name in ("name", "title", "about", "kind")}
        facts |= {"smoke": definition.is_cut, "axes": tuple(definition.axes)}
        before = _read_state(folder)["runs"] if os.path.lexists(folder / STATE) else {}
        runs = {
            run.name: {"steps": run.config.total_steps, "state": "waiting"}
            | before.pop(run.name, {})
            | {"axes": run.axes, "listed": True}
            for run in planned
        }
        others = {name: run | {"listed": False} for name, run in before.items()}
        _write_state(folder, {"study": facts, "runs": runs | others})
        write_atomic(folder / DEFINITION, definition.text.encode())
        for run in planned:
            if not os.path.lexists(path := folder / "configs" / f"{run.name}.toml"):
                write_atomic(path, run.toml.encode())
        return cls.open(folder)

    @property
    def is_running(self) -> bool:
        """Whether `study.run` is running."""
        return lock_holder(self.folder / LOCK) is not None

    def runs(self) -> list[RunState]:
        """List all runs of the study in the order of its expansion."""
        is_running, found = self.is_running, []
        try:
            for name, run in _read_state(self.folder)["runs"].items():
                facts = dict(run)
                if facts["state"] == "running" and not is_running:
                    facts["state"] = "stopped"
                if facts.pop("listed"):
                    found.append(checked_run(RunState(name, folder=self.folder / "runs" / name, **facts), self.axes))
        except (LookupError, TypeError, AttributeError) as error:
            path = self.folder / STATE
            raise UserError(f"{path} is damaged ({error}): delete it; {_advice(self.folder)}") from None
        check_inside(self.folder, *(f"runs/{run.name}" for run in found))
        return found

    def mark(self, name: str, state: State, error: str = "", seconds: float | None = None, begun: bool = False) -> None:
        """Write the state of a run; `begun` counts one more start of its trainer."""
        tree = _read_state(self.folder)
        run = tree["runs"][name]
        run |= {"state": state, "error": error, "seconds": seconds, "attempts": run.get("attempts", 0) + begun}
        _write_state(self.folder, tree)


def _read_state(folder: Path) -> dict[str, Any]:
    """Read the facts of a study and its runs; a UserError gives advice if they are missing or damaged."""
    path = folder / STATE
    if not os.path.lexists(path):
        hint = f"; {_advice(folder)}" if (folder / "configs").is_dir() else ""
        raise UserError(f"{folder} is no study: it has no {STATE}{hint}")
    try:
        tree = parse_json(read_bytes(path, MAX_TEXT_BYTES))
        found = {"study": read_facts(tree["study"]), "runs": dict(tree["runs"]), "format": tree["format"]}
    except OSError as error:
        raise UserError(f"{path} cannot be used: {error.strerror}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged ({reason:.400}): delete it; {_advice(folder)}") from None
    require(found["format"] == FORMAT, f"{path} is foreign: it is not a '{FORMAT}'")
    return found


def _advice(folder: Path) -> str:
    return f"study.run with its definition and --folder {folder} then makes it anew from the runs there"


def _write_state(folder: Path, state: Mapping[str, Any]) -> None:
    write_atomic(folder / STATE, json.dumps({"format": FORMAT, **state}, indent=1).encode())


def check_study_folder(folder: Path, definition: Definition, planned: Sequence[Planned]) -> None:
    """Check that the study may be written into a folder; write nothing.

    Raises:
        UserError: the folder holds something else or another study, or a run of the same name with another config.
    """
    hint = "give another --folder"
    check_inside(folder, *FOLDERS)
    with disk_errors(folder):
        inside = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        known = {path.stem for path in (folder / "configs").glob("*.toml")}
    if STATE in inside or known:
        title = Study.open(folder).title if STATE in inside else definition.title
        if title != definition.title:
            raise UserError(f"{folder} holds the study '{title}', not '{definition.title}'; {hint}")
        if known and known.isdisjoint(run.name for run in planned):
            raise UserError(f"the study in {folder} has none of these runs but others, such as {min(known)}; {hint}")
    elif INDEX in inside:
        raise UserError(f"{folder} is the archive of a study: {hint}, and --take-from {folder}")
    elif strange := [name for name in inside if name != "locks"]:
        raise UserError(f"{folder} is not empty and no study ({strange[0]} is in it); {hint}")
    for run in planned:
        if run.name in known:
            _check_same_config(folder, run, hint)


def _check_same_config(folder: Path, run: Planned, hint: str) -> None:
    """Check that the run of this name in a study's folder was made with the same config."""
    path = folder / "configs" / f"{run.name}.toml"
    try:
        made = from_toml(type(run.config), read_text(path, follow=False), str(path))
    except UserError as error:
        raise UserError(f"the study in {folder} is of another trainer or version; {hint} ({error})") from None
    if made != run.config:
        before, now = (flat(tomllib.loads(text)) for text in (to_toml(made), run.toml))
        changed = next((key for key in now if now[key] != before.get(key)), "")
        new = f"{changed.rpartition('.')[2]} = {json.dumps(now[changed])}" if changed else "one is gone"
        raise UserError(
            f"the study in {folder} was made with other settings of {run.name} (now {new}); {hint}, or the definition "
            "it was made with"
        )
