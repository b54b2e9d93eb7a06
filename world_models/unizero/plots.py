"""The figure of an episode with the predictions of UniZero's model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dqn_memory.analysis.plots import GREY, INK, MAP, MARK, hide_frame, new_figure, styled
from envs.extras import extra
from envs.spaces import Array
from world_models.unizero.analysis import Trajectory

with extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.patches import Rectangle

SIDE = 0.95  # width of a frame in inches
MANY = 8  # with more actions, probabilities are drawn without numbers


@styled
def trajectory(shown: Trajectory, title: str, names: Sequence[str], caption: str = "", first_step: int = 0) -> Figure:
    """Draw four rows: true and predicted reward, frames, prior and searched policy (thesis, Figures 11-12).

    A box marks the action taken. `names` are those of the actions. Without frames there are three rows.
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
    margin = max(0.15 * (high - low), 0.05)  # smaller differences are not magnified
    panel.set_ylim(low - margin, high + 3 * margin)
    panel.tick_params(axis="x", length=0)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    panel.set_ylabel("reward")
    panel.set_title(caption, loc="left", color="#444444", fontsize=8.5)
    panel.legend(loc="upper right", ncols=2, borderaxespad=0.1)


def _film(panel: Axes, frames: Sequence[Array], first_step: int, share: float) -> None:
    """Draw frames centred on the steps; `share` is the ratio of their width to the distance of two steps."""
    for index, frame in enumerate(frames):
        middle, half = first_step + index, 0.48 * share
        panel.imshow(frame, extent=(middle - half, middle + half, 0, 1), aspect="auto", interpolation="nearest")
        edge: Any = {"fill": False, "clip_on": False, "edgecolor": GREY, "linewidth": 0.6}
        panel.add_patch(Rectangle((middle - half, 0), 2 * half, 1, **edge))
    panel.set(xlim=(first_step - 0.5, first_step + len(frames) - 0.5), ylim=(0, 1), yticks=[])
    panel.tick_params(length=0)
    hide_frame(panel, ticks=True)


def _policy(panel: Axes, policy: Array, action: Array, names: Sequence[str], first_step: int) -> AxesImage:
    """Draw probabilities (T, A), an action a row."""
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
