"""Draw a grid, as pixels with numpy and as characters."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.gridverse import objects
from envs.gridverse.objects import pack

CELL = 24  # pixels
PALETTE = np.array([[120, 120, 120], [214, 66, 61], [70, 160, 80], [62, 108, 205], [232, 190, 50]], np.uint8)
FLOOR_COLOUR, AGENT_COLOUR = (236, 234, 228), (24, 24, 28)
WALL_COLOUR, PHANTOM_COLOUR = (64, 68, 76), (150, 154, 162)
BOX_COLOUR, OBSTACLE_COLOUR = (150, 105, 60), (90, 60, 120)
HEADINGS = "^v<>"
QUARTER_TURNS = (0, 2, 1, 3)  # from north, by heading
Y, X = np.ogrid[:CELL, :CELL]
GLYPHS = ("??", "  ", ". ", "##", "E", "", "K", "()", "[]", "T", "B")  # by type; a letter gets its colour's
COLOUR_LETTERS = " rgby"
DOORS = "/+L"  # open, closed, locked
Picture = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Drawing:
    """The data for a drawing of one grid."""

    grid: np.ndarray[Any, Any]  # (H, W) codes, with the flag PHANTOM on phantom lines
    window: np.ndarray[Any, Any]  # (rows, columns) codes that the agent sees, the row furthest ahead first
    seen: set[tuple[int, int]]  # visible cells (y, x) of the grid
    position: tuple[int, int]  # the agent's (y, x)
    heading: int
    held: int  # code of the object in the hand


def draw_grid(drawing: Drawing) -> Picture:
    """Draw an RGB picture (H*CELL, W*CELL, 3); invisible cells are darker, phantom walls lighter than walls."""
    height, width = drawing.grid.shape
    picture = np.zeros((height * CELL, width * CELL, 3), np.uint8)
    for cell, code in np.ndenumerate(drawing.grid):
        tile = _object(int(code))
        _tile(picture, *cell)[:] = tile if cell in drawing.seen else tile // 4 * 3
    agent = _tile(picture, *drawing.position)
    north = (Y >= 5) & (Y < CELL - 4) & (2 * np.abs(X - CELL / 2 + 0.5) <= Y - 4)  # a triangle that points ahead
    agent[np.rot90(north, QUARTER_TURNS[drawing.heading])] = AGENT_COLOUR
    if drawing.held != pack(objects.NONE):
        agent[-9:, -9:] = _object(drawing.held)[1 : -1 : (CELL - 2) // 8, 1 : -1 : (CELL - 2) // 8][:9, :9]
    return picture


def grid_text(drawing: Drawing) -> str:
    """Write the grid with two characters per cell, then the window that the agent sees, then the object in its hand."""
    lines = [[_glyph(int(code)) for code in row] for row in drawing.grid]
    y, x = drawing.position
    lines[y][x] = HEADINGS[drawing.heading] + " "
    shown = [[_glyph(pack(objects.WALL) if is_phantom(code) else int(code)) for code in row] for row in drawing.window]
    held = "nothing" if drawing.held == pack(objects.NONE) else _glyph(drawing.held).strip()
    return "\n".join([*map("".join, lines), "", "sees", *map("".join, shown), f"holds {held}"])


def is_phantom(code: int) -> bool:
    """Tell whether a code is a floor on a phantom line, which looks like a wall."""
    return code == objects.PHANTOM | pack(objects.FLOOR)


def _parts(code: int) -> tuple[int, int, int]:
    """Return type, status and colour."""
    return code % objects.CODES >> 5, min(code >> 3 & 3, objects.LOCKED), code & 7


def _glyph(code: int) -> str:
    """Write two characters for an object: its type, and its colour's first letter; phantom cells are `::`."""
    kind, status, colour = _parts(code)
    glyph = "::" if is_phantom(code) else DOORS[status] if kind == objects.DOOR else GLYPHS[kind]
    return glyph if len(glyph) == 2 else glyph + COLOUR_LETTERS[colour]


def _tile(picture: Picture, y: int, x: int) -> Picture:
    return picture[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL]


def _object(code: int) -> Picture:
    """Draw one cell's picture (CELL, CELL, 3)."""
    kind, status, colour = _parts(code)
    tile = np.empty((CELL, CELL, 3), np.uint8)
    tile[:] = PHANTOM_COLOUR if is_phantom(code) else WALL_COLOUR if kind == objects.WALL else FLOOR_COLOUR
    if kind in (objects.EXIT, objects.DOOR):
        tile[2:-2, 2:-2] = PALETTE[colour]
    if kind == objects.DOOR:
        edge = (5, 10, 8)[status]  # an opening, a handle, or the large lock of a locked door
        tile[edge:-edge, edge:-edge] = FLOOR_COLOUR if status == objects.OPEN else WALL_COLOUR
    if kind == objects.BOX:
        tile[4:-4, 4:-4] = BOX_COLOUR
    if kind in (objects.BEACON, objects.KEY, objects.TELEPOD, objects.OBSTACLE):
        disc = np.hypot(Y - CELL / 2 + 0.5, X - CELL / 2 + 0.5) < CELL / 3
        tile[disc] = OBSTACLE_COLOUR if kind == objects.OBSTACLE else PALETTE[colour]
    return tile
