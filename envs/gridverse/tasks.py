"""The registered tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from envs.errors import UserError
from envs.gridverse import layouts
from envs.gridverse.encodings import Objects
from envs.gridverse.objects import BEACON, COLOURS, DOOR, EXIT, FLOOR, KEY, WALL, YELLOW, Layout
from envs.gridverse.rewards import Closer, MemoryPay, OpenDoor, PickDrop, living, on_kind, standing
from envs.gridverse.rules import ActuateDoor, Motion, PickAndDrop
from envs.gridverse.world import GridWorld, Task

GOOD_EXIT, BAD_EXIT, LIVING = 5.0, -5.0, -0.05
MEMORY = Objects((FLOOR, WALL, EXIT, BEACON), COLOURS)
KEYDOOR = Objects((FLOOR, WALL, EXIT, DOOR, KEY), (YELLOW,))


def memory_task(layout: Layout, device: torch.device) -> Task:
    """Make the memory task: 5 on the exit of the beacons' colour, -5 on another exit; both end it; -0.05 every step."""
    rules, rewards = (Motion(layout.width, device),), (MemoryPay(GOOD_EXIT, BAD_EXIT, LIVING, device),)
    return Task(layout, tuple(range(6)), rules, rewards, (on_kind(EXIT, device),), MEMORY)


def keydoor_task(layout: layouts.LockedRoom, device: torch.device) -> Task:
    """Make Keydoor: 5 on the exit, which ends it; 1 for key and door; 0.2 for moving closer; -0.05 every step."""
    width = layout.width
    rewards = (
        standing(EXIT, GOOD_EXIT, 0.0, device),
        PickDrop(KEY, 1.0, -1.0, device),
        OpenDoor(1.0, -1.0, width, device),
        Closer(layout.height, width, layout.goal, 0.2, -0.2, device),
        living(LIVING, device),
    )
    rules = (Motion(width, device), ActuateDoor(width, device), PickAndDrop(width, device))
    return Task(layout, tuple(range(8)), rules, rewards, (on_kind(EXIT, device),), KEYDOOR)


class Memory(GridWorld):
    """Remember the beacons' colour and leave by the exit that has it, in an I-shaped corridor.

    The reward is 5 at the good exit and -5 at the other, and -0.05 in every step. Success is a positive return: the
    agent must reach the good exit by step 100. (At step 100 rounding leaves a return of +9.8e-15.)

    Args:
        size: height and width, odd and at least 5. `GridWorld` lists the other keywords.
    """

    def __init__(self, size: int, **options: Any) -> None:
        if size < 5 or size % 2 == 0:
            raise UserError(f"size of a Gridverse memory environment must be odd and at least 5, not {size}.")
        device = torch.device(options.get("device", "cpu"))
        super().__init__(memory_task(layouts.Corridor(size, size, device), device), **options)


class MemoryRooms(GridWorld):
    """`Memory` in rooms that are joined by openings; agent, beacons and exits start anywhere on the floor.

    Args:
        size: height and width.
        rooms: number of rooms (down, across).
        beacons, exits: number of each; all beacons have the good exit's colour, exits have different ones.
            `GridWorld` lists the other keywords.
    """

    walls = True

    def __init__(self, size: int, rooms: Sequence[int], beacons: int = 1, exits: int = 2, **options: Any) -> None:
        device = torch.device(options.get("device", "cpu"))
        layout = layouts.Scattered(size, size, rooms, beacons, exits, device, walls=self.walls)
        super().__init__(memory_task(layout, device), **options)


class MemoryEmpty(MemoryRooms):
    """`MemoryRooms` without walls; agent, beacons and exits start beside the lines between the rooms."""

    walls = False


class Keydoor(GridWorld):
    """Take the key, unlock the door with it, and reach the exit.

    The published window of 2 x 3 cells shows neither the object in the hand nor whether the door is open. Success is to
    reach the exit with a positive return: within about 140 steps, plus 4 for each cell of the initial distance.

    Args:
        size: height and width, at least 5. `GridWorld` lists the other keywords.
    """

    def __init__(self, size: int, **options: Any) -> None:
        device = torch.device(options.get("device", "cpu"))
        super().__init__(keydoor_task(layouts.LockedRoom(size, size, device), device), **options)
