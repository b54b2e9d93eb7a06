"""Episodes as GIF or APNG: the environment's picture, and beside it what the agent did and thought."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dqn_memory.analysis.episodes import Episode
from dqn_memory.runs.errors import UserError
from envs.files import disk_errors, write_atomic

STEP_MS, LAST_MS = 400, 2000
PAGES = 200  # about the most pictures of a video; of longer ones only some steps are shown, each for longer
SIDE, PANEL, MARGIN, LINE = 300, 290, 14, 20  # pixels
INK, FAINT, PAPER, BAR, CHOSEN = "#222222", "#777777", "#ffffff", "#b9cbe0", "#e08a1e"
GOOD, BAD = "#2d7d46", "#b3362e"
ROW, NAMES, AHEAD = 14, 96, (236, 236, 236)  # of the attention's rows: height, room for names, colour of the future
Array = np.ndarray[Any, np.dtype[Any]]
Words = tuple[str, str, int]  # of one line: text, colour, size


@dataclass(frozen=True)
class Looks:
    """What each decision of an episode of T steps attended to, from R sources."""

    names: tuple[str, ...]  # (R,)
    weights: Array  # (R, T, T): source, deciding step, step looked at


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse a path that a video cannot be written to, before any work is done for it."""
    if path.suffix.lower() not in (".gif", ".png"):
        raise UserError(f"--video {path} must end in .gif, or in .png for an animated PNG")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"--video {path} exists already; choose another name, or add --overwrite")


def save_video(
    path: Path, episodes: Sequence[Episode], actions: Sequence[str] = (), looks: Sequence[Looks] = ()
) -> None:
    """Write episodes with frames, one after the other; `actions` are names for the action numbers.

    With `looks`, one for each episode, the weights of each decision stand below it, a column a step. A long
    video leaves out steps and takes the same time.
    Raises UserError where the disk refuses.
    """
    pictures: list[Image.Image] = []
    durations: list[int] = []
    every = max(1, -(-sum(map(len, episodes)) // PAGES))
    for number, episode in enumerate(episodes, 1):
        look = looks[number - 1] if looks else None
        names = [actions[i] if i < len(actions) else f"action {i}" for i in range(episode.q.shape[1])]
        steps = range(0, len(episode), every)
        pictures += [_page(episode, step, number, names, look) for step in (*steps, len(episode))]
        durations += [STEP_MS * min(every, len(episode) - step) for step in steps] + [LAST_MS]
    buffer = io.BytesIO()
    kind = "GIF" if path.suffix.lower() == ".gif" else "PNG"
    pictures[0].save(buffer, kind, save_all=True, append_images=pictures[1:], duration=durations, loop=0, disposal=1)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def _page(episode: Episode, step: int, number: int, names: Sequence[str], look: Looks | None) -> Image.Image:
    """Render the environment before action `step`, or after the last one at step T."""
    frame, ended = _enlarge(episode.frames[step]), step == len(episode)
    height = max(frame.height, 5 * LINE + len(names) * LINE + LINE) + 2 * MARGIN
    below = 0 if look is None else (len(look.names) + 2) * ROW + MARGIN
    page = Image.new("RGB", (frame.width + PANEL + 3 * MARGIN, height + below), PAPER)
    page.paste(frame, (MARGIN, MARGIN))
    draw, left = ImageDraw.Draw(page), frame.width + 2 * MARGIN
    words = _ending(episode, number) if ended else _moment(episode, step, number, names)
    for line, (text, colour, size) in enumerate(words):
        draw.text((left, MARGIN + line * LINE), text, fill=colour, font=ImageFont.load_default(size))
    if not ended:
        _bars(draw, left, MARGIN + len(words) * LINE, episode, step, names)
    if look is not None:
        _look(page, draw, look, min(step, len(episode) - 1), height)
    return page


def _moment(episode: Episode, step: int, number: int, names: Sequence[str]) -> list[Words]:
    return [
        (f"Episode {number}, step {step}", INK, 16),
        (f"takes {names[episode.action[step]]}", CHOSEN, 13),
        (f"its reward: {episode.reward[step]:+.2f}", INK, 13),
        (f"return so far: {episode.reward[:step].sum():.2f}", FAINT, 13),
        ("Q-values", FAINT, 13),
    ]


def _ending(episode: Episode, number: int) -> list[Words]:
    return [
        (f"Episode {number} ended", INK, 16),
        (episode.outcome, GOOD if episode.success else BAD, 16),
        (f"{len(episode)} steps", INK, 13),
        (f"last reward: {episode.reward[-1]:+.2f}", INK, 13),
        (f"return: {episode.episode_return:.2f}", INK, 13),
    ]


def _bars(draw: ImageDraw.ImageDraw, left: int, top: int, episode: Episode, step: int, names: Sequence[str]) -> None:
    """Draw a line an action: its name, its Q-value as a bar between the episode's least and highest, and the number."""
    low, high = float(episode.q.min()), float(episode.q.max())
    start, length, font = left + 92, PANEL - 92 - 52, ImageFont.load_default(13)
    for index, (name, value) in enumerate(zip(names, episode.q[step].tolist(), strict=True)):
        chosen = index == episode.action[step]
        share = (value - low) / (high - low) if high > low else 0.0
        draw.text((left, top), name, INK, font)
        end = start + max(1, round(share * length))
        draw.rectangle((start, top + 3, end, top + LINE - 4), fill=CHOSEN if chosen else BAR)
        draw.text((start + length + 6, top), f"{value:.2f}", INK if chosen else FAINT, font)
        top += LINE


def _look(page: Image.Image, draw: ImageDraw.ImageDraw, look: Looks, step: int, top: int) -> None:
    """Draw a row a source: where the decision at `step` looked, from the first step to the last."""
    left, count = MARGIN + NAMES, look.weights.shape[-1]
    length = page.width - left - MARGIN
    colours = matplotlib.colormaps["Blues"](look.weights[:, step], bytes=True)[..., :3].copy()  # (R, T, 3)
    colours[:, step + 1 :] = AHEAD
    strip = Image.fromarray(colours).resize((length, len(look.names) * ROW), Image.Resampling.NEAREST)
    font = ImageFont.load_default(11)
    draw.text((MARGIN, top), f"what the decision at step {step} attends to, by step", FAINT, font)
    page.paste(strip, (left, top + ROW))
    for row, name in enumerate(look.names, 1):
        draw.text((MARGIN, top + row * ROW), name, INK, font)
    under = top + (len(look.names) + 1) * ROW
    box = (left + step * length // count, top + ROW, left + (step + 1) * length // count, under)
    draw.rectangle(box, outline=CHOSEN)
    for shown in sorted({0, count - 1}):
        draw.text((left + (2 * shown + 1) * length // (2 * count), under), str(shown), FAINT, font, anchor="ma")


def _enlarge(frame: Array) -> Image.Image:
    """Bring the longer side near SIDE pixels, by a whole factor where it grows."""
    picture = Image.fromarray(frame)
    longest = max(picture.size)
    factor = max(1, round(SIDE / longest)) if longest < 2 * SIDE else SIDE / longest
    size = (round(picture.width * factor), round(picture.height * factor))
    return picture.resize(size, Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.LANCZOS)
