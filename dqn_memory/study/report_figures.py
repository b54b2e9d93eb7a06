"""The report's pictures of scores, from runs and estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter, StrMethodFormatter

from dqn_memory.analysis.plots import STYLE
from dqn_memory.study import statistics
from dqn_memory.study.report_data import Entry
from dqn_memory.study.report_panels import FAINT as FAINT
from dqn_memory.study.report_panels import FEW_SERIES, GREY, multiples, short_steps, single, titled
from dqn_memory.study.report_panels import GRID as GRID
from dqn_memory.study.report_style import Look
from dqn_memory.study.statistics import FEWEST, HUMAN, OTHERS, Estimate, Floats, Profile, Scale

_styled = matplotlib.rc_context({**STYLE, "font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9})
SHORT = 24  # letters of a panel's title
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
    """Steps, mean, and both ends of the band."""
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
    """Where an axis begins: at 0, but runs that long act at random first leave the greater half of it empty."""
    if not len(steps) or steps.min() <= steps.max() / 2:
        return 0.0
    return float(steps.min() - 0.05 * np.ptp(steps))


def _levels(panels: Sequence[Axes], scale: Scale, best: str) -> None:
    """Lines in all panels, with their names in the first."""
    for panel in panels:
        told = panel is panels[0]
        _line(panel, scale.zero, "random" if told else "")
        _line(panel, scale.one, best if told else "", below=len(panels) > 1)  # above it is the panel's title


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
    """Share of scores above each threshold, a step line a series; a panel each where there are many."""
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
    """One series with its band, or, without a look, as a grey line behind others."""
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
    """Normalised score over the number of parameters, a point a series; a panel a world.

    `worlds` are those of the points, in their order; without them all points are in one panel.
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
    """Points with their intervals."""
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
