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
from envs.files import disk_errors


def take_over(study: Study, planned: Sequence[Planned], sources: Sequence[Path], say: Callable[[str], object]) -> None:
    """Copy into `study` each planned run that has no folder there yet and is finished in a source.

    A source must have the same trainer to give any; a UserError where one is no study at all. Damaged runs are named
    and not taken.
    """
    for source in _opened(sources, study.folder):
        offered, unread = _offered(source, study.kind, _missing(study.folder, planned))
        for name, why in unread.items():
            say(f"not taken {name}: {why}")
        for run, found in offered:
            if problems := source.damage.get(found.name):
                say(f"not taken {run.name}: {problems[0]}")
                continue
            _copy(found, run_folder(study.folder, run.name), source)
            say(f"took     {run.name} from {found.folder}")


def takeable(folder: Path, kind: str, planned: Sequence[Planned], sources: Sequence[Path]) -> dict[str, RunState]:
    """Find what `take_over` would copy into the study in `folder`: a source's run by the name it would have there."""
    missing = _missing(folder, planned)
    taken: dict[str, RunState] = {}
    for source in _opened(sources, folder):
        for run, found in _offered(source, kind, missing)[0]:
            if not source.damage.get(found.name):
                taken.setdefault(run.name, found)
    return taken


def _missing(folder: Path, planned: Sequence[Planned]) -> list[Planned]:
    return [run for run in planned if not run_folder(folder, run.name).exists()]


def _opened(sources: Sequence[Path], folder: Path) -> Iterator[Source]:
    for path in sources:
        source = open_source(study_folder(path))
        if source.folder.resolve() == folder.resolve():
            raise UserError(f"--take-from {source.folder} is the study itself: give the folder of another")
        yield source


def _offered(
    source: Source, kind: str, planned: Sequence[Planned]
) -> tuple[list[tuple[Planned, RunState]], dict[str, str]]:
    """Pair each of `planned` that is finished in a source, sound or damaged, with the run there.

    The second value says by name why runs of the source cannot be compared.
    """
    if source.kind != kind or not planned:
        return [], {}
    held, unread = _held(source, type(planned[0].config))
    return [(run, held[run.toml]) for run in planned if run.toml in held], unread


def _held(source: Source, config_class: type) -> tuple[dict[str, RunState], dict[str, str]]:
    """Find a source's finished runs by their complete config, as this version writes it, and those without one."""
    held, unread = dict[str, RunState](), dict[str, str]()
    for run in source.runs:
        try:
            if run.state == "finished" and (source.recorded is not None or finished(run.folder)):
                text = _text(run.config) if source.recorded is None else source.record(run).config_toml
                config: Any = from_record(config_class, text, str(run.config))
                held[to_toml(_placeless(config))] = run
        except UserError as error:
            unread[run.name] = str(error)
    return held, unread


def _placeless(config: Any) -> Any:
    """Take the folder of its run out of a config."""
    return replace(config, output=replace(config.output, run=None))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _copy(run: RunState, folder: Path, source: Source) -> None:
    """Copy a run whole or not at all. Its config names its new folder; its command stays that of the run it was."""
    partial = folder.with_name(f".{folder.name}.partial")
    with disk_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        if source.recorded is not None:
            unpack(source.record(run), partial)
        else:
            shutil.copytree(run.folder, partial)
        _place(partial / "config.toml", folder.resolve())
        _rename(partial / "environment.json", source.folder, f"{HOME}/{source.name}")
        write_checksums(partial)
        partial.replace(folder)


def _place(path: Path, folder: Path) -> None:
    """Let a config say in which folder its run is."""
    values = tomllib.loads(_text(path))
    output = values.get("output", {}) | {"run": str(folder)}
    path.write_text(tomli_w.dumps(values | {"output": output}), encoding="utf-8")


def _rename(path: Path, folder: Path, place: str) -> None:
    """Take the study's folder on this machine out of a file."""
    if path.is_file():
        path.write_bytes(placeless(path.read_bytes(), folder, place))
