"""What a network is shown of an object: a row of numbers, looked up by code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.errors import UserError
from envs.gridverse.objects import (
    BOX,
    DOOR,
    FLOOR,
    HIDDEN,
    LOCKED,
    NONE,
    PHANTOM,
    SEEN,
    colours,
    kinds,
    pack,
    statuses,
)
from envs.registry import near_names


@dataclass(frozen=True)
class Objects:
    """The objects that a task declares as possible; an empty hand, hidden cells and no colour always are."""

    kinds: tuple[int, ...]
    colours: tuple[int, ...]

    @property
    def types(self) -> list[int]:
        """All types in their order."""
        return sorted({NONE, HIDDEN, *self.kinds})

    @property
    def hues(self) -> list[int]:
        """All colours in their order, none first."""
        return sorted({0, *self.colours})

    @property
    def statuses(self) -> list[tuple[int, int]]:
        """All pairs of a type and its status in their order."""
        return [(kind, status) for kind in self.types for status in range(states(kind))]


@dataclass(frozen=True)
class Encoding:
    """A table of C channels: numbers (SEEN, C) int64 by code, all below sizes (C,)."""

    numbers: Tensor
    sizes: tuple[int, ...]


def default(objects: Objects) -> Encoding:
    """Type, status and colour as they are numbered everywhere; the channels share numbers."""
    return Encoding(_raw(), tuple(high + 1 for high in _highest(objects)))


def no_overlap(objects: Objects) -> Encoding:
    """As `default`, each channel moved past the highest number of the one before it."""
    kind, status, hue = _highest(objects)
    first = (0, kind + 1, kind + status + 2)
    sizes = (kind + 1, kind + status + 2, kind + status + hue + 3)
    return Encoding(_raw() + torch.tensor(first), sizes)


def compact(objects: Objects) -> Encoding:
    """Types, then pairs of type and status, then colours, numbered one after the other without a gap.

    Objects that the task does not declare have the numbers of a hidden cell.
    """
    types, pairs, hues = objects.types, objects.statuses, objects.hues
    first = (len(types), len(types) + len(pairs))
    numbers = torch.tensor([types.index(HIDDEN), first[0] + pairs.index((HIDDEN, 0)), first[1]]).repeat(SEEN, 1)
    raw = _raw().tolist()
    for code, (kind, status, hue) in enumerate(raw):
        if (kind, status) in pairs and hue in hues:
            numbers[code] = torch.tensor(
                [types.index(kind), first[0] + pairs.index((kind, status)), first[1] + hues.index(hue)]
            )
    return Encoding(numbers, (first[0], first[1], first[1] + len(hues)))


def summed(objects: Objects) -> Encoding:
    """The published vector: type + colour, one number a cell; the status is not seen.

    Its space is as wide as the released code declares it: twice the highest number of any channel, and one.
    """
    raw = _raw()
    return Encoding((raw[:, 0] + raw[:, 2])[:, None], (2 * max(_highest(objects)) + 1,))


ENCODINGS: dict[str, Callable[[Objects], Encoding]] = {
    "summed": summed,
    "default": default,
    "no-overlap": no_overlap,
    "compact": compact,
}


def encode(name: str, objects: Objects, phantom: int, device: torch.device) -> Encoding:
    """An encoding by name, in which a floor on a phantom line looks like the object `phantom` (a code).

    Raises:
        UserError: there is no such encoding.
    """
    if name not in ENCODINGS:
        raise UserError(f"There is no grid encoding {name!r}; {near_names(name, ENCODINGS)}")
    encoding = ENCODINGS[name](objects)
    numbers = encoding.numbers.clone()
    numbers[PHANTOM | pack(FLOOR)] = numbers[phantom]
    return Encoding(numbers.to(device), encoding.sizes)


def _raw() -> Tensor:
    """Type, status and colour (SEEN, 3) by code; a box shows nothing of its contents."""
    code = torch.arange(SEEN)
    plain = torch.where(kinds(code) == BOX, pack(BOX), code)
    return torch.stack([kinds(plain), statuses(plain), colours(plain)], -1)


def states(kind: int) -> int:
    """Number of statuses that a type has."""
    return LOCKED + 1 if kind == DOOR else 1


def _highest(objects: Objects) -> tuple[int, int, int]:
    """Upper bounds of the three channels; the originals take a type's number of statuses for the highest one."""
    return objects.types[-1], max(states(kind) for kind in objects.types), objects.hues[-1]
