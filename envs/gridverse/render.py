"""Pictures of a grid, as pixels with numpy and as characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.gridverse.objects import (
    BEACON,
    BOX,
    CODES,
    DOOR,
    EXIT,
    FLOOR,
    HIDDEN,
    KEY,
    NONE,
    NORTH,
    OBSTACLE,
    PHANTOM,
    SOUTH,
    TELEPOD,
    WALL,
    WEST,
    pack,
)

CELL = 24  # pixels
PALETTE = np.array([[120, 120, 120], [214, 66, 61], [70, 160, 80], [62, 108, 205], [232, 190, 50]], np.uint8)
FLOOR_COLOUR, AGENT_COLOUR = (236, 234, 228), (24, 24, 28)
WALL_COLOUR, PHANTOM_COLOUR = (64, 68, 76), (150, 154, 162)
BOX_COLOUR, OBSTACLE_COLOUR = (150, 105, 60), (90, 60, 120)
HEADINGS = "^v<>"
COLOUR_LETTERS = " rgby"
DOORS = "/+L"  # open, closed, locked
Picture = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Drawing:
    """One grid as it stands, ready to be drawn."""

    grid: np.ndarray[Any, Any]  # (H, W) codes, flagged where a phantom line runs
    window: np.ndarray[Any, Any]  # (rows, columns) codes of what the agent sees, the row ahead first
    seen: set[tuple[int, int]]  # cells (y, x) of the grid that are in the window and lit
    position: tuple[int, int]  # the agent's (y, x)
    heading: int
    held: int  # code of the object in the hand
    phantom: int  # code of what a floor on a phantom line looks like


def draw(drawing: Drawing) -> Picture:
    """Draw an RGB picture (H*CELL, W*CELL, 3); unlit cells are darker, and phantom walls lighter than walls."""
    height, width = drawing.grid.shape
    picture = np.zeros((height * CELL, width * CELL, 3), np.uint8)
    for y in range(height):
        for x in range(width):
            tile = _tile(picture, y, x)
            tile[:] = _object(int(drawing.grid[y, x]))
            if (y, x) not in drawing.seen:
                tile[:] = tile // 4 * 3
    agent = _tile(picture, *drawing.position)
    agent[_triangle(drawing.heading)] = AGENT_COLOUR
    if drawing.held != pack(NONE):
        agent[-9:, -9:] = _object(drawing.held)[1 : -1 : (CELL - 2) // 8, 1 : -1 : (CELL - 2) // 8][:9, :9]
    return picture


def text(drawing: Drawing) -> str:
    """Write the grid in two characters a cell, then the window as the agent sees it, then what it holds."""
    lines = [[_glyph(int(code)) for code in row] for row in drawing.grid]
    y, x = drawing.position
    lines[y][x] = HEADINGS[drawing.heading] + " "
    shown = [[_glyph(_appearance(int(code), drawing.phantom)) for code in row] for row in drawing.window]
    held = "nothing" if drawing.held == pack(NONE) else _glyph(drawing.held).strip()
    return "\n".join([*map("".join, lines), "", "sees", *map("".join, shown), f"holds {held}"])


def is_phantom(code: int) -> bool:
    """Tell whether a flagged code is one of a floor that looks like something else."""
    return code == PHANTOM | pack(FLOOR)


def _appearance(code: int, phantom: int) -> int:
    return phantom if is_phantom(code) else code


def _glyph(code: int) -> str:
    """Write two characters for an object: what it is, and its colour's first letter; phantom cells are `::`."""
    if is_phantom(code):
        return "::"
    kind, status, colour = code % CODES >> 5, code >> 3 & 3, COLOUR_LETTERS[code & 7]
    plain = {FLOOR: ". ", WALL: "##", HIDDEN: "  ", BOX: "[]", OBSTACLE: "()", NONE: "??"}
    letters = {EXIT: "E", KEY: "K", BEACON: "B", TELEPOD: "T", DOOR: DOORS[min(status, 2)]}
    return plain[kind] if kind in plain else letters[kind] + colour


def _tile(picture: Picture, y: int, x: int) -> Picture:
    return picture[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL]


def _object(code: int) -> Picture:
    """Draw one cell's picture (CELL, CELL, 3)."""
    kind, status, colour = code % CODES >> 5, code >> 3 & 3, PALETTE[code & 7]
    tile = np.empty((CELL, CELL, 3), np.uint8)
    tile[:] = PHANTOM_COLOUR if is_phantom(code) else WALL_COLOUR if kind == WALL else FLOOR_COLOUR
    if kind in (EXIT, DOOR):
        tile[2:-2, 2:-2] = colour
    if kind == DOOR:
        tile[_inside(status)] = FLOOR_COLOUR if status == 0 else WALL_COLOUR
    if kind == BOX:
        tile[4:-4, 4:-4] = BOX_COLOUR
    if kind in (BEACON, KEY, TELEPOD, OBSTACLE):
        tile[_disc()] = OBSTACLE_COLOUR if kind == OBSTACLE else colour
    return tile


def _inside(status: int) -> tuple[slice, slice]:
    """Say what marks a door's status: an opening, a handle, or the large lock of a locked door."""
    edge = (5, 10, 8)[min(status, 2)]
    return slice(edge, -edge), slice(edge, -edge)


def _disc() -> np.ndarray[Any, np.dtype[np.bool_]]:
    y, x = np.ogrid[:CELL, :CELL]
    inside: np.ndarray[Any, np.dtype[np.bool_]] = np.hypot(y - CELL / 2 + 0.5, x - CELL / 2 + 0.5) < CELL / 3
    return inside


def _triangle(heading: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Mark the pixels of a triangle whose tip shows the heading."""
    y, x = np.ogrid[:CELL, :CELL]
    north = (y >= 5) & (y < CELL - 4) & (2 * np.abs(x - CELL / 2 + 0.5) <= y - 4)
    turns = {NORTH: 0, WEST: 1, SOUTH: 2}.get(heading, 3)
    return np.rot90(north, turns)
