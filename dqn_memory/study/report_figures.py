"""The report's pictures of scores, from runs and estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter, StrMethodFormatter

from dqn_memory.drawing import COLOURS, STYLE
from dqn_memory.study import statistics
from dqn_memory.study.correlation import FEWEST
from dqn_memory.study.normalisation import Scale
from dqn_memory.study.report_data import Entry
from dqn_memory.study.report_style import Look
from dqn_memory.study.statistics import Estimate, Floats, Profile

_styled = matplotlib.rc_context({**STYLE, "font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9})
GRID: Any = {"color": "#e6e6e6", "linewidth": 0.7}
FAINT = "#666666"
GREY = "#c4c4c4"
FEW_SERIES = 6  # up to which one panel holds all
ACROSS = 4  # panels side by side
SHORT = 24  # letters of a panel's title
FEW_HEADS = 2  # up to which lines have bands
REPETITIONS = 2_000  # of a band, at every evaluation


@_styled
def curves_figure(
    series: Mapping[str, Sequence[Entry]], styles: Mapping[str, Look], title: str, scale: Scale | None
) -> Figure:
    """Mean curves of one world with 95 % bands, between dashed lines of random and best-known play.

    More than a few series have a panel each, in which the others are thin grey lines.
    """
    success = next(iter(series.values()))[0].success
    curves = {name: _curve(runs) for name, runs in series.items()}
    small = len(curves) > FEW_SERIES
    figure, panels = _multiples(len(curves)) if small else _single()
    for panel, name in zip(panels, curves, strict=False):
        for other in curves:
            if not small or other == name:
                _banded(panel, other, curves[other], styles[other])
            else:
                panel.plot(*curves[other][:2], color=GREY, linewidth=0.8, zorder=1)
        if small:
            panel.set_title(name, fontsize=9.5)
    _axes_of_curves(panels, success)
    if scale is not None:
        _levels(panels, scale, success)
    _named(figure, panels, "environment steps", "success rate" if success else "return", title)
    return figure


def _curve(runs: Sequence[Entry]) -> tuple[Floats, ...]:
    """Steps, mean, and both ends of the band."""
    steps, values = common_curves(runs)
    return steps, *band(values)


def _single() -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    return figure, [figure.subplots()]


def _multiples(count: int) -> tuple[Figure, list[Axes]]:
    """Panels with common axes, with room left where they do not fill the last row."""
    down = -(-count // ACROSS)
    figure = Figure(figsize=(9.6, 1.75 * down + 0.75), layout="constrained")
    grid = figure.subplots(down, ACROSS, squeeze=False, sharex=True, sharey=True)
    for place, panel in enumerate(grid.flat[:count]):
        panel.tick_params(labelbottom=place + ACROSS >= count)  # the lowest of its column, also above an empty place
    for panel in grid.flat[count:]:
        panel.set_visible(False)
    return figure, list(grid.flat[:count])


def _banded(panel: Axes, name: str, curve: tuple[Floats, ...], look: Look) -> None:
    steps, mean, low, high = curve
    panel.plot(steps, mean, label=name, markersize=4, zorder=3, **look.marked(len(steps)))
    panel.fill_between(steps, low, high, color=look.colour, alpha=0.17, linewidth=0, zorder=2)


def _axes_of_curves(panels: Sequence[Axes], success: bool) -> None:
    small = len(panels) > 1
    for panel in panels:
        panel.grid(**GRID)
        panel.set_axisbelow(True)
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(MaxNLocator(3 if small else 6, integer=True))
        panel.xaxis.set_major_formatter(FuncFormatter(_steps) if small else StrMethodFormatter("{x:,.0f}"))
        if success:
            panel.set_ylim(-0.03, 1.06)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))


def _steps(value: float, _: int | None = None) -> str:
    """A number of steps in little room: 12k, 2.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _levels(panels: Sequence[Axes], scale: Scale, success: bool) -> None:
    """Lines in all panels, with their names in the first."""
    for panel in panels:
        told = panel is panels[0]
        _line(panel, scale.zero, "random" if told else "")
        _line(panel, scale.one, ("best known" if success else "human") if told else "")


