"""What a report is made from: a study's own folder, or a record of its raw numbers that was kept elsewhere.

A record is RECORD/record.json, which lists every run and the SHA-256 of every file, with study.toml and, for each
finished run, runs/<run>/config.toml, environment.json, metrics.jsonl, readings.json and, where there are maps,
attention.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import METRICS, RAW, sha256
from dqn_memory.runs.metrics import read_metrics
from dqn_memory.runs.migration import KINDS
from dqn_memory.study.definition import Line, read_lines
from dqn_memory.study.store import HASHES, RunState, Study, read_checksums, run_folder

RECORD = "record.json"
FORMAT = "dqn-memory study record 1"
READINGS, ATTENTION, CONFIG = "readings.json", "attention.json", "config.toml"
DEFINITION = "study.toml"
Damage = Mapping[str, tuple[str, ...]]
FACTS = ("name", "title", "about", "kind", "smoke", "axes")


@dataclass(frozen=True)
class Source:
    """A study as a report sees it. `damage` says by run what is wrong with its files ("" for the study's own)."""

    folder: Path
    name: str
    title: str
    about: str
    kind: str
    smoke: bool
    axes: tuple[str, ...]
    runs: tuple[RunState, ...]
    recorded: bool
    lines: Mapping[str, Line] = field(default_factory=dict)  # of the study's own definition, by world
    damage: Damage = field(default_factory=dict)

    @property
    def worlds(self) -> list[str]:
        return list(dict.fromkeys(run.world for run in self.runs))


def open_source(folder: Path) -> Source:
    """The study or the record in a folder.

    A UserError where there is neither; damaged files are no error but are named in `damage`.
    """
    if (folder / RECORD).is_file():
        return _open_record(folder)
    study = Study.open(folder)
    runs = tuple(study.runs())
    facts: dict[str, Any] = {name: getattr(study, name) for name in FACTS}
    lines, damage = _lines(folder, _changed(study, runs))
    return Source(folder=folder, runs=runs, recorded=False, lines=lines, damage=damage, **facts)


def placeless(text: bytes, folder: Path, name: str) -> bytes:
    """A raw file in which a study's folder is told as runs/studies/NAME: no machine's paths are kept.

    The path is looked for as it is, and as TOML and JSON write it.
    """
    old, new = str(folder.resolve()), f"runs/studies/{name}"
    forms: tuple[Callable[[str], str], ...] = (
        str, lambda path: json.dumps(path, ensure_ascii=False)[1:-1], lambda path: json.dumps(path)[1:-1],
    )  # fmt: skip
    for form in forms:
        text = text.replace(form(old).encode(), form(new).encode())
    return text


def only_numbers(source: Source, run: RunState) -> bool:
    """Whether a run is without its checkpoint: all of a record are, and those that a study took from one."""
    return source.recorded or (run.folder / READINGS).is_file()


def _open_record(folder: Path) -> Source:
    path = folder / RECORD
    try:
        content = json.loads(path.read_bytes())
        facts = {name: content["study"][name] for name in FACTS}
        runs = tuple(_run(folder, entry) for entry in content["runs"])
        files = dict(content["files"])
        known = content["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from None
    if not known:
        raise UserError(f"{path} is foreign: it is not a '{FORMAT}'")
    facts["axes"] = tuple(facts["axes"])
    facts["kind"] = KINDS.get(facts["kind"], facts["kind"])
    lines, damage = _lines(folder, damaged(folder, files))
    return Source(folder=folder, runs=runs, recorded=True, lines=lines, damage=damage, **facts)


def _lines(folder: Path, damage: Damage) -> tuple[Mapping[str, Line], Damage]:
    """Lines of the kept definition, and the damage, with what is wrong with them."""
    try:
        return read_lines(folder / DEFINITION), damage
    except UserError as error:
        return {}, {**damage, "": (*damage.get("", ()), str(error))}


def _run(folder: Path, entry: Mapping[str, Any]) -> RunState:
    place = run_folder(folder, entry["name"])
    return RunState(**entry, folder=place, config=place / CONFIG, log=place / "log")


def plain_run(run: RunState) -> dict[str, Any]:
    """What a record says of a run; of an error it keeps the last line."""
    error = run.error.strip().splitlines()[-1:]
    return {
        "name": run.name, "axes": run.axes, "state": run.state, "steps": run.steps, "attempts": run.attempts,
        "seconds": run.seconds, "error": "".join(error),
    }  # fmt: skip


def damaged(folder: Path, files: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """By run, a sentence for each of the files (relative path: SHA-256) that is missing or has another content."""
    found: dict[str, tuple[str, ...]] = {}
    for name, digest in files.items():
        problem = _problem(folder / name, digest)
        parts = Path(name).parts
        run = parts[1] if parts[0] == "runs" else ""
        if problem:
            found[run] = (*found.get(run, ()), problem)
    return found


def _problem(path: Path, digest: str) -> str:
    try:
        if sha256(path.read_bytes()) == digest:
            return ""
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if path.name == METRICS:
        try:
            read_metrics(path)
        except UserError as error:
            return str(error)
    return f"{path} was changed: it is not what its SHA-256 vouches for"


def _changed(study: Study, runs: tuple[RunState, ...]) -> dict[str, tuple[str, ...]]:
    """What is no longer as it was when its run was finished, and the study's own file where it is lost."""
    found = {run.name: _since(run.folder) for run in runs if run.state == "finished"}
    definition = study.folder / DEFINITION
    found[""] = () if definition.is_file() else (f"{definition} is missing",)
    return {name: problems for name, problems in found.items() if problems}


def _since(folder: Path) -> tuple[str, ...]:
    try:
        before = read_checksums(folder)
    except UserError as error:
        return (str(error),)
    lost = [f"{folder / name} is missing" for name in RAW if name not in before and not (folder / name).is_file()]
    problems = [_problem(folder / name, digest) for name, digest in before.items()]
    meant = f" (if that was meant, delete {folder / HASHES})"
    return (*lost, *(problem + meant for problem in problems if problem))
