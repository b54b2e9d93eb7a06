"""The report's pictures of scores, from runs and estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from dqn_memory.drawing import STYLE
from dqn_memory.study import statistics
from dqn_memory.study.correlation import FEWEST
from dqn_memory.study.normalisation import Scale
from dqn_memory.study.report_data import Entry
from dqn_memory.study.report_style import Look
from dqn_memory.study.statistics import Estimate, Floats, Profile

_styled = matplotlib.rc_context({**STYLE, "font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9})
GRID: Any = {"color": "#e6e6e6", "linewidth": 0.7}
FAINT = "#666666"
FEW_POINTS = 40  # evaluations up to which each is marked
REPETITIONS = 2_000  # of a band, at every evaluation


@_styled
def curves_figure(
    series: Mapping[str, Sequence[Entry]], styles: Mapping[str, Look], title: str, scale: Scale | None
) -> Figure:
    """Mean curves of one world with 95 % bands, between dashed lines of random and best-known play."""
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    panel = figure.subplots()
    for name, runs in series.items():
        steps, values = common_curves(runs)
        mean, low, high = band(values)
        marker = styles[name].marker if len(steps) <= FEW_POINTS else None
        panel.plot(steps, mean, label=name, marker=marker, markersize=4, **styles[name].line)
        panel.fill_between(steps, low, high, color=styles[name].colour, alpha=0.17, linewidth=0)
    success = next(iter(series.values()))[0].success
    if success:
        panel.set_ylim(-0.03, 1.06)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    if scale is not None:
        _line(panel, scale.zero, "random")
        _line(panel, scale.one, "best known" if success else "human")
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _plain(panel, "environment steps", "success rate" if success else "return")
    panel.set_title(title, fontsize=11)
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def common_curves(runs: Sequence[Entry]) -> tuple[Floats, Floats]:
    """Steps (E,) at which all runs were evaluated, and their values there (R, E)."""
    steps = set.intersection(*(set(run.curve.steps.tolist()) for run in runs))
    rows = [[value for step, value in zip(*_points(run), strict=True) if step in steps] for run in runs]
    return np.array(sorted(steps)), np.array(rows, np.float64)


def _points(run: Entry) -> tuple[list[int], list[float]]:
    return run.curve.steps.tolist(), run.curve.success.tolist()


def band(values: Floats, repetitions: int = REPETITIONS) -> tuple[Floats, Floats, Floats]:
    """Mean (E,) of values (R, E) over runs, and both ends of its bootstrap interval; NaN ends with one run."""
    mean = values.mean(0)
    if len(values) < 2 or not len(mean):
        nothing = np.full_like(mean, np.nan)
        return mean, nothing, nothing
    chosen = np.random.default_rng(0).integers(0, len(values), (repetitions, len(values)))
    low, high = statistics.percentiles(values[chosen].mean(1))
    return mean, low, high


def _line(panel: Axes, level: float, word: str) -> None:
    panel.axhline(level, color=FAINT, linestyle=(0, (2, 2)), linewidth=1)
    panel.annotate(
        word, (1.0, level), (-3, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
        ha="right", va="bottom", fontsize=8.5, color=FAINT,
        bbox={"facecolor": "white", "alpha": 0.7, "pad": 0.6, "lw": 0},
    )  # fmt: skip


def _plain(panel: Axes, across: str, up: str) -> None:
    panel.grid(**GRID)
    panel.set_axisbelow(True)
    panel.set_xlabel(across)
    panel.set_ylabel(up)


@_styled
def profile_figure(profiles: Mapping[str, Profile], styles: Mapping[str, Look]) -> Figure:
    """Share of scores above each threshold, a step line a series."""
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    panel = figure.subplots()
    for name, profile in profiles.items():
        panel.step(profile.thresholds, profile.share, where="post", label=name, **styles[name].line)
        ends: Any = {"color": styles[name].colour, "alpha": 0.15, "linewidth": 0, "step": "post"}
        panel.fill_between(profile.thresholds, profile.low, profile.high, **ends)
    panel.set_ylim(-0.02, 1.03)
    panel.set_xlim(0, max(float(profile.thresholds[-1]) for profile in profiles.values()))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    _plain(panel, "normalised score", "share of runs above it")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


@_styled
def parameters_figure(points: Sequence[tuple[str, int, Estimate]], styles: Mapping[str, Look]) -> Figure:
    """Normalised score over the number of parameters, a point a world and series."""
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    panel = figure.subplots()
    named: set[str] = set()
    for name, size, score in points:
        look = styles[name]
        label = None if name in named else name
        named.add(name)
        panel.plot([size, size], [score.low, score.high], color=look.colour, linewidth=1.4, alpha=0.5)
        panel.plot(size, score.point, look.marker, color=look.colour, markersize=6.5, label=label)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _plain(panel, "trainable parameters", "normalised score")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


@_styled
def gains_figure(
    properties: Mapping[str, Sequence[float | None]], gains: Mapping[str, Sequence[Estimate | None]]
) -> Figure:
    """Gain over property, a panel each; the numbers are the worlds' places in the table, from 1."""
    figure = Figure(figsize=(2.15 * len(properties) + 0.6, 2.5 * len(gains) + 0.4), layout="constrained")
    panels = figure.subplots(len(gains), len(properties), squeeze=False, sharey="row", sharex="col")
    for row, (gain, values) in zip(panels, gains.items(), strict=True):
        for panel, places in zip(row, properties.values(), strict=True):
            _scatter(panel, places, values)
            panel.grid(**GRID)
            panel.set_axisbelow(True)
            panel.axhline(0, color=FAINT, linewidth=0.9)
        row[0].set_ylabel(f"gain in success:\n{gain}")
    for panel, name in zip(panels[-1], properties, strict=True):
        panel.set_xlabel(name)
        panel.xaxis.set_major_locator(MaxNLocator(4))
    return figure


