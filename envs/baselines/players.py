"""Scripted players: what somebody who knows the environment, but sees only the observation, would do.

Car Flag and Blinking Catch need one number of memory. At the end stands what a player could do in rooms and in Keydoor
who sees the whole state: an upper bound on what anybody can do who does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.baselines.playing import Outcomes, Player, draws, finish
from envs.core import World
from envs.gridverse.objects import EXIT, blocks_movement, colours, kinds
from envs.worlds.catch import BALL, PADDLE, BlinkingCatch

PUSH_LEFT, PUSH_RIGHT = 0, 2  # actions of Car Flag
STARTS = 2_001  # positions on the grid of Car Flag's starts


def signpost_player() -> Player:
    """Push right until the observation (N, 3) names a side, then push to that side for good."""
    known: Tensor | None = None  # (N,) float64, the side of heaven or 0

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        shown = observation[:, 2]
        known = shown if known is None else torch.where(known == 0, shown, known)
        return torch.where(known < 0, PUSH_LEFT, PUSH_RIGHT)

    return act


def every_start(world: World[Any]) -> Outcomes:
    """Play the signpost player from a grid of starts that has both ends of the line and both sides of heaven."""
    u = torch.linspace(0.0, 1.0, STARTS, dtype=torch.float64, device=world.device)
    starts = torch.cartesian_prod(torch.tensor([0.25, 0.75], dtype=u.dtype, device=u.device), u)  # (2 * STARTS, 2)
    return finish(world, world.reset(starts), signpost_player())


def read_picture(world: BlinkingCatch, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Read the paddle's column, and row and column of the ball, -1 where it is not seen, from pictures; each (N,)."""
    edges = torch.tensor([world.edge(cell) for cell in range(world.grid)], device=observation.device)
    ball, paddle = observation[:, 0, edges][:, :, edges] == BALL[0], observation[:, 0, edges[-1], edges] == PADDLE[0]
    cell = ball.flatten(1).long().argmax(1)  # each cell is read at its first pixel
    there = ball.flatten(1).any(1)
    rows, columns = (torch.where(there, each, -1) for each in (cell // world.grid, cell % world.grid))
    return paddle.long().argmax(1), rows, columns


def catcher(world: BlinkingCatch) -> Player:
    """Remember where the ball was seen last, and go there."""
    known: Tensor | None = None  # (N,)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        paddle, _, column = read_picture(world, observation)
        known = torch.where(column >= 0, column, paddle if known is None else known)
        return 1 + (known - paddle).sign()

    return act


GOOD, BAD, LIVING = 5.0, -5.0, -0.05  # rewards of the memory task
PICKED, UNLOCKED, CLOSER = 1.0, 1.0, 0.2  # and of Keydoor, besides


def way_out(world: World[Any], episodes: int, seed: int) -> Outcomes:
    """Find the shortest ways to the good exit around the bad ones in freshly drawn memory worlds.

    Where the bad exit bars every way, or the good one is too far for the time limit, the cheaper of the bad exit and of
    staying till the end. `world` is a grid world of the memory task.
    """
    state = world.reset(draws(torch.Generator(world.device).manual_seed(seed), episodes, world.reset_draws))
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
        # No walk leaves through the border of a grid, so it does not matter that `roll` would let it.
        ahead = reached.roll(1, 1) | reached.roll(-1, 1) | reached.roll(1, 2) | reached.roll(-1, 2)
        reached, before = (reached | ahead) & (free | start), reached
    return steps


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
        lengths = _way(size, wall, (door, key_y, key_x), (agent_y, agent_x, heading))
        distance = 2 * (size - 2) - agent_y - agent_x
        returns.append(GOOD + PICKED + UNLOCKED + CLOSER * distance + LIVING * lengths)
        weights.append(np.full(len(door), 1.0 / ((size - 4) * (size - 2) * 4 * room * room)))
    gains, weight = np.concatenate(returns), np.concatenate(weights)
    return float(weight @ (gains > 0.0)), float(weight @ gains)


def _way(size: int, wall: int, plan: tuple[Any, Any, Any], agent: tuple[Any, Any, Any]) -> Any:
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
