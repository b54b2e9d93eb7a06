"""Car Flag: find out at a signpost on which side of the road heaven lies, and drive there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import State, World

POWER, MAX_SPEED = 0.0015, 0.07
START, END = 0.2, 1.0  # the car starts inside +-START; heaven and hell lie at +-END
ZONE, HALF_ZONE = 0.5, 0.2  # the signpost's place, on the right whatever the side of heaven


@dataclass
class CarState(State):
    """N cars on a line."""

    position: Tensor  # (N,) float64
    velocity: Tensor  # (N,) float64
    heaven: Tensor  # (N,) float64, +1 right or -1 left


class CarFlag(World[CarState]):
    """Push left, not at all, or right until an end of the line is reached: +1 at heaven, -1 at hell.

    Observation (position, velocity, direction) float64; direction is the side of heaven inside the signpost's
    zone and 0 outside. Success is reaching heaven.
    """

    num_actions = 3
    action_names = ("push left", "coast", "push right")
    reset_draws = 2
    step_draws = 0

    def __init__(self, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        # One push can carry the car past an end, never by more than its top speed.
        high = np.array([END + MAX_SPEED, MAX_SPEED, 1.0])
        self.observation_space = gymnasium.spaces.Box(-high, high, dtype=np.float64)

    def reset(self, u: Tensor) -> CarState:
        """Side of heaven from u[:, 0], position from u[:, 1]; the car stands still."""
        heaven = 1.0 - 2.0 * (u[:, 0] < 0.5).to(u.dtype)  # (N,)
        position = START * (2.0 * u[:, 1] - 1.0)
        velocity = torch.zeros_like(position)
        steps, returns = self.counters(len(u))
        return CarState(observe(position, velocity, heaven), steps, returns, position, velocity, heaven)

    def step(self, state: CarState, action: Tensor, u: Tensor) -> tuple[CarState, Tensor, Tensor, Tensor, Tensor]:
        """One push: 0 left, 1 none, 2 right."""
        velocity = state.velocity + (action - 1).double() * POWER  # (N,)
        velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED)
        position = state.position + velocity
        terminated = position.abs() >= END
        reward = (position.sign() * state.heaven).masked_fill(~terminated, 0.0)  # (N,)
        observation = observe(position, velocity, state.heaven)
        returns = state.returns + reward
        state = CarState(observation, state.steps + 1, returns, position, velocity, state.heaven)
        return state, observation, reward, terminated, reward > 0

    def frame(self, state: CarState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The line with the signpost's zone, heaven (green), hell (red) and the car."""
        picture = np.full((64, 360, 3), 245, np.uint8)
        heaven = state.heaven[row].item()
        picture[44:47, _column(-END) : _column(END)] = (90, 90, 95)
        picture[38:44, _column(ZONE - HALF_ZONE) : _column(ZONE + HALF_ZONE)] = (190, 205, 240)
        for side, colour in ((heaven, (70, 160, 80)), (-heaven, (214, 66, 61))):
            picture[14:47, _column(side * END) - 3 : _column(side * END) + 3] = colour
        car = _column(state.position[row].item())
        picture[30:43, car - 10 : car + 10] = (40, 60, 110)
        return picture


def observe(position: Tensor, velocity: Tensor, heaven: Tensor) -> Tensor:
    """What the driver reads, (N, 3) float64."""
    in_zone = (position >= ZONE - HALF_ZONE) & (position <= ZONE + HALF_ZONE)
    return torch.stack([position, velocity, heaven.masked_fill(~in_zone, 0.0)], -1)


def _column(position: float) -> int:
    """Pixel column of a place on the line."""
    return round(180 + 150 * position)
