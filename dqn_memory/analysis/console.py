"""Draw episodes in a terminal: half-block characters in colour, or the environment's own text without colour."""

from collections.abc import Sequence

import numpy as np
from rich.color import Color
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dqn_memory.analysis.episodes import Episode
from dqn_memory.analysis.plots import MAP_TOKENS
from dqn_memory.analysis.video import BAD, CHOSEN, GOOD, Looks, action_labels, moment, shares, value_text
from envs.extras import extra
from envs.spaces import Array

with extra("plots"):
    import matplotlib
    from PIL import Image

UPPER, FULL = "▀", "█"  # a character shows two pixels, one above the other, as its own colour and the one behind it
PANEL, BAR, MIN_ROWS = 38, 12, 6  # columns beside the picture, columns of a Q-value, minimum rows of a picture


def screen(
    episode: Episode, step: int, number: int, actions: Sequence[str], look: Looks | None, size: tuple[int, int]
) -> RenderableType:
    """Draw a step in `size` (columns, rows) characters: the picture, the agent's action, and its attention."""
    columns, rows = size
    below = 0 if look is None else len(look.names) + 1
    picture = half_blocks(episode.frames[step], max(8, columns - PANEL - 2), max(MIN_ROWS, rows - below - 2))
    beside = Table.grid(padding=(0, 2))
    beside.add_row(picture, _words(episode, step, number, action_labels(episode, actions)))
    return beside if look is None else Group(beside, _look(look, min(step, len(episode) - 1), columns))


def half_blocks(frame: Array, columns: int, rows: int) -> Text:
    """Draw a picture (H, W, 3) in at most `columns` by `rows` characters, its sides in proportion."""
    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    size = max(1, round(width * scale)), 2 * max(1, round(height * scale / 2))
    resampling = Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST
    pixels = np.asarray(Image.fromarray(frame).resize(size, resampling))
    lines = (zip(above, under, strict=True) for above, under in zip(pixels[::2], pixels[1::2], strict=True))
    return Text("\n").join(
        Text.assemble(*((UPPER, Style(color=_colour(top), bgcolor=_colour(bottom))) for top, bottom in line))
        for line in lines
    )


def plain_screen(episode: Episode, step: int, number: int, actions: Sequence[str], look: Looks | None) -> str:
    """Describe a step in plain characters."""
    names = action_labels(episode, actions)
    said = [", ".join(text for text, *_ in moment(episode, step, number, names)[: 5 if step == len(episode) else 4])]
    if step < len(episode):
        said.append(
            f"{episode.values}: "
            + ", ".join(f"{name} {value_text(q)}" for name, q in zip(names, episode.q[step], strict=True))
        )
    if look is not None and step < len(episode):
        for name, weights in zip(look.names, look.weights[:, step], strict=True):
            largest = np.argsort(-weights, kind="stable")[: min(3, step + 1)]
            said.append(f"{name} attends to " + ", ".join(f"step {at} ({weights[at]:.2f})" for at in largest))
    return "\n".join([*episode.texts[step : step + 1], *said, ""])


def _colour(pixel: Array) -> Color:
    return Color.from_rgb(*pixel.tolist())


def _words(episode: Episode, step: int, number: int, names: Sequence[str]) -> Text:
    styles = {colour: f"bold {colour}" for colour in (CHOSEN, GOOD, BAD)}
    said = [Text(text, styles.get(colour, "")) for text, colour, _ in moment(episode, step, number, names)]
    if step < len(episode):
        width = max(map(len, names))
        for index, (name, share) in enumerate(zip(names, shares(episode, step), strict=True)):
            bar = f"{FULL * max(1, round(float(share) * BAR)):<{BAR}}"
            line = f"{name:<{width}} {bar} {value_text(episode.q[step, index])}"
            said.append(Text(line, styles[CHOSEN] if episode.chose(step, index) else ""))
    return Text("\n").join(said)


def _look(look: Looks, step: int, columns: int) -> Text:
    """Draw a row for each source and a column for each step, wide if there is room; or the newest steps only."""
    width, count = max(map(len, look.names)), look.weights.shape[-1]
    room = columns - width - 1
    cell = 2 if 2 * count <= room else 1
    first = max(0, step + 1 - room // cell)
    weights, largest = look.at(step)
    shown = matplotlib.colormaps[MAP_TOKENS](weights[:, first : step + 1], bytes=True)[..., :3]  # (R, steps, 3)
    ahead = Text("·" * cell * (min(count, first + room // cell) - step - 1), "dim")
    said = [Text(f"attention of step {step} to steps {first} to {step} (yellow: {largest:.2f})", overflow="ellipsis")]
    for name, row in zip(look.names, shown, strict=True):
        cells = ((FULL * cell, Style(color=_colour(each))) for each in row)
        said.append(Text.assemble(f"{name:<{width}} ", *cells, ahead))
    return Text("\n").join(said)
