"""Pictures of a memory from plain arrays: attention beside the world, recall, discrepancy, observability."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from dqn_memory.analysis.plots import COLOURS, HIDDEN, INK, MAP, MARK, MOST, PER_ROW, STYLE, Array, first_steps, lowest

Masked = np.ma.MaskedArray[Any, np.dtype[Any]]
Estimate = tuple[float, float | None, float | None]  # mean, low, high

_styled = matplotlib.rc_context(STYLE)
GRID: Any = {"color": "#e6e6e6", "linewidth": 0.7}
FAINT = "#666666"
PICTURES = 6  # of the world beside attention maps
SIDE = 2.5  # inches of a map


@_styled
def episode_attention(maps: Array, title: str, frames: Sequence[Array] = (), context: int | None = None) -> Figure:
    """Attention (H, T, T) of one layer over an episode's first steps, a panel a head, beside pictures of the world.

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
    """Maps (H, T, T) without what is not among the newest `context` steps and has no weight either."""
    length = maps.shape[-1]
    age = np.arange(length)[:, None] - np.arange(length)
    outside = ((age < 0) | (age >= context)) & (maps == 0).all(0)
    return np.ma.array(maps, mask=np.broadcast_to(outside, maps.shape))


def _by_age(maps: Array, context: int) -> Masked:
    """Maps (H, T, T) by how many steps back, (H, T, context)."""
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
    """Measurements by distance in steps, a panel each: the mean over episodes with its 95 % interval as a band.

    `labels` says what the panels' axes count; a last panel tells how many decisions (D,) stand behind each distance.
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
    """Q of the greedy action by window and by prefix, and their mean |difference|, over the first steps of an episode.

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
    """Mean returns of some agents with their 95 % intervals, between dashed lines that have names."""
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
