"""Figures of imagined and real frames (the paper's Figure 7)."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory.analysis.plots import GREY, INK, new_figure, png, styled
from envs.extras import extra
from envs.files import write_atomic
from envs.spaces import Array
from world_models.glam.foresight import EpisodeRollout

with extra("plots"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from PIL import Image
    from scipy import ndimage

SIDE, WORDS = 0.95, 7.0  # width in inches of a frame, and min width of the text below
KNOWN = 3  # frames shown before the rollout
CHANGED = 0.1  # a pixel varies if a colour changes by more than this
STILL_MS, LAST_MS = 350, 1500

Box = tuple[int, int, int, int]  # left, top, right, bottom


def varied(before: Array, after: Array) -> list[Box]:
    """Compute boxes around the patches of (S, S, 3) that differ; pixels that touch, also by a corner, are one patch."""
    patches, _ = ndimage.label((np.abs(after - before) > CHANGED).any(-1), np.ones((3, 3)))
    return [(x.start, y.start, x.stop, y.stop) for y, x in ndimage.find_objects(patches)]


@styled
def rollout_strip(rollout: EpisodeRollout, title: str, caption: str) -> Figure:
    """Draw rows of real frames, imagined frames and their difference; red boxes mark changes of the real frame.

    The frames before the rollout are at the left. Numbers are real and imagined rewards.
    """
    known = rollout.seen[-KNOWN:]
    count = len(known) + len(rollout.reward)
    figure = new_figure(max(SIDE * count + 1.4, WORDS), 3 * SIDE + 1.9, title)
    panels = figure.subplots(3, count, squeeze=False)
    real = [*known, *rollout.real]
    for column in range(count):
        step = rollout.start - len(known) + 1 + column
        step_ahead = column - len(known)
        boxes = varied(real[column - 1], real[column]) if column else []
        _frame(panels[0, column], real[column], boxes)
        panels[0, column].set_title(f"{step}", color=INK if step_ahead >= 0 else GREY)
        if step_ahead < 0:
            for below in panels[1:, column]:
                below.set_visible(False)
            continue
        _frame(panels[1, column], rollout.imagined[step_ahead], boxes)
        _frame(panels[2, column], np.abs(rollout.imagined[step_ahead] - real[column]), [])
        rewards = f"{rollout.reward[step_ahead]:+.2g}\n{rollout.imagined_reward[step_ahead]:+.2f}"
        panels[2, column].set_xlabel(rewards, fontsize=8)
    for panel, word in zip(panels[:, len(known)], ("real", "imagined", "difference"), strict=True):
        panel.set_ylabel(word)
    panels[0, 0].set_ylabel("seen")
    words = "red box: change of the real frame since the step before\nnumbers: the step's reward, real and imagined"
    figure.supxlabel(f"{words}\n{caption}", fontsize=8.5, color="#444444")
    return figure


def _frame(panel: Axes, picture: Array, boxes: Sequence[Box]) -> None:
    panel.imshow(picture, vmin=0, vmax=1, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set(visible=True, edgecolor="#aaaaaa", linewidth=0.6)
    for left, top, right, bottom in boxes:
        edge: Any = {"fill": False, "edgecolor": "#e3120b", "linewidth": 1.3, "clip_on": False}
        panel.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, **edge))


def save_animation(path: Path, rollout: EpisodeRollout, title: str) -> None:
    """Write a GIF with a page for each step: the real frame beside the imagined one."""
    pages = [_page(rollout, step, title) for step in range(len(rollout.reward))]
    durations = [STILL_MS] * (len(pages) - 1) + [LAST_MS]
    buffer = io.BytesIO()
    pages[0].save(buffer, "GIF", save_all=True, append_images=pages[1:], duration=durations, loop=0, disposal=1)
    write_atomic(path, buffer.getvalue())


@styled
def _page(rollout: EpisodeRollout, step: int, title: str) -> Image.Image:
    """Draw one step: the real frame, the imagined one and their difference."""
    heading = f"step {rollout.start + 1 + step}, imagined {step + 1} of {len(rollout.reward)} ahead\n{title}"
    figure = new_figure(4.6, 2.4, heading)  # small: its text is legible at 400 pixels
    real, imagined = rollout.real[step], rollout.imagined[step]
    shown = {
        f"real\nreward {rollout.reward[step]:+.2g}": real,
        f"imagined\nreward {rollout.imagined_reward[step]:+.2f}": imagined,
        "difference": np.abs(imagined - real),
    }
    for panel, (word, picture) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        _frame(panel, picture, [])
        panel.set_title(word)
    return Image.open(io.BytesIO(png(figure)))
