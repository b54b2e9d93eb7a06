"""Draw plain arrays: attention, priors, curves, recall, hindsight. `plot_...` gives a figure; `save` writes it."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cycler import cycler

from dqn_memory.runs.errors import require
from envs.console import printable
from envs.extras import extra
from envs.files import write_atomic
from envs.spaces import Array

with extra("plots"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpecBase, SubplotSpec
    from matplotlib.image import AxesImage
    from matplotlib.patches import Rectangle
    from matplotlib.text import Text
    from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
    from PIL import Image

Masked = np.ma.MaskedArray[Any, np.dtype[Any]]
Curve = tuple[Sequence[float] | Array, Sequence[float] | Array]
Estimate = tuple[float, float | None, float | None]  # mean, low, high

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#8c6d31")
MARK, INK, FAINT, GREY = "#d55e00", "#222222", "#666666", "#888888"
MAP = "Blues"
MAP_TOKENS = "cividis"  # dark blue to yellow as in the thesis, even steps for every kind of colour vision
HIDDEN = "#ececec"  # keys that may not be attended to
STYLE: Any = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "figure.titlesize": 11,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "xtick.color": "#444444", "ytick.color": "#444444", "axes.prop_cycle": cycler(color=COLOURS),
    "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.8, "savefig.dpi": 150,
    "text.parse_math": False,
}  # fmt: skip
styled = matplotlib.rc_context(STYLE)
SHADES = 256  # of a picture's palette
NUMBERS = 48  # maximum numbers of a state in a picture
PER_ROW = 4  # panels side by side
MAX_STEPS = 100  # maximum steps of an episode in a picture; more would overlap
FILM = 16  # maximum steps of a window that is shown with pictures and numbers
PICTURES = 6  # maximum pictures of the environment beside attention maps
SIDE = 2.5  # inches of a map
TITLE = 6.5  # inches that a line of a title needs
LABELS = 10  # maximum numbers along the side of a map
WORDS = {"mu": "mean offset μ", "sigma": "width σ", "span": "span L"}


@styled
def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, atomically; raise a UserError if the disk refuses."""
    write_atomic(path, png(figure))
    return path


