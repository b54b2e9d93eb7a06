"""Pictures from plain arrays: attention maps, priors, curves. Every function gives a figure; `save` writes it."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from PIL import Image

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import write_atomic

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
    """The figure as PNG of a palette, a third of the size of true colours; the same bytes for the same figure."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    true = Image.open(drawn).convert("RGB")
    true.quantize(SHADES, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


@_styled
def attention_maps(
    maps: Array, title: str, first_step: int = 0, query: int | None = None, key: int | None = None
) -> Figure:
    """Attention maps (H, T, T) of one layer, a panel a head: rows are query steps, columns key steps.

    `first_step` is the number of the window's first step; `query` and `key` are step numbers to be marked.
    """
    heads, length = maps.shape[0], maps.shape[-1]
    across = min(heads, PER_ROW)
    down = -(-heads // across)
    figure = Figure(figsize=(2.3 * across + 1.2, 2.35 * down + 0.7), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    hidden = np.triu(np.ones((length, length), bool), 1) & (maps == 0).all(0)
    edge = first_step - 0.5
    extent = (edge, edge + length, edge + length, edge)
    top = max(float(maps.max()), 1e-9)
    colours = matplotlib.colormaps[MAP].with_extremes(bad=HIDDEN)
    for head, panel in enumerate(axes.flat[:heads]):
        shown = np.ma.array(maps[head], mask=hidden)
        image = panel.imshow(shown, cmap=colours, vmin=0, vmax=top, extent=extent, interpolation="nearest")
        panel.set_title(f"head {head}")
        _mark(panel, extent, query, key)
        _whole_numbers(panel)
    for panel in axes.flat[heads:]:
        panel.set_visible(False)
    lowest(axes)
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8, aspect=25)
    figure.supxlabel("key step", fontsize=9)
    figure.supylabel("query step", fontsize=9)
    figure.suptitle(title)
    return figure


def lowest(panels: Array) -> list[Axes]:
    """The lowest visible panel of each column, with the numbers that one below it would have had in its place."""
    found: list[Axes] = [next(panel for panel in column[::-1] if panel.get_visible()) for column in panels.T]
    for panel in found:
        panel.tick_params(labelbottom=True)
    return found


def _mark(panel: Axes, extent: tuple[float, float, float, float], query: int | None, key: int | None) -> None:
    left, right, bottom, top = extent
    frame: Any = {"fill": False, "edgecolor": MARK, "linewidth": 1.4, "clip_on": False}
    if query is not None:
        panel.add_patch(Rectangle((left, query - 0.5), right - left, 1, **frame))
    if key is not None:
        panel.add_patch(Rectangle((key - 0.5, top), 1, bottom - top, linestyle=":", **frame))


def _whole_numbers(panel: Axes) -> None:
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    for spine in panel.spines.values():
        spine.set_visible(False)


@_styled
def decision(
    weights: Array,
    rows: Sequence[str],
    title: str,
    marks: Mapping[int, str],
    frames: Sequence[Array] = (),
    first_step: int = 0,
) -> Figure:
    """What one decision, at a window's last step, draws on: weights (R, T), one row of shares a source.

    `rows` names the sources, `marks` gives words to step numbers (the last step's frame is black), `frames` are T
    pictures for the film strip above (left out of long windows).
    """
    count, length = weights.shape
    film = length <= FILM and len(frames) == length
    wide = max(5.0, (0.95 if film else 0.42) * length)
    heights = [wide / length if film else 0.01, 0.36 * count]
    figure = Figure(figsize=(wide + 2.6, sum(heights) + 1.5), layout="constrained")
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
    """Weight by distance (H, T) of each layer's attention prior: a panel a layer, a line a head."""
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
    """Success rate (0 .. 1) over environment steps, a line a run; `bands` are (low, high) around some of them."""
    figure, panel = _over_steps(curves, title, "success rate")
    for name, (steps, rates) in curves.items():
        (line,) = panel.plot(steps, rates, label=name, marker=_marker(steps), markersize=3.5)
        if bands and name in bands:
            panel.fill_between(steps, *bands[name], color=line.get_color(), alpha=0.18, linewidth=0)
    _as_rates(panel)
    return _finish(figure, panel)


@_styled
def seed_curves(forms: Mapping[str, Sequence[Curve]], title: str, ylabel: str = "success rate") -> Figure:
    """Curves over environment steps: a colour a form, its seeds thin, their mean at the steps that all have thick."""
    figure, panel = _over_steps(forms, title, ylabel)
    for number, (form, seeds) in enumerate(forms.items()):
        look: Any = {"color": COLOURS[number % len(COLOURS)], "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3]}
        for steps, values in seeds if len(seeds) > 1 else ():
            panel.plot(steps, values, linewidth=0.9, alpha=0.4, **look)
        known = [dict(zip(steps, values, strict=True)) for steps, values in seeds]
        shared = [step for step in known[0] if all(step in curve for curve in known)]
        mean = [float(np.mean([curve[step] for curve in known])) for step in shared]
        label = form if len(seeds) == 1 else f"{form}, mean of {len(seeds)}"
        panel.plot(shared, mean, label=label, marker=_marker(shared), markersize=3.5, **look)
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
    """A picture's title, with what part of an episode it shows where that is not all of it."""
    return title if length <= MOST else f"{title}\n(steps 0 to {MOST - 1} of {length})"


@_styled
def q_values(q: Array, action: Array, title: str, names: Sequence[str] = ()) -> Figure:
    """Q-values (T, A) over an episode's first steps, a line an action; a ring marks the action taken, (T,)."""
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
