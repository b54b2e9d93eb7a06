"""Two problems of control with a real action, which may hide their velocities: a pendulum, and a car between hills."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from envs.core import Plain, S, State, Uniform, World
from envs.numpy_backend import PowerSeries, double, float32, single, stack, where, zeros
from envs.spaces import Array

TERMS = 15  # of the series of sine and cosine after the first, enough for angles up to 3.6


class ForceWorld(World[S]):
    """A World with one real action from -force to force.

    An observation holds the numbers between `low` and `high`, in float32. The last one is the velocity, and `masked`
    leaves it out.
    """

    num_actions = 0
    step_draws = 0
    runs_on_numpy = True
    force: float

    def __init__(self, low: Array, high: Array, masked: bool, time_limit: int, device: str | torch.device) -> None:
        super().__init__(time_limit, device)
        self.shown = len(high) - bool(masked)
        self.observation_space = Box(low[: self.shown].astype(np.float32), high[: self.shown].astype(np.float32))
        self.series = PowerSeries(TERMS, self.device)

    @property
    def action_space(self) -> Box:
        """One number."""
        return Box(-self.force, self.force, (1,))

    def observe(self, numbers: Tensor) -> Tensor:
        """Return the observation (N, d) float32."""
        return single(numbers[:, : self.shown])


# ---- the pendulum ----------------------------------------------------------------------------------------------------
MAX_SPEED, SPIN = 8.0, 1.0  # radians per second; a pendulum starts inside +-SPIN


@dataclass
class PendulumState(State):
    """N pendulums."""

    angle: Tensor  # (N,) float64 within +-pi, 0 is upright
    motion: Tensor  # (N, 3) float64: the angle's cosine and sine, and the velocity


class Pendulum(ForceWorld[PendulumState]):
    """Swing a pendulum up with a motor that is too weak to lift it, and hold it there.

    The dynamics are those of Gymnasium's Pendulum-v1. Every step costs angle^2 + 0.1 velocity^2 + 0.001 torque^2. The
    observation is (cosine, sine, velocity). Episodes cannot succeed: scores are returns.
    """

    reset_draws = 2
    defines_success = False
    force = 2.0

    def __init__(self, masked: bool = False, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        high = np.array([1.0, 1.0, MAX_SPEED])
        super().__init__(-high, high, masked, time_limit, device)
        self.state_space = Box(-high, high, dtype=np.float64)
        numbers = [2 * math.pi, 0.5 / math.pi, 15.0, 0.05, 0.1]
        constants = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self.turn, self.turns, self.gravity, self.tick, self.drag = constants.unbind()
        self.push, self.effort = torch.tensor([3.0, 0.001], device=self.device)  # torques are in float32
        starts = torch.tensor([[math.pi, SPIN], [2 * math.pi, 2 * SPIN]], dtype=torch.float64, device=self.device)
        self.start, self.width = starts

    def reset(self, u: Tensor) -> PendulumState:
        """Draw angle and velocity from u (N, 2)."""
        drawn = u * self.width - self.start
        return self._state(drawn[:, 0], drawn[:, 1], *self.counters(len(u)))

    def step(
        self, state: PendulumState, action: Tensor, u: Tensor
    ) -> tuple[PendulumState, Tensor, Tensor, Tensor, Tensor]:
        """Apply a torque once."""
        torque, angle, sine, velocity = action[:, 0], state.angle, state.motion[:, 1], state.motion[:, 2]  # (N,) each
        reward = -(angle * angle + self.drag * (velocity * velocity) + self.effort * (torque * torque))
        velocity = (velocity + (self.gravity * sine + self.push * torque) * self.tick).clip(-MAX_SPEED, MAX_SPEED)
        angle = angle + velocity * self.tick
        angle = angle - self.turn * (angle * self.turns).round()
        after = self._state(angle, velocity, state.steps + self.one, state.returns + reward)
        never = reward != reward
        return after, after.observation, reward, never, never

    def plain_step(self: Any, row: Plain, action: Array, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, angle, (_, sine, velocity) = row
        torque = action.item(0)
        effort = float32(self.effort * float32(torque * torque))
        reward = -(angle * angle + self.drag * (velocity * velocity) + effort)
        velocity = velocity + (self.gravity * sine + float32(self.push * torque)) * self.tick
        velocity = min(max(velocity, -MAX_SPEED), MAX_SPEED)
        angle = angle + velocity * self.tick
        angle = angle - self.turn * round(angle * self.turns)
        sine, cosine = self.series(angle)
        motion = [min(max(cosine, -1.0), 1.0), min(max(sine, -1.0), 1.0), velocity]
        return (motion[: self.shown], steps + 1, returns + reward, angle, motion), reward, False, False

    def observe_state(self, state: PendulumState) -> Tensor:
        """Return cosine, sine and velocity in float64, (N, 3)."""
        return state.motion

    def frame(self, state: PendulumState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the rod and its axis."""
        picture = np.full((120, 120, 3), 245, np.uint8)
        cosine, sine, _ = state.motion[row].tolist()
        for along in range(50):
            x, y = round(60 - along * sine), round(60 - along * cosine)
            picture[y - 3 : y + 4, x - 3 : x + 4] = (200, 140, 70)
        picture[58:63, 58:63] = (40, 60, 110)
        return picture

    def text(self, state: PendulumState, row: int) -> str:
        """Draw where the rod's end is from left to right, its angle and its velocity."""
        _, sine, velocity = state.motion[row].tolist()
        return f"{_line((1 - sine) / 2)}\nangle {state.angle[row].item():+.4f}, velocity {velocity:+.4f}"

    def _state(self, angle: Tensor, velocity: Tensor, steps: Tensor, returns: Tensor) -> PendulumState:
        sine, cosine = self.series(angle)
        # sums can exceed 1 in their last place
        motion = stack([cosine.clip(-1.0, 1.0), sine.clip(-1.0, 1.0), velocity])
        return PendulumState(self.observe(motion), steps, returns, angle, motion)


