"""Car Flag: read the signpost, then drive to the side that it names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from envs.baselines.playing import Outcomes, Player, finish
from envs.core import World

STARTS = 2_001  # places on the grid of starts
LEFT, RIGHT = 0, 2


def signpost_player() -> Player:
    """Push right until the observation (N, 3) names a side, then push to that side for good."""
    known: Tensor | None = None  # (N,) float64, the side of heaven or 0

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        seen = observation[:, 2]
        known = seen if known is None else torch.where(known == 0, seen, known)
        return torch.where(known < 0, LEFT, RIGHT)

    return act


def every_start(world: World[Any]) -> Outcomes:
    """The signpost player from a grid of starts that has both ends of the line and both sides of heaven."""
    u = torch.linspace(0.0, 1.0, STARTS, dtype=torch.float64, device=world.device)
    draws = torch.cartesian_prod(torch.tensor([0.25, 0.75], dtype=u.dtype, device=u.device), u)  # (2 * STARTS, 2)
    return finish(world, world.reset(draws), signpost_player())
