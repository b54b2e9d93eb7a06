"""Imports finished runs from other studies that made them with the very same settings, and the same seed.

The archive of a study is a source too: its runs come without their checkpoints, which no report needs, so that a study
goes on where only its numbers were kept.
"""

from __future__ import annotations

import json
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
from dqn_memory.study.archive import CONFIG, ENVIRONMENT, Source, find_study, open_source, placeless, unpack
from dqn_memory.study.definition import Planned
from dqn_memory.study.store import HOME, RunState, Study, config_file, finished, read_file, run_folder, write_checksums
from envs.files import disk_errors, read_text

Offer = tuple[str, RunState | None, Source, str]


def take_over(study: Study, planned: Sequence[Planned], sources: Sequence[Path], say: Callable[[str], object]) -> None:
    """Copy into `study` each planned run that has no folder there yet and is finished in a source.

    A source must have the same trainer to give any; a UserError where one is no study at all. Damaged runs are named
    and not taken.
    """
    for name, run, source, problem in offered(study.folder, study.kind, planned, sources):
        if run is None or problem:
            say(f"not taken {name}: {problem}")
        else:
            _copy(run, run_folder(study.folder, name), source)
            say(f"took     {name} from {run.folder}")


def offered(folder: Path, kind: str, planned: Sequence[Planned], sources: Sequence[Path]) -> Iterator[Offer]:
    """Yield the name of each planned run that a source has finished, that run, its source and why it is no good.

    Runs of a source that cannot be compared come with their name there and without a run.
    """
    for path in sources:
        source = open_source(find_study(path))
        if source.folder.resolve() == folder.resolve():
            raise UserError(f"--take-from {source.folder} is the study itself: give the folder of another")
        missing = [run for run in planned if not run_folder(folder, run.name).exists()]
        if source.kind != kind or not missing:
            continue
        held: dict[str, RunState] = {}
        for run in source.runs:
            try:
                if (config := _finished_config(source, run, type(missing[0].config))) is not None:
                    held[config] = run
            except UserError as error:
                yield run.name, None, source, str(error)
        for wanted in missing:
            if (found := held.get(wanted.toml)) is not None:
                yield wanted.name, found, source, next(iter(source.damage.get(found.name, ())), "")


def _finished_config(source: Source, run: RunState, config_class: type) -> str | None:
    """Give the complete config of a source's run, as this version writes it; None where it is not finished."""
    if run.state != "finished" or (source.recorded is None and not finished(run.folder)):
        return None
    path = config_file(source.folder, run.name)
    text = read_text(path) if source.recorded is None else source.record(run).config_toml
    config: Any = from_record(config_class, text, str(path))
    return to_toml(replace(config, output=replace(config.output, run=None)))


def _copy(run: RunState, folder: Path, source: Source) -> None:
    """Copy a run whole or not at all. Its config names its new folder; its command stays that of the run it was."""
    partial = folder.with_name(f".{folder.name}.partial")
    config, environment = partial / CONFIG, partial / ENVIRONMENT
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
            facts = placeless(read_file(environment, json.loads), source.folder, f"{HOME}/{source.name}")
            environment.write_text(json.dumps(facts, indent=1))
        write_checksums(partial)
        partial.replace(folder)
