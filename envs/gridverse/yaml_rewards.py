"""Reward functions of gridverse YAML files: what one transition pays, as (N,) float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from envs.gridverse.objects import (
    BEACON,
    EXIT,
    OBSTACLE,
    WALL,
    Reward,
    Scene,
    Transition,
    blocks_movement,
    kinds,
    table,
)
from envs.gridverse.rewards import Living, MemoryExit, OpenDoor, PickDrop
from envs.gridverse.rules import Motion, at
from envs.gridverse.yaml_ground import Ground

Distance = Callable[[Tensor, Tensor], Tensor]


def living_reward(ground: Ground, reward: float = -1.0) -> Reward:
    """The same for every step."""
    return Living(reward, ground.device)


def reach_exit(ground: Ground, reward_on: float = 1.0, reward_off: float = 0.0) -> Reward:
    """Standing on an exit, or not."""
    return overlap(ground, EXIT, reward_on, reward_off)


def overlap(ground: Ground, object_type: int, reward_on: float = 1.0, reward_off: float = 0.0) -> Reward:
    """Standing on an object of the type, or not."""
    return _select(ground, lambda step: kinds(step.under) == object_type, reward_on, reward_off)


def bump_moving_obstacle(ground: Ground, reward: float = -1.0) -> Reward:
    """Standing where a moving obstacle is."""
    return overlap(ground, OBSTACLE, reward)


def reach_exit_memory(ground: Ground, reward_good: float = 1.0, reward_bad: float = -1.0) -> Reward:
    """Standing on the exit that has the beacons' colour, or on another one."""
    ground.some(BEACON, "reach_exit_memory")
    return MemoryExit(reward_good, reward_bad, ground.device)


def bump_into_wall(ground: Ground, reward: float = -1.0) -> Reward:
    """Aiming a move at a wall."""
    return _select(ground, into_wall(ground), reward)


def into_wall(ground: Ground) -> Callable[[Transition], Tensor]:
    """Rows (N,) whose move, from the pose before and in the grid before, aims at a wall."""
    motion = Motion(ground.width, ground.device)
    offsets = motion.offset.view(-1, motion.actions)  # (4, 8), where no move aims at the own cell

    def aimed(step: Transition) -> Tensor:
        before = step.before
        target = before.position + offsets[before.heading, step.action]
        return kinds(at(before.cells, target)) == WALL

    return aimed


def actuate_door(ground: Ground, reward_open: float = 1.0, reward_close: float = -1.0) -> Reward:
    """The door that was in front opened, or closed, which only the action ACTUATE can do to it."""
    return OpenDoor(reward_open, reward_close, ground.width, ground.device)


def pickndrop(ground: Ground, object_type: int, reward_pick: float = 1.0, reward_drop: float = -1.0) -> Reward:
    """The hand took, or gave away, an object of the type."""
    return PickDrop(object_type, reward_pick, reward_drop, ground.device)


def getting_closer(
    ground: Ground,
    object_type: int,
    distance_function: str = "manhattan",
    reward_closer: float = 1.0,
    reward_further: float = -1.0,
) -> Reward:
    """The step brought the agent and the one object of the type closer together, or apart, walls aside."""
    distance = _measure(ground, distance_function, object_type, "getting_closer")
    return _comparison(ground, distance, reward_closer, reward_further)


def getting_closer_shortest_path(
    ground: Ground, object_type: int, reward_closer: float = 1.0, reward_further: float = -1.0
) -> Reward:
    """The step made the shortest walk between the agent and the one object of the type shorter, or longer."""
    ground.exactly_one(object_type, "getting_closer_shortest_path")
    return _comparison(ground, Walk(ground, object_type), reward_closer, reward_further)


def proportional_to_distance(
    ground: Ground, object_type: int, distance_function: str = "manhattan", reward_per_unit_distance: float = -1.0
) -> Reward:
    """So much for every cell of distance, walls aside, from the one object of the type after the step."""
    distance = _measure(ground, distance_function, object_type, "proportional_to_distance")
    return lambda step: distance(step.after) * reward_per_unit_distance


def reduce_sum(ground: Ground, reward_functions: tuple[Reward, ...]) -> Reward:
    """The sum of several, from 0 in listed order."""
    return lambda step: reduce(torch.add, [pay(step) for pay in reward_functions])


def _select(ground: Ground, holds: Callable[[Transition], Tensor], reward: float, otherwise: float = 0.0) -> Reward:
    outcomes = torch.tensor([otherwise, reward], dtype=torch.float64, device=ground.device)
    return lambda step: outcomes[holds(step).long()]


def _comparison(ground: Ground, distance: Callable[[Scene], Tensor], closer: float, further: float) -> Reward:
    outcomes = torch.tensor([closer, 0.0, further], dtype=torch.float64, device=ground.device)

    def pay(step: Transition) -> Tensor:
        before, after = distance(step.before), distance(step.after)
        return outcomes[1 + (after > before).long() - (after < before).long()]

    return pay


def _measure(ground: Ground, name: str, kind: int, wanted_by: str) -> Callable[[Scene], Tensor]:
    """The distance (N,) float64 of the agent from the only object of a kind."""
    ground.exactly_one(kind, wanted_by)

    def distance(scene: Scene) -> Tensor:
        place = locate(scene.cells, kind)
        down = (place // ground.width - scene.position // ground.width).double()
        right = (place % ground.width - scene.position % ground.width).double()
        return DISTANCES[name](down, right)

    return distance


DISTANCES: dict[str, Distance] = {
    "manhattan": lambda down, right: down.abs() + right.abs(),
    "euclidean": lambda down, right: (down * down + right * right).sqrt(),
}


def locate(cells: Tensor, kind: int) -> Tensor:
    """Flat position (N,) int64 of the first object of a kind in grids (N, H*W)."""
    return (kinds(cells) == kind).to(torch.uint8).argmax(1)


class Walk:
    """Steps (N,) float64 of the shortest walk between the agent and the one object of a kind; inf where none is."""

    def __init__(self, ground: Ground, kind: int) -> None:
        self.kind = kind
        self.blocked = table(blocks_movement, ground.device)  # (CODES,)
        cells = torch.arange(ground.height * ground.width, device=ground.device)
        steps = torch.tensor([-ground.width, ground.width, -1, 1], device=ground.device)
        # The border is wall, so a neighbour that is pulled back into the grid is never walked on.
        self.neighbours = (cells[:, None] + steps).clamp(0, len(cells) - 1)  # (H*W, 4)
        self.longest = max((ground.height - 2) * (ground.width - 2), 1)

    def __call__(self, scene: Scene) -> Tensor:
        free = ~self.blocked[scene.cells.long()]  # (N, H*W)
        reached = torch.zeros_like(free).scatter(1, locate(scene.cells, self.kind)[:, None], True)
        agent = scene.position[:, None]
        missing = (~reached.gather(1, agent)).long()
        for _ in range(self.longest):  # as many as the longest walk there can be: the shape stays the same
            reached = reached | free & reached[:, self.neighbours].any(2)
            missing = missing + ~reached.gather(1, agent)
        steps = missing[:, 0].double()
        return torch.where(reached.gather(1, agent)[:, 0], steps, torch.inf)


REWARDS: dict[str, Callable[..., Reward]] = {
    builder.__name__: builder
    for builder in (
        actuate_door,
        bump_into_wall,
        bump_moving_obstacle,
        getting_closer,
        getting_closer_shortest_path,
        living_reward,
        overlap,
        pickndrop,
        proportional_to_distance,
        reach_exit,
        reach_exit_memory,
        reduce_sum,
    )
}
