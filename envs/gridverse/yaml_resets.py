"""Reset functions of gridverse YAML files: a layout, and what it puts into the grid."""

from __future__ import annotations

from collections.abc import Callable

import torch

from envs.errors import UserError
from envs.gridverse.layouts import Corridor, LockedRoom
from envs.gridverse.layouts import rooms as scattered
from envs.gridverse.objects import BEACON, DOOR, EXIT, FLOOR, KEY, OBSTACLE, RED, TELEPOD, WALL, YELLOW
from envs.gridverse.yaml_ground import Ground
from envs.gridverse.yaml_layouts import Crossing, DynamicObstacles, Empty, Teleport

Pair = tuple[int, int]


def empty(device: torch.device, shape: Pair, random_agent: bool = False, random_exit: bool = False) -> Ground:
    """Walls round an empty floor with an exit."""
    return Ground(Empty(shape, device, random_agent, random_exit), {EXIT: 1}, device)


def dynamic_obstacles(device: torch.device, shape: Pair, num_obstacles: int, random_agent: bool = False) -> Ground:
    """An empty grid with moving obstacles."""
    layout = DynamicObstacles(shape, num_obstacles, device, random_agent)
    return Ground(layout, {EXIT: 1, OBSTACLE: num_obstacles}, device)


def crossing(device: torch.device, shape: Pair, num_rivers: int, object_type: int) -> Ground:
    """An empty grid cut by rivers of an object, with openings on a path to the exit."""
    layout = Crossing(shape, num_rivers, object_type, device)
    counts = {EXIT: 1}
    if object_type not in (FLOOR, WALL):
        counts[object_type] = counts.get(object_type, 0) + layout.most
    return Ground(layout, counts, device)


def teleport(device: torch.device, shape: Pair) -> Ground:
    """An empty grid with two red telepods."""
    return Ground(Teleport(shape, device), {EXIT: 1, TELEPOD: 2}, device, (RED,))


def rooms(device: torch.device, shape: Pair, layout: Pair) -> Ground:
    """Rooms with openings; agent and exit anywhere."""
    return Ground(scattered(*shape, layout, 0, 1, device, (0,)), {EXIT: 1}, device)


def keydoor(device: torch.device, shape: Pair) -> Ground:
    """Two rooms, a locked door between them, its key in the first, the exit in the second."""
    if shape[0] < 4:
        raise UserError(f"A keydoor grid must be at least 4 cells high, to have room beside the key, not {shape[0]}.")
    return Ground(LockedRoom(*shape, device), {EXIT: 1, DOOR: 1, KEY: 1}, device, (YELLOW,))


def memory(device: torch.device, shape: Pair, colors: tuple[int, ...]) -> Ground:
    """A corridor with two exits and two beacons of the good exit's colour."""
    layout = Corridor(*shape, device, _hues(colors, 2))
    return Ground(layout, {EXIT: 2, BEACON: 2}, device, colors)


def memory_rooms(
    device: torch.device, shape: Pair, layout: Pair, colors: tuple[int, ...], num_beacons: int, num_exits: int
) -> Ground:
    """Rooms with exits of different colours, and beacons of the good exit's colour."""
    if num_beacons < 1 or num_exits < 2:
        raise UserError(f"There must be at least 1 beacon and 2 exits, not {num_beacons} and {num_exits}.")
    placed = scattered(*shape, layout, num_beacons, num_exits, device, _hues(colors, num_exits))
    return Ground(placed, {EXIT: num_exits, BEACON: num_beacons}, device, colors)


def _hues(colors: tuple[int, ...], fewest: int) -> tuple[int, ...]:
    if 0 in colors or len(colors) < fewest:
        raise UserError(f"colors must be at least {fewest} colours and not NONE.")
    return colors


RESETS: dict[str, Callable[..., Ground]] = {
    builder.__name__: builder
    for builder in (crossing, dynamic_obstacles, empty, keydoor, memory, memory_rooms, rooms, teleport)
}
