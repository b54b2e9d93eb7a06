"""Losses over a run, each part by itself, and how much they fluctuate around their trend (the paper's Figure 6).

The paper draws the fluctuation and does not say how it is measured. Here it is the standard deviation of what is left
of a logged loss when its centred moving average is taken away; a logged loss is itself the mean over all updates since
the line before, so runs are comparable where they log equally often.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import StrMethodFormatter
from PIL import Image, ImageDraw, ImageFont

from dqn_memory.analysis.plots import COLOURS, INK, MARK, STYLE, Array
from dqn_memory.runs.errors import UserError
from envs.files import write_atomic
from world_models.glam.foresight import EpisodeRollout

PARTS = ("reconstruction", "reward", "termination", "dynamics", "representation", "variation", "total")
WINDOW = 11  # log lines of the moving average


@dataclass(frozen=True)
class Curve:
    """One loss at N log lines, oldest first."""

    steps: Array  # (N,) environment steps
    values: Array  # (N,)

    def trend(self, window: int = WINDOW) -> Array:
        """Centred moving average (N,), of fewer lines where the run begins and ends."""
        half = min(window, len(self.values)) // 2
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        index = np.arange(len(self.values))
        reach = np.minimum(half, np.minimum(index, index[::-1]))  # as far to both sides, or the mean is no trend
        return (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)

    def fluctuation(self, window: int = WINDOW) -> float:
        """Compute the standard deviation around the trend, without lines of cut windows; nan where none is left."""
        half = min(window, len(self.values)) // 2
        inner = slice(half, len(self.values) - half)
        left = (self.values - self.trend(window))[inner]
        return float(left.std()) if len(left) > 1 else float("nan")


def curves(lines: Sequence[Mapping[str, Any]], source: str) -> dict[str, Curve]:
    """Every part of the world model's loss in the lines of a metrics.jsonl; a UserError where there is none."""
    found = {part: _curve(lines, f"losses/{part}") for part in PARTS}
    known = {part: curve for part, curve in found.items() if len(curve.steps)}
    if not known:
        raise UserError(f"{source} has logged no loss of a world model yet: nothing can be drawn")
    return known


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> Curve:
    pairs = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    steps, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return Curve(steps, values)


SIDE = 0.95  # inches of a frame
KNOWN = 3  # frames shown before the rollout begins
WIDEST = 54  # letters in a line below a panel of losses
CHANGED = 0.1  # a pixel has varied where a colour moved by more than this
STILL_MS, LAST_MS = 350, 1500
PIXELS, MARGIN, LINE = 192, 12, 18  # of the animation: side of a picture, border, height of words

_styled = matplotlib.rc_context(STYLE)

Box = tuple[int, int, int, int]  # left, top, right, bottom


def varied(before: Array, after: Array) -> list[Box]:
    """Find boxes around the patches of (S, S, 3) that differ; pixels that touch, also by a corner, are one patch."""
    patches = _patches((np.abs(after - before) > CHANGED).any(-1))
    boxes = []
    for label in np.unique(patches[patches > 0]):
        rows, columns = np.nonzero(patches == label)
        boxes.append((int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1))
    return boxes


def _patches(mask: Array) -> Array:
    """Label the connected patches of a mask (S, S) from 1 up: the largest index in each spreads until it fills it."""
    height, width = mask.shape
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(labels, 1)
        around = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)]
        spread = np.where(mask, np.maximum.reduce(around), 0)
        if np.array_equal(spread, labels):
            return labels
        labels = spread


@_styled
def rollout_strip(found: EpisodeRollout, title: str, caption: str) -> Figure:
    """Draw real frames over imagined ones over their difference, with red boxes where the real frame changed.

    The frames before the rollout stand at the left; numbers are real and imagined rewards.
    """
    known = found.seen[-KNOWN:]
    count = len(known) + len(found)
    figure = Figure(figsize=(SIDE * count + 1.4, 3 * SIDE + 1.7), layout="constrained")
    panels = figure.subplots(3, count, squeeze=False)
    real = [*known, *found.real]
    for column in range(count):
        step = found.start - len(known) + 1 + column
        step_ahead = column - len(known)
        boxes = varied(real[column - 1], real[column]) if column else []
        _frame(panels[0, column], real[column], boxes)
        panels[0, column].set_title(f"{step}", color=INK if step_ahead >= 0 else "#888888")
        if step_ahead < 0:
            panels[1, column].set_visible(False)
            panels[2, column].set_visible(False)
            continue
        _frame(panels[1, column], found.imagined[step_ahead], boxes)
        _frame(panels[2, column], np.abs(found.imagined[step_ahead] - real[column]), [])
        rewards = f"{found.reward[step_ahead]:+.2g}\n{found.imagined_reward[step_ahead]:+.2f}"
        panels[2, column].set_xlabel(rewards, fontsize=8)
    for panel, word in zip(panels[:, len(known)], ("real", "imagined", "difference"), strict=True):
        panel.set_ylabel(word)
    panels[0, 0].set_ylabel("seen")
    figure.supxlabel(f"reward on the way to the frame: real, imagined\n{caption}", fontsize=8.5, color="#444444")
    figure.suptitle(title)
    return figure


