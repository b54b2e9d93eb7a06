"""Show what temporal priors have learned: over training, at its end by head and layer, and how far spans reach."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dqn_memory.analysis import plots
from dqn_memory.study.collect import Data, Entry
from dqn_memory.study.page import Part, Picture, Section, slug
from dqn_memory.study.plots import looks, over_time_figure, spans_figure
from dqn_memory.study.statistics import Floats
from envs.tables import Table

NAME = re.compile(r"^memory/(\d+)\.(\d+)\.(mu|sigma|span)$")
PRIORS, SPANS = "Learned priors", "Learned spans"
STILL = 1e-5  # difference to the start that rounding alone may make
Place = tuple[int, int]  # layer, head
Learned = dict[str, dict[Place, Floats]]  # by name and place, (R, E)


@dataclass(frozen=True)
class Group:
    """What the runs of one environment and series have learned."""

    world: str
    series: str
    steps: Floats
    learned: Learned
    starts: dict[str, float]
    hard: bool  # whether the mask is 0 or 1, so that only a penalty can move the span

    @property
    def where(self) -> str:
        return f"{self.series} in {self.world}"

    @property
    def moved(self) -> Learned:
        """What was ever another than at its start, in some head."""
        return {name: heads for name, heads in self.learned.items() if moves(heads, self.starts[name])}


def priors_section(data: Data) -> Section:
    """Draw learned mu, sigma and span of each environment and series that learns any."""
    groups = [found for world in data.worlds for series in data.series if (found := _group(data, world, series))]
    if not groups:
        return Section(PRIORS, ("No finished run has a prior that learns.",))
    words = (
        f"Distances are in {_unit(data)}. Bars and lines are means over seeds, whiskers and bands their standard "
        "deviation; dashed: where every head began. Over training there are bands where a layer has few heads."
    )
    header = ("environment", "series", "seeds", "layer", "head", "value", "start", "mean", "deviation")
    pictures = [picture for group in groups if group.moved for picture in _pictures(group, _unit(data))]
    rows = tuple(row for group in groups for row in _rows(group))
    return Section(PRIORS, (words, *_exceptions(groups), *pictures, Table(header, rows)))


def _group(data: Data, world: str, series: str) -> Group | None:
    """Gather what runs have learned; None where there is no run, or none that learns."""
    steps, learned = learned_values(data.of(world, series))
    if not learned:
        return None
    config = data.of(world, series)[0].config
    starts, kind = first_values(config), str(_prior(config).kind)
    known = {name: heads for name, heads in learned.items() if name in starts}
    return Group(world, series, steps, known, starts, kind.endswith("_hard"))


def moves(heads: dict[Place, Floats], start: float) -> bool:
    """Tell whether some head's value was ever another than the one it began with."""
    return any(not np.allclose(values, start, rtol=0, atol=STILL) for values in heads.values())


def _exceptions(groups: Sequence[Group]) -> list[str]:
    """Say what did not move, what only its penalty moved, and why."""
    still = [(group, name) for group in groups for name in group.learned if name not in group.moved]
    pressed = [(group, "span") for group in groups if group.hard and "span" in group.moved]
    sentences = []
    if still:
        sentences.append(f"Did not move at all, in any head of any seed, so no picture shows it: {_places(still)}.")
    if pressed:
        sentences.append(f"Moved by its penalty alone: {_places(pressed)}.")
    if any(group.hard and name == "span" for group, name in (*still, *pressed)):
        sentences.append("A hard mask is 0 or 1 and gives its span no gradient; without a penalty nothing moves it.")
    return [" ".join(sentences)] if sentences else []


def _places(values: Sequence[tuple[Group, str]]) -> str:
    return "; ".join(f"{name} of {group.where} (start {group.starts[name]:g})" for group, name in values)


def _prior(config: Any) -> Any:
    return config.network.prior if hasattr(config, "network") else config.model.prior


def _unit(data: Data) -> str:
    return "steps" if data.source.kind == "q_network" else "tokens"  # of which a world model has two a step


