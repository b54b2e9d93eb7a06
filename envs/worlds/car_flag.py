"""Car Flag: read at a signpost on which side of the road heaven lies, and drive there."""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.numpy_backend import stack, take, truncate, where, zeros

POWER, MAX_SPEED = 0.0015, 0.07
START, END = 0.2, 1.0  # the car starts inside +-START; heaven and hell lie at +-END
ZONE, HALF_ZONE = 0.5, 0.2  # the signpost's position, on the right whatever the side of heaven
FIRST, LAST = ZONE - HALF_ZONE, ZONE + HALF_ZONE  # the ends of its zone


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
    runs_on_numpy = True

    def __init__(self, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        # The last step can carry the car past an end, by at most its top speed.
        high = np.array([END + MAX_SPEED, MAX_SPEED, 1.0])
        self.observation_space = self.state_space = gymnasium.spaces.Box(-high, high, dtype=np.float64)
        self.push = torch.tensor([-POWER, 0.0, POWER], dtype=torch.float64, device=self.device)
        constants = torch.tensor([0.5, -1.0, 1.0, 2 * START], dtype=torch.float64, device=self.device)
        self.half, self.left, self.right, self.width = constants.unbind()

    def reset(self, u: Tensor) -> CarState:
        """Draw the side of heaven from u[:, 0], the position from u[:, 1]; the car stands still."""
        heaven = where(u[:, 0] < self.half, self.left, self.right)  # (N,)
        position = (u[:, 1] - self.half) * self.width
        velocity = zeros(self.nothing, len(u))
        steps, returns = self.counters(len(u))
        observation = self.observe(position, velocity, heaven)
        return CarState(observation, steps, returns, position, velocity, heaven)

    def step(self, state: CarState, action: Tensor, u: Tensor) -> tuple[CarState, Tensor, Tensor, Tensor, Tensor]:
        """Push once: 0 left, 1 none, 2 right."""
        velocity = (state.velocity + take(self.push, action)).clip(-MAX_SPEED, MAX_SPEED)  # (N,)
        position = state.position + velocity
        # A truncated position is the side of the reached end, or 0 between the ends. The sum turns -0 into 0.
        reward = truncate(position) * state.heaven + self.nothing  # (N,)
        observation = self.observe(position, velocity, state.heaven)
        steps, returns = state.steps + self.one, state.returns + reward
        after = CarState(observation, steps, returns, position, velocity, state.heaven)
        return after, observation, reward, reward != self.nothing, reward > self.nothing

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, position, velocity, heaven = row
        velocity += self.push.item(action)
        if abs(velocity) > MAX_SPEED:
            velocity = math.copysign(MAX_SPEED, velocity)
        position += velocity
        reward = math.trunc(position) * heaven + 0.0
        direction = heaven if FIRST <= position <= LAST else 0.0
        after = (position, velocity, direction), steps + 1, returns + reward, position, velocity, heaven
        return after, reward, reward != 0.0, reward > 0.0

    def observe(self, position: Tensor, velocity: Tensor, heaven: Tensor) -> Tensor:
        """Return the observation (N, 3) float64."""
        in_zone = position.clip(FIRST, LAST) == position
        return stack([position, velocity, where(in_zone, heaven, self.nothing)])

    def observe_state(self, state: CarState) -> Tensor:
        """Return position, velocity and the side of heaven, (N, 3) float64."""
        return stack([state.position, state.velocity, state.heaven])

    def frame(self, state: CarState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the line with the signpost's zone, heaven (green), hell (red) and the car."""
        picture = np.full((64, 360, 3), 245, np.uint8)
        heaven = state.heaven[row].item()
        picture[44:47, _column(-END) : _column(END)] = (90, 90, 95)
        picture[38:44, _column(ZONE - HALF_ZONE) : _column(ZONE + HALF_ZONE)] = (190, 205, 240)
        for side, colour in ((heaven, (70, 160, 80)), (-heaven, (214, 66, 61))):
            picture[14:47, _column(side * END) - 3 : _column(side * END) + 3] = colour
        car = _column(state.position[row].item())
        picture[30:43, car - 10 : car + 10] = (40, 60, 110)
        return picture

    def text(self, state: CarState, row: int) -> str:
        """Draw the line with the signpost's zone (=), heaven (+), hell (-) and the car (o); position and velocity."""
        heaven, position, velocity = (x[row].item() for x in (state.heaven, state.position, state.velocity))
        zone = range(_character(ZONE - HALF_ZONE), _character(ZONE + HALF_ZONE) + 1)
        line = ["=" if index in zone else "." for index in range(_character(END) + 1)]
        line[_character(-END)], line[_character(END)] = ("-", "+") if heaven > 0 else ("+", "-")
        line[min(max(_character(position), 0), len(line) - 1)] = "o"
        return f"{''.join(line)}\nposition {position:+.3f}, velocity {velocity:+.4f}"


def _column(position: float) -> int:
    """Return the pixel column of a position on the line."""
    return round(180 + 150 * position)


def _character(position: float) -> int:
    """Return the character of a position on the line, 0 at the left end."""
    return round(20 * (position + END))
