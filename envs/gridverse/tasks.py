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
    """Pay 5 on the exit of the beacons' colour and -5 on another one, which ends the episode; less 0.05 every step."""
    rules, rewards = (Motion(layout.width, device),), (MemoryPay(GOOD_EXIT, BAD_EXIT, LIVING, device),)
    return Task(layout, tuple(range(6)), rules, rewards, (on_kind(EXIT, device),), MEMORY)


def keydoor_task(layout: layouts.LockedRoom, device: torch.device) -> Task:
    """Pay 5 on the exit, the end; 1 for the key, 1 for the door; 0.2 for getting closer; less 0.05 every step."""
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

    Reward 5 at the good exit and -5 at the other, less 0.05 every step, so a positive return, which is success,
    means the good exit by step 100, where rounding leaves a return of +9.8e-15.

    Args:
        size: height and width, odd and at least 5; for the other keywords see `GridWorld`.
    """

    def __init__(self, size: int, **options: Any) -> None:
        if size < 5 or size % 2 == 0:
            raise UserError(f"size of a Gridverse memory world must be odd and at least 5, not {size}.")
        device = torch.device(options.get("device", "cpu"))
        super().__init__(memory_task(layouts.Corridor(size, size, device), device), **options)


class MemoryRooms(GridWorld):
    """`Memory` in rooms that are joined by openings; agent, beacons and exits start anywhere on the floor.

    Args:
        size: height and width.
        rooms: number of rooms (down, across).
        beacons, exits: how many of each; all beacons have the good exit's colour, exits have different ones.
            For the other keywords see `GridWorld`.
    """

    walls = True

    def __init__(self, size: int, rooms: Sequence[int], beacons: int = 1, exits: int = 2, **options: Any) -> None:
        device = torch.device(options.get("device", "cpu"))
        layout = layouts.Scattered(size, size, rooms, beacons, exits, device, walls=self.walls)
        super().__init__(memory_task(layout, device), **options)


class MemoryEmpty(MemoryRooms):
    """`MemoryRooms` on open ground; agent, beacons and exits start off the lines that would cut it into rooms."""

    walls = False


class Keydoor(GridWorld):
    """Take the key, unlock the door with it, and reach the exit.

    The published window of 2 x 3 cells shows neither what the hand holds nor whether the door is open. Success
    is an exit with a positive return, within about 140 steps and 4 more for each cell of the first distance.

    Args:
        size: height and width, at least 5; for the other keywords see `GridWorld`.
    """

    def __init__(self, size: int, **options: Any) -> None:
        device = torch.device(options.get("device", "cpu"))
        super().__init__(keydoor_task(layouts.LockedRoom(size, size, device), device), **options)