def _scatter(panel: Axes, places: Sequence[float | None], values: Sequence[Estimate | None]) -> None:
    pairs = [
        (x, y, number)
        for number, (x, y) in enumerate(zip(places, values, strict=True), 1)
        if x is not None and y is not None
    ]
    for x, y, number in pairs:
        panel.plot([x, x], [y.low, y.high], color="#9cc3de", linewidth=1.2)
        panel.plot(x, y.point, "o", color="#0072b2", markersize=4.5)
        panel.annotate(str(number), (x, y.point), (4, 3), textcoords="offset points", fontsize=7.5, color="#333333")
    if len(pairs) < FEWEST:
        panel.set_title(f"{len(pairs)} world{'' if len(pairs) == 1 else 's'}", fontsize=8, color=FAINT)


@_styled
def over_time_figure(
    lines: Mapping[str, tuple[Floats, dict[str, Floats]]], starts: Mapping[str, float], title: str
) -> Figure:
    """Learned values over training, a panel each: by name the steps (E,), and values (R, E) by layer and head."""
    figure = Figure(figsize=(3.3 * len(lines) + 1.5, 3.0), layout="constrained")
    panels = figure.subplots(1, len(lines), squeeze=False)[0]
    for panel, (name, (steps, heads)) in zip(panels, lines.items(), strict=True):
        for label, values in heads.items():
            (line,) = panel.plot(steps, values.mean(0), label=label, linewidth=1.5, linestyle=_dash(label))
            if len(values) > 1:
                mean, spread = values.mean(0), values.std(0, ddof=1)
                panel.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.13, linewidth=0)
        panel.axhline(starts[name], color=FAINT, linestyle="--", linewidth=1)
        panel.set_title(name)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panel.grid(**GRID)
    figure.supxlabel("environment steps", fontsize=10)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title)
    return figure


def _dash(label: str) -> Any:
    """Heads of one layer share a dash: the first number in the label is the layer."""
    return ("-", "--", ":", "-.")[int(label.split()[1].rstrip(",")) % 4]
