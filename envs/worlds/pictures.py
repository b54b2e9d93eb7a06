"""Pictures of worlds that are maps of characters or tables of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Colour = tuple[int, int, int]

TILE = 24  # pixels along the side of a map's cell
SQUARE, ROW = 14, 24  # pixels along the side of a strip's square, squares in a row
LINE = 16  # pixels from one line of writing to the next
PAPER, INK, AGENT = (245, 245, 245), (40, 40, 45), (40, 60, 110)
GROUND: dict[str, Colour] = {
    "#": (90, 90, 95),
    ".": PAPER,
    "+": (70, 160, 80),
    "-": (214, 66, 61),
    "?": (190, 205, 240),
}
TURNS = {"^": 0, "<": 1, "v": 2, ">": 3}  # quarter turns to the left of an arrow that points up


def paint(lines: Sequence[str]) -> Picture:
    """Draw a map, one tile a character: # wall, . floor, + goal or heaven, - hell, ? signpost; ^ v < > and @ agent."""
    return np.concatenate([np.concatenate([_tile(character) for character in line], 1) for line in lines])


def put_agent(lines: Sequence[str], y: int, x: int, agent: str) -> list[str]:
    """Put a character at row y, column x of a map."""
    changed = list(lines)
    changed[y] = lines[y][:x] + agent + lines[y][x + 1 :]
    return changed


def strip(count: int, chosen: int) -> Picture:
    """Draw squares for 0 .. count-1 in rows of 24, the chosen one filled; none where `chosen` is `count`."""
    picture = np.full((-(-count // ROW) * SQUARE + SQUARE, (ROW + 1) * SQUARE, 3), PAPER, np.uint8)
    for index in range(count):
        y, x = (SQUARE // 2 + SQUARE * each for each in divmod(index, ROW))
        picture[y + 1 : y + SQUARE - 1, x + 1 : x + SQUARE - 1] = AGENT if index == chosen else (215, 215, 220)
    return picture


def writing(lines: Sequence[str], width: int) -> Picture:
    """Draw lines of text, cut off at `width` pixels."""
    image = Image.new("RGB", (width, LINE * len(lines) + LINE), PAPER)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default()
    for index, line in enumerate(lines):
        pen.text((SQUARE // 2, LINE // 2 + LINE * index), line, fill=INK, font=font)
    return np.array(image)


def _tile(character: str) -> Picture:
    """Draw the picture (TILE, TILE, 3) of one character of a map."""
    tile = np.full((TILE, TILE, 3), GROUND.get(character, PAPER), np.uint8)
    y, x = np.mgrid[:TILE, :TILE] - (TILE - 1) / 2
    if character == "@":
        tile[y**2 + x**2 < (TILE / 3) ** 2] = AGENT
    elif character in TURNS:
        arrow = (y > 2 * abs(x) - TILE / 3) & (y < TILE / 3)  # points up
        tile[np.rot90(arrow, TURNS[character])] = AGENT
    return tile
