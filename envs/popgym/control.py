"""POPGym's cart-poles and pendulums, which show positions or velocities alone, and positions with noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from envs.core import Plain, Uniform
from envs.errors import require
from envs.numpy_backend import NormalPairs, float32, single, stack
from envs.spaces import Array
from envs.worlds.cart_pole import MAX_ANGLE, MAX_POSITION, CartPole, PoleState
from envs.worlds.control import Pendulum, PendulumState

MAX_NOISE = 1000
WORST = 16.2736044  # the cost of one step of a pendulum that hangs at top speed, pushed with full force


class SensorNoise:
    """Normal noise on the two numbers of an observation, which stay between `-high` and `high` (2,)."""

    runs_on_numpy = True
    draws = 2

    def __init__(self, family: str, noise: float, high: Array, device: torch.device) -> None:
        wanted = f"a standard deviation from 0 to {MAX_NOISE}"
        require(0 <= noise <= MAX_NOISE, f"noise of {family} must be {wanted}, not {noise}.")
        self.deviation = torch.tensor(noise, dtype=torch.float64, device=device)
        bounds = torch.from_numpy(high).to(device)
        self.high, self.low = bounds.unbind(), (-bounds).unbind()
        self.normal = NormalPairs(device)

    def __call__(self, seen: Tensor, u: Tensor) -> Tensor:
        """Return what is seen (N, 2) with the noise that u (N, 2) draws."""
        normal = self.normal(u[:, 0], u[:, 1])
        noisy = (seen[:, column] + single(self.deviation * normal[column]) for column in (0, 1))
        # column by column, because bounds of two numbers along a short axis are slow
        return stack([each.clip(*ends) for each, *ends in zip(noisy, self.low, self.high, strict=True)])

    def plain(self: Any, seen: Sequence[float], draw: Uniform) -> list[float]:
        """Return what is seen in one row, with noise."""
        normal = self.normal(draw(), draw())
        noisy = (float32(each) + float32(self.deviation * noise) for each, noise in zip(seen, normal, strict=True))
        return [min(max(float32(each), -high), high) for each, high in zip(noisy, self.high, strict=True)]


# ---- cart-poles ------------------------------------------------------------------------------------------------------
class HalfCartPole(CartPole):
    """Keep the pole upright: every step pays 1 / `time_limit`, so a whole episode pays 1."""

    def __init__(self, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        self.high = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)[self.seen]
        self.observation_space = Box(-self.high, self.high)
        self.unit = self.unit / time_limit


class PositionOnlyCartPole(HalfCartPole):
    """Keep the pole upright by the cart's position and the pole's angle."""

    seen = slice(0, None, 2)


class VelocityOnlyCartPole(HalfCartPole):
    """Keep the pole upright by the cart's speed and the pole's spin.

    POPGym 1.0.7 shows position and angle in the first observation of an episode; `as_released` does so, too.
    """

    seen = slice(1, None, 2)

    def __init__(self, as_released: bool = False, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        self.as_released = as_released

    def reset(self, u: Tensor) -> PoleState:
        """Draw position, speed, angle and spin from u (N, 4)."""
        state = super().reset(u)
        if self.as_released:
            state.observation = single(state.body[:, ::2])
        return state


class NoisyPositionOnlyCartPole(PositionOnlyCartPole):
    """Keep the pole upright by a position and an angle with normal noise of deviation `noise`."""

    reset_draws = CartPole.reset_draws + SensorNoise.draws
    step_draws = SensorNoise.draws

    def __init__(self, noise: float = 0.1, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        self.noise = SensorNoise("NoisyPositionOnlyCartPole", noise, self.high, self.device)

    def reset(self, u: Tensor) -> PoleState:
        """Draw the state, and the noise from the last columns of u (N, 6)."""
        state = super().reset(u[:, : CartPole.reset_draws])
        state.observation = self.noise(state.observation, u[:, CartPole.reset_draws :])
        return state

    def step(self, state: PoleState, action: Tensor, u: Tensor) -> tuple[PoleState, Tensor, Tensor, Tensor, Tensor]:
        """Push once, and draw the noise from u (N, 2)."""
        after, seen, reward, terminated, success = super().step(state, action, u)
        after.observation = self.noise(seen, u)
        return after, after.observation, reward, terminated, success

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        after, reward, ended, won = super().plain_step(row, action, draw)
        return (self.noise.plain(after[0], draw), *after[1:]), reward, ended, won


# ---- pendulums -------------------------------------------------------------------------------------------------------
class PositionOnlyPendulum(Pendulum):
    """Swing a pendulum up by its angle's cosine and sine.

    A step pays from -1 / `time_limit` at the highest cost to 1 / `time_limit` at none.
    """

    def __init__(self, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(True, time_limit, device)
        numbers = [2 / WORST / time_limit, 1 / time_limit]
        self.worth, self.best = torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def step(
        self, state: PendulumState, action: Tensor, u: Tensor
    ) -> tuple[PendulumState, Tensor, Tensor, Tensor, Tensor]:
        """Apply a torque once."""
        after, seen, cost, never, _ = super().step(state, action, u)
        reward = cost * self.worth + self.best
        after.returns = state.returns + reward
        return after, seen, reward, never, never

    def plain_step(self: Any, row: Plain, action: Array, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        (seen, steps, _, *motion), cost, ended, won = super().plain_step(row, action, draw)
        reward = cost * self.worth + self.best
        return (seen, steps, row[2] + reward, *motion), reward, ended, won


class NoisyPositionOnlyPendulum(PositionOnlyPendulum):
    """Swing a pendulum up by a cosine and a sine with normal noise of deviation `noise`."""

    reset_draws = Pendulum.reset_draws + SensorNoise.draws
    step_draws = SensorNoise.draws

    def __init__(self, noise: float = 0.1, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        self.noise = SensorNoise("NoisyPositionOnlyPendulum", noise, np.ones(2, np.float32), self.device)

    def reset(self, u: Tensor) -> PendulumState:
        """Draw angle and velocity, and the noise from the last columns of u (N, 4)."""
        state = super().reset(u[:, : Pendulum.reset_draws])
        state.observation = self.noise(state.observation, u[:, Pendulum.reset_draws :])
        return state

    def step(
        self, state: PendulumState, action: Tensor, u: Tensor
    ) -> tuple[PendulumState, Tensor, Tensor, Tensor, Tensor]:
        """Apply a torque once, and draw the noise from u (N, 2)."""
        after, seen, reward, never, _ = super().step(state, action, u)
        after.observation = self.noise(seen, u)
        return after, after.observation, reward, never, never

    def plain_step(self: Any, row: Plain, action: Array, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        after, reward, ended, won = super().plain_step(row, action, draw)
        return (self.noise.plain(after[0], draw), *after[1:]), reward, ended, won