def _frame(panel: Axes, picture: Array, boxes: Sequence[Box]) -> None:
    panel.imshow(picture, vmin=0, vmax=1, interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set(visible=True, edgecolor="#aaaaaa", linewidth=0.6)
    for left, top, right, bottom in boxes:
        edge: Any = {"fill": False, "edgecolor": "#e3120b", "linewidth": 1.3, "clip_on": False}
        panel.add_patch(Rectangle((left - 0.5, top - 0.5), right - left, bottom - top, **edge))


@_styled
def loss_panels(runs: Mapping[str, Mapping[str, Curve]], title: str) -> Figure:
    """Draw one panel for each part of the loss: a line a run, its trend thick, its fluctuation below."""
    parts = list(dict.fromkeys(part for curves in runs.values() for part in curves))
    across = min(len(parts), 3)
    down = -(-len(parts) // across)
    figure = Figure(figsize=(3.5 * across + 0.6, 2.7 * down + 1.1), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for panel, part in zip(axes.flat, parts, strict=False):
        fluctuations = []
        for colour, (name, curves) in zip(_colours(len(runs)), runs.items(), strict=True):
            if part in curves:
                fluctuations.append(_loss(panel, curves[part], name, colour))
        panel.set_title(part)
        fluctuates = textwrap.fill("detrended standard deviation: " + ", ".join(fluctuations), WIDEST)
        panel.set_xlabel(fluctuates, fontsize=7.5, color="#444444")
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        panel.grid(color="#e6e6e6", linewidth=0.7)
        panel.set_axisbelow(True)
    for panel in axes.flat[len(parts) :]:
        panel.set_visible(False)
    if len(runs) > 1:
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(runs), 4))
    figure.supylabel("loss (environment steps along the axis)", fontsize=9)
    figure.suptitle(title)
    return figure


def _loss(panel: Axes, curve: Curve, name: str, colour: str) -> str:
    panel.plot(curve.steps, curve.values, color=colour, linewidth=0.8, alpha=0.45)
    panel.plot(curve.steps, curve.trend(), color=colour, linewidth=1.6, label=name)
    if curve.values.min() > 0 and curve.values.max() > 20 * curve.values.min():
        panel.set_yscale("log")
    return f"{curve.fluctuation():.2g}"


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def save_animation(path: Path, found: EpisodeRollout, title: str) -> Path:
    """Write real and imagined frames side by side, a page a step, as a GIF; a UserError where the disk refuses."""
    pages = [_page(found, step, title) for step in range(len(found))]
    durations = [STILL_MS] * (len(pages) - 1) + [LAST_MS]
    buffer = io.BytesIO()
    pages[0].save(buffer, "GIF", save_all=True, append_images=pages[1:], duration=durations, loop=0, disposal=1)
    write_atomic(path, buffer.getvalue())
    return path


def _page(found: EpisodeRollout, step: int, title: str) -> Image.Image:
    pictures = (found.real[step], found.imagined[step], np.abs(found.imagined[step] - found.real[step]))
    page = Image.new("RGB", (3 * PIXELS + 4 * MARGIN, PIXELS + 3 * LINE + 2 * MARGIN), "#ffffff")
    draw = ImageDraw.Draw(page)
    _write(draw, MARGIN, MARGIN, f"step {found.start + 1 + step}, imagined {step + 1} ahead   {title}")
    words: Sequence[str] = (
        f"real, reward {found.reward[step]:+.2g}",
        f"imagined, reward {found.imagined_reward[step]:+.2f}",
        "difference",
    )
    for column, (picture, word) in enumerate(zip(pictures, words, strict=True)):
        left, top = MARGIN + column * (PIXELS + MARGIN), MARGIN + LINE
        page.paste(_enlarged(picture), (left, top))
        _write(draw, left, top + PIXELS + 4, word)
    done = round((page.width - 2 * MARGIN) * (step + 1) / len(found))
    bottom = page.height - MARGIN
    draw.rectangle((MARGIN, bottom - 3, MARGIN + done, bottom), fill=MARK)
    return page


def _enlarged(picture: Array) -> Image.Image:
    image = Image.fromarray((picture * 255).round().astype(np.uint8))
    return image.resize((PIXELS, PIXELS), Image.Resampling.NEAREST)


def _write(draw: ImageDraw.ImageDraw, left: int, top: int, words: str) -> None:
    draw.text((left, top), words, fill=INK, font=ImageFont.load_default(12))
