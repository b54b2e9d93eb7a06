"""Pictures of attention from plain arrays: learned priors, and maps over the tokens of a window.

A window of T steps has the 2T tokens z_0 a_0 z_1 a_1 ...: a latent and an action for each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dqn_memory.analysis.plots import COLOURS, HIDDEN, INK, PER_ROW, Array, bare, lowest, sheet, styled

MAP_TOKENS = "cividis"  # dark blue to yellow as in the thesis, even steps for every kind of colour vision
FAINT = "#888888"
TITLE = 6.5  # inches that a line of a title needs
LABELS = 10  # most numbers along the side of a map
WORDS = {"mu": "mean offset μ", "sigma": "width σ", "span": "span L"}


@styled
def learned_values(
    values: Mapping[str, Array], starts: Mapping[str, float], title: str, unit: str = "tokens"
) -> Figure:
    """Learned mu, sigma and span in tokens, or another unit, one panel each ("Learning to Focus", Figure 5).

    `values` holds (R, L, H) by name: a bar a head is the mean over R runs, with their standard deviation where R > 1; a
    colour a layer. Dashed: `starts`, where every head began.
    """
    layers, heads = next(iter(values.values())).shape[1:]
    figure = sheet(max(6.4, 0.26 * layers * heads + 1.2), 1.9 * len(values) + 1.1, title)
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
        panel.set_title(words, loc="left", color=FAINT, fontsize=8)
        panel.set_xticks(range(heads), [str(head) for head in range(heads)])
        panel.tick_params(axis="x", length=0)
    panels[-1].set_xlabel("head")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=layers + 1)
    return figure


@styled
def token_maps(maps: Array, title: str, first_step: int = 0) -> Figure:
    """Attention maps (L, H, 2T, 2T) of all layers and heads: rows are queries, columns keys (thesis, Figures 5, 8-10).

    Axes count environment steps; a step's two tokens are its latent and then its action.
    """
    layers, heads = maps.shape[:2]
    across, down = min(heads, PER_ROW), -(-heads // PER_ROW)
    figure = sheet(max(2.15 * across + 1.3, TITLE), 2.25 * down * layers + 0.9, title)
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
    """One map (2T, 2T) over step numbers; the future, where it has no weight, is grey and not a weight of 0."""
    tokens = len(weights)
    low, high = first_step, first_step + tokens / 2
    colours = matplotlib.colormaps[MAP_TOKENS].with_extremes(bad=HIDDEN)
    shown = np.ma.array(weights, mask=np.triu(np.ones((tokens, tokens), bool), 1) & (weights == 0))
    extent = (low, high, high, low)
    image = panel.imshow(shown, cmap=colours, vmin=0, vmax=1, extent=extent, interpolation="nearest")
    every = -(-tokens // 2 // LABELS)
    named = np.arange(-(-first_step // every) * every, first_step + tokens // 2, every)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_ticks(named + 0.5, [str(step) for step in named])  # in the middle of the step's two tokens
        axis.set_tick_params(length=0)
    bare(panel, ticks=True)
    return image
