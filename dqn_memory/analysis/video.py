"""Draw episodes as GIF or APNG: the environment's picture, beside it the agent's actions, Q-values and attention."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from dqn_memory.actors import ActingState
from dqn_memory.analysis.attention import episode_attention
from dqn_memory.analysis.episodes import Episode
from dqn_memory.network import QNetwork
from dqn_memory.runs.errors import UserError, require
from envs.extras import extra
from envs.files import disk_errors, make_folder, write_atomic
from envs.spaces import Array

with extra("plots"):
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

STEP_MS, LAST_MS = 400, 2000
LONGEST_MS = 655_350  # a GIF cannot show a picture for longer
PAGES = 200  # approximate maximum of pictures; a longer video leaves out steps and shows the others for longer
SHADES, SOME = 128, 8  # colours of a GIF, and number of pictures from which they are chosen
SIDE, PANEL, MARGIN, LINE = 250, 230, 12, 23  # pixels
LARGE, TEXT, SMALL = 19, 16, 15  # sizes of letters, legible in a web page that shows the picture at 400 pixels
NAME, NUMBER = 88, 52  # room for an action's name and its Q-value
INK, FAINT, PAPER, BAR, CHOSEN = "#222222", "#666666", "#ffffff", "#b9cbe0", "#e08a1e"
GOOD, BAD = "#2d7d46", "#b3362e"
ROW, NAMES, AHEAD = 19, 118, (236, 236, 236)  # of the attention's rows: height, room for names, colour of the future
Words = tuple[str, str, int]  # of one line: text, colour, size


@dataclass(frozen=True)
class Looks:
    """Attention of each decision of an episode of T steps, from R sources (a head of a layer each)."""

    names: tuple[str, ...]  # (R,)
    weights: Array  # (R, T, T): source, deciding step, step looked at

    @classmethod
    def of(cls, attention: Mapping[int, Array]) -> Self | None:
        """Take the result of `episode_attention`, (H, T, T) by layer; None if no layer has attention."""
        if not attention:
            return None
        names = (f"layer {layer} head {head}" for layer, maps in attention.items() for head in range(len(maps)))
        return cls(tuple(names), np.concatenate(list(attention.values())))

    @classmethod
    def of_episode(cls, network: QNetwork, episode: Episode, state: ActingState) -> Self | None:
        """Compute the attention of each decision of an episode."""
        device = next(network.parameters()).device
        observation, previous = episode.observation.to(device), episode.previous_action.to(device)
        attention = episode_attention(network, observation, previous, state)
        return cls.of({layer: maps.double().cpu().numpy() for layer, maps in attention.items()})

    def at(self, step: int) -> tuple[Array, float]:
        """Give the weights (R, T) of one decision as shares of the largest weight, and that weight."""
        weights = self.weights[:, step]
        largest = float(weights.max())
        return weights / max(largest, 1e-9), largest


def check_target(path: Path, overwrite: bool) -> None:
    """Raise a UserError for a path that a video cannot be written to; call it before any work."""
    require(path.suffix.lower() in (".gif", ".png"), f"--video {path} must end in .gif, or in .png for an animated PNG")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"--video {path} exists already; choose another name, or add --overwrite")
    make_folder(path.parent)


def save_video(
    path: Path,
    episodes: Sequence[Episode],
    actions: Sequence[str] = (),
    looks: Sequence[Looks | None] = (),
    step_ms: int = STEP_MS,
) -> None:
    """Write episodes with frames, one after the other; `actions` are names for the action numbers.

    With `looks`, one for each episode, the weights of each decision stand below it, a column a step. A long video
    leaves out steps and takes the same time. Raises a UserError if the disk refuses.
    """
    pictures: list[Image.Image] = []
    durations: list[int] = []
    every = max(1, -(-sum(map(len, episodes)) // PAGES))
    for number, episode in enumerate(episodes, 1):
        look = looks[number - 1] if looks else None
        steps = range(0, len(episode), every)
        pictures += [video_page(episode, step, number, actions, look) for step in (*steps, len(episode))]
        shown = (step_ms * min(every, len(episode) - step) for step in steps)
        durations += [*(min(each, LONGEST_MS) for each in shown), LAST_MS]
    buffer, kind = io.BytesIO(), "GIF" if path.suffix.lower() == ".gif" else "PNG"
    if kind == "GIF":
        pictures = _with_palette(pictures)
    pictures[0].save(buffer, kind, save_all=True, append_images=pictures[1:], duration=durations, loop=0, disposal=1)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def _with_palette(pictures: Sequence[Image.Image]) -> list[Image.Image]:
    """Give all pictures the palette of a few of them; one palette each would double the size."""
    some = [*pictures[:: -(-len(pictures) // SOME)], pictures[-1]]
    sheet = Image.new("RGB", (max(each.width for each in some), sum(each.height for each in some)), PAPER)
    for each, top in zip(some, np.cumsum([0, *(each.height for each in some)]).tolist(), strict=False):
        sheet.paste(each, (0, top))
    palette = sheet.quantize(SHADES, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    return [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures]


def video_page(episode: Episode, step: int, number: int, actions: Sequence[str], look: Looks | None) -> Image.Image:
    """Render the environment before action `step` (at T: after the last action), with words, Q-values and attention."""
    frame, names = _enlarge(episode.frames[step]), action_labels(episode, actions)
    height = max(frame.height, (6 + len(names)) * LINE) + 2 * MARGIN
    below = 0 if look is None else (len(look.names) + 2) * ROW + MARGIN
    picture = Image.new("RGB", (frame.width + PANEL + 3 * MARGIN, height + below), PAPER)
    picture.paste(frame, (MARGIN, MARGIN))
    draw, left = ImageDraw.Draw(picture), frame.width + 2 * MARGIN
    words = moment(episode, step, number, names)
    for line, (text, colour, size) in enumerate(words):
        draw.text((left, MARGIN + line * LINE), text, fill=colour, font=ImageFont.load_default(size))
    if step < len(episode):
        _bars(draw, left, MARGIN + len(words) * LINE, episode, step, names)
    if look is not None:
        _look(picture, draw, look, min(step, len(episode) - 1), height)
    return picture


def action_labels(episode: Episode, actions: Sequence[str]) -> list[str]:
    """Name every action of an episode."""
    return [actions[i] if i < len(actions) else f"action {i}" for i in range(episode.q.shape[1])]


def moment(episode: Episode, step: int, number: int, names: Sequence[str]) -> list[Words]:
    """Describe the agent's action at a step, or the episode's end at step T."""
    if step == len(episode):
        defined = episode.env_reports_success
        return [
            (f"Episode {number} ended", INK, LARGE),
            (episode.outcome, INK if not defined else GOOD if episode.success else BAD, LARGE),
            (f"{len(episode)} steps", INK, TEXT),
            (f"last reward: {episode.reward[-1]:+.2f}", INK, TEXT),
            # without a success the outcome is the return
            *([(f"return: {episode.episode_return:.2f}", INK, TEXT)] if defined else []),
        ]
    return [
        (f"Episode {number}, step {step}", INK, LARGE),
        (f"takes {episode.taken(step, names)}", CHOSEN, TEXT),
        (f"its reward: {episode.reward[step]:+.2f}", INK, TEXT),
        (f"return so far: {episode.reward[:step].sum():.2f}", FAINT, TEXT),
        (episode.values, FAINT, TEXT),
    ]


def shares(episode: Episode, step: int) -> Array:
    """Scale the Q-values of a step, (A,), so that 0 and 1 are the episode's minimum and maximum.

    Illegal actions get 0.
    """
    q, legal = episode.q[step], episode.q[np.isfinite(episode.q)]
    low, high = float(legal.min()), float(legal.max())
    return np.where(np.isfinite(q), (q - low) / (high - low), 0.0) if high > low else np.zeros(len(q))


def value_text(q: float) -> str:
    """Write the Q-value of an action."""
    return f"{q:.2f}" if q > -np.inf else "illegal"


def _bars(draw: ImageDraw.ImageDraw, left: int, top: int, episode: Episode, step: int, names: Sequence[str]) -> None:
    """Draw a line for each action: its name, its Q-value as a bar between the episode's extremes, and the number."""
    start, length, font = left + NAME, PANEL - NAME - NUMBER, ImageFont.load_default(TEXT)
    for index, (name, share) in enumerate(zip(names, shares(episode, step).tolist(), strict=True)):
        chosen = episode.chose(step, index)
        draw.text((left, top), name, INK, font)
        box = (start, top + 3, start + max(1, round(share * length)), top + LINE - 4)
        draw.rectangle(box, fill=CHOSEN if chosen else BAR)
        value = value_text(episode.q[step, index])
        draw.text((left + PANEL, top), value, INK if chosen else FAINT, font, anchor="ra")
        top += LINE


