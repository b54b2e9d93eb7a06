"""Lines of POPGym's labyrinths: the observation names the last move, so that a wall follower needs no memory."""

import torch
from torch import Tensor

from envs.baselines.best import BY_RULES, Best, Budget, Played, exact_return, lined
from envs.baselines.players import Player
from envs.errors import require
from envs.popgym.labyrinth import GOAL, MOVES, START, Labyrinth
from envs.popgym.mazes import WALL

BESIDE = [3 * (1 + down) + 1 + right for down, right in MOVES]  # where the four neighbours are in the view
OPPOSITE = [MOVES.index((-down, -right)) for down, right in MOVES]
TURNS = [  # for each last move: left, ahead, right, back
    [3, 0, 2, 1], [2, 1, 3, 0], [0, 2, 1, 3], [1, 3, 0, 2], [2, 1, 3, 0],
]  # fmt: skip


def labyrinth_bounds(world: Labyrinth, budget: Budget) -> Best:
    """Follow the wall on the left, or search in depth, away from the start first."""
    name, play = type(world).__name__, Played(world, budget)
    require(not world.as_released, f"Lines of {name} are known for views around the agent: leave out as_released.")
    follower, perfect = play("a wall follower", wall_follower()), play("a depth-first search", searcher_of(world))
    return lined(follower, follower, follower, perfect, exact_return(1.0, BY_RULES))


def first_open(worth: Tensor, order: Tensor) -> Tensor:
    """Choose the move with the highest worth (N, 4), of equal ones the first in an order (N, 4)."""
    return order.gather(1, worth.gather(1, order).argmax(1, keepdim=True))[:, 0]


def wall_follower() -> Player:
    """Turn left where possible; enter the start again only out of a dead end."""

    def act(observation: Tensor, running: Tensor) -> Tensor:
        near = observation[:, BESIDE]  # (N, 4)
        worth = (near != WALL).int() + (near == GOAL).int()
        worth -= (near == START).int() * (worth.sum(1, keepdim=True) > 1)
        return first_open(worth, torch.tensor(TURNS, device=near.device)[observation[:, -1]])

    return act


def searcher_of(world: Labyrinth) -> Player:
    """Enter a neighbour not entered before, and go back where there is none; the exit comes first."""
    side = 2 * world.side + 1  # of a map with the start in its middle
    moves = torch.tensor([down * side + right for down, right in MOVES], device=world.device)
    opposite, turns = (torch.tensor(table, device=world.device) for table in (OPPOSITE, TURNS))
    trail: Tensor | None = None  # (N, side * side): the way back from each cell plus 1, 0 where no one has been
    at, ahead = torch.empty(0), torch.empty(0)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal trail, at, ahead
        rows = torch.arange(len(observation), device=world.device)
        near, last = observation[:, BESIDE], observation[:, -1]
        if trail is None:
            trail = torch.zeros(len(rows), side * side, dtype=torch.int8, device=world.device)
            at = torch.full_like(last, side * side // 2)
            trail[rows, at] = 1
            ahead = (near != WALL).int().argmax(1)
        else:
            at = torch.where(running, at + moves[last], at)  # an ended row stands still
            back = (opposite[last] + 1).to(trail.dtype)
            trail[rows, at] = torch.where(trail[rows, at] == 0, back, trail[rows, at])
        new = trail.gather(1, (at[:, None] + moves).clamp(0, side * side - 1)) == 0
        worth = 2 * ((near != WALL) & new).int() + 3 * (near == GOAL).int()
        order = turns[ahead][:, [1, 0, 2, 3]]  # ahead first
        back = trail[rows, at].long() - 1
        return torch.where(worth.amax(1) > 0, first_open(worth, order), back)

    return act
