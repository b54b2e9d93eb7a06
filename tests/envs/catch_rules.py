"""What fixed rules without a memory are worth in Blinking Catch, by dynamic programming."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.baselines.players import Player, read_picture
from envs.worlds.catch import BlinkingCatch

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Rule:
    """Moves, -1, 0 or 1, from the newest picture alone; `bound` is what no such rule exceeds in expectation."""

    unseen: Integers  # (columns,) by the paddle's column, where the ball is not seen
    seen: Integers  # (rows, columns, columns) by row of the ball, column of the paddle, column of the ball
    bound: float


def by_rule(world: BlinkingCatch, rule: Rule) -> Player:
    """Follow a rule."""
    unseen, shown = (torch.from_numpy(moves).to(world.device) for moves in (rule.unseen, rule.seen))

    def act(observation: Tensor, running: Tensor) -> Tensor:
        paddle, row, column = read_picture(world, observation)
        return 1 + torch.where(row >= 0, shown[row, paddle, column], unseen[paddle])

    return act


def memoryless(world: BlinkingCatch) -> Rule:
    """The best rule from the newest picture to a move, by trying all moves for a ball that is not seen.

    While the ball is seen the picture tells the whole state but the number of balls left. With those known too, dynamic
    programming gives the greatest return beside each set of moves; the rule returned has the moves of the first ball.
    """
    unseen = np.array(list(itertools.product((-1, 0, 1), repeat=world.grid)))  # (M, columns)
    values = np.zeros(unseen.shape)
    for _ in range(world.balls):
        values, choices = _one_ball(world, unseen, values)
    best = int(values[:, world.grid // 2].argmax())
    moves = np.zeros((world.grid, world.grid, world.grid), np.int64)
    for row, chosen in choices.items():
        moves[row] = chosen[best] - 1
    return Rule(unseen[best], moves, float(values[best, world.grid // 2]))


def _one_ball(world: BlinkingCatch, unseen: Integers, after: Floats) -> tuple[Floats, dict[int, Integers]]:
    """Values (M, columns) by the paddle's column before a ball is drawn, from those after it has landed.

    Also the best actions (M, columns, columns) of every row in which the ball is seen.
    """
    columns, choices = np.arange(world.grid), {}
    worth = np.where(np.eye(world.grid, dtype=bool), 1.0, -1.0) + after[:, :, None]  # (M, paddle, ball)
    for row in reversed(range(world.grid - 1)):
        if world.shown[row]:
            moved = [worth[:, np.clip(columns + move, 0, world.grid - 1)] for move in (-1, 0, 1)]
            worth, choices[row] = np.max(moved, 0), np.argmax(moved, 0)
        else:
            target = np.clip(columns + unseen, 0, world.grid - 1)  # (M, columns)
            worth = np.take_along_axis(worth, target[:, :, None], 1)
    return worth.mean(2), choices
