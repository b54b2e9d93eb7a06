"""Make a study of runs that were trained one by one, so that they are reported and archived as others are."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import installed_trainers, trainer_class
from dqn_memory.runs.toml import SCHEMA, defaults, from_toml, to_toml
from dqn_memory.study.archive import CONFIG, RunRecord, Source, is_archive, open_source, portable, read_run, shared
from dqn_memory.study.definition import AXES, File, Label, Line, Resources, flat, parse_file, slug
from dqn_memory.study.store import RunState, checkpoint, final_metrics

SEED = re.compile(r"[-_]?(seed)?[-_]?\d+$")  # how the name of a run's folder tells its seed
OWN = ("seed", "output.", "environment.env", "world.env", "schema")  # what runs of one series need not share
Found = Sequence[tuple[RunState, RunRecord]]


def is_run(folder: Path) -> bool:
    """Tell whether a folder is that of a single run."""
    return (folder / CONFIG).is_file() and not is_archive(folder)


def gather(paths: Sequence[Path], name: str, title: str = "") -> Source:
    """Make a study of folders of finished runs, and of archives whose other runs are taken along.

    Without a title it has that of the first archive, or the environments' names. A UserError where a run is unfinished,
    or runs do not belong together.
    """
    archives = [open_source(path) for path in paths if is_archive(path)]
    for problems in (found for each in archives for found in each.damage.values()):
        raise UserError(f"{problems[0]}; take runs from sound archives alone")
    single = [_single(path) for path in paths if not is_archive(path)]
    given = {run.name for run, _ in single}
    kept = [(run, each.record(run)) for each in archives for run in each.runs if run.name in (each.recorded or {})]
    found = [*(pair for pair in kept if pair[0].name not in given), *single]
    names = [run.name for run, _ in found]
    if double := sorted({each for each in names if names.count(each) > 1}):
        raise UserError(
            f"two of the runs would be called {double[0]}: each must differ in environment, in its config's seed, or "
            "in its folder's name without the digits at the end, which is its series"
        )
    kinds = {kind_of(record, run.name) for run, record in found}
    if len(kinds) != 1 or any(archive.axes != AXES for archive in archives):
        raise UserError("the runs are of several trainers or axes, and a report or an archive is of one; make several")
    kind = kinds.pop()
    worlds = ", ".join(dict.fromkeys(run.world for run, _ in found))
    title = title or next((archive.title for archive in archives), worlds)
    about = next((archive.about for archive in archives), "")
    lines = {label: line for archive in archives for label, line in archive.lines.items()}
    written = [parse_file(archive.definition, str(archive.folder)) for archive in archives]
    return Source(
        folder=paths[0] if len(paths) == 1 else Path(name), name=name, title=title, about=about, kind=kind, smoke=False,
        axes=AXES, runs=tuple(run for run, _ in found), recorded={run.name: record for run, record in found},
        definition=definition_text(kind, title, about, found, lines, written), lines=lines,
        shown={"returns": any(archive.shown.get("returns") for archive in archives)},
    )  # fmt: skip


def _single(path: Path) -> tuple[RunState, RunRecord]:
    """Read a finished run; its series is named after its folder, or the one above where that is named by its seed."""
    record = read_run(path)
    last = next((line for line in reversed(record.metrics) if any(key.startswith("final/") for key in line)), None)
    if last is None or (checkpoint(path) is not None and final_metrics(path) is None):  # lengthened, and then stopped
        raise UserError(f"{path} is not finished: it has no final evaluation; continue it with --resume {path}")
    path = path.resolve()
    settings = flat(record.config)
    kind_of(record, str(path / CONFIG))  # which checks all settings
    env, series, seed = settings["environment.env"], SEED.sub("", path.name) or path.parent.name, settings["seed"]
    axes: dict[str, Label] = {"world": env, "architecture": series, "seed": seed}
    state = RunState(
        name=f"{slug(env)}__{slug(series)}__seed-{seed}", axes=axes, state="finished", folder=path,
        steps=int(settings["total_steps"]), attempts=1, seconds=last.get("time/elapsed"),
    )  # fmt: skip
    return state, portable(record, path.parent, f"runs/{path.parent.name}")


def kind_of(record: RunRecord, name: str) -> str:
    """Tell the trainer by the config that it can read."""
    for kind in installed_trainers().names:
        try:
            from_toml(trainer_class(kind).config_class, record.config_toml, name)
        except UserError:
            continue
        return kind
    raise UserError(f"{name}: its config.toml is of no known trainer")


def definition_text(
    kind: str, title: str, about: str, found: Found, lines: Mapping[str, Line], written: Sequence[File] = ()
) -> str:
    """Write the definition whose runs these are: settings that all share, and those of each series.

    It has the resources of the first of the definitions `written` before that says any, and of all of them what is
    skipped, unless a run is here.
    """
    config_class = trainer_class(kind).config_class
    start = flat(tomllib.loads(to_toml(defaults(config_class))))
    configs: dict[str, list[dict[str, Any]]] = {}  # as today's trainer writes them, by series
    for run, record in found:
        known = flat(tomllib.loads(to_toml(from_toml(config_class, record.config_toml, run.name))))
        own = {path: value for path, value in known.items() if not path.startswith(OWN)}
        configs.setdefault(run.architecture, []).append(own)
    base = shared([config for several in configs.values() for config in several])
    series = {
        name: {path: value for path, value in shared(several).items() if path not in base}
        for name, several in configs.items()
    }
    text: dict[str, Any] = {"schema": SCHEMA, "title": title, "kind": kind, "about": about}
    text["base"] = {path: value for path, value in base.items() if repr(start.get(path)) != repr(value)}
    text["axes"] = {
        "world": list(dict.fromkeys(run.world for run, _ in found)),
        "architecture": [{"name": name, **settings} for name, settings in series.items()],
        "seed": sorted({run.seed for run, _ in found}),
    }
    resources = next((file.resources for file in written if file.resources != Resources()), Resources())
    if resources != Resources():
        text["resources"] = {key: value for key, value in vars(resources).items() if value is not None}
    if skip := [rule for file in written for rule in file.skip if _skips_others(rule, [run for run, _ in found])]:
        text["skip"] = skip
    if lines:
        text["lines"] = {
            label: {name: score for name, score in vars(line).items() if not math.isnan(score)}
            for label, line in lines.items()
        }
    return tomli_w.dumps(text)


def _skips_others(rule: Mapping[str, Any], runs: Sequence[RunState]) -> bool:
    """Tell whether a rule names what is known of these runs, and none of them."""
    lists = {axis: given if isinstance(given, list) else [given] for axis, given in rule.items()}
    wanted = {axis: {str(label) for label in given} for axis, given in lists.items()}
    known = all(labels <= {str(run.axes.get(axis)) for run in runs} for axis, labels in wanted.items())
    return known and not any(all(str(run.axes[axis]) in labels for axis, labels in wanted.items()) for run in runs)
