"""Multi-armed bandits: find the arm that pays most often, and keep to it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.errors import require
from envs.numpy_backend import integers, stack, take_column, where
from envs.popgym.shuffle import hashed
from envs.spaces import MultiDiscrete

MAX_ARMS = 1000
WIDTH, HEIGHT = 12, 100  # pixels of an arm's bar


@dataclass
class BanditState(State):
    """N bandits."""

    arms: Tensor  # (N, arms) float64, each arm's probability to pay


class MultiarmedBandit(World[BanditState]):
    """Pull one of several arms at every step, for `time_limit` steps: +1/time_limit if it pays, else -1/time_limit.

    Each arm pays with a probability of its own, uniform between 0 and 1. The observation is whether the last pull paid,
    and the arm pulled; both are 0 at first.
    """

    reset_draws = 1
    step_draws = 1
    defines_success = False
    runs_on_numpy = True

    def __init__(self, arms: int = 10, time_limit: int = 200, device: str | torch.device = "cpu") -> None:
        super().__init__(time_limit, device)
        require(2 <= arms <= MAX_ARMS, f"arms of MultiarmedBandit must be from 2 to {MAX_ARMS}, not {arms}.")
        self.num_actions = arms
        self.observation_space = MultiDiscrete([2, arms])
        self.state_space = Box(0.0, 1.0, (arms,), np.float64)
        pay = 1 / time_limit
        self.paid, self.lost = torch.tensor([pay, -pay], dtype=torch.float64, device=self.device)

    def reset(self, u: Tensor) -> BanditState:
        """Draw all arms by u (N, 1)."""
        steps, returns = self.counters(len(u))
        return BanditState(stack([steps, steps]), steps, returns, hashed(u, self.num_actions))

    def step(self, state: BanditState, action: Tensor, u: Tensor) -> tuple[BanditState, Tensor, Tensor, Tensor, Tensor]:
        """Pull an arm."""
        pays = u[:, 0] < take_column(state.arms, action)
        reward = where(pays, self.paid, self.lost)
        observation = stack([integers(pays), action])
        after = BanditState(observation, state.steps + self.one, state.returns + reward, state.arms)
        never = pays != pays
        return after, observation, reward, never, never

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, arms = row
        pays = draw() < arms[action]
        reward = self.paid if pays else self.lost
        return ((int(pays), action), steps + 1, returns + reward, arms), reward, False, False

    def observe_state(self, state: BanditState) -> Tensor:
        """Return each arm's probability to pay, (N, arms) float64."""
        return state.arms

    def frame(self, state: BanditState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw each arm's probability as a bar; the arm pulled last is green if it paid, else red."""
        paid, pulled = (int(value) for value in state.observation[row])
        picture = np.full((HEIGHT, WIDTH * self.num_actions, 3), 245, np.uint8)
        for arm in range(self.num_actions):
            colour = (120, 130, 150) if arm != pulled else (70, 160, 80) if paid else (214, 66, 61)
            top = round(HEIGHT * (1 - float(state.arms[row, arm])))
            picture[top:, WIDTH * arm + 2 : WIDTH * (arm + 1) - 2] = colour
        return picture

    def text(self, state: BanditState, row: int) -> str:
        """Tell which arm was pulled last, whether it paid, its probability and the best one."""
        paid, pulled = (int(value) for value in state.observation[row])
        chances = [float(chance) for chance in state.arms[row]]
        best = max(range(len(chances)), key=chances.__getitem__)
        words = f"arm {pulled} {'pays' if paid else 'does not pay'}, probability {chances[pulled]:.2f}"
        return f"{words}; the best is arm {best} with {chances[best]:.2f}"
