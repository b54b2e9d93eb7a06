"""Pictures of worlds that are maps of characters or tables of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Colour = tuple[int, int, int]

TILE = 24  # pixels along the side of a map's cell
MARGIN, LINE = 8, 16  # pixels around a text, and from one of its lines to the next
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


def writing(lines: Sequence[str], width: int) -> Picture:
    """Draw lines of text, cut off at `width` pixels."""
    image = Image.new("RGB", (width, LINE * len(lines) + 2 * MARGIN), PAPER)
    font = ImageFont.load_default()
    ImageDraw.Draw(image).multiline_text((MARGIN, MARGIN), "\n".join(lines), fill=INK, font=font)
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
