"""Encodings of objects for networks: a row of numbers per code."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.errors import check_known
from envs.gridverse import objects
from envs.gridverse.objects import COLOURS, DIRECTIONS, SEEN, Scene, colours, kinds, pack, statuses
from envs.gridverse.rules import heading_axes
from envs.numpy_backend import concatenate, integers, take, take_columns, where
from envs.spaces import MultiDiscrete


@dataclass(frozen=True)
class Objects:
    """The objects and colours that a task declares; an empty hand, hidden cells and no colour are always included."""

    kinds: tuple[int, ...]
    colours: tuple[int, ...]


@dataclass(frozen=True)
class Encoding:
    """A table of C channels by code: numbers (SEEN, C) int64, all below sizes (C,)."""

    numbers: Tensor
    sizes: tuple[int, ...]


def default_encoding(declared: Objects) -> Encoding:
    """Use the original numbers of type, status and colour; the channels share numbers."""
    return Encoding(_raw(), tuple(high + 1 for high in _highest(declared)))


def summed_encoding(declared: Objects) -> Encoding:
    """Add type and colour to one number per cell, as published; the status is not visible.

    The size is that of the released code: twice the maximum of any channel, plus 1.
    """
    raw = _raw()
    return Encoding((raw[:, 0] + raw[:, 2])[:, None], (2 * max(_highest(declared)) + 1,))


ENCODINGS: dict[str, Callable[[Objects], Encoding]] = {
    "summed": summed_encoding,
    "default": default_encoding,
}


def encoding_of(name: str, declared: Objects, device: torch.device) -> Encoding:
    """Make an encoding by name; a floor on a phantom line looks like a wall."""
    encoding = ENCODINGS[check_known("grid encoding", name, ENCODINGS)](declared)
    numbers = encoding.numbers.clone()
    numbers[objects.PHANTOM | pack(objects.FLOOR)] = numbers[pack(objects.WALL)]
    return Encoding(numbers.to(device), encoding.sizes)


def _raw() -> Tensor:
    """Return type, status and colour (SEEN, 3) by code; the contents of a box are invisible."""
    code = torch.arange(SEEN)
    plain = torch.where(kinds(code) == objects.BOX, pack(objects.BOX), code)
    return torch.stack([kinds(plain), statuses(plain), colours(plain)], -1)


def _states(kind: int) -> int:
    """Count the statuses of a type."""
    return objects.LOCKED + 1 if kind == objects.DOOR else 1


def _highest(declared: Objects) -> tuple[int, int, int]:
    """Return an upper bound of each channel; as in the original, that of the status is the number of statuses."""
    return max(declared.kinds), max(map(_states, declared.kinds)), max((0, *declared.colours))


class FullState:
    """The complete state: a grid of H x W cells around the agent, and 5 more numbers; S * S + 5, S the longer side.

    The grid is turned as in the agent's view, so that the agent looks at the first row, and is in the middle (row and
    column S // 2). It is wrapped around at its edges, so that every cell appears once. A cell's number identifies its
    object by type, status, colour and contents, the same in every task. The 5 last numbers are the agent's row, column
    and heading, the object in its hand, and the colour of the good exit (0 without one). Different scenes have
    different numbers.
    """

    runs_on_numpy = True

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        every = [kind for kind in objects.KINDS if kind != objects.BOX]
        codes = [pack(kind, status, hue) for kind in every for status in range(_states(kind)) for hue in (0, *COLOURS)]
        codes += range(pack(objects.BOX), pack(objects.BOX + 1))  # boxes differ by their contents
        numbers = torch.zeros(objects.CODES, dtype=torch.int64)
        numbers[codes] = torch.arange(len(codes))
        side, self.cells = max(height, width), height * width
        self.numbers = numbers.to(device)
        self.ahead, self.aside = (each.to(device) for each in _offsets(side))  # (4, S*S) each, by heading
        self.outside = numbers[pack(objects.HIDDEN)].to(device)  # fills the shorter side
        self.height, self.width, self.side = torch.tensor([height, width, side], device=device).unbind()
        sizes = [height, width, len(DIRECTIONS), len(codes), len(COLOURS) + 1]
        self.space = MultiDiscrete([len(codes)] * side**2 + sizes)

    def __call__(self, scene: Scene) -> Tensor:
        """Compute the numbers (N, S*S + 5) int64 of N scenes."""
        cells = take(self.numbers, integers(scene.cells).reshape(-1)).reshape(-1, self.cells)
        y, x, held = scene.position // self.width, scene.position % self.width, take(self.numbers, scene.held)
        cells = concatenate([cells, (y * 0 + self.outside)[:, None]])
        row = (y[:, None] + take(self.ahead, scene.heading)) % self.side  # (N, S*S)
        column = (x[:, None] + take(self.aside, scene.heading)) % self.side
        inside = (row < self.height) & (column < self.width)
        around = take_columns(cells, where(inside, row * self.width + column, self.cells))
        return concatenate([around, *(each[:, None] for each in (y, x, scene.heading, held, scene.good))])


def _offsets(side: int) -> tuple[Tensor, Tensor]:
    """List the offsets of the shown cells below and right of the agent, by heading, (4, S*S) each."""
    cell = torch.arange(side * side)
    ahead, aside = side // 2 - cell // side, cell % side - side // 2  # (S*S,) steps from the agent
    axes = torch.tensor([heading_axes(heading) for heading in range(len(DIRECTIONS))])  # (4, 2, 2)
    down, right = (ahead * axes[:, 0, axis, None] + aside * axes[:, 1, axis, None] for axis in (0, 1))
    return down, right
