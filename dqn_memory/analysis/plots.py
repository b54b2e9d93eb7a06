"""Draw plain arrays: attention, priors, curves, recall, hindsight. Every function gives a figure; `save` writes it."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from PIL import Image

from dqn_memory.runs.errors import UserError
from envs.files import write_atomic

P = ParamSpec("P")
Array = np.ndarray[Any, np.dtype[Any]]
Curve = tuple[Sequence[float] | Array, Sequence[float] | Array]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#8c6d31")
MARK, INK = "#d55e00", "#222222"
MAP = "Blues"
HIDDEN = "#ececec"  # keys that may not be attended to
STYLE: Any = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "figure.titlesize": 11,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "xtick.color": "#444444", "ytick.color": "#444444", "axes.prop_cycle": cycler(color=COLOURS),
    "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.8, "savefig.dpi": 150,
}  # fmt: skip
SHADES = 256  # of a picture's palette
PER_ROW = 4  # panels side by side
MOST = 100  # steps of an episode in a picture; more would lie on each other
FILM = 16  # a window of up to this many steps is shown with pictures and numbers


def _styled(function: Callable[P, Figure]) -> Callable[P, Figure]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return function(*args, **kwargs)

    return wrapper


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all; a UserError says what the disk refused."""
    with matplotlib.rc_context(STYLE):
        write_atomic(path, png(figure))
    return path


