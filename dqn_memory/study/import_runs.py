"""Imports finished runs from other studies that made them with the very same settings, and the same seed.

The archive of a study is a source too: its runs come without their checkpoints, which no report needs, so that a study
goes on where only its numbers were kept.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import to_toml
from dqn_memory.runs.toml import from_record
from dqn_memory.study.archive import Source, open_source, placeless, unpack
from dqn_memory.study.definition import Planned
from dqn_memory.study.store import HOME, RunState, Study, finished, run_folder, study_folder, write_checksums
from envs.files import disk_errors, read_text


def take_over(study: Study, planned: Sequence[Planned], sources: Sequence[Path], say: Callable[[str], object]) -> None:
    """Copy into `study` each planned run that has no folder there yet and is finished in a source.

    A source must have the same trainer to give any; a UserError where one is no study at all. Damaged runs are named
    and not taken.
    """
    for name, run, source, problem in _offered(study.folder, study.kind, planned, sources):
        if run is None or problem:
            say(f"not taken {name}: {problem}")
        else:
            _copy(run, run_folder(study.folder, name), source)
            say(f"took     {name} from {run.folder}")


def takeable(folder: Path, kind: str, planned: Sequence[Planned], sources: Sequence[Path]) -> dict[str, RunState]:
    """Find what `take_over` would copy into the study in `folder`: a source's run by the name it would have there."""
    taken: dict[str, RunState] = {}
    for name, run, _, problem in _offered(folder, kind, planned, sources):
        if run is not None and not problem:
            taken.setdefault(name, run)
    return taken


def _offered(
    folder: Path, kind: str, planned: Sequence[Planned], sources: Sequence[Path]
) -> Iterator[tuple[str, RunState | None, Source, str]]:
    """Yield the name of each planned run that a source has finished, that run, its source and why it is no good.

    Runs of a source that cannot be compared come with their name there and without a run.
    """
    for path in sources:
        source = open_source(study_folder(path))
        if source.folder.resolve() == folder.resolve():
            raise UserError(f"--take-from {source.folder} is the study itself: give the folder of another")
        missing = [run for run in planned if not run_folder(folder, run.name).exists()]
        if source.kind != kind or not missing:
            continue
        held, unread = _held(source, type(missing[0].config))
        yield from ((name, None, source, why) for name, why in unread.items())
        for run in missing:
            if (found := held.get(run.toml)) is not None:
                yield run.name, found, source, next(iter(source.damage.get(found.name, ())), "")


def _held(source: Source, config_class: type) -> tuple[dict[str, RunState], dict[str, str]]:
    """Find a source's finished runs by their complete config, as this version writes it, and those without one."""
    held, unread = dict[str, RunState](), dict[str, str]()
    for run in source.runs:
        try:
            if run.state == "finished" and (source.recorded is not None or finished(run.folder)):
                text = read_text(run.config) if source.recorded is None else source.record(run).config_toml
                config: Any = from_record(config_class, text, str(run.config))
                held[to_toml(replace(config, output=replace(config.output, run=None)))] = run
        except UserError as error:
            unread[run.name] = str(error)
    return held, unread


def _copy(run: RunState, folder: Path, source: Source) -> None:
    """Copy a run whole or not at all. Its config names its new folder; its command stays that of the run it was."""
    partial = folder.with_name(f".{folder.name}.partial")
    config, environment = partial / "config.toml", partial / "environment.json"
    with disk_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        if source.recorded is not None:
            unpack(source.record(run), partial)
        else:
            shutil.copytree(run.folder, partial)
        values = tomllib.loads(read_text(config))
        output = values.get("output", {}) | {"run": str(folder.resolve())}
        config.write_text(tomli_w.dumps(values | {"output": output}), encoding="utf-8")
        if environment.is_file():
            environment.write_bytes(placeless(environment.read_bytes(), source.folder, f"{HOME}/{source.name}"))
        write_checksums(partial)
        partial.replace(folder)