def _named(figure: Figure, panels: Sequence[Axes], across: str, up: str, title: str) -> None:
    """Words for the axes and the whole; a legend where all series are in one panel."""
    if len(panels) == 1:
        _plain(panels[0], across, up)
        panels[0].set_title(title, fontsize=11)
        panels[0].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return
    figure.supxlabel(across, fontsize=10)
    figure.supylabel(up, fontsize=10)
    figure.suptitle(f"{title} (grey: the other series)", fontsize=11)


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
    if not word:
        return
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
        marks = styles[name].marked(len(profile.thresholds))
        panel.step(profile.thresholds, profile.share, where="post", label=name, markersize=4, **marks)
        ends: Any = {"color": styles[name].colour, "alpha": 0.15, "linewidth": 0, "step": "post"}
        panel.fill_between(profile.thresholds, profile.low, profile.high, **ends)
    panel.set_ylim(-0.02, 1.03)
    panel.set_xlim(0, max(float(profile.thresholds[-1]) for profile in profiles.values()))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    _plain(panel, "normalised score", "share of runs above it")
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


@_styled
def parameters_figure(
    points: Sequence[tuple[str, int, Estimate]], styles: Mapping[str, Look], worlds: Sequence[str] = ()
) -> Figure:
    """Normalised score over the number of parameters, a point a series; a panel a world.

    `worlds` are those of the points, in their order; without them all points are in one panel.
    """
    names = list(dict.fromkeys(worlds))
    figure, panels = _multiples(len(names)) if len(names) > 1 else _single()
    for panel, world in zip(panels, names or [""], strict=True):
        here = [point for place, point in enumerate(points) if not worlds or worlds[place] == world]
        _sized(panel, here, styles)
        panel.set_title(_wrapped(world), fontsize=9)
    handles: dict[str, Any] = {}
    for panel in panels:
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center")
    figure.supxlabel("trainable parameters", fontsize=10)
    figure.supylabel("normalised score", fontsize=10)
    return figure


def _sized(panel: Axes, points: Sequence[tuple[str, int, Estimate]], styles: Mapping[str, Look]) -> None:
    """Points with their intervals."""
    for name, size, score in points:
        look = styles[name]
        panel.plot([size, size], [score.low, score.high], color=look.colour, linewidth=1.4, alpha=0.5)
        panel.plot(size, score.point, look.marker, color=look.colour, markersize=6.5, label=name, linestyle="none")
    panel.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    panel.xaxis.set_major_formatter(FuncFormatter(_steps))
    panel.margins(x=0.15)
    panel.grid(**GRID)
    panel.set_axisbelow(True)


def _wrapped(world: str) -> str:
    """A world's id in two lines where it is long."""
    return world.replace("/", "/\n", 1) if len(world) > SHORT else world


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
    lines: Mapping[str, tuple[Floats, Mapping[tuple[int, int], Floats]]], starts: Mapping[str, float], title: str
) -> Figure:
    """Learned values over training, a column a name and a row a layer: the steps (E,), and (R, E) by layer and head.

    A panel of a few heads has bands of the standard deviation over R runs.
    """
    layers = sorted({layer for _, heads in lines.values() for layer, _ in heads})
    figure = Figure(figsize=(3.3 * len(lines) + 1.5, 2.1 * len(layers) + 0.9), layout="constrained")
    grid = figure.subplots(len(layers), len(lines), squeeze=False, sharex=True, sharey="col")
    for row, layer in zip(grid, layers, strict=True):
        for panel, (name, (steps, heads)) in zip(row, lines.items(), strict=True):
            _heads(panel, steps, {head: values for (place, head), values in heads.items() if place == layer})
            panel.axhline(starts[name], color=FAINT, linestyle="--", linewidth=1)
        row[0].set_ylabel(f"layer {layer}")
    for panel, name in zip(grid[0], lines, strict=True):
        panel.set_title(name)
    figure.supxlabel("environment steps", fontsize=10)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title)
    return figure


def _heads(panel: Axes, steps: Floats, heads: Mapping[int, Floats]) -> None:
    for head, values in heads.items():
        mean, dash = values.mean(0), "-" if head < len(COLOURS) else "--"
        (line,) = panel.plot(steps, mean, label=f"head {head}", linewidth=1.5, linestyle=dash)
        if len(values) > 1 and len(heads) <= FEW_HEADS:
            spread = values.std(0, ddof=1)
            panel.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.12, linewidth=0)
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panel.xaxis.set_major_formatter(FuncFormatter(_steps))
    panel.grid(**GRID)
