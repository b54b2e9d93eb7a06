"""What a player could do who sees the whole state: an upper bound on what anybody can do who does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.baselines.playing import Outcomes
from envs.core import World
from envs.gridverse.objects import EXIT, blocks_movement, colours, kinds

GOOD, BAD, LIVING = 5.0, -5.0, -0.05  # rewards of the memory task
PICKED, UNLOCKED, CLOSER = 1.0, 1.0, 0.2  # and of Keydoor, besides


def way_out(world: World[Any], episodes: int, seed: int) -> Outcomes:
    """Find the shortest ways to the good exit around the bad ones in freshly drawn memory worlds.

    Where the bad exit bars every way, or the good one is too far for the time limit, the cheaper of the bad exit and of
    staying till the end. `world` is a grid world of the memory task.
    """
    generator = torch.Generator(world.device).manual_seed(seed)
    u = torch.rand(episodes, world.reset_draws, dtype=torch.float64, generator=generator, device=world.device)
    state = world.reset(u)
    cells = state.cells.long().view(episodes, world.height, world.width)  # type: ignore[attr-defined]
    start = torch.zeros_like(cells, dtype=torch.bool)
    start.view(episodes, -1)[torch.arange(episodes), state.position] = True
    good = (kinds(cells) == EXIT) & (colours(cells) == state.good[:, None, None])
    bad = (kinds(cells) == EXIT) & ~good
    free = ~blocks_movement(cells)
    to_good, to_bad = walk(free & ~bad, start, good), walk(free & ~good, start, bad)
    reached = (to_good >= 0) & (to_good <= world.time_limit)
    in_time = (to_bad >= 0) & (to_bad <= world.time_limit)
    leaving = in_time & (BAD + LIVING * to_bad > LIVING * world.time_limit)
    lengths = torch.where(reached, to_good, torch.where(leaving, to_bad, world.time_limit))
    returns = LIVING * lengths + GOOD * reached + BAD * (leaving & ~reached)
    return Outcomes(reached & (returns > 0.0), returns, lengths)


def walk(free: Tensor, start: Tensor, goal: Tensor) -> Tensor:
    """Count the steps (N,) from start to goal over free cells, all (N, H, W) bool; -1 where there is no way."""
    steps = torch.full((len(free),), -1, dtype=torch.int64, device=free.device)
    reached, before = start, torch.zeros_like(start)
    for step in range(free[0].numel()):
        steps = torch.where((steps < 0) & (reached & goal).flatten(1).any(1), step, steps)
        if torch.equal(reached, before):
            break
        reached, before = (reached | _neighbours(reached)) & (free | start), reached
    return steps


def _neighbours(cells: Tensor) -> Tensor:
    """Return cells (N, H, W) next to the given ones; the border of a grid is never left."""
    return cells.roll(1, 1) | cells.roll(-1, 1) | cells.roll(1, 2) | cells.roll(-1, 2)


def keydoor(size: int) -> tuple[float, float]:
    """Compute success and expected return of the shortest way to key, door and exit, over all initial states.

    Both rooms are free of obstacles, so a way is as long as its steps and quarter turns. The rewards for coming
    closer add up to the same on every way, so the shortest is the best.
    """
    returns, weights = [], []
    for wall in range(2, size - 2):
        y, x, room = np.arange(1, size - 1), np.arange(1, wall), (size - 2) * (wall - 1)
        grid = np.meshgrid(y, y, x, y, x, range(4), indexing="ij")  # door, key, agent, heading
        door, key_y, key_x, agent_y, agent_x, heading = (each.ravel() for each in grid)
        lengths = _to_key(size, wall, (door, key_y, key_x), (agent_y, agent_x, heading))
        distance = 2 * (size - 2) - agent_y - agent_x
        gains = GOOD + PICKED + UNLOCKED + CLOSER * distance + LIVING * lengths
        returns.append(gains)
        weights.append(np.full(len(gains), 1.0 / ((size - 4) * (size - 2) * 4 * room * room)))
    gains, weight = np.concatenate(returns), np.concatenate(weights)
    return float(weight @ (gains > 0.0)), float(weight @ gains)


def _to_key(size: int, wall: int, plan: tuple[Any, Any, Any], agent: tuple[Any, Any, Any]) -> Any:
    """Measure the whole way (M,), by the best of the four sides of the key."""
    door, key_y, key_x = plan
    best = np.full(len(door), np.inf)
    for side, (dy, dx) in enumerate(((-1, 0), (0, 1), (1, 0), (0, -1))):  # clockwise: the heading that faces the key
        y, x = key_y - dy, key_x - dx
        there = (y >= 1) & (y <= size - 2) & (x >= 1) & (x < wall)
        picked = _ride(agent, (y, x, side)) + 1
        opened = picked + _ride((y, x, side), (door, wall - 1, 1)) + 1
        out = opened + abs(size - 2 - door) + (size - 2 - (wall - 1))
        best = np.where(there, np.minimum(best, out), best)
    return best


def _ride(start: tuple[Any, Any, Any], end: tuple[Any, Any, Any]) -> Any:
    """Count steps and quarter turns between two poses (y, x, clockwise heading) of a free room."""
    turn = (end[2] - start[2]) % 4
    return abs(end[0] - start[0]) + abs(end[1] - start[1]) + np.minimum(turn, 4 - turn)
