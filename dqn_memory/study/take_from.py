"""Copy finished runs of other studies and archives into a study, instead of training them (`--take-from`).

A run is copied if it has the settings and the seed of a run of the study. The runs of an archive come without
checkpoints, which no report needs.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.toml import from_toml, parse_toml, to_toml
from dqn_memory.study.archive import Source, find_study, open_source
from dqn_memory.study.definition import Planned
from dqn_memory.study.run_record import CONFIG, ENVIRONMENT, finished, placeless, read_file, unpack, write_checksums
from dqn_memory.study.store import HOME, RunState, Study
from envs.files import check_inside, disk_errors, make_inside, open_file, parse_json, read_text, write_text

NOTHING_TAKEN = "took nothing: --take-from has none of these runs with the same trainer and settings"


def take_finished_runs(
    study: Study, planned: Sequence[Planned], sources: Sequence[Path], say: Callable[[str], object]
) -> None:
    """Copy each planned run that has no folder in `study` yet and is finished in a source.

    Damaged runs are named and not copied. A source of another trainer has no such runs.

    Raises:
        UserError: a source is no study.
    """
    missing = [run for run in planned if not (study.folder / "runs" / run.name).exists()]
    for path in sources:
        source = open_source(find_study(path))
        if source.folder.resolve() == study.folder.resolve():
            raise UserError(f"--take-from {source.folder} is the study itself: give the folder of another study")
        left = [run for run in missing if not (study.folder / "runs" / run.name).exists()]
        for name, run in matching_runs(source, study.kind, left, say).items():
            _copy(run, study.folder / "runs" / name, source)
            say(f"took     {name} from {run.folder}")
    if sources and missing and not any((study.folder / "runs" / run.name).exists() for run in missing):
        say(NOTHING_TAKEN)


def matching_runs(
    source: Source, kind: str, planned: Sequence[Planned], say: Callable[[str], object]
) -> dict[str, RunState]:
    """Give by name the planned runs that are finished in a source; say which ones are damaged."""
    if source.kind != kind or not planned:
        return {}
    by_settings: dict[str, RunState] = {}
    for run in source.runs:
        try:
            if run.state == "finished" and (source.recorded is not None or finished(run.folder)):
                by_settings |= _by_settings(run, source, type(planned[0].config))
        except UserError as error:
            say(f"not taken {run.name}: {error}")
    found = {wanted.name: by_settings.get(settings_key(wanted.config)) for wanted in planned}
    same = {name: run for name, run in found.items() if run is not None}
    for name, problems in [(name, source.damage.get(run.name)) for name, run in same.items()]:
        if problems:
            say(f"not taken {name}: {problems[0]}")
            del same[name]
    return same


def _by_settings(run: RunState, source: Source, config_class: Any) -> dict[str, RunState]:
    """Give a run by its settings, and by these without the observation key, because a run may choose that itself."""
    config = from_toml(config_class, source.record(run).config_toml, str(run.folder / CONFIG))
    config = replace(config, output=replace(config.output, run=None))
    without = replace(config, environment=replace(config.environment, observation_key=None))
    return {settings_key(config): run, settings_key(without): run}


def settings_key(config: Any) -> str:
    """Write the settings on which the numbers of a run depend.

    The result leaves out trackers, device and engine, and the widths that --match sets at the start of a run.
    """
    if getattr(config, "match", None) is not None:
        config = replace(config, network=replace(config.network, width=1, head_width=1))
    if config.environment.path is not None:
        path = str(Path(config.environment.path).resolve())
        config = replace(config, environment=replace(config.environment, path=path))
    compute = replace(config.compute, device="auto", engine="eager", threads=None)
    return to_toml(replace(config, compute=compute, output=replace(config.output, track=())))


def _copy(run: RunState, folder: Path, source: Source) -> None:
    """Copy a run completely or not at all. Its config gets its new folder; its command stays."""
    partial = folder.with_name(f".{folder.name}.partial")
    config, environment = partial / CONFIG, partial / ENVIRONMENT
    make_inside(folder.parents[1], folder.parent.name)
    check_inside(folder.parent, partial.name)
    with disk_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        if source.recorded is not None:
            unpack(source.record(run), partial)
        else:
            shutil.copytree(run.folder, partial, symlinks=True, copy_function=_copy_file)
        values = parse_toml(read_text(config, follow=False), str(config))
        output = values.get("output", {}) | {"run": str(folder.resolve())}
        write_text(config, tomli_w.dumps(values | {"output": output}))
        facts = placeless(read_file(environment, parse_json), source.folder, f"{HOME}/{source.name}")
        write_text(environment, json.dumps(facts, indent=1))
        write_checksums(partial)
        partial.replace(folder)


def _copy_file(source: str, target: str) -> None:
    with open_file(Path(source)) as read, open_file(Path(target), "xb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
    shutil.copystat(source, target)