def _look(page: Image.Image, draw: ImageDraw.ImageDraw, look: Looks, step: int, top: int) -> None:
    """Draw a row for each source: the weights of the decision at `step` on all steps of the episode."""
    left, count = MARGIN + NAMES, look.weights.shape[-1]
    length = page.width - left - MARGIN
    weights, largest = look.at(step)
    colours = matplotlib.colormaps["Blues"](weights, bytes=True)[..., :3].copy()  # (R, T, 3)
    colours[:, step + 1 :] = AHEAD
    strip = Image.fromarray(colours).resize((length, len(look.names) * ROW), Image.Resampling.NEAREST)
    font = ImageFont.load_default(SMALL)
    draw.text((MARGIN, top), f"attention of step {step} to each step, darkest {largest:.2f}", FAINT, font)
    page.paste(strip, (left, top + ROW))
    for row, name in enumerate(look.names, 1):
        draw.text((MARGIN, top + row * ROW), name, INK, font)
    under = top + (len(look.names) + 1) * ROW
    box = (left + step * length // count, top + ROW, left + (step + 1) * length // count, under)
    draw.rectangle(box, outline=CHOSEN)
    for shown in sorted({0, count - 1}):
        draw.text((left + (2 * shown + 1) * length // (2 * count), under + 1), str(shown), FAINT, font, anchor="ma")


def _enlarge(frame: Array) -> Image.Image:
    """Scale the longer side to about SIDE pixels; enlarge by whole factors only."""
    picture = Image.fromarray(frame)
    longest = max(picture.size)
    factor = max(1, round(SIDE / longest)) if longest < 2 * SIDE else SIDE / longest
    size = (round(picture.width * factor), round(picture.height * factor))
    return picture.resize(size, Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.LANCZOS)
