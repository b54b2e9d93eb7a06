"""What a network needs to know of every world: its observation, its actions and the paper's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from dqn_memory.observations import ObservationSpec, observation_spec
from dqn_memory.runs.errors import UserError, near_names
from envs.registry import WORLDS, make_world


@dataclass(frozen=True)
class WorldRow:
    """One world's sizes. `vocabulary` V counts the padding token and is 0 for real-valued observations."""

    kind: Literal["discrete", "continuous"]
    components: int  # d
    vocabulary: int  # V
    num_actions: int  # A
    width: int  # D of the DBGFQN paper, Table 2

    def spec(self) -> ObservationSpec:
        """The same spec that the registered world's observation space gives."""
        if self.kind == "continuous":
            return ObservationSpec("continuous", (self.components,))
        return ObservationSpec("discrete", (self.components,), self.vocabulary, torch.uint8)


GRIDVERSE_MEMORY = WorldRow("discrete", 6, 23, 6, 128)  # a 2 x 3 view, 21 sums of object type and colour
GRIDVERSE_KEYDOOR = WorldRow("discrete", 6, 15, 8, 128)  # its highest type is the key, so 13 sums

_MEMORY_IDS = (
    *(f"Memory-{n}x{n}" for n in (5, 7, 9, 11, 13)),
    *(f"Memory-FourRooms-{n}x{n}" for n in (7, 13)),
    "Memory-NineRooms-13x13",
    *(f"Memory-NineRooms-13x13-{n}Beacons" for n in (2, 3)),
    *(f"Memory-SixteenRooms-{n}x{n}" for n in (13, 15, 17, 21)),
    "Memory-TwentyFiveRooms-13x13",
    "Memory-13x13-Hallucinated",
    "Memory-13x13-HallucinatedCorridor",
    "Memory-Empty-13x13",
)

WORLD_TABLE: dict[str, WorldRow] = {
    "POMDP/Hallway-v0": WorldRow("discrete", 1, 23, 5, 64),  # 21 observations, the initial one, padding
    "POMDP/HeavenHell-v0": WorldRow("discrete", 1, 17, 4, 64),  # 15 observations, the initial one, padding
    **{f"Gridverse/{name}-v0": GRIDVERSE_MEMORY for name in _MEMORY_IDS},
    **{f"Gridverse/Keydoor-{n}x{n}-v0": GRIDVERSE_KEYDOOR for n in (5, 7, 9)},
    "POMDP/CarFlag-v0": WorldRow("continuous", 3, 0, 3, 64),
    "POMDP/MemoryCards-v0": WorldRow("discrete", 10, 9, 10, 128),
}

SIZED_BY_THEIR_FILE = ("Gridverse/Yaml-v0", "POMDP/File-v0")


def world_row(world: str) -> WorldRow:
    """The row of a world's id: the table's, or for a world that a plugin registered the world's own sizes.

    A UserError offers near names, or says that a file decides the world's size.
    """
    name = world.removeprefix("envs:")
    if name in SIZED_BY_THEIR_FILE:
        raise UserError(f"--world {name} has no size of its own, its file decides; name a world that has one")
    if name in WORLD_TABLE:
        return WORLD_TABLE[name]
    if name not in WORLDS:
        raise UserError(near_names("world", name, WORLD_TABLE.keys() | WORLDS.keys()))
    return _row_of_registered(name)


def _row_of_registered(name: str) -> WorldRow:
    """A world outside the table has no width of the paper's, so it gets the smaller one."""
    world = make_world(name)
    spec = observation_spec(world.observation_space)
    if spec.kind == "image":
        raise UserError(f"--world {name} shows images, which this table has no sizes for; name another world")
    return WorldRow(spec.kind, spec.shape[0], spec.vocabulary, world.num_actions, 64)
