"""Objects of a grid and their encodings.

A cell is one integer code that packs type, status and colour, so that every property of an object is one
table look-up and a phantom wall (a wall with status PHANTOM) is a row of the tables, not a special case.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Types, as they are numbered in the default encoding.
NONE, HIDDEN, FLOOR, WALL, EXIT, DOOR, KEY, BEACON = 0, 1, 2, 3, 4, 5, 6, 10
# Statuses of a door; and of a wall that is only seen.
OPEN, CLOSED, LOCKED = 0, 1, 2
PHANTOM = 1
# Colours.
RED, GREEN, BLUE, YELLOW = 1, 2, 3, 4
COLOURS = (RED, GREEN, BLUE, YELLOW)
# Headings, and the unit vector (y, x) of each; y points down.
NORTH, SOUTH, WEST, EAST = 0, 1, 2, 3
DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
TURN_LEFT = (WEST, EAST, SOUTH, NORTH)
TURN_RIGHT = (EAST, WEST, NORTH, SOUTH)

CODES = 512  # four bits of type, two of status, three of colour


def pack(kind: int, status: int = 0, colour: int = 0) -> int:
    """One code for an object."""
    return kind << 5 | status << 3 | colour


def kinds(code: Tensor) -> Tensor:
    """Types of codes, any shape."""
    return code >> 5


def statuses(code: Tensor) -> Tensor:
    """Statuses of codes, any shape."""
    return code >> 3 & 3


def colours(code: Tensor) -> Tensor:
    """Colours of codes, any shape."""
    return code & 7


def channels(code: Tensor) -> Tensor:
    """The 'default' encoding (type, status, colour): codes of shape (...) to (..., 3)."""
    return torch.stack([kinds(code), statuses(code), colours(code)], -1)


def table(rule: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """A property of objects as a look-up table by code, (CODES,)."""
    return rule(torch.arange(CODES)).to(device)


def blocks_movement(code: Tensor) -> Tensor:
    """Walls and doors that are not open; a phantom wall lets the agent pass."""
    solid = (kinds(code) == WALL) & (statuses(code) != PHANTOM)
    return solid | (kinds(code) == DOOR) & (statuses(code) != OPEN)


def blocks_vision(code: Tensor) -> Tensor:
    """Whatever blocks movement, and what is hidden itself."""
    return blocks_movement(code) | (kinds(code) == HIDDEN)


def summed(code: Tensor) -> Tensor:
    """The published observation of a cell: type index + colour index (status is not seen)."""
    return kinds(code) + colours(code)