# ---- the car ---------------------------------------------------------------------------------------------------------
LEFT, GOAL, RIGHT = -1.2, 0.45, 0.6  # positions; a wall is at LEFT
SPEED, POWER, SLOPE = 0.07, 0.0015, 0.0025
START = -0.6, -0.4


@dataclass
class MountainCarState(State):
    """N cars."""

    body: Tensor  # (N, 2) float32: position and velocity


class MountainCar(ForceWorld[MountainCarState]):
    """Swing a car out of a valley whose slopes are too steep for its motor: +100 at the flag, -0.1 force^2 each step.

    The dynamics are those of Gymnasium's MountainCarContinuous-v0, in float32 as there. The observation is (position,
    velocity). Success is reaching the flag.
    """

    reset_draws = 1
    force = 1.0

    def __init__(self, masked: bool = False, time_limit: int = 999, device: str | torch.device = "cpu") -> None:
        low, high = np.array([[LEFT, -SPEED], [RIGHT, SPEED]], np.float32)
        super().__init__(low, high, masked, time_limit, device)
        self.state_space = Box(low, high)
        constants = torch.tensor([3.0, POWER, LEFT, GOAL, 0.0], device=self.device)
        self.waves, self.power, self.left, self.goal, self.rest = constants.unbind()
        numbers = [SLOPE, 100.0, 0.1, START[0], START[1] - START[0]]
        wide = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self.slope, self.prize, self.effort, self.start, self.width = wide.unbind()

    def reset(self, u: Tensor) -> MountainCarState:
        """Draw the position from u (N, 1); the car stands still."""
        position = single(u[:, 0] * self.width + self.start)
        return self._state(position, zeros(self.rest, len(u)), *self.counters(len(u)))

    def step(
        self, state: MountainCarState, action: Tensor, u: Tensor
    ) -> tuple[MountainCarState, Tensor, Tensor, Tensor, Tensor]:
        """Push once."""
        force, position, velocity = action[:, 0], state.body[:, 0], state.body[:, 1]  # (N,) each
        pull = single(self.slope * self.series.cosine(double(self.waves * position)))
        velocity = (velocity + (force * self.power - pull)).clip(-SPEED, SPEED)
        position = (position + velocity).clip(LEFT, RIGHT)
        velocity = where((position == self.left) & (velocity < self.rest), self.rest, velocity)
        reached = (position >= self.goal) & (velocity >= self.rest)
        force = double(force)
        reward = where(reached, self.prize, self.nothing) - force * force * self.effort
        after = self._state(position, velocity, state.steps + self.one, state.returns + reward)
        return after, after.observation, reward, reached, reached

    def observe_state(self, state: MountainCarState) -> Tensor:
        """Return position and velocity, (N, 2)."""
        return state.body

    def frame(self, state: MountainCarState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the hills, the flag and the car."""
        picture = np.full((120, 360, 3), 245, np.uint8)
        for column in range(360):
            picture[_height(LEFT + column / 200) :, column] = (190, 205, 190)
        for position, size, colour in ((GOAL, 20, (214, 66, 61)), (state.body[row, 0].item(), 8, (40, 60, 110))):
            column, ground = round(200 * (position - LEFT)), _height(position)
            picture[ground - size : ground, max(column - 4, 0) : column + 4] = colour
        return picture

    def text(self, state: MountainCarState, row: int) -> str:
        """Draw where the car is between the ends, its position and its velocity."""
        position, velocity = state.body[row].tolist()
        return f"{_line((position - LEFT) / (RIGHT - LEFT))}\nposition {position:+.3f}, velocity {velocity:+.4f}"

    def _state(self, position: Tensor, velocity: Tensor, steps: Tensor, returns: Tensor) -> MountainCarState:
        body = stack([position, velocity])
        return MountainCarState(self.observe(body), steps, returns, body)


def _height(position: float) -> int:
    """Return the pixel row of the ground at a position."""
    return round(70 - 40 * math.sin(3 * position))


def _line(share: float) -> str:
    """Draw a mark at a share of the way from the left end to the right one."""
    line = ["."] * 41
    line[round(40 * share)] = "o"
    return "".join(line)