def learned_values(runs: Sequence[Entry]) -> tuple[Floats, Learned]:
    """Give the steps (E,) at which all runs logged learned values, and these; empty where they learn nothing."""
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
    """Give the learned values by step; other lines of the same step say other things."""
    found: dict[int, dict[str, float]] = {}
    for line in run.record.metrics:
        values = {name: value for name, value in line.items() if NAME.match(name)}
        if values:
            found[line["step"]] = values
    return found


def _parts(name: str) -> tuple[int, int, str]:
    found = NAME.match(name)
    assert found is not None
    return int(found[1]), int(found[2]), found[3]


def first_values(config: Any) -> dict[str, float]:
    """Give the start of each learned value, the same in every head, by the config of a trainer with priors."""
    if hasattr(config, "network"):
        fresh = config.network.prior.build(config.network.heads, config.network.context)
    else:
        fresh = config.model.prior.build(config.model.heads, 2 * config.model.horizon)
    return {name: float(values.detach()[0]) for name, values in fresh.learned().items()}


def _pictures(group: Group, unit: str) -> list[Part]:
    lines = {name: (group.steps, heads) for name, heads in group.moved.items()}
    ends = {name: _ends(heads) for name, heads in group.moved.items()}
    where, name = group.where, slug(group.where)
    bars = plots.learned_values(ends, group.starts, f"Learned at the end: {where}", unit)
    time = over_time_figure(lines, group.starts, f"Learned over training: {where}")
    seeds = len(next(iter(ends.values())))
    return [
        Picture(f"learned-{name}", bars, f"Learned values by head and layer: {where}, {seeds} seeds."),
        Picture(f"learning-{name}", time, f"Learned values over training: {where}."),
    ]


def _ends(heads: dict[Place, Floats]) -> Floats:
    """Give the values at the end by run, layer and head, (R, L, H)."""
    layers, numbers = (sorted({key[i] for key in heads}) for i in (0, 1))
    return np.array([[heads[layer, head][:, -1] for head in numbers] for layer in layers]).transpose(2, 0, 1)


def _rows(group: Group) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, heads in group.learned.items():
        for (layer, head), values in heads.items():
            last = values[:, -1]
            spread = f"{last.std(ddof=1):.3f}" if len(last) > 1 else ""
            where = (group.world, group.series, str(len(last)), str(layer), str(head))
            rows.append((*where, name, f"{group.starts[name]:.3f}", f"{last.mean():.3f}", spread))
    return rows


def spans_section(data: Data) -> Section:
    """Draw a histogram of spans for each environment, a panel a series."""
    parts: list[Part] = []
    rows: list[tuple[str, ...]] = []
    for world in data.worlds:
        found = {name: spans for name in data.series if (spans := last_spans(data, world, name)) is not None}
        if found:
            figure = spans_figure(found, looks(data.series), f"Learned spans in {world}")
            words = f"Spans of every head, layer and seed at the end of training in {world}; dashed: where all began."
            parts.append(Picture(f"spans-{slug(world)}", figure, words))
            rows += [_row(world, name, *spans) for name, spans in found.items()]
    if not parts:
        return Section(SPANS, ("No finished run has a span that learns.",))
    header = ("environment", "series", "spans", "start", "least", "quartile", "median", "quartile", "most")
    return Section(SPANS, (*parts, Table(header, tuple(rows))))


def last_spans(data: Data, world: str, series: str) -> tuple[Floats, float] | None:
    """Give the spans of all heads, layers and runs at the end, and their start; None where there are none."""
    runs = data.of(world, series)
    _, learned = learned_values(runs)
    starts = first_values(runs[0].config) if "span" in learned else {}
    if "span" not in starts:
        return None
    return np.concatenate([values[:, -1] for values in learned["span"].values()]), starts["span"]


def _row(world: str, series: str, spans: Floats, start: float) -> tuple[str, ...]:
    marks = np.percentile(spans, (0, 25, 50, 75, 100))
    return (world, series, str(len(spans)), f"{start:.3f}", *(f"{mark:.3f}" for mark in marks))
