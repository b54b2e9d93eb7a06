"""Pictures of UniZero: an episode with what the model predicted, and one link of an attention map.

A window of T steps has the 2T tokens z_0 a_0 z_1 a_1 ...: a latent and an action for each step.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import ConnectionPatch, Rectangle

from dqn_memory.analysis.plots import GREY, INK, MAP, MARK, hide_frame, map_panel, new_figure, styled
from envs.spaces import Array
from world_models.unizero.analysis import Trajectory

SIDE = 0.95  # inches of a small picture
MANY = 8  # from so many actions on, probabilities are colours without numbers


@styled
def trajectory(shown: Trajectory, title: str, names: Sequence[str], caption: str = "", first_step: int = 0) -> Figure:
    """Four rows: true and predicted reward, frames, prior and searched policy (thesis, Figures 11-12).

    A frame marks the action that was taken, `names` are words for the actions; without pictures there are three rows.
    """
    frames, (steps, actions) = shown.frames, shown.prior.shape
    figure_width = max(SIDE * steps, 5.6)
    tall = SIDE * frames[0].shape[0] / frames[0].shape[1] if len(frames) else 0.0
    heights = [1.5, *([tall] if len(frames) else []), *[max(0.9, 0.24 * actions)] * 2]
    figure = new_figure(figure_width + 2.0, sum(heights) + 1.9, title)
    panels = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights))
    _rewards(panels[0], shown.reward, shown.predicted_reward, first_step, caption)
    if len(frames):
        _film(panels[1], frames, first_step, SIDE * steps / figure_width)
        panels[1].set_ylabel("seen")
    for panel, word, policy in ((panels[-2], "prior", shown.prior), (panels[-1], "search", shown.searched)):
        image = _policy(panel, policy, shown.action, names, first_step)
        panel.set_ylabel(f"{word} policy")
    figure.colorbar(image, ax=panels[-2:], label="probability", aspect=18, pad=0.01)
    panels[-1].set_xlabel("step of the episode (the framed action was taken)")
    panels[-1].set(xticks=range(first_step, first_step + steps), xlim=(first_step - 0.5, first_step + steps - 0.5))
    return figure


def _rewards(panel: Axes, reward: Array, predicted: Array, first_step: int, caption: str) -> None:
    steps = np.arange(len(reward)) + first_step
    panel.plot(steps, reward, color=INK, marker="o", markersize=7, markerfacecolor="none", linewidth=1, label="true")
    panel.plot(steps, predicted, color=MARK, marker="D", markersize=3.5, linestyle="--", linewidth=1, label="predicted")
    low, high = float(min(reward.min(), predicted.min())), float(max(reward.max(), predicted.max()))
    margin = max(0.15 * (high - low), 0.05)  # differences below that are not worth an axis of their own
    panel.set_ylim(low - margin, high + 3 * margin)
    panel.tick_params(axis="x", length=0)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    panel.set_ylabel("reward")
    panel.set_title(caption, loc="left", color="#444444", fontsize=8.5)
    panel.legend(loc="upper right", ncols=2, borderaxespad=0.1)


def _film(panel: Axes, frames: Sequence[Array], first_step: int, share: float, marked: Sequence[int] = ()) -> None:
    """Pictures centred on whole numbers, as wide as this share of the room between them; some are marked."""
    for index, frame in enumerate(frames):
        middle, half = first_step + index, 0.48 * share
        panel.imshow(frame, extent=(middle - half, middle + half, 0, 1), aspect="auto", interpolation="nearest")
        edge: Any = {"edgecolor": MARK, "linewidth": 2} if index in marked else {"edgecolor": GREY, "linewidth": 0.6}
        panel.add_patch(Rectangle((middle - half, 0), 2 * half, 1, fill=False, clip_on=False, **edge))
    panel.set(xlim=(first_step - 0.5, first_step + len(frames) - 0.5), ylim=(0, 1), yticks=[])
    panel.tick_params(length=0)
    hide_frame(panel, ticks=True)


def _policy(panel: Axes, policy: Array, action: Array, names: Sequence[str], first_step: int) -> AxesImage:
    """Probabilities (T, A), an action a row."""
    steps, actions = policy.shape
    extent = (first_step - 0.5, first_step + steps - 0.5, actions - 0.5, -0.5)
    image = panel.imshow(policy.T, cmap=MAP, vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")
    panel.set_yticks(range(actions), names)
    panel.tick_params(length=0)
    for index, taken in enumerate(action):
        edge: Any = {"fill": False, "edgecolor": MARK, "linewidth": 1.6, "clip_on": False}
        panel.add_patch(Rectangle((first_step + index - 0.5, taken - 0.5), 1, 1, **edge))
    if actions <= MANY:
        for (index, number), value in np.ndenumerate(policy):
            colour = "white" if value > 0.55 else "#333333"
            where: Any = {"ha": "center", "va": "center", "fontsize": 7.5, "color": colour}
            panel.text(first_step + index, number, f"{value:.2f}", **where)
    return image


@styled
def link(
    weights: Array, query: int, key: int, frames: Sequence[Array], title: str,
    actions: Sequence[str], first_step: int = 0,
) -> Figure:  # fmt: skip
    """One head's map (2T, 2T) and the pictures at its strongest link (thesis, Figure 6).

    `query` and `key` are token numbers, `frames` T pictures, `actions` what was done at each step, in words. The
    window's pictures stand along the map's keys; the two that the link joins stand beside it.
    """
    steps, ratio = len(frames), frames[0].shape[0] / frames[0].shape[1]
    slot = 6.0 / steps  # inches along the map
    tall = min(slot * ratio, 1.2)
    figure = new_figure(10.4, tall + 6.4, title)
    grid = figure.add_gridspec(3, 2, width_ratios=[1.75, 1], height_ratios=[tall, 2.3, 2.3])
    film, panel = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1:, 0])
    _film(film, frames, first_step, tall / ratio / slot, (key // 2, query // 2))
    film.set_xticks([])
    image = map_panel(panel, weights, first_step)
    panel.set_aspect("auto")
    panel.set(xlabel="key: step of the episode (latent, then action)", ylabel="query: step of the episode")
    figure.colorbar(image, ax=panel, location="bottom", label="attention weight", aspect=40, shrink=0.7)
    corner = (first_step + key / 2, first_step + query / 2)
    panel.add_patch(Rectangle(corner, 0.5, 0.5, fill=False, edgecolor=MARK, linewidth=2.2))
    for row, role, token in ((1, "key", key), (2, "query", query)):
        other, step = figure.add_subplot(grid[row, 1]), token // 2
        seen = f"what was seen at step {first_step + step}"
        words = f"the action at step {first_step + step} ({actions[step]})" if token % 2 else seen
        other.imshow(frames[step], interpolation="nearest")
        other.set(title=f"{role}: {words}", xticks=[], yticks=[])
        other.spines[:].set(visible=True, edgecolor=MARK, linewidth=1.6)
        ends: Any = {"coordsA": panel.transData, "coordsB": other.transAxes}
        line: Any = {"color": MARK, "linewidth": 1.2, "arrowstyle": "-|>", "mutation_scale": 12}
        figure.add_artist(ConnectionPatch((corner[0] + 0.5, corner[1] + 0.25), (0, 0.5), **ends, **line))
    return figure