def png(figure: Figure) -> bytes:
    """Encode a figure as PNG with a palette, a third of the size of true colours. Equal figures give equal bytes."""
    drawn, small = io.BytesIO(), io.BytesIO()
    for text in figure.findobj(Text):
        if (shown := printable(text.get_text())) != text.get_text():
            text.set_text(shown)
    figure.savefig(drawn, format="png")
    true = Image.open(drawn).convert("RGB")
    true.quantize(SHADES, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


# ---- shared parts of pictures ----------------------------------------------------------------------------------------
def new_figure(width: float, height: float, title: str = "") -> Figure:
    """Make an empty figure of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title)
    return figure


def grid_panels(grid: GridSpecBase, count: int, **shared: Any) -> tuple[Array, Array]:
    """Make the panels of a grid, hide all after the first `count`; return the first ones, and all (down, across)."""
    axes: Array = grid.subplots(squeeze=False, **shared)
    for panel in axes.flat[count:]:
        panel.set_visible(False)
    return axes.flat[:count], axes


def lowest(axes: Array) -> list[Axes]:
    """List the lowest visible panel of each column, and let it show the numbers of the axis."""
    panels: list[Axes] = [next(panel for panel in column[::-1] if panel.get_visible()) for column in axes.T]
    for panel in panels:
        panel.tick_params(labelbottom=True)
    return panels


def finish_panel(panel: Axes, x: str = "", y: str = "", grid: Any = "y", legend: bool = False) -> None:
    """Set the labels of the axes, a grid below all else, and a legend at the right."""
    panel.grid(axis=grid, color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    if legend:
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def hide_frame(panel: Axes, ticks: bool = False) -> None:
    """Remove the frame, and without `ticks` the ticks."""
    panel.spines[:].set_visible(False)
    if not ticks:
        panel.set(xticks=[], yticks=[])


def integer_axis(panel: Axes, **limits: Any) -> None:
    """Let the x-axis show whole numbers only."""
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, **limits))


def first_steps(title: str, length: int) -> str:
    """Add the shown steps to a picture's title if it does not show the whole episode."""
    return title if length <= MAX_STEPS else f"{title}\n(steps 0 to {MAX_STEPS - 1} of {length})"


# ---- pictures --------------------------------------------------------------------------------------------------------
@styled
def plot_decision(
    weights: Array,
    rows: Sequence[str],
    title: str,
    marks: Mapping[int, str],
    frames: Sequence[Array] = (),
    first_step: int = 0,
) -> Figure:
    """Draw the shares of a window's steps in the decision at its last step: weights (R, T), a row for each source.

    `rows` names the sources, `marks` gives words to step numbers (the last step's frame is black). `frames` are T
    pictures for a film strip above; long windows have no strip.
    """
    count, length = weights.shape
    film = length <= FILM and len(frames) == length
    figure_width = max(5.0, (0.95 if film else 0.42) * length)
    heights = [figure_width / length if film else 0.01, 0.36 * count]
    figure = new_figure(figure_width + 2.6, sum(heights) + 1.5, title)
    grid = figure.add_gridspec(2, length, height_ratios=heights, wspace=0.02, hspace=0.02)
    for step, frame in enumerate(frames if film else ()):
        panel = figure.add_subplot(grid[0, step])
        panel.imshow(frame, interpolation="nearest")
        panel.set_axis_off()
    panel = figure.add_subplot(grid[1, :])
    image = panel.imshow(weights, cmap=MAP, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    panel.set_yticks(range(count), rows)
    every = 1 if length <= 24 else 5
    labelled = [i for i in range(length) if (first_step + i) % every == 0 or first_step + i in marks]
    words = [f"{first_step + i}\n{marks.get(first_step + i, '') if film else ''}".rstrip() for i in labelled]
    panel.set_xticks(labelled, words)
    meant = {word: "black" if step == max(marks) else "orange" for step, word in marks.items()}
    key = "" if film else f" ({', '.join(f'{colour}: {word}' for word, colour in meant.items())})"  # narrow columns
    panel.set_xlabel(f"step of the episode{key}")
    panel.tick_params(length=0)
    for index in sorted((step - first_step for step in marks), reverse=True):  # the last one lies below the others
        edge = INK if index == length - 1 else MARK
        box = Rectangle((index - 0.5, -0.5), 1, count, fill=False, edgecolor=edge, linewidth=1.8, clip_on=False)
        panel.add_patch(box)
    for (row, step), value in np.ndenumerate(weights) if film else ():
        colour = "white" if value > 0.55 else "#333333"
        panel.text(step, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
    figure.colorbar(image, ax=panel, label="share", aspect=12, pad=0.01)
    return figure


@styled
def plot_prior_tables(
    tables: Mapping[str, Array], title: str, ylabel: str = "prior weight", steps: str = "steps"
) -> Figure:
    """Draw the weight by distance (H, T) of each layer's attention prior: a panel a layer, a line a head."""
    across = min(len(tables), 3)
    down = -(-len(tables) // across)
    figure = new_figure(3.6 * across + 1.4, 2.6 * down + 0.5, title)
    panels, axes = grid_panels(figure.add_gridspec(down, across), len(tables), sharex=True, sharey=True)
    for panel, (name, table) in zip(panels, tables.items(), strict=True):
        for head, line in enumerate(table):
            panel.plot(line, label=f"head {head}", linestyle="-" if head < len(COLOURS) else "--")
        finish_panel(panel)
        panel.set_title(name)
        panel.set_ylim(-0.03, max(1.05, float(table.max()) * 1.05))
        integer_axis(panel)
    lowest(axes)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.supxlabel(f"distance from query back to key ({steps})", fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    return figure


@styled
def plot_learning_curves(curves: Mapping[str, Curve], title: str) -> Figure:
    """Draw success rates (0 .. 1) over environment steps, a line a run."""
    require(curves, "there is no learning curve to draw: nothing was evaluated yet")
    figure = new_figure(7.4, 3.6)
    panel = figure.subplots()
    for name, (steps, rates) in curves.items():
        panel.plot(steps, rates, label=name, marker="o" if len(steps) <= 40 else None, markersize=3.5)
    finish_panel(panel, "environment steps", "success rate", "both", legend=True)
    panel.set_title(title, fontsize=11)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.set_ylim(-0.02, 1.02)
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


@styled
def plot_states(states: Array, title: str) -> Figure:
    """Draw the numbers (T, n) of a state that vary most, each over its largest value."""
    title, states = first_steps(title, len(states)), states[:MAX_STEPS]
    shown = states[:, np.argsort(-states.std(0), kind="stable")[:NUMBERS]]
    figure = new_figure(min(12.0, max(5.6, 0.12 * len(states) + 4.5)), 3.4, title)
    panel = figure.subplots()
    largest = np.abs(shown).max(0, initial=1e-12)
    image = panel.imshow((shown / largest).T, "RdBu", vmin=-1, vmax=1, interpolation="nearest", aspect="auto")
    figure.colorbar(image, ax=panel, label="of its largest value")
    panel.set_ylabel(f"{shown.shape[1]} of {states.shape[1]:,} numbers")
    integer_axis(panel)
    panel.set_xlabel("step of the episode")
    return figure


@styled
def plot_attention_maps(maps: Array, title: str, frames: Sequence[Array] = (), context: int | None = None) -> Figure:
    """Draw attention (H, T, T) of one layer over an episode's first steps, a panel a head, beside rendered frames.

    A row is the step of a decision, a column the step that it looked at. In an episode of more than two windows of
    `context` steps, a column is the number of steps back. Steps outside the window are grey. Some of the `frames`, one
    a step, are shown on the left, evenly spaced; their steps label the rows.
    """
    by_age = context is not None and maps.shape[-1] > 2 * context  # of the whole episode, also where it is cut
    title, maps, frames = first_steps(title, maps.shape[-1]), maps[:, :MAX_STEPS, :MAX_STEPS], frames[:MAX_STEPS]
    heads, length = maps.shape[0], maps.shape[-1]
    across = min(heads, PER_ROW)
    down = -(-heads // across)
    steps = np.unique(np.linspace(0, length - 1, min(PICTURES, length)).round().astype(int))
    widths = [SIDE * across]
    if len(frames):  # a film strip, pictures one below the other, and its width in inches
        height, width = frames[0].shape[:2]
        widths.insert(0, float(np.clip(SIDE * down / len(steps) * width / height, 0.6, 2.4)) + 0.45)
    figure = new_figure(sum(widths) + 1.1, SIDE * down + 0.9, title)
    grid = figure.add_gridspec(1, len(widths), width_ratios=widths)
    if len(frames):
        _film(grid[0], frames, steps)
    panels, axes = grid_panels(grid[-1].subgridspec(down, across), heads, sharex=True, sharey=True)
    shown = _by_age(maps, context or length) if by_age else _by_step(maps, context or length)
    colours, top = matplotlib.colormaps[MAP].with_extremes(bad=HIDDEN), max(float(shown.max()), 1e-9)
    for head, (panel, weights) in enumerate(zip(panels, shown, strict=True)):
        image = panel.imshow(weights, cmap=colours, vmin=0, vmax=top, interpolation="nearest", aspect="auto")
        panel.set_title(f"head {head}")
        panel.set_yticks(steps)
        integer_axis(panel, nbins=5, min_n_ticks=1)
        hide_frame(panel, ticks=True)
    for panel in axes[:, 0]:
        panel.set_ylabel("deciding at step")
    for panel in lowest(axes):
        panel.set_xlabel("looks back by steps" if by_age else "looks at step")
        if not by_age:
            panel.set_xticks(steps)
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8, aspect=25)
    return figure


def _by_step(maps: Array, context: int) -> Masked:
    """Mask the steps that are not among the newest `context` and have no weight, in maps (H, T, T)."""
    length = maps.shape[-1]
    age = np.arange(length)[:, None] - np.arange(length)
    outside = ((age < 0) | (age >= context)) & (maps == 0).all(0)
    return np.ma.array(maps, mask=np.broadcast_to(outside, maps.shape))


def _by_age(maps: Array, context: int) -> Masked:
    """Arrange maps (H, T, T) by how many steps back, (H, T, context)."""
    step = np.arange(maps.shape[-1])[:, None] - np.arange(context)  # (T, context)
    weights = np.take_along_axis(maps, np.broadcast_to(step.clip(0), (len(maps), *step.shape)), -1)
    return np.ma.array(weights, mask=np.broadcast_to(step < 0, weights.shape))


def _film(slot: SubplotSpec, frames: Sequence[Array], steps: Array) -> None:
    strip = slot.subgridspec(len(steps), 1).subplots(squeeze=False)[:, 0]
    for panel, step in zip(strip, steps.tolist(), strict=True):
        panel.imshow(frames[step], interpolation="nearest")
        panel.set_ylabel(f"step {step}", rotation=0, ha="right", va="center", fontsize=8)
        panel.yaxis.set_label_coords(-0.06, 0.5)  # without a fixed place the layout cuts off the first letter
        hide_frame(panel)


@styled
def plot_recall(
    change: Sequence[Estimate], flips: Sequence[Estimate], decisions: Array, title: str, outputs: str = "Q"
) -> Figure:
    """Draw by age of a replaced observation the change of Q, the share of changed actions, and the decisions (D,).

    The first two are means over episodes with their 95 % intervals as a band.
    """
    figure, ages = new_figure(9.3, 3.1, title), np.arange(len(decisions))
    size, share, number = figure.subplots(1, 3)
    for panel, measures, colour, most in ((size, change, COLOURS[0], None), (share, flips, COLOURS[1], 1)):
        mean, low, high = (np.array(each, float) for each in zip(*measures, strict=True))
        panel.fill_between(ages, low.clip(0), high.clip(0, most), color=colour, alpha=0.2, linewidth=0)
        panel.plot(ages, mean, color=colour, marker="o", markersize=3 if len(ages) <= 60 else 0)
        panel.set_ylim(0, min(panel.get_ylim()[1], most or np.inf))
    number.bar(ages, decisions, color="#bbbbbb", width=0.9)
    finish_panel(size, y=f"mean |change of {outputs}|")
    finish_panel(share, y="share of changed actions")
    finish_panel(number, y="decisions measured")
    for panel in (size, share, number):
        integer_axis(panel, min_n_ticks=1)
    figure.supxlabel("age of the replaced observation (steps before the decision; 0 is the newest)", fontsize=9)
    return figure


# ---- pictures of sequence models, whose windows of T steps have the 2T tokens z_0 a_0 z_1 a_1 ..., latents and actions
@styled
def plot_learned_values(
    values: Mapping[str, Array], starts: Mapping[str, float], title: str, unit: str = "tokens"
) -> Figure:
    """Draw learned mu, sigma and span in tokens, or another unit, one panel each ("Learning to Focus", Figure 5).

    `values` holds (R, L, H) by name: a bar for each head is the mean over R runs, with their standard deviation if
    R > 1; a colour is a layer. The dashed line is the value in `starts`, at which every head began.
    """
    layers, heads = next(iter(values.values())).shape[1:]
    figure = new_figure(max(6.4, 0.26 * layers * heads + 1.2), 1.9 * len(values) + 1.1, title)
    panels = figure.subplots(len(values), 1, squeeze=False)[:, 0]
    for panel, (name, runs) in zip(panels, values.items(), strict=True):
        for layer in range(layers):
            bars: Any = {"color": COLOURS[layer % len(COLOURS)], "ecolor": INK, "capsize": 2, "label": f"layer {layer}"}
            spread = runs[:, layer].std(0, ddof=1) if len(runs) > 1 else None
            position = np.arange(heads) + (layer - (layers - 1) / 2) * 0.8 / layers
            width, error = 0.92 * 0.8 / layers, {"linewidth": 1}
            panel.bar(position, runs[:, layer].mean(0), width, yerr=spread, error_kw=error, **bars)
        panel.axhline(starts[name], color=INK, linestyle="--", linewidth=1.1, label="start")
        panel.set_ylim(0, 1.12 * max(float(runs.max()), starts[name]))
        panel.set_ylabel(f"{WORDS[name]}\n({unit})")
        words = f"learned {runs.min():.2f} to {runs.max():.2f}, start {starts[name]:g}"
        panel.set_title(words, loc="left", color=GREY, fontsize=8)
        panel.set_xticks(range(heads), [str(head) for head in range(heads)])
        panel.tick_params(axis="x", length=0)
    panels[-1].set_xlabel("head")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=layers + 1)
    return figure


@styled
def plot_token_maps(maps: Array, title: str, first_step: int = 0) -> Figure:
    """Draw attention (L, H, 2T, 2T) of all layers and heads: rows are queries, columns keys (thesis, Figures 5, 8-10).

    Axes count environment steps; a step's two tokens are its latent and then its action.
    """
    layers, heads = maps.shape[:2]
    across, down = min(heads, PER_ROW), -(-heads // PER_ROW)
    figure = new_figure(max(2.15 * across + 1.3, TITLE), 2.25 * down * layers + 0.9, title)
    axes = figure.subplots(down * layers, across, squeeze=False, sharex=True, sharey=True)
    for number, panel in enumerate(axes.flat):
        layer, head = divmod(number, down * across)
        panel.set_visible(head < heads)
        if head < heads:
            image = map_panel(panel, maps[layer, head], first_step)
            panel.set_title(f"layer {layer}, head {head}")
    lowest(axes)
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8, aspect=30)
    figure.supxlabel("key: step of the episode (latent, then action)", fontsize=9)
    figure.supylabel("query: step of the episode", fontsize=9)
    return figure


def map_panel(panel: Axes, weights: Array, first_step: int) -> AxesImage:
    """Draw one map (2T, 2T) over step numbers; the future is grey unless it has a weight."""
    tokens = len(weights)
    low, high = first_step, first_step + tokens / 2
    colours = matplotlib.colormaps[MAP_TOKENS].with_extremes(bad=HIDDEN)
    shown = np.ma.array(weights, mask=np.triu(np.ones((tokens, tokens), bool), 1) & (weights == 0))
    extent = (low, high, high, low)
    image = panel.imshow(shown, cmap=colours, vmin=0, vmax=1, extent=extent, interpolation="nearest")
    every = -(-tokens // 2 // LABELS)
    labelled = np.arange(-(-first_step // every) * every, first_step + tokens // 2, every)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_ticks(labelled + 0.5, [str(step) for step in labelled])  # in the middle of the step's two tokens
        axis.set_tick_params(length=0)
    hide_frame(panel, ticks=True)
    return image
