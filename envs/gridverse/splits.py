"""Where the walls between rooms stand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from envs.errors import UserError


def splits(shape: tuple[int, int], rooms: Sequence[int]) -> tuple[list[int], list[int]]:
    """The wall lines (ys, xs) that cut a grid (height, width) into rooms (down, across), its border included.

    Raises:
        UserError: `rooms` is not two positive numbers, or a room would have no floor.
    """
    if not isinstance(rooms, Sequence) or len(rooms) != 2 or min(rooms) < 1:
        raise UserError(f"rooms must be two positive numbers (down, across), not {rooms!r}.")
    cuts = [
        [index * (side - 1) // count for index in range(count + 1)] for side, count in zip(shape, rooms, strict=True)
    ]
    if any(after - before < 2 for line in cuts for before, after in pairwise(line)):
        smallest = " x ".join(str(2 * count + 1) for count in rooms)
        grid, plan = (" x ".join(map(str, each)) for each in (shape, rooms))
        raise UserError(f"{plan} rooms do not fit into a grid of {grid} cells; they need at least {smallest}.")
    return cuts[0], cuts[1]
