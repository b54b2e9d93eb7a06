"""Draw the pictures of a report: curves, profiles, sizes, learned values. A series looks the same in all of them."""

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from math import ceil, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dqn_memory.analysis.plots import COLOURS, FAINT, INK, STYLE, finish_panel, grid_panels, lowest, new_figure
from dqn_memory.architectures import ARCHITECTURES
from dqn_memory.study import statistics
from dqn_memory.study.collect import FinishedRun
from dqn_memory.study.statistics import Estimate, Floats, Scale, plain_name
from envs.extras import extra
from envs.tables import Table

with extra("plots"):
    import matplotlib
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter, StrMethodFormatter

_styled = matplotlib.rc_context({**STYLE, "font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9})
SHORT = 24  # max letters of a panel's title on one line
FEW_HEADS = 2  # max heads of a panel with bands
SPAN_COLUMNS = 3  # max columns of panels of spans
BINS = 30  # of a histogram of spans
GREY = "#c4c4c4"
FEW_SERIES = 6  # max series in one panel
MANY_SERIES = 16  # max series of panels that show the other series in grey
ACROSS = 4  # max panels side by side
WIDE = 20  # max ratio of costs on a linear axis
BESIDE = 0.13  # share of a panel's width for the names of its lines
BEST = dict.fromkeys(statistics.HUMAN.values(), "human") | dict.fromkeys(statistics.OTHERS.values(), "most possible")

# Only seven colours: the eighth of COLOURS is too similar to the second.
PALETTE = COLOURS[:7]
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v")
APART_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
MARKS = 12  # max markers of a line


class Look(NamedTuple):
    """Colour, dash and marker of a series."""

    colour: str
    dash: Any
    marker: str

    def marked(self, points: int) -> dict[str, Any]:
        """Give the keyword arguments that draw a line of this number of points with its markers."""
        line = {"color": self.colour, "linestyle": self.dash, "marker": self.marker, "markersize": 4}
        return {**line, "markevery": -(-points // MARKS) or 1}


LOOKS = tuple(Look(colour, dash, marker) for dash, marker in zip(DASHES, MARKERS, strict=True) for colour in PALETTE)
_names = tomllib.loads((Path(__file__).parent / "looks.toml").read_text(encoding="utf-8"))
SAME: Mapping[str, str] = _names["same"]
FIXED: Mapping[str, Look] = {name: LOOKS[place % len(LOOKS)] for place, name in enumerate(ARCHITECTURES)} | {
    name: LOOKS[row * len(PALETTE) + place]
    for family in _names["families"].values()
    for row, names in enumerate(family)
    for place, name in enumerate(names)
}


def looks(series: Sequence[str]) -> dict[str, Look]:
    """Give each series a look; architectures and the names in looks.toml have the same look in every study.

    Other names get free looks in the order of the study's file, unused colours first; looks repeat if none is free.
    If two names have the same fixed look, an architecture gets it, and the other name gets a free one.
    """
    fixed, found = {name: SAME.get(name, name) for name in series}, dict[str, Look]()
    for name in sorted(series, key=lambda name: fixed[name] not in ARCHITECTURES):
        if fixed[name] in FIXED and FIXED[fixed[name]] not in found.values():
            found[name] = FIXED[fixed[name]]
    for name in series:
        free = [look for look in LOOKS if look not in found.values()] or [LOOKS[len(found) % len(LOOKS)]]
        colours = {look.colour for look in found.values()}
        found.setdefault(name, min(free, key=lambda look: look.colour in colours))
    return found


def grid(down: int, across: int, size: tuple[float, float], count: int = 0, **shared: Any) -> tuple[Figure, Any]:
    """Make panels (down, across) with common axes, and show the first `count` of them (0: all)."""
    figure, shared = new_figure(*size), {"sharex": True, "sharey": True, **shared}
    _, panels = grid_panels(figure.add_gridspec(down, across), count or down * across, **shared)
    for panel in panels.flat:
        finish_panel(panel, grid="both")
    lowest(panels)
    return figure, panels


def panels_of(count: int) -> tuple[Figure, list[Axes]]:
    """Make one wide panel, or several small ones with common axes."""
    if count == 1:
        figure, panels = grid(1, 1, (8.4, 3.9))
    else:
        across = min(ACROSS, count)
        down = -(-count // across)
        figure, panels = grid(down, across, (9.6, (1.75 + 0.35 * (ACROSS - across)) * down + 0.75), count)
    return figure, list(panels.flat[:count])


def series_figure(
    names: Collection[str], styles: Mapping[str, Look], draw: Callable[[Axes, str, Look | None], None],
    words: tuple[str, str], title: str = "",
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """Draw all series in one panel; many series have a panel each, with the others in grey.

    `draw` draws one series (in grey if its look is None). `words` are the labels of the axes x and y.
    """
    small, grey = len(names) > FEW_SERIES, len(names) <= MANY_SERIES
    figure, panels = panels_of(len(names) if small else 1)
    for panel, name in zip(panels, names, strict=False):
        for other in names if grey else [name]:
            draw(panel, other, None if small and other != name else styles[other])
        panel.set_title(name.replace(", ", "\n") if small else title, fontsize=9.5 if small else 11)
    if small:
        labelled(figure, *words)
        figure.suptitle(f"{title} (grey: the other series)".strip() if grey else title, fontsize=11)
    else:
        panels[0].set_xlabel(words[0])
        panels[0].set_ylabel(words[1])
        panels[0].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure, panels


def labelled(figure: Figure, across: str, up: str) -> None:
    """Label the axes of all panels."""
    figure.supxlabel(across, fontsize=10)
    figure.supylabel(up, fontsize=10)


def _few_steps(panel: Axes, marks: int) -> None:
    """Label an axis of steps with few short numbers."""
    panel.xaxis.set_major_locator(MaxNLocator(marks, integer=True))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def drawn(columns: str, rows: Iterable[Sequence[Any]]) -> Table:
    """Tabulate the numbers of a picture with six digits; a row's arrays give a row an entry. Commas part columns."""

    def cell(value: Any) -> Any:
        return (None if np.isnan(value) else float(f"{value:.6g}")) if isinstance(value, float) else value

    found = (zip(*(each.ravel().tolist() for each in np.broadcast_arrays(*row)), strict=True) for row in rows)
    return Table(columns.split(", "), [[*map(cell, line)] for lines in found for line in lines])


@_styled
def curves_figure(
    curves: Mapping[str, tuple[Floats, ...]], styles: Mapping[str, Look], title: str, scale: Scale | None, success: bool
) -> Figure:
    """Draw the mean curves of one environment with 95 % bands, and dashed lines at the reference scores."""

    def draw(panel: Axes, name: str, look: Look | None) -> None:
        steps, mean, low, high = curves[name]
        if look is None:
            panel.plot(steps, mean, color=GREY, linewidth=0.8, zorder=1)
        else:
            panel.plot(steps, mean, label=name, zorder=3, **look.marked(len(steps)))
            panel.fill_between(steps, low, high, color=look.colour, alpha=0.17, linewidth=0, zorder=2)

    words = "environment steps", "success rate" if success else "return"
    figure, panels = series_figure(curves, styles, draw, words, title)
    left = _beginning(np.concatenate([steps for steps, *_ in curves.values()]))
    for panel in panels:
        panel.set_xlim(left=left)
        _few_steps(panel, 3 if len(panels) > 1 else 6)
        if len(panels) == 1:
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        if success:
            panel.set_ylim(-0.03, 1.06)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        if scale is not None:
            for level in scale:
                panel.axhline(level, color=FAINT, linestyle=(0, (2, 2)), linewidth=1)
    if scale is not None:
        best = "best known" if success else BEST.get(scale, "best known")
        _name_lines(panels[:ACROSS][-1], {"random": scale.zero, best: scale.one})
        if len(panels) == 1:
            panels[0].legend(loc="center left", bbox_to_anchor=(1.01 + BESIDE, 0.5))
    return figure


def mean_curve(runs: Sequence[FinishedRun]) -> tuple[Floats, ...]:
    """Give the steps (E,) at which all runs were evaluated, and the mean and both ends of its interval there."""
    curves = [dict(zip(run.curve.steps.tolist(), run.curve.success.tolist(), strict=True)) for run in runs]
    steps = sorted(set.intersection(*map(set, curves)))
    values = np.array([[curve[step] for step in steps] for curve in curves], np.float64)  # (R, E)
    mean = values.mean(0)
    if len(runs) < 2 or not steps:
        return np.array(steps), mean, mean * np.nan, mean * np.nan
    draws = statistics.resampled_means(values, statistics.FEW, np.random.default_rng(0))
    return np.array(steps), mean, *statistics.percentiles(draws)


def _beginning(steps: Floats) -> float:
    """Choose the start of an axis of steps: 0, or the first step if more than half of the axis would be empty."""
    if not len(steps) or steps.min() <= steps.max() / 2:
        return 0.0
    return float(steps.min() - 0.05 * np.ptp(steps))


def _name_lines(panel: Axes, levels: Mapping[str, float]) -> None:
    """Name the two lines of a panel at its right edge; `levels` has the lower line first."""
    low, high = panel.get_ylim()
    near = max(levels.values()) - min(levels.values()) < 0.15 * (high - low)
    for (word, level), side in zip(levels.items(), ("top", "bottom"), strict=True):
        panel.annotate(
            word, (1.0, level), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va=side if near else "center", fontsize=8.5, color=FAINT,
        )  # fmt: skip


@_styled
def profile_figure(profiles: Mapping[str, tuple[Floats, ...]], styles: Mapping[str, Look]) -> Figure:
    """Draw a step line for each series: thresholds (S,), share of scores above them, and its interval's ends."""

    def draw(panel: Axes, name: str, look: Look | None) -> None:
        thresholds, share, low, high = profiles[name]
        line = {"color": GREY, "linewidth": 0.8, "zorder": 1} if look is None else look.marked(len(thresholds))
        panel.step(thresholds, share, where="post", label=name, **line)
        if look is not None:
            panel.fill_between(thresholds, low, high, color=look.colour, alpha=0.15, linewidth=0, step="post")

    figure, panels = series_figure(profiles, styles, draw, ("normalised score", "share of runs above it"))
    thresholds = next(iter(profiles.values()))[0]
    for panel in panels:
        panel.set_ylim(-0.02, 1.03)
        panel.set_xlim(float(thresholds[0]), float(thresholds[-1]))
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


@_styled
def parameters_figure(points: Sequence[tuple[str, str, int, Estimate]], styles: Mapping[str, Look]) -> Figure:
    """Draw normalised scores over numbers of parameters; each environment has a panel.

    A point has an environment, a series, a number of parameters and a score with its interval.
    """
    worlds = list(dict.fromkeys(world for world, *_ in points))
    figure, panels = panels_of(len(worlds))
    handles: dict[str, Any] = {}
    for panel, world in zip(panels, worlds, strict=True):
        for name, size, score in (point[1:] for point in points if point[0] == world):
            look = styles[name]
            panel.plot([size, size], [score.low, score.high], color=look.colour, linewidth=1.4, alpha=0.5)
            panel.plot(size, score.point, look.marker, color=look.colour, markersize=6.5, label=name, linestyle="none")
        _few_steps(panel, 3)
        panel.margins(x=0.15)
        panel.set_title(world.replace("/", "/\n", 1) if len(world) > SHORT else world, fontsize=9)
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center")
    labelled(figure, "trainable parameters", "normalised score")
    return figure


@_styled
def bars_figure(
    bars: Mapping[str, Mapping[str, tuple[Estimate, bool]]], scales: Mapping[str, Scale | None], title: str
) -> Figure:
    """Draw the score of each agent in each environment, with its interval and the environment's reference scores.

    `bars` have an estimate and whether the agent was trained there, by agent and environment; a bar is hatched where it
    was not.
    """
    envs = list(dict.fromkeys(env for found in bars.values() for env in found))
    figure, panels = grid(1, 1, (max(6.5, 1.4 * len(envs) + 3), 3.9))
    panel, wide = panels.flat[0], 0.8 / len(bars)
    for number, (agent, found) in enumerate(bars.items()):
        for env, (score, trained) in found.items():
            place = envs.index(env) + (number - (len(bars) - 1) / 2) * wide
            panel.bar(
                place, score.point, 0.9 * wide, color=PALETTE[number % len(PALETTE)], alpha=0.85 if trained else 0.45,
                hatch=None if trained else "///", label=agent if env == next(iter(found)) else None,
            )  # fmt: skip
            panel.plot([place, place], [score.low, score.high], color=INK, linewidth=1.0)
    for place, env in enumerate(envs):
        if (scale := scales[env]) is not None:
            panel.hlines([scale.zero, scale.one], place - 0.45, place + 0.45, color=INK, linewidth=0.8, linestyle=":")
    panel.set_xticks(range(len(envs)), [env.replace("-", "\n") for env in envs], fontsize=8)
    panel.set_ylabel("final score")
    panel.set_title(title, fontsize=11)
    panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


@_styled
def answer_figure(
    cells: Mapping[tuple[str, str], tuple[Estimate, float]], scores: Mapping[str, Estimate],
    costs: Mapping[str, Mapping[str, float]], scales: Mapping[str, Scale],
) -> Figure:  # fmt: skip
    """Draw a heat map of scores by series and environment, and beside it the mean score over each cost.

    `cells` hold the score and the normalised score of a series in an environment. A lighter cell is a lower score, a
    red one a score below random play. `scores` are normalised means over all environments. `costs` are by kind of cost,
    then by series. The line is the Pareto front.
    """
    series = list(scores)
    pairs = zip(cycle([*PALETTE, INK]), cycle(APART_MARKERS), strict=False)
    styles = {name: Look(colour, "-", marker) for name, (colour, marker) in zip(series, pairs, strict=False)}
    height = max(0.5 * len(series) + 0.9, 1.5 * len(costs))
    figure = Figure(figsize=(0.95 * len(scales) + 4.6, height), layout="constrained")
    places = figure.add_gridspec(len(costs), 2, width_ratios=(0.95 * len(scales) + 1.4, 3.2))
    _heat_map(figure.add_subplot(places[:, 0]), cells, series, scales, styles)
    for number, (label, values) in enumerate(costs.items()):
        panel = figure.add_subplot(places[number, 1])
        for name in series:
            score, cost, look = scores[name], values[name], styles[name]
            panel.plot([cost, cost], [score.low, score.high], color=look.colour, linewidth=1.4, alpha=0.5)
            panel.plot(cost, score.point, look.marker, color=look.colour, markersize=6)
        panel.step(*_front(scores, values), where="post", color=INK, linewidth=0.7, alpha=0.6, zorder=1)
        finish_panel(panel, grid="both")
        panel.margins(x=0.1, y=0.15)
        if max(values.values()) > WIDE * min(values.values()):
            panel.set_xscale("symlog", linthresh=100)  # some are 0
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            panel.set_xlim(-30)
        panel.set_xlabel(label, fontsize=8.5)
        panel.tick_params(labelsize=8)
        if number == len(costs) // 2:
            panel.set_ylabel("mean normalised score", fontsize=8.5)
    return figure


def _front(scores: Mapping[str, Estimate], costs: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Give the costs and scores of the Pareto front in order: every cheaper series scores less."""
    front: list[tuple[float, float]] = []
    for cost, score in sorted((costs[name], scores[name].point) for name in scores):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return [cost for cost, _ in front], [score for _, score in front]


def _heat_map(
    panel: Axes, cells: Mapping[tuple[str, str], tuple[Estimate, float]],
    series: Sequence[str], scales: Mapping[str, Scale], styles: Mapping[str, Look],
) -> None:  # fmt: skip
    """Draw scores with their intervals; the marker beside a series is that of the other panels."""
    worlds = list(scales)
    shades = [[cells[name, world][1] if (name, world) in cells else np.nan for world in worlds] for name in series]
    blues = ListedColormap(colormaps["Blues"](np.linspace(0, 0.8, 256)), under="#f4cccc")
    image = panel.imshow(np.array(shades), cmap=blues, vmin=0, vmax=1, aspect="auto")
    bar = panel.figure.colorbar(image, ax=panel, location="bottom", extend="min", aspect=60, fraction=0.05, pad=0)
    bar.set_ticks([0, 1], labels=["random play", "best known player"], fontsize=8)
    bar.outline.set_visible(False)
    for row, name in enumerate(series):
        mark = styles[name].marker
        side = panel.get_yaxis_transform()  # shares of the panel across, rows down
        panel.plot(-0.025, row, mark, color=styles[name].colour, markersize=7, clip_on=False, transform=side)
        for column, world in enumerate(worlds):
            if (name, world) not in cells:
                continue
            score, shade = cells[name, world]
            ink = "white" if shade > 0.7 else "black"
            panel.text(column, row - 0.14, f"{score.point:.2f}", ha="center", va="center", color=ink, fontsize=10)
            ends = "one seed" if np.isnan(score.low) else f"{score.low:.2f} to {score.high:.2f}"
            panel.text(column, row + 0.25, ends, ha="center", va="center", color=ink, fontsize=7)
    names = [f"{plain_name(world)}\nrandom {scale.zero:.2f}\nbest {scale.one:.2f}" for world, scale in scales.items()]
    panel.set_xticks(range(len(worlds)), names, fontsize=8)
    panel.set_yticks(range(len(series)), series)
    panel.tick_params(length=0, labeltop=True, labelbottom=False)
    panel.tick_params("y", pad=22)
    panel.set_xlim(-0.5, len(worlds) - 0.5)


@_styled
def over_time_figure(
    steps: Floats, lines: Mapping[str, Mapping[tuple[int, int], Floats]], starts: Mapping[str, float], title: str
) -> Figure:
    """Draw learned values (R, E) over training steps (E,); names are columns, layers are rows.

    Panels with few heads have bands of the standard deviation over R runs.
    """
    layers = sorted({layer for heads in lines.values() for layer, _ in heads})
    size = 3.3 * len(lines) + 1.5, 2.1 * len(layers) + 0.9
    figure, panels = grid(len(layers), len(lines), size, sharey="col")
    for row, layer in zip(panels, layers, strict=True):
        for panel, (name, heads) in zip(row, lines.items(), strict=True):
            _heads(panel, steps, {head: values for (place, head), values in heads.items() if place == layer})
            panel.axhline(starts[name], color=FAINT, linestyle="--", linewidth=1)
        row[0].set_ylabel(f"layer {layer}")
    for panel, name in zip(panels[0], lines, strict=True):
        panel.set_title(name)
    figure.supxlabel("environment steps", fontsize=10)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title)
    return figure


def mean_and_deviation(values: Floats) -> tuple[Floats, Floats]:
    """Give the mean and the standard deviation over runs of values (R, ...); the latter is NaN for one run."""
    return values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)


def _heads(panel: Axes, steps: Floats, heads: Mapping[int, Floats]) -> None:
    for head, values in heads.items():
        (mean, spread), dash = mean_and_deviation(values), "-" if head < len(COLOURS) else "--"
        (line,) = panel.plot(steps, mean, label=f"head {head}", linewidth=1.5, linestyle=dash)
        if len(values) > 1 and len(heads) <= FEW_HEADS:
            panel.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.12, linewidth=0)
    _few_steps(panel, 4)


@_styled
def spans_figure(found: Mapping[str, tuple[Floats, float]], styles: Mapping[str, Look], title: str) -> Figure:
    """Draw a histogram of the spans of each series on common axes."""
    across = min(SPAN_COLUMNS, ceil(sqrt(len(found))))
    down = ceil(len(found) / across)
    figure, panels = grid(down, across, (2.9 * across + 0.6, 2.1 * down + 0.7), len(found))
    top = max(max(float(spans.max()), start) for spans, start in found.values())
    edges = np.linspace(0.0, 1.05 * top, BINS + 1)
    for panel, (name, (spans, start)) in zip(panels.flat, found.items(), strict=False):
        panel.hist(spans, edges, color=styles[name].colour, alpha=0.85)
        panel.axvline(start, color=FAINT, linestyle="--", linewidth=1)
        panel.set_title(name, fontsize=10)
        panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    labelled(figure, "span at the end", "heads")
    figure.suptitle(title)
    return figure
