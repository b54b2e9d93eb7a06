"""Pictures of a grid, drawn with numpy."""

from typing import Any

import numpy as np

from envs.gridverse.objects import BEACON, DOOR, EXIT, KEY, NORTH, PHANTOM, SOUTH, WALL, WEST

CELL = 24  # pixels
PALETTE = np.array([[120, 120, 120], [214, 66, 61], [70, 160, 80], [62, 108, 205], [232, 190, 50]], np.uint8)
FLOOR_COLOUR, AGENT_COLOUR = (236, 234, 228), (24, 24, 28)
WALL_COLOUR, PHANTOM_COLOUR = (64, 68, 76), (150, 154, 162)
Picture = np.ndarray[Any, np.dtype[np.uint8]]


def draw(grid: np.ndarray[Any, Any], position: int, heading: int, window: np.ndarray[Any, Any]) -> Picture:
    """RGB picture (H*CELL, W*CELL, 3) of packed cells grid (H, W); window holds the seen offsets (y, x)."""
    height, width = grid.shape
    picture = np.zeros((height * CELL, width * CELL, 3), np.uint8)
    for y in range(height):
        for x in range(width):
            _tile(picture, y, x)[:] = _object(int(grid[y, x]))
    y, x = divmod(position, width)
    _shade(picture, {(y + dy, x + dx) for dy, dx in window.tolist()}, height, width)
    _tile(picture, y, x)[_triangle(heading)] = AGENT_COLOUR
    return picture


def _tile(picture: Picture, y: int, x: int) -> Picture:
    return picture[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL]


def _object(code: int) -> Picture:
    """One cell's picture (CELL, CELL, 3)."""
    kind, status, colour = code >> 5, code >> 3 & 3, PALETTE[code & 7]
    tile = np.empty((CELL, CELL, 3), np.uint8)
    tile[:] = FLOOR_COLOUR
    if kind == WALL:
        tile[:] = PHANTOM_COLOUR if status == PHANTOM else WALL_COLOUR
    elif kind in (EXIT, DOOR):
        tile[2:-2, 2:-2] = colour
    elif kind in (BEACON, KEY):
        tile[_disc()] = colour
    return tile


def _disc() -> np.ndarray[Any, np.dtype[np.bool_]]:
    y, x = np.ogrid[:CELL, :CELL]
    inside: np.ndarray[Any, np.dtype[np.bool_]] = np.hypot(y - CELL / 2 + 0.5, x - CELL / 2 + 0.5) < CELL / 3
    return inside


def _triangle(heading: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Pixels of a triangle whose tip shows the heading."""
    y, x = np.ogrid[:CELL, :CELL]
    north = (y >= 5) & (y < CELL - 4) & (2 * np.abs(x - CELL / 2 + 0.5) <= y - 4)
    turns = {NORTH: 0, WEST: 1, SOUTH: 2}.get(heading, 3)
    return np.rot90(north, turns)


def _shade(picture: Picture, seen: set[tuple[int, int]], height: int, width: int) -> None:
    """Darken what the agent does not see."""
    for y in range(height):
        for x in range(width):
            if (y, x) not in seen:
                _tile(picture, y, x)[:] = _tile(picture, y, x) // 4 * 3
