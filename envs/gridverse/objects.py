"""Objects of a grid.

A cell is one integer code of type, status and colour, so that every property of an object is one table look-up. The
code of a box has an index into a list of contents in place of status and colour.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# Types, as they are numbered in the default encoding.
NONE, HIDDEN, FLOOR, WALL, EXIT, DOOR, KEY, OBSTACLE, BOX, TELEPOD, BEACON = KINDS = range(11)

# Statuses of a door.
OPEN, CLOSED, LOCKED = 0, 1, 2

# Colours; 0 is none.
RED, GREEN, BLUE, YELLOW = COLOURS = (1, 2, 3, 4)

# Headings, and the unit vector (y, x) of each; y points down.
NORTH, SOUTH, WEST, EAST = 0, 1, 2, 3
DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
TURN_LEFT = (WEST, EAST, SOUTH, NORTH)
TURN_RIGHT = (EAST, WEST, NORTH, SOUTH)
CODES = 512  # four bits of type, two of status, three of colour
PHANTOM = 512  # a flag of visible codes, not of cells: the cell lies on a phantom line
SEEN = 1024  # codes with and without the flag


def pack(kind: int, status: int = 0, colour: int = 0) -> int:
    """Pack type, status and colour of an object into one code."""
    return kind << 5 | status << 3 | colour


def kinds(code: Tensor) -> Tensor:
    """Return the types of codes, any shape."""
    return code >> 5 & 15


def statuses(code: Tensor) -> Tensor:
    """Return the statuses of codes, any shape."""
    return code >> 3 & 3


def colours(code: Tensor) -> Tensor:
    """Return the colours of codes, any shape."""
    return code & 7


def tabulate(rule: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """Tabulate a property of objects by code, (SEEN,); the phantom flag has no effect."""
    return rule(torch.arange(SEEN)).to(device)


def blocks_movement(code: Tensor) -> Tensor:
    """Tell which codes block movement: walls, boxes, and doors that are not open."""
    kind = kinds(code)
    return (kind == WALL) | (kind == BOX) | (kind == DOOR) & (statuses(code) != OPEN)


def blocks_vision(code: Tensor) -> Tensor:
    """Tell which codes block sight: walls, doors that are not open, and hidden cells."""
    kind = kinds(code)
    return (kind == WALL) | (kind == HIDDEN) | (kind == DOOR) & (statuses(code) != OPEN)


def is_kind(kind: int) -> Callable[[Tensor], Tensor]:
    """Make the property of having this type."""
    return lambda code: kinds(code) == kind


class Scene(NamedTuple):
    """N grids with one agent each. No tensor is ever written in place."""

    cells: Tensor  # (N, H*W) int16, packed objects row by row
    position: Tensor  # (N,) int64, y*W + x
    heading: Tensor  # (N,) int64
    held: Tensor  # (N,) int64, code of the object in the hand; pack(NONE) is an empty hand
    good: Tensor  # (N,) int64, colour of the good exit; 0 if the task has none


class Transition(NamedTuple):
    """One step: the scene before, the canonical action, and the scene after."""

    before: Scene
    action: Tensor  # (N,) int64
    after: Scene
    under: Tensor  # (N,) int64, code of the agent's cell after the step


class Layout(Protocol):
    """The initial scenes of a task."""

    height: int
    width: int
    draws: int
    makes: Mapping[int, int]  # number of objects of each kind, without floor and wall
    colours: tuple[int, ...] = ()  # colours of these objects

    def __call__(self, u: Tensor) -> Scene:
        """Draw N scenes from uniforms u (N, draws) float64."""

    def initial_draws(self) -> Tensor | None:
        """Return draws (M, draws), one row per initial state, if there are few; else None."""
        return None


class Rule(Protocol):
    """A change of a scene by an action or by the environment. Rules run one after the other."""

    draws: int

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        """Change a scene by actions (N,) int64 and uniforms u (N, draws) float64; ignore u if draws is 0."""


Reward = Callable[[Transition], Tensor]  # to (N,) float64; a task sums its rewards in their order
Ending = Callable[[Transition], Tensor]  # to (N,) bool; an episode ends if any ending is True
