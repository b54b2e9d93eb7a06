"""The tasks: rewards, endings and worlds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import State, UserError, World, choose
from envs.gridverse import layouts, render
from envs.gridverse.objects import COLOURS, EXIT, NORTH, colours, kinds, summed, table
from envs.gridverse.rules import Motion, at
from envs.gridverse.view import View

GOOD_EXIT, BAD_EXIT, LIVING = 5.0, -5.0, -0.05


@dataclass
class GridState(State):
    """N grids with one agent each."""

    cells: Tensor  # (N, H*W) int16, packed objects row by row
    position: Tensor  # (N,) int64, y*W + x
    heading: Tensor  # (N,) int64
    good: Tensor  # (N,) int64, colour of the good exit


class Memory(World[GridState]):
    """Remember the beacons' colour and leave by the exit that has it.

    Reward 5 at the good exit and -5 at the other, less 0.05 every step. Observation: type index + colour
    index of the six cells of a 2 x 3 window, front row first, MultiDiscrete([21] * 6). Success is a positive
    float64 return, so the good exit counts up to step 100, where rounding leaves a return of +9.8e-15.
    """

    num_actions = 6
    action_names = ("forward", "backward", "left", "right", "turn left", "turn right")
    reset_draws = 2
    step_draws = 0

    def __init__(self, size: int, time_limit: int = 500, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        if size < 5 or size % 2 == 0:
            raise UserError(f"size of a Gridverse memory world must be odd and at least 5, not {size}.")
        self.size = size
        self.observation_space = gymnasium.spaces.MultiDiscrete([21] * 6)
        self.grids, self.goods = (each.to(self.device) for each in layouts.memory(size))
        self.motion = Motion(size, self.device)
        self.view = View(size, size, 2, 3, self.device)
        self.summed = table(summed, self.device)
        outcomes = [0.0 + LIVING, GOOD_EXIT + LIVING, BAD_EXIT + LIVING]
        self.rewards = torch.tensor(outcomes, dtype=torch.float64, device=self.device)

    def initial_draws(self) -> Tensor:
        """Draws (24, 2): every ordered pair of colours with the good exit on either side."""
        pairs = len(self.goods) // 2
        grid = torch.cartesian_prod(torch.arange(pairs), torch.arange(2)).double()  # (24, 2)
        return ((grid + 0.5) / torch.tensor([pairs, 2.0], dtype=torch.float64)).to(self.device)

    def reset(self, u: Tensor) -> GridState:
        """Colour pair from u[:, 0], good exit's side from u[:, 1]; the agent faces north in the middle."""
        grid = 2 * choose(u[:, 0], len(COLOURS) * (len(COLOURS) - 1)) + choose(u[:, 1], 2)  # (N,)
        cells = self.grids[grid]
        position = torch.full_like(grid, self.size * self.size // 2)
        heading = torch.full_like(grid, NORTH)
        steps, returns = self.counters(len(u))
        return GridState(
            self.observe(cells, position, heading), steps, returns, cells, position, heading, self.goods[grid]
        )

    def observe(self, cells: Tensor, position: Tensor, heading: Tensor) -> Tensor:
        """The summed window (N, 6) int64."""
        return self.summed[self.view(cells, position, heading)]

    def step(self, state: GridState, action: Tensor, u: Tensor) -> tuple[GridState, Tensor, Tensor, Tensor, Tensor]:
        """One action: forward, backward, left, right (without turning), turn left, turn right."""
        position, heading = self.motion(state.cells, state.position, state.heading, action)
        code = at(state.cells, position)
        terminated = kinds(code) == EXIT
        wrong = colours(code) != state.good
        reward = self.rewards[terminated.long() * (1 + wrong.long())]  # (N,)
        returns = state.returns + reward
        observation = self.observe(state.cells, position, heading)
        state = GridState(observation, state.steps + 1, returns, state.cells, position, heading, state.good)
        return state, observation, reward, terminated, terminated & (returns > 0)

    def frame(self, state: GridState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The whole grid with the agent and, lit, the window it sees."""
        grid = state.cells[row].view(self.size, self.size).cpu().numpy()
        offsets = self.view.offset[state.heading[row]].cpu().numpy()
        return render.draw(grid, int(state.position[row]), int(state.heading[row]), offsets)
