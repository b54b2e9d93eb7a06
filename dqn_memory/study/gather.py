"""Make a study of runs that were trained one by one, so that they are reported and archived as others are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import TRAINERS, trainer_class
from dqn_memory.runs.migration import SCHEMA
from dqn_memory.runs.settings import from_record, to_toml
from dqn_memory.runs.toml import defaults
from dqn_memory.study.archive import (
    CONFIG,
    RunRecord,
    Source,
    is_archive,
    open_source,
    portable,
    read_run,
    renamed,
    shared,
)
from dqn_memory.study.definition import AXES, Label, flat, slug
from dqn_memory.study.store import RunState

SEED = re.compile(r"[-_]?(seed)?[-_]?\d+$")  # how the name of a run's folder tells its seed
OWN = ("seed", "output.")  # settings that runs of one series need not share


def is_run(folder: Path) -> bool:
    """Tell whether a folder is that of a single run."""
    return (folder / CONFIG).is_file() and not is_archive(folder)


def gather(paths: Sequence[Path], name: str, title: str = "") -> Source:
    """Make a study of run folders and archives.

    Args:
        paths: folders of finished runs, and archives whose other runs are taken along.
        name: what the study is called.
        title: heading of its report; empty: that of the first archive, or the environments' names.

    Raises:
        UserError: a run is unfinished, or runs do not belong together.
    """
    archives = [open_source(path) for path in paths if is_archive(path)]
    single = [_single(path) for path in paths if not is_archive(path)]
    given = {run.name for run, _ in single}
    found = [
        (run, archive.record(run))
        for archive in archives
        for run in archive.runs
        if run.name in (archive.recorded or {}) and run.name not in given
    ] + single
    names = [run.name for run, _ in found]
    if double := sorted({each for each in names if names.count(each) > 1}):
        raise UserError(f"two of the runs would be called {double[0]}: each must differ in environment, series or seed")
    kinds = {kind_of(record, run.name) for run, record in found}
    if len(kinds) != 1 or any(archive.axes != AXES for archive in archives):
        raise UserError("the runs are of several trainers or axes; archive them apart")
    kind = kinds.pop()
    title = title or next((archive.title for archive in archives), ", ".join(dict.fromkeys(r.world for r, _ in found)))
    about = next((archive.about for archive in archives), "")
    folder = paths[0] if len(paths) == 1 else Path(name)
    return Source(
        folder=folder, name=name, title=title, about=about, kind=kind, smoke=False, axes=AXES,
        runs=tuple(run for run, _ in found), recorded={run.name: record for run, record in found},
        definition=definition_text(kind, title, about, found),
        shown={"returns": any(archive.shown.get("returns") for archive in archives)},
    )  # fmt: skip


def _single(path: Path) -> tuple[RunState, RunRecord]:
    """Read a finished run; its series is named after its folder, or the one above where that is named by its seed."""
    record = read_run(path)
    record = renamed(record, kind_of(record, str(path)))
    last = next((line for line in reversed(record.metrics) if any(key.startswith("final/") for key in line)), None)
    if last is None:
        raise UserError(f"{path} is not finished: it has no final evaluation; continue it with --resume {path}")
    path = path.resolve()
    settings = flat(record.config)
    env, series, seed = settings["environment.env"], SEED.sub("", path.name) or path.parent.name, settings["seed"]
    axes: dict[str, Label] = {"world": env, "architecture": series, "seed": seed}
    name = f"{slug(env)}__{slug(series)}__seed-{seed}"
    state = RunState(
        name=name, axes=axes, state="finished", folder=path, steps=int(settings["total_steps"]), attempts=1,
        seconds=last.get("time/elapsed"),
    )  # fmt: skip
    return state, portable(record, path.parent, f"runs/{path.parent.name}")


def kind_of(record: RunRecord, name: str) -> str:
    """Tell the trainer by the config that it can read."""
    for kind in entry_points(group=TRAINERS).names:
        try:
            from_record(trainer_class(kind).config_class, record.config_toml, name)
        except UserError:
            continue
        return kind
    raise UserError(f"{name}: its config.toml is of no known trainer")


def definition_text(kind: str, title: str, about: str, found: Sequence[tuple[RunState, RunRecord]]) -> str:
    """Write the definition whose runs these are: settings that all share, and those of each series."""
    configs = {run.name: _settings(kind, record, run.name) for run, record in found}
    base = shared(list(configs.values()))
    series: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(run.architecture for run, _ in found):
        own = shared([configs[run.name] for run, _ in found if run.architecture == name])
        series[name] = {path: value for path, value in own.items() if path not in base}
    start = flat(defaults_of(kind))
    axes = {
        "world": list(dict.fromkeys(run.world for run, _ in found)),
        "architecture": [{"name": name, **settings} for name, settings in series.items()],
        "seed": sorted({run.seed for run, _ in found}),
    }
    text: dict[str, Any] = {"schema": SCHEMA, "title": title, "kind": kind, "about": about}
    text["base"] = {path: value for path, value in base.items() if repr(start.get(path)) != repr(value)}
    return tomli_w.dumps(text | {"axes": axes})


def _settings(kind: str, record: RunRecord, name: str) -> dict[str, Any]:
    """Give settings by path as today's trainer writes them, without those that name the run."""
    config = from_record(trainer_class(kind).config_class, record.config_toml, name)
    known = flat(tomllib.loads(to_toml(config)))
    env = {"environment.env", "world.env", "schema"}
    return {path: value for path, value in known.items() if not path.startswith(OWN) and path not in env}


def defaults_of(kind: str) -> dict[str, Any]:
    """Give the settings of a trainer's defaults."""
    return tomllib.loads(to_toml(defaults(trainer_class(kind).config_class)))
