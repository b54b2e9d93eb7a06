"""Draw the pictures of a report: curves, profiles, sizes, gains, learned values, each series always alike."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from math import ceil, sqrt
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter, StrMethodFormatter

from dqn_memory.analysis.plots import COLOURS, STYLE
from dqn_memory.network import ARCHITECTURES
from dqn_memory.study import statistics
from dqn_memory.study.collect import Entry
from dqn_memory.study.statistics import FEWEST, HUMAN, OTHERS, Estimate, Floats, Profile, Scale

_styled = matplotlib.rc_context({**STYLE, "font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9})
SHORT = 24  # letters of a panel's title
REPETITIONS = 2_000  # of a band, at every evaluation
FEW_HEADS = 2  # up to which lines have bands
SPAN_COLUMNS = 3  # of panels of spans
BINS = 30  # of their histograms
GRID: Any = {"color": "#e6e6e6", "linewidth": 0.7}
FAINT = "#666666"
GREY = "#c4c4c4"
FEW_SERIES = 6  # up to which one panel holds all
ACROSS = 4  # panels side by side

# Seven colours, so that the paper's twelve recurrent and feed-forward rows that stand beside each other differ; the
# eighth of the palette is too near to the second.
PALETTE = COLOURS[:7]
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D")
MARKS = 12  # of a line with many points, which has a marker now and then


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    dash: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a line."""
        return {"color": self.colour, "linestyle": self.dash}

    def marked(self, points: int) -> dict[str, Any]:
        """Keywords of a line through so many points, with its markers."""
        return {**self.line, "marker": self.marker, "markevery": -(-points // MARKS) or 1}


LOOKS = tuple(Look(colour, dash, marker) for dash, marker in zip(DASHES, MARKERS, strict=True) for colour in PALETTE)

# What shipped studies compare besides architectures: a table for each family of names, a row a dash, a place in the row
# a colour.
PRIORS = (
    ("causal", "local", "adaptive", "gaussian", "gaussian_adaptive", "recurrent", "gru"),
    ("", "", "adaptive_hard", "", "gaussian_adaptive_hard"),
    ("", "", "adaptive_gate", "gaussian_gate", "gaussian_adaptive_gate"),
    ("", "", "adaptive_ramp_gate"),
)
RELEASED = ((), (), (), tuple(f"{name}, released" if name else "" for name in PRIORS[0][:5]))
STARTS = (
    ("span 2", "span 6", "span 10", "mu 2", "mu 6", "mu 10"),
    (),
    ("", "", "", "mu 2, sigma 3", "mu 6, sigma 3", "mu 10, sigma 3"),
)
WINDOWS = tuple(
    ("", f"local {window}", "", *(f"gaussian mu {mu} sigma {sigma}" for mu in (2, 6, 10, 12)))
    for window, sigma in ((2, 1), (6, 2), (10, 3), (12, 4))
)
PENALTIES = (("none", "l1", "l2", "max", "max-norm 6", "max-norm 4"),)
MODULES = (("storm", "lmamba", "double_transformer", "double_mamba", "glam"), ("", "", "", "", "glam_no_variation"))
FAMILIES: tuple[tuple[tuple[str, ...], ...], ...] = (PRIORS, RELEASED, STARTS, WINDOWS, PENALTIES, MODULES)

FIXED: dict[str, Look] = {
    name: LOOKS[row * len(PALETTE) + place]
    for family in FAMILIES
    for row, names in enumerate(family)
    for place, name in enumerate(names)
    if name
}
# Names of the papers, and other names of the same thing.
SAME = {
    "dtqn": "dtqn4", "mu 2, sigma 1": "mu 2", "mu 6, sigma 1": "mu 6", "mu 10, sigma 1": "mu 10",
    "sigma 3": "mu 6, sigma 3", "w/o G&L": "storm", "w/o G": "lmamba", "Dbl. Transformer": "double_transformer",
    "Dbl. Mamba": "double_mamba", "GLAM": "glam", "w/o variation loss": "glam_no_variation", "max penalty": "max",
}  # fmt: skip


def looks(series: Sequence[str]) -> dict[str, Look]:
    """Give each series a look, the same in every study for all names that shipped studies use.

    A variant ("dgfqn as published") has its architecture's colour with another dash. Other names take what is free, in
    the order of the study's file, and from the beginning again where all is taken; so does a name whose own look
    another one has, architectures first.
    """
    found: dict[str, Look] = {}
    for name in sorted(series, key=_architecture, reverse=True):
        own = _own(name)
        if own is not None and own not in found.values():
            found[name] = own
    for name in series:
        found.setdefault(name, _free(name, found.values()))
    return found


def _architecture(name: str) -> bool:
    return _base(name) in ARCHITECTURES


def _base(name: str) -> str:
    """Give what a name begins with, up to the first space, comma or hyphen, by the registry's name."""
    word = re.split("[ ,-]", name)[0]
    return SAME.get(word, word)


def _own(name: str) -> Look | None:
    """Give the look that is always this name's, if it has one."""
    name, base = SAME.get(name, name), _base(name)
    if base not in ARCHITECTURES:
        return FIXED.get(name)
    place = list(ARCHITECTURES).index(base)
    variant = 0 if name == base else len(PALETTE)  # the next dash, and the same colour
    return LOOKS[(place + variant) % len(LOOKS)]


def _free(name: str, taken: Collection[Look]) -> Look:
    """Choose a look that is not taken: first of a variant's own colour, then of colours that nothing has."""
    free = [look for look in LOOKS if look not in taken]
    if not free:
        return LOOKS[len(taken) % len(LOOKS)]
    base = _own(_base(name))
    colours = {look.colour for look in taken}
    return min(free, key=lambda look: (base is None or look.colour != base.colour, look.colour in colours))


def single() -> tuple[Figure, list[Axes]]:
    """Make one panel."""
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    return figure, [figure.subplots()]


def multiples(count: int) -> tuple[Figure, list[Axes]]:
    """Make panels with common axes, with room left where they do not fill the last row."""
    across = min(ACROSS, count)
    down = -(-count // across)
    figure = Figure(figsize=(9.6, (1.75 + 0.35 * (ACROSS - across)) * down + 0.75), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for place, panel in enumerate(grid.flat[:count]):
        panel.tick_params(labelbottom=place + across >= count)  # the lowest of its column, also above an empty place
    for panel in grid.flat[count:]:
        panel.set_visible(False)
    return figure, list(grid.flat[:count])


def short_steps(value: float, _: int | None = None) -> str:
    """Write a number of steps in little room: 12k, 2.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def titled(figure: Figure, panels: Sequence[Axes], across: str, up: str, title: str = "") -> None:
    """Set words for the axes and the whole; a legend where all series are in one panel."""
    if len(panels) == 1:
        plain(panels[0], across, up)
        panels[0].set_title(title, fontsize=11)
        panels[0].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return
    figure.supxlabel(across, fontsize=10)
    figure.supylabel(up, fontsize=10)
    figure.suptitle(f"{title} (grey: the other series)".strip(), fontsize=11)


def plain(panel: Axes, across: str, up: str) -> None:
    """Set a grid, and words for the axes."""
    panel.grid(**GRID)
    panel.set_axisbelow(True)
    panel.set_xlabel(across)
    panel.set_ylabel(up)


@_styled
def curves_figure(
    series: Mapping[str, Sequence[Entry]], styles: Mapping[str, Look], title: str, scale: Scale | None
) -> Figure:
    """Draw the mean curves of one environment with 95 % bands, between dashed lines of random and best-known play.

    More than a few series have a panel each, in which the others are thin grey lines.
    """
    success = next(iter(series.values()))[0].success
    curves = {name: _curve(runs) for name, runs in series.items()}
    small = len(curves) > FEW_SERIES
    figure, panels = multiples(len(curves)) if small else single()
    for panel, name in zip(panels, curves, strict=False):
        for other in curves:
            if not small or other == name:
                _banded(panel, other, curves[other], styles[other])
            else:
                panel.plot(*curves[other][:2], color=GREY, linewidth=0.8, zorder=1)
        if small:
            panel.set_title(name, fontsize=9.5)
    _axes_of_curves(panels, success, [curve[0] for curve in curves.values()])
    if scale is not None:
        best = {**dict.fromkeys(HUMAN.values(), "human"), **dict.fromkeys(OTHERS.values(), "most possible")}
        _levels(panels, scale, "best known" if success else best.get(scale, "best known"))
    titled(figure, panels, "environment steps", "success rate" if success else "return", title)
    return figure


def _curve(runs: Sequence[Entry]) -> tuple[Floats, ...]:
    """Give steps, mean, and both ends of the band."""
    steps, values = common_curves(runs)
    return steps, *band(values)


def _banded(panel: Axes, name: str, curve: tuple[Floats, ...], look: Look) -> None:
    steps, mean, low, high = curve
    panel.plot(steps, mean, label=name, markersize=4, zorder=3, **look.marked(len(steps)))
    panel.fill_between(steps, low, high, color=look.colour, alpha=0.17, linewidth=0, zorder=2)


def _axes_of_curves(panels: Sequence[Axes], success: bool, steps: Sequence[Floats]) -> None:
    small = len(panels) > 1
    left = _beginning(np.concatenate(steps))
    for panel in panels:
        panel.grid(**GRID)
        panel.set_axisbelow(True)
        panel.set_xlim(left=left)
        panel.xaxis.set_major_locator(MaxNLocator(3 if small else 6, integer=True))
        panel.xaxis.set_major_formatter(FuncFormatter(short_steps) if small else StrMethodFormatter("{x:,.0f}"))
        if success:
            panel.set_ylim(-0.03, 1.06)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))


def _beginning(steps: Floats) -> float:
    """Choose where an axis begins: at 0, but runs that long act at random first leave the greater half of it empty."""
    if not len(steps) or steps.min() <= steps.max() / 2:
        return 0.0
    return float(steps.min() - 0.05 * np.ptp(steps))


def _levels(panels: Sequence[Axes], scale: Scale, best: str) -> None:
    """Draw lines in all panels, with their names in the first."""
    for panel in panels:
        labelled = panel is panels[0]
        _line(panel, scale.zero, "random" if labelled else "")
        _line(panel, scale.one, best if labelled else "", below=len(panels) > 1)  # above it is the panel's title


def common_curves(runs: Sequence[Entry]) -> tuple[Floats, Floats]:
    """Give the steps (E,) at which all runs were evaluated, and their values there (R, E)."""
    steps = set.intersection(*(set(run.curve.steps.tolist()) for run in runs))
    rows = [[value for step, value in zip(*_points(run), strict=True) if step in steps] for run in runs]
    return np.array(sorted(steps)), np.array(rows, np.float64)


def _points(run: Entry) -> tuple[list[int], list[float]]:
    return run.curve.steps.tolist(), run.curve.success.tolist()


def band(values: Floats, repetitions: int = REPETITIONS) -> tuple[Floats, Floats, Floats]:
    """Give the mean (E,) of values (R, E) over runs, and both ends of its bootstrap interval; NaN ends with one run."""
    mean = values.mean(0)
    if len(values) < 2 or not len(mean):
        nothing = np.full_like(mean, np.nan)
        return mean, nothing, nothing
    chosen = np.random.default_rng(0).integers(0, len(values), (repetitions, len(values)))
    low, high = statistics.percentiles(values[chosen].mean(1))
    return mean, low, high


def _line(panel: Axes, level: float, word: str, below: bool = False) -> None:
    panel.axhline(level, color=FAINT, linestyle=(0, (2, 2)), linewidth=1)
    if not word:
        return
    panel.annotate(
        word, (1.0, level), (-3, -2 if below else 2), xycoords=("axes fraction", "data"), textcoords="offset points",
        ha="right", va="top" if below else "bottom", fontsize=8.5, color=FAINT,
        bbox={"facecolor": "white", "alpha": 0.7, "pad": 0.6, "lw": 0},
    )  # fmt: skip


@_styled
def profile_figure(profiles: Mapping[str, Profile], styles: Mapping[str, Look]) -> Figure:
    """Draw the share of scores above each threshold, a step line a series; a panel each where there are many."""
    small = len(profiles) > FEW_SERIES
    figure, panels = multiples(len(profiles)) if small else single()
    for panel, name in zip(panels, profiles, strict=False):
        for other, profile in profiles.items():
            _profile(panel, other, profile, None if small and other != name else styles[other])
        panel.set_title(name if small else "", fontsize=9.5)
        panel.grid(**GRID)
        panel.set_axisbelow(True)
        panel.set_ylim(-0.02, 1.03)
        panel.set_xlim(float(profile.thresholds[0]), float(profile.thresholds[-1]))
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    titled(figure, panels, "normalised score", "share of runs above it")
    return figure


def _profile(panel: Axes, name: str, profile: Profile, look: Look | None) -> None:
    """Draw one series with its band, or, without a look, as a grey line behind others."""
    steps: Any = {"where": "post", "label": name}
    if look is None:
        panel.step(profile.thresholds, profile.share, color=GREY, linewidth=0.8, zorder=1, **steps)
        return
    panel.step(profile.thresholds, profile.share, markersize=4, **steps, **look.marked(len(profile.thresholds)))
    ends: Any = {"color": look.colour, "alpha": 0.15, "linewidth": 0, "step": "post"}
    panel.fill_between(profile.thresholds, profile.low, profile.high, **ends)


@_styled
def parameters_figure(
    points: Sequence[tuple[str, int, Estimate]], styles: Mapping[str, Look], worlds: Sequence[str] = ()
) -> Figure:
    """Draw normalised scores over numbers of parameters, a point a series; a panel an environment.

    `worlds` are the environments of the points, in their order; without them all points are in one panel.
    """
    names = list(dict.fromkeys(worlds))
    figure, panels = multiples(len(names)) if len(names) > 1 else single()
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
    """Draw points with their intervals."""
    for name, size, score in points:
        look = styles[name]
        panel.plot([size, size], [score.low, score.high], color=look.colour, linewidth=1.4, alpha=0.5)
        panel.plot(size, score.point, look.marker, color=look.colour, markersize=6.5, label=name, linestyle="none")
    panel.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    panel.xaxis.set_major_formatter(FuncFormatter(short_steps))
    panel.margins(x=0.15)
    panel.grid(**GRID)
    panel.set_axisbelow(True)


def _wrapped(world: str) -> str:
    """Write an environment's id in two lines where it is long."""
    return world.replace("/", "/\n", 1) if len(world) > SHORT else world


@_styled
def gains_figure(
    properties: Mapping[str, Sequence[float | None]], gains: Mapping[str, Sequence[Estimate | None]]
) -> Figure:
    """Draw gain over property, a panel each; the numbers are the environments' rows in the table, from 1."""
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
    """Draw learned values over training, a column a name, a row a layer: steps (E,), and (R, E) by layer and head.

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
    panel.xaxis.set_major_formatter(FuncFormatter(short_steps))
    panel.grid(**GRID)


@_styled
def spans_figure(found: Mapping[str, tuple[Floats, float]], styles: Mapping[str, Look], title: str) -> Figure:
    """Draw histograms on common axes."""
    columns = min(SPAN_COLUMNS, ceil(sqrt(len(found))))
    lines = ceil(len(found) / columns)
    figure = Figure(figsize=(2.9 * columns + 0.6, 2.1 * lines + 0.7), layout="constrained")
    panels: Any = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    top = max(max(float(spans.max()), start) for spans, start in found.values())
    edges = np.linspace(0.0, 1.05 * top, BINS + 1)
    for place, (name, (spans, start)) in enumerate(found.items()):
        panel = panels.flat[place]
        panel.tick_params(labelbottom=place + columns >= len(found))  # the lowest of its column
        panel.hist(spans, edges, color=styles[name].colour, alpha=0.85)
        panel.axvline(start, color=FAINT, linestyle="--", linewidth=1)
        panel.set_title(name, fontsize=10)
        panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.grid(**GRID)
        panel.set_axisbelow(True)
    for panel in list(panels.flat)[len(found) :]:
        panel.set_axis_off()
    figure.supxlabel("span at the end", fontsize=10)
    figure.supylabel("heads", fontsize=10)
    figure.suptitle(title)
    return figure
