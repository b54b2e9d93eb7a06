"""What temporal priors have learned: over training, and at its end as bars per head and layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dqn_memory import drawing_world_model
from dqn_memory.study.report_data import Data, Entry
from dqn_memory.study.report_figures import over_time_figure
from dqn_memory.study.report_page import Grid, Part, Picture, Section, Words, slug
from dqn_memory.study.statistics import Floats

NAME = re.compile(r"^memory/(\d+)\.(\d+)\.(mu|sigma|span)$")
TITLE = "Learned priors"
Place = tuple[int, int]  # layer, head
Learned = dict[str, dict[Place, Floats]]  # by name and place, (R, E)


def priors_section(data: Data) -> Section:
    """Pictures of learned mu, sigma and span of each world and series that learns any."""
    parts: list[Part] = []
    rows: list[tuple[str, ...]] = []
    for world in data.worlds:
        for series in data.series:
            steps, learned = learned_values(data.of(world, series))
            if learned:
                starts = first_values(data.of(world, series)[0].config)
                learned = {name: heads for name, heads in learned.items() if name in starts}
                parts += _pictures(f"{series} in {world}", steps, learned, starts, _unit(data))
                rows += _rows(world, series, learned, starts)
    if not parts:
        return Section(TITLE, (Words("No finished run has a prior that learns."),))
    words = Words(
        f"Distances are in {_unit(data)}. Bars and lines are means over seeds, whiskers and bands their standard "
        "deviation; dashed: where every head began."
    )
    header = ("world", "series", "seeds", "layer", "head", "value", "start", "mean", "deviation")
    return Section(TITLE, (words, *parts, Grid(header, tuple(rows))))


def _unit(data: Data) -> str:
    return "steps" if data.source.kind == "dqn_memory.train" else "tokens"  # of which a world model has two a step


def learned_values(runs: Sequence[Entry]) -> tuple[Floats, Learned]:
    """Steps (E,) at which all runs logged what they had learned, and the values; empty where they learn nothing."""
    logs = [_logged(run) for run in runs]
    if not logs or not all(logs):
        return np.zeros(0), {}
    steps = sorted(set.intersection(*(set(log) for log in logs)))
    names = sorted({name for log in logs for line in log.values() for name in line})
    learned: Learned = {}
    for name in names if steps else ():
        values = np.array([[log[step].get(name, np.nan) for step in steps] for log in logs], np.float64)
        layer, head, what = _parts(name)
        learned.setdefault(what, {})[layer, head] = values
    return np.array(steps), learned


def _logged(run: Entry) -> dict[int, dict[str, float]]:
    """What was learned by step; other lines of the same step say other things."""
    found: dict[int, dict[str, float]] = {}
    for line in run.lines:
        values = {name: value for name, value in line.items() if NAME.match(name)}
        if values:
            found[line["step"]] = values
    return found


def _parts(name: str) -> tuple[int, int, str]:
    found = NAME.match(name)
    assert found is not None
    return int(found[1]), int(found[2]), found[3]


def first_values(config: Any) -> dict[str, float]:
    """Where each learned value began, the same in every head, from the config of any trainer with priors."""
    if hasattr(config, "network"):
        fresh = config.network.prior.build(config.network.heads, config.network.context)
    else:
        fresh = config.model.prior.build(config.model.heads, 2 * config.model.horizon)
    return {name: float(values.detach()[0]) for name, values in fresh.learned().items()}


def _pictures(where: str, steps: Floats, learned: Learned, starts: dict[str, float], unit: str) -> list[Part]:
    lines = {
        name: (steps, {f"layer {layer}, head {head}": values for (layer, head), values in heads.items()})
        for name, heads in learned.items()
    }
    ends = {name: _ends(heads) for name, heads in learned.items()}
    bars = drawing_world_model.learned_values(ends, starts, f"Learned at the end: {where}", unit)
    time = over_time_figure(lines, starts, f"Learned over training: {where}")
    name = slug(where)
    return [
        Picture(
            f"learned-{name}",
            bars,
            f"Learned values by head and layer: {where}, {len(next(iter(ends.values())))} seeds.",
        ),
        Picture(f"learning-{name}", time, f"Learned values over training: {where}."),
    ]


def _ends(heads: dict[Place, Floats]) -> Floats:
    """Values at the end by run, layer and head, (R, L, H)."""
    layers, numbers = (sorted({place[i] for place in heads}) for i in (0, 1))
    return np.array([[heads[layer, head][:, -1] for head in numbers] for layer in layers]).transpose(2, 0, 1)


def _rows(world: str, series: str, learned: Learned, starts: dict[str, float]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, heads in learned.items():
        for (layer, head), values in heads.items():
            last = values[:, -1]
            spread = f"{last.std(ddof=1):.3f}" if len(last) > 1 else ""
            where = (world, series, str(len(last)), str(layer), str(head))
            rows.append((*where, name, f"{starts[name]:.3f}", f"{last.mean():.3f}", spread))
    return rows