def png(figure: Figure) -> bytes:
    """Encode a figure as PNG of a palette, a third of the size of true colours, always to the same bytes."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    true = Image.open(drawn).convert("RGB")
    true.quantize(SHADES, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def lowest(panels: Array) -> list[Axes]:
    """Find the lowest visible panel of each column, and let it show the numbers of the axis."""
    found: list[Axes] = [next(panel for panel in column[::-1] if panel.get_visible()) for column in panels.T]
    for panel in found:
        panel.tick_params(labelbottom=True)
    return found


@_styled
def decision(
    weights: Array,
    rows: Sequence[str],
    title: str,
    marks: Mapping[int, str],
    frames: Sequence[Array] = (),
    first_step: int = 0,
) -> Figure:
    """Draw what one decision, at a window's last step, depends on: weights (R, T), one row of shares a source.

    `rows` names the sources, `marks` gives words to step numbers (the last step's frame is black), `frames` are T
    pictures for the film strip above (left out of long windows).
    """
    count, length = weights.shape
    film = length <= FILM and len(frames) == length
    figure_width = max(5.0, (0.95 if film else 0.42) * length)
    heights = [figure_width / length if film else 0.01, 0.36 * count]
    figure = Figure(figsize=(figure_width + 2.6, sum(heights) + 1.5), layout="constrained")
    grid = figure.add_gridspec(2, length, height_ratios=heights, wspace=0.02, hspace=0.02)
    for step, frame in enumerate(frames if film else ()):
        panel = figure.add_subplot(grid[0, step])
        panel.imshow(frame, interpolation="nearest")
        panel.set_axis_off()
    panel = figure.add_subplot(grid[1, :])
    image = panel.imshow(weights, cmap=MAP, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    panel.set_yticks(range(count), rows)
    panel.set_xticks(*_step_labels(length, first_step, marks))
    panel.set_xlabel("step of the episode")
    panel.tick_params(length=0)
    for index in sorted((step - first_step for step in marks), reverse=True):  # the last one lies below the others
        edge = INK if index == length - 1 else MARK
        box = Rectangle((index - 0.5, -0.5), 1, count, fill=False, edgecolor=edge, linewidth=1.8, clip_on=False)
        panel.add_patch(box)
    if film:
        _numbers(panel, weights)
    figure.colorbar(image, ax=panel, label="share", aspect=12, pad=0.01)
    figure.suptitle(title)
    return figure


def _step_labels(length: int, first_step: int, marks: Mapping[int, str]) -> tuple[list[int], list[str]]:
    every = 1 if length <= 24 else 5
    places = [i for i in range(length) if (first_step + i) % every == 0 or first_step + i in marks]
    words = [f"\n{marks[first_step + i]}" if first_step + i in marks else "" for i in places]
    return places, [f"{first_step + i}{word}" for i, word in zip(places, words, strict=True)]


def _numbers(panel: Axes, weights: Array) -> None:
    for (row, step), value in np.ndenumerate(weights):
        colour = "white" if value > 0.55 else "#333333"
        panel.text(step, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)


@_styled
def prior_tables(tables: Mapping[str, Array], title: str, ylabel: str = "prior weight", steps: str = "steps") -> Figure:
    """Draw the weight by distance (H, T) of each layer's attention prior: a panel a layer, a line a head."""
    across = min(len(tables), 3)
    down = -(-len(tables) // across)
    figure = Figure(figsize=(3.6 * across + 1.4, 2.6 * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for panel, (name, table) in zip(axes.flat, tables.items(), strict=False):
        for head, line in enumerate(table):
            panel.plot(line, label=f"head {head}", linestyle="-" if head < len(COLOURS) else "--")
        panel.set_title(name)
        panel.set_ylim(-0.03, max(1.05, float(table.max()) * 1.05))
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes.flat[len(tables) :]:
        panel.set_visible(False)
    lowest(axes)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right center")
    figure.supxlabel(f"distance from query back to key ({steps})", fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    figure.suptitle(title)
    return figure


@_styled
def learning_curves(
    curves: Mapping[str, Curve], title: str, bands: Mapping[str, tuple[Array, Array]] | None = None
) -> Figure:
    """Draw success rates (0 .. 1) over environment steps, a line a run; `bands` are (low, high) around some of them."""
    figure, panel = _over_steps(curves, title, "success rate")
    for name, (steps, rates) in curves.items():
        (line,) = panel.plot(steps, rates, label=name, marker=_marker(steps), markersize=3.5)
        if bands and name in bands:
            panel.fill_between(steps, *bands[name], color=line.get_color(), alpha=0.18, linewidth=0)
    _as_rates(panel)
    return _finish(figure, panel)


@_styled
def seed_curves(forms: Mapping[str, Sequence[Curve]], title: str, ylabel: str = "success rate") -> Figure:
    """Draw curves over environment steps: a colour a form, its seeds thin, their mean at shared steps thick."""
    figure, panel = _over_steps(forms, title, ylabel)
    for number, (form, seeds) in enumerate(forms.items()):
        style: Any = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3],
        }
        for steps, values in seeds if len(seeds) > 1 else ():
            panel.plot(steps, values, linewidth=0.9, alpha=0.4, **style)
        known = [dict(zip(steps, values, strict=True)) for steps, values in seeds]
        shared = [step for step in known[0] if all(step in curve for curve in known)]
        mean = [float(np.mean([curve[step] for curve in known])) for step in shared]
        label = form if len(seeds) == 1 else f"{form}, mean of {len(seeds)}"
        panel.plot(shared, mean, label=label, marker=_marker(shared), markersize=3.5, **style)
    if ylabel == "success rate":
        _as_rates(panel)
    return _finish(figure, panel)


def _over_steps(curves: Mapping[str, Any], title: str, ylabel: str) -> tuple[Figure, Axes]:
    if not curves:
        raise UserError("there is no learning curve to draw: nothing was evaluated yet")
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    panel = figure.subplots()
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.grid(color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.set_xlabel("environment steps")
    panel.set_ylabel(ylabel)
    panel.set_title(title, fontsize=11)
    return figure, panel


def _as_rates(panel: Axes) -> None:
    panel.set_ylim(-0.02, 1.02)
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))


def _marker(steps: Sequence[float] | Array) -> str | None:
    return "o" if len(steps) <= 40 else None


def _finish(figure: Figure, panel: Axes) -> Figure:
    panel.set_xlim(left=0)
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return figure


def first_steps(title: str, length: int) -> str:
    """Add to a picture's title which part of an episode it shows, where that is not all of it."""
    return title if length <= MOST else f"{title}\n(steps 0 to {MOST - 1} of {length})"


@_styled
def q_values(q: Array, action: Array, title: str, names: Sequence[str] = ()) -> Figure:
    """Draw Q-values (T, A) over an episode's first steps, a line an action; a ring marks the action taken, (T,)."""
    title, q, action = first_steps(title, len(q)), q[:MOST], action[:MOST]
    steps = np.arange(len(q))
    figure = Figure(figsize=(min(12.0, max(5.6, 0.12 * len(q) + 4.5)), 3.4), layout="constrained")
    panel = figure.subplots()
    for number in range(q.shape[1]):
        name = names[number] if number < len(names) else f"action {number}"
        dash = "-" if number < len(COLOURS) else "--"
        panel.plot(steps, q[:, number], label=name, linewidth=1.4, linestyle=dash, marker=".", markersize=4)
    chosen = q[steps, action]
    ring: Any = {"facecolors": "none", "edgecolors": "#222222", "linewidths": 1.2, "zorder": 5}
    panel.scatter(steps, chosen, s=46, label="action taken", **ring)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    panel.set_xlabel("step of the episode")
    panel.set_ylabel("Q-value (discounted return)")
    panel.set_title(title, fontsize=11)
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


Masked = np.ma.MaskedArray[Any, np.dtype[Any]]
Estimate = tuple[float, float | None, float | None]  # mean, low, high

GRID: Any = {"color": "#e6e6e6", "linewidth": 0.7}
FAINT = "#666666"
PICTURES = 6  # of the world beside attention maps
SIDE = 2.5  # inches of a map


@_styled
def attention_maps(maps: Array, title: str, frames: Sequence[Array] = (), context: int | None = None) -> Figure:
    """Draw attention (H, T, T) of one layer over an episode's first steps, a panel a head, beside rendered frames.

    Rows are the steps at which decisions were made, columns the steps that they looked back on, or, in an episode of
    more than two windows of `context` steps, how many steps back those were. What was not in the window is grey. Of
    the `frames`, one a step, some are shown on the left, evenly spaced, and their steps are the rows' labels.
    """
    by_age = context is not None and maps.shape[-1] > 2 * context  # of the whole episode, also where it is cut
    title, maps, frames = first_steps(title, maps.shape[-1]), maps[:, :MOST, :MOST], frames[:MOST]
    heads, length = maps.shape[0], maps.shape[-1]
    across = min(heads, PER_ROW)
    down = -(-heads // across)
    steps = np.unique(np.linspace(0, length - 1, min(PICTURES, length)).round().astype(int))
    strip = _strip_width(frames, len(steps), down)
    figure = Figure(figsize=(strip + SIDE * across + 1.1, SIDE * down + 0.9), layout="constrained")
    grid = figure.add_gridspec(1, 2 if len(frames) else 1, width_ratios=[strip, SIDE * across] if len(frames) else None)
    if len(frames):
        _film(figure, grid[0], frames, steps)
    panels = grid[-1].subgridspec(down, across).subplots(squeeze=False, sharex=True, sharey=True)
    shown = _by_age(maps, context or length) if by_age else _by_step(maps, context or length)
    image = _heads(panels, shown, steps)
    for panel in lowest(panels):
        panel.set_xlabel("looks back by steps" if by_age else "looks at step")
        if not by_age:
            panel.set_xticks(steps)
    figure.colorbar(image, ax=panels, label="attention weight", shrink=0.8, aspect=25)
    figure.suptitle(title)
    return figure


def _heads(panels: Array, shown: Masked, steps: Array) -> AxesImage:
    """One panel for each of the maps (H, T, columns)."""
    colours = matplotlib.colormaps[MAP].with_extremes(bad=HIDDEN)
    top = max(float(shown.max()), 1e-9)
    for head, (panel, weights) in enumerate(zip(panels.flat, shown, strict=False)):
        image = panel.imshow(weights, cmap=colours, vmin=0, vmax=top, interpolation="nearest", aspect="auto")
        panel.set_title(f"head {head}")
        panel.set_yticks(steps)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        panel.spines[:].set_visible(False)
    for panel in panels.flat[len(shown) :]:
        panel.set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel("deciding at step")
    return image


def _by_step(maps: Array, context: int) -> Masked:
    """Mask what is not among the newest `context` steps, and has no weight either, in maps (H, T, T)."""
    length = maps.shape[-1]
    age = np.arange(length)[:, None] - np.arange(length)
    outside = ((age < 0) | (age >= context)) & (maps == 0).all(0)
    return np.ma.array(maps, mask=np.broadcast_to(outside, maps.shape))


def _by_age(maps: Array, context: int) -> Masked:
    """Arrange maps (H, T, T) by how many steps back, (H, T, context)."""
    step = np.arange(maps.shape[-1])[:, None] - np.arange(context)  # (T, context)
    weights = np.take_along_axis(maps, np.broadcast_to(step.clip(0), (len(maps), *step.shape)), -1)
    return np.ma.array(weights, mask=np.broadcast_to(step < 0, weights.shape))


def _strip_width(frames: Sequence[Array], count: int, down: int) -> float:
    """Inches for a film strip of `count` pictures one below the other."""
    if not len(frames):
        return 0.0
    height, width = frames[0].shape[:2]
    return float(np.clip(SIDE * down / count * width / height, 0.6, 2.4)) + 0.45


def _film(figure: Figure, slot: SubplotSpec, frames: Sequence[Array], steps: Array) -> None:
    strip = slot.subgridspec(len(steps), 1).subplots(squeeze=False)[:, 0]
    for panel, step in zip(strip, steps.tolist(), strict=True):
        panel.imshow(frames[step], interpolation="nearest")
        panel.set_ylabel(f"step {step}", rotation=0, ha="right", va="center", fontsize=8)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.spines[:].set_visible(False)


@_styled
def recall(
    curves: Mapping[str, Sequence[Estimate]],
    labels: Mapping[str, str],
    decisions: Array,
    title: str,
    shares: Collection[str] = (),
) -> Figure:
    """Draw measurements by distance in steps, a panel each: the mean over episodes with its 95 % interval as a band.

    `labels` says what the panels' axes count; a last panel shows how many decisions (D,) each distance has.
    Intervals and axes of `shares` end at 1.
    """
    figure = Figure(figsize=(3.1 * (len(curves) + 1), 3.1), layout="constrained")
    panels = figure.subplots(1, len(curves) + 1, squeeze=False)[0]
    ages = np.arange(len(decisions))
    for panel, (name, measures), colour in zip(panels, curves.items(), COLOURS, strict=False):
        mean, low, high = (np.array(each, float) for each in zip(*measures, strict=True))
        low, high = (np.clip(end, 0, 1 if name in shares else None) for end in (low, high))
        panel.fill_between(ages, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.plot(ages, mean, color=colour, marker="o", markersize=3 if len(ages) <= 60 else 0)
        panel.set_title(name)
        panel.set_ylabel(labels[name])
    panels[-1].bar(ages, decisions, color="#bbbbbb", width=0.9)
    panels[-1].set_title("decisions measured")
    for panel in panels:
        highest = 1.0 if panel.get_title() in shares else np.inf
        panel.set_ylim(0, min(panel.get_ylim()[1], highest))
        panel.grid(axis="y", **GRID)
        panel.set_axisbelow(True)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.supxlabel("age of the observation (steps before the decision; 0 is the newest)", fontsize=9)
    figure.suptitle(title)
    return figure


@_styled
def discrepancy(inside: Array, alone: Array, flips: Array, future: Array, title: str) -> Figure:
    """Draw Q of the greedy action by window and by prefix, and their mean |difference|, over an episode's first steps.

    Args:
        inside: Q of the whole window, (T, A).
        alone: Q of the prefix that acting sees, (T, A).
        flips: steps at which the greedy action differs, (T,).
        future: steps of the window that lie ahead, (T,); where there are none a window ends.
        title: of the picture.
    """
    title = first_steps(title, len(alone))
    inside, alone, flips, future = (each[:MOST] for each in (inside, alone, flips, future))
    steps, greedy = np.arange(len(alone)), alone.argmax(1)
    figure = Figure(figsize=(min(12.0, max(6.4, 0.1 * len(steps) + 5)), 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for q, name, colour, dash in ((alone, "prefix (acting)", COLOURS[0], "-"), (inside, "whole window", MARK, "--")):
        above.plot(steps, q[steps, greedy], dash, color=colour, label=name, marker=".", markersize=5)
    above.set_ylabel("Q of the greedy action")
    below.bar(steps, np.abs(inside - alone).mean(1), color="#bbbbbb", width=0.8, label="mean |difference| of Q")
    below.set_ylabel("mean |difference|")
    flipped, size = steps[flips], 6 if len(steps) <= 60 else 3
    marks: Any = {"color": INK, "markersize": size, "clip_on": False, "label": "other greedy action"}
    if len(flipped):
        below.plot(flipped, np.zeros(len(flipped)), "v", **marks)
    for panel in (above, below):
        for end in steps[:-1][future[:-1] == 0]:
            panel.axvline(end + 0.5, color=FAINT, linestyle=":", linewidth=1)
        panel.grid(axis="y", **GRID)
        panel.set_axisbelow(True)
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    below.set_ylim(bottom=0)
    below.set_xlabel("step of the episode")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title)
    return figure


@_styled
def returns(agents: Mapping[str, Estimate], lines: Mapping[str, float], title: str) -> Figure:
    """Draw mean returns of some agents with their 95 % intervals, between named dashed lines."""
    figure = Figure(figsize=(6.4, 0.55 * len(agents) + 1.5), layout="constrained")
    panel = figure.subplots()
    for row, ((mean, low, high), colour) in enumerate(zip(agents.values(), COLOURS, strict=False)):
        if low is not None and high is not None:
            panel.plot([low, high], [row, row], color=colour, linewidth=3, alpha=0.4, solid_capstyle="butt")
        panel.plot(mean, row, "o", color=colour, markersize=8)
        paper: Any = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        panel.annotate(f"{mean:.2f}", (mean, row), (0, 10), textcoords="offset points", ha="center", bbox=paper)
    panel.set_yticks(range(len(agents)), list(agents))
    panel.set_ylim(len(agents) - 0.5, -0.7)
    _named_lines(panel, lines)
    panel.grid(axis="x", **GRID)
    panel.set_axisbelow(True)
    panel.set_xlabel("return of an episode")
    figure.suptitle(title)
    return figure


def _named_lines(panel: Axes, lines: Mapping[str, float]) -> None:
    for name, value in lines.items():
        panel.axvline(value, color=FAINT, linestyle="--", linewidth=1.1)
        panel.annotate(name, (value, 1.0), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
                       ha="center", va="bottom", fontsize=8, color=FAINT)  # fmt: skip
