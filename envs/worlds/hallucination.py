"""Hallucinated structure: walls that are seen and are not there.

The paper's hallucinated world is an "empty 13x13 grid overlaid with 25 equally sized artificially created rooms"
whose walls "do not block agent movement but instead only provide cues". No code of it was published. What is seen
changes here, and nothing else: a floor cell on an inner line of the rooms looks like a wall, in every encoding,
and stops neither the agent nor its sight, nor a key from being put there. A hallucinated world therefore has the
initial states, transitions and rewards of the world it is laid over, its control twin, under the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from envs.core import World
from envs.errors import UserError, near_names
from envs.gridverse.layouts import Corridor, Scattered
from envs.gridverse.objects import FLOOR, Layout, kinds
from envs.gridverse.view import phantom_walls
from envs.gridverse.world import GridWorld


class Hallucinate(GridWorld):
    """Any grid world with phantom rooms laid over its floor.

    Every id of a grid world takes the same as keywords: `gymnasium.make("Gridverse/Keydoor-9x9-v0",
    phantom_rooms=(3, 3))`, `phantom_cells="floor-cue"`.

    Args:
        world: the world to lay them over, which stays as it is.
        rooms: number of phantom rooms (down, across). Their lines run from border to border without openings, at
            the positions where the walls of as many real rooms would stand, the same in every episode.
        reading: which reading of the paper the world must fit: "open", an empty world in which everything starts off
            the lines (`Gridverse/Memory-Empty-13x13-v0`); "corridor", the corridor of a memory world; "overlay", any
            grid world. It is only checked: in every reading the floor cells on the lines become phantoms.
        cells: "walls", or "floor-cue" for cells that are seen as nothing at all (the numbers of an empty hand),
            as no other cell is: they help to tell positions apart as walls do, without looking like walls.

    Raises:
        UserError: this is no grid world, so many rooms do not fit, the world does not suit the reading, or a name is
            unknown.
    """

    def __init__(
        self,
        world: World[Any],
        rooms: Sequence[int] = (5, 5),
        reading: str = "overlay",
        cells: str = "walls",
    ) -> None:
        if not isinstance(world, GridWorld):
            kind = type(world).__name__
            raise UserError(
                f"Hallucinate takes a grid world, such as make_world('Gridverse/Keydoor-9x9-v0'), not {kind}."
            )
        if reading not in READINGS:
            raise UserError(near_names("reading of hallucinated rooms", reading, READINGS))
        if world.phantoms is not None:
            raise UserError("The world to hallucinate in has phantom rooms already; take the world without them.")
        phantoms = phantom_walls(world.height, world.width, rooms, cells, world.device)
        if not READINGS[reading](world.task.layout, phantoms.flags > 0):
            raise UserError(f"The reading {reading!r} needs {NEEDS[reading]}; for another world use 'overlay'.")
        options = (world.encoding, world.dictionary, phantoms, world.time_limit, world.device)
        super().__init__(world.task, world.view, *options)


def _open(layout: Layout, lines: Tensor) -> bool:
    """Tell whether every line is floor from border to border, and nothing starts on one."""
    if not isinstance(layout, Scattered) or layout.walls:
        return False
    return bool((kinds(layout.base[lines]) == FLOOR).all()) and not bool(lines[layout.floor].any())


READINGS: dict[str, Callable[[Layout, Tensor], bool]] = {
    "open": _open,
    "corridor": lambda layout, lines: isinstance(layout, Corridor),
    "overlay": lambda layout, lines: True,
}
NEEDS = {
    "open": "an empty world in which nothing starts on a line of the rooms",
    "corridor": "the corridor of a Gridverse memory world",
}
