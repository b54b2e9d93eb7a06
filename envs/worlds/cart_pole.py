"""Cart Pole: push a cart left or right so that the pole on it stays upright. Nothing is hidden."""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.numpy_backend import PowerSeries, single, stack, take, zeros

FORCE, GRAVITY, TICK = 10.0, 9.8, 0.02
POLE, TOTAL, HALF_LENGTH = 0.1, 1.1, 0.5  # masses of the pole and of pole and cart; half the pole's length
MAX_POSITION, MAX_ANGLE = 2.4, 12 * 2 * math.pi / 360  # beyond them an episode ends
START = 0.05  # position, speed, angle and spin begin inside +-START
TERMS = 5  # of the series of sine and cosine after the first; the others are below half a unit of float64's last place


@dataclass
class PoleState(State):
    """N carts with poles."""

    body: Tensor  # (N, 4) float64: the cart's position and speed, the pole's angle and spin (radians per second)


class CartPole(World[PoleState]):
    """Push left or right at every step: +1 each, until the pole leans too far or the cart leaves the track.

    The dynamics are those of Gymnasium's CartPole-v1. The observation is the state (position, speed, angle, spin) in
    float32. Episodes cannot succeed: scores are returns, at most `time_limit`.
    """

    num_actions = 2
    action_names = ("push left", "push right")
    reset_draws = 4
    step_draws = 0
    defines_success = False
    runs_on_numpy = True
    seen = slice(None)  # columns of (position, speed, angle, spin) that are shown

    def __init__(self, time_limit: int = 500, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        high = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf])  # an episode's last state is beyond a limit
        self.observation_space = gymnasium.spaces.Box(-high.astype(np.float32), high.astype(np.float32))
        self.state_space = gymnasium.spaces.Box(-high, high, dtype=np.float64)
        numbers = [GRAVITY, POLE * HALF_LENGTH / TOTAL, HALF_LENGTH * 4 / 3, HALF_LENGTH * POLE / TOTAL, TICK]
        constants = torch.tensor([*numbers, START, 2 * START, 1.0], dtype=torch.float64, device=self.device)
        self.gravity, self.moment, self.inertia, self.lost, self.tick, self.start, self.width, self.unit = constants
        limits = torch.tensor([[MAX_POSITION, MAX_ANGLE], [-FORCE / TOTAL, FORCE / TOTAL]], dtype=torch.float64)
        self.limits, self.push = limits.to(self.device).unbind()
        self.sine_and_cosine = PowerSeries(TERMS, self.device)

    def reset(self, u: Tensor) -> PoleState:
        """Draw position, speed, angle and spin from u (N, 4)."""
        steps, returns = self.counters(len(u))
        body = u * self.width - self.start
        return PoleState(self.observe(body), steps, returns, body)

    def step(self, state: PoleState, action: Tensor, u: Tensor) -> tuple[PoleState, Tensor, Tensor, Tensor, Tensor]:
        """Push once: 0 left, 1 right."""
        body = state.body  # (N, 4)
        speed, angle, spin = body[:, 1], body[:, 2], body[:, 3]
        sine, cosine = self.sine_and_cosine(angle)  # (N,) each
        pushed = take(self.push, action) + self.moment * (spin * spin) * sine
        turn = (self.gravity * sine - cosine * pushed) / (self.inertia - self.lost * (cosine * cosine))
        body = body + self.tick * stack([speed, pushed - self.moment * turn * cosine, spin, turn])
        reward = zeros(self.nothing, len(body)) + self.unit
        steps, returns = state.steps + self.one, state.returns + reward
        after = PoleState(self.observe(body), steps, returns, body)
        out = abs(body[:, ::2]) > self.limits  # (N, 2)
        terminated = out[:, 0] | out[:, 1]
        return after, after.observation, reward, terminated, terminated != terminated

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, body = row
        _, speed, angle, spin = body
        sine, cosine = self.sine_and_cosine(angle)
        pushed = self.push.item(action) + self.moment * (spin * spin) * sine
        turn = (self.gravity * sine - cosine * pushed) / (self.inertia - self.lost * (cosine * cosine))
        change = speed, pushed - self.moment * turn * cosine, spin, turn
        body = [value + self.tick * each for value, each in zip(body, change, strict=True)]
        out = abs(body[0]) > self.limits.item(0) or abs(body[2]) > self.limits.item(1)
        return (body[self.seen], steps + 1, returns + self.unit, body), self.unit, out, False

    def observe(self, body: Tensor) -> Tensor:
        """Return the observation (N, d) float32."""
        return single(body[:, self.seen])

    def observe_state(self, state: PoleState) -> Tensor:
        """Return the observation's numbers in float64, (N, 4)."""
        return state.body

    def frame(self, state: PoleState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the track, the cart and the pole."""
        picture = np.full((120, 360, 3), 245, np.uint8)
        picture[104:106] = (90, 90, 95)
        position, angle = state.body[row, 0].item(), state.body[row, 2].item()
        cart = _column(position)
        picture[92:104, max(cart - 18, 0) : cart + 18] = (40, 60, 110)
        for along in range(75):
            x, y = round(cart + along * math.sin(angle)), round(91 - along * math.cos(angle))
            picture[max(y - 1, 0) : y + 2, max(x - 2, 0) : max(x + 2, 0)] = (200, 140, 70)
        return picture

    def text(self, state: PoleState, row: int) -> str:
        """Draw the track, the cart as a stroke that leans as the pole does, and the numbers of the state."""
        position, speed, angle, spin = (value.item() for value in state.body[row])
        line = ["."] * 41
        line[min(max(round(20 + 20 * position / MAX_POSITION), 0), 40)] = "/" if angle > 0 else "\\"
        return f"{''.join(line)}\nposition {position:+.3f} {speed:+.3f}, angle {angle:+.4f} {spin:+.4f}"


def _column(position: float) -> int:
    """Return the pixel column of a position on the track."""
    return round(180 + 65 * position)
