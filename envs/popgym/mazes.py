"""Draw mazes, many at once."""

import torch
from torch import Tensor

from envs.numpy_backend import Values, first_true, integers, running_count, stack, take, where, zeros
from envs.popgym.shuffle import repeated

FREE, WALL = 0, 1
FAIR = 12  # a number that 1, 2, 3 and 4 divide


class Mazes:
    """Draw mazes of R x R rooms by hunting and killing.

    A walk begins in a random room. It breaks into random rooms that no walk has been to, until none is next to it.
    Then another begins in a random one of the rooms that have such a room next to them. So every turn breaks one wall
    in each maze, and all mazes take equally many turns.

    POPGym's mazes come from mazelib, which gives up after H * H hunts. That could leave rooms closed, and left none in
    28,300 mazes; here it cannot happen.
    """

    runs_on_numpy = True

    def __init__(self, rooms: int, device: torch.device) -> None:
        self.rooms, self.wide, self.height = rooms * rooms, rooms + 2, 2 * rooms + 1
        self.first, self.last = self.wide + 1, self.wide * (self.wide - 1) - 1  # of the rooms on a plan, and beyond
        self.on_cpu = device.type == "cpu"
        plan = torch.zeros(self.wide, self.wide)  # of the rooms, 1 where no walk has been, with a margin of zeros
        plan[1:-1, 1:-1] = 1
        inner = plan.flatten().nonzero().squeeze(1)
        cell = torch.zeros(self.wide * self.wide, dtype=torch.int64)
        cell[inner] = (2 * (inner // self.wide) - 1) * self.height + 2 * (inner % self.wide) - 1
        walls = torch.full((self.height, self.height), WALL, dtype=torch.int8)
        walls[1::2, 1::2] = FREE
        parts = plan.flatten(), 9 * (1 - plan.flatten()[self.first : self.last]), inner, cell, walls.flatten()
        self.plan, self.margin, self.inner, self.cell, self.walls = (part.to(device) for part in parts)
        steps = [-1, 1, -self.wide, self.wide]
        ways = [[step for bit, step in enumerate(steps) if number >> bit & 1] or [0] for number in range(16)]
        moves = [way[choice * len(way) // FAIR] for way in ways for choice in range(FAIR)]
        self.steps, self.moves = torch.tensor(steps, device=device), torch.tensor(moves, device=device)
        self.bits = torch.tensor([1.0, 2.0, 4.0, 8.0], device=device) * FAIR

    def __call__(self, u: Values) -> Tensor:
        """Draw mazes (N, H * H) int8, H = 2 R + 1, by uniforms u (N, R * R): FREE or WALL, row by row."""
        rows = (zeros(self.inner, len(u)) + 1).cumsum(0) - 1  # (N,) 0, 1, ...
        starts = rows * len(self.plan)
        plans = repeated(self.plan, len(u)).reshape(-1)  # (N * P,)
        at = starts + take(self.inner, integers(u[:, 0] * self.rooms))
        plans[at] = self.plan[0]
        left, entered = [], []
        for turn in range(1, self.rooms):
            at, way = self._hunt(plans, starts, at, u[:, turn])
            left.append(at)
            at = at + self.moves[way]
            plans[at] = self.plan[0]
            entered.append(at)
        one, other = (self.cell[stack(places) - starts[:, None]] for places in (left, entered))  # (N, R * R - 1)
        mazes: Tensor = repeated(self.walls, len(u))
        mazes.reshape(-1)[(rows * len(self.walls))[:, None] + (one + other) // 2] = self.walls[self.height + 1]
        return mazes

    def _hunt(self, plans: Values, starts: Values, at: Values, u: Values) -> tuple[Values, Values]:
        """Return the rooms (N,) from which walks go on, and numbers of their ways."""
        way = self._way(plans, at, u)
        stuck = way < FAIR
        if self.on_cpu and not stuck.any():  # an accelerator would wait for the answer
            return at, way
        plan, first, last = plans.reshape(len(u), len(self.plan)), self.first, self.last
        beside = plan[:, first - 1 : last - 1] + plan[:, first + 1 : last + 1]
        above = plan[:, first - self.wide : last - self.wide] + plan[:, first + self.wide : last + self.wide]
        order = running_count(beside + above > 4 * plan[:, first:last] + self.margin)
        scaled = u * order[:, -1]
        rank = integers(scaled)
        at = where(stuck, starts + first_true(order > rank[:, None]) + first, at)
        return at, self._way(plans, at, where(stuck, scaled - rank, u))

    def _way(self, plans: Values, at: Values, u: Values) -> Values:
        """Return numbers (N,) of random ways: FAIR times the bits of the open sides, and a choice among them."""
        return integers(plans[at[:, None] + self.steps] @ self.bits + u * FAIR)
