"""Terminating functions of gridverse YAML files: whether a transition ends the episode, as (N,) bool."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch

from envs.gridverse.objects import EXIT, OBSTACLE, Ending
from envs.gridverse.rewards import OnKind
from envs.gridverse.yaml_ground import Ground
from envs.gridverse.yaml_rewards import into_wall


def overlap(ground: Ground, object_type: int) -> Ending:
    """The agent stands on an object of the type."""
    return OnKind(object_type, ground.device)


def reach_exit(ground: Ground) -> Ending:
    """The agent stands on an exit."""
    return overlap(ground, EXIT)


def bump_moving_obstacle(ground: Ground) -> Ending:
    """The agent stands where a moving obstacle is."""
    return overlap(ground, OBSTACLE)


def bump_into_wall(ground: Ground) -> Ending:
    """The agent aimed a move at a wall."""
    return into_wall(ground)


def reduce_any(ground: Ground, terminating_functions: tuple[Ending, ...]) -> Ending:
    """At least one of several says so."""
    return lambda step: reduce(torch.logical_or, [ends(step) for ends in terminating_functions])


def reduce_all(ground: Ground, terminating_functions: tuple[Ending, ...]) -> Ending:
    """All of several say so."""
    return lambda step: reduce(torch.logical_and, [ends(step) for ends in terminating_functions])


ENDINGS: dict[str, Callable[..., Ending]] = {
    builder.__name__: builder
    for builder in (bump_into_wall, bump_moving_obstacle, overlap, reach_exit, reduce_all, reduce_any)
}
