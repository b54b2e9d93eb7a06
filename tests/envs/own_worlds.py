"""Worlds as somebody from outside would write them: one that is right, and its spoiled subclasses."""

from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import State, World


@dataclass
class Sided(State):
    side: Tensor  # (N,) int64


class Cue(World):
    """A cue of two, then nothing to see, then a choice that must match it."""

    num_actions, reset_draws, step_draws = 2, 1, 0
    observation_space = gymnasium.spaces.Discrete(3)

    def __init__(self, time_limit: int = 10, device="cpu"):
        super().__init__(time_limit, device)

    def reset(self, u):
        side, (steps, returns) = (u[:, 0] >= 0.5).long(), self.counters(len(u))
        return Sided(self.show(side[:, None]), steps, returns, side)

    def step(self, state, action, u):
        ended = state.steps >= 2
        won = ended & (action == state.side)
        observation = self.show(torch.full((len(u), 1), 2))
        after = Sided(observation, state.steps + 1, state.returns + won.double(), state.side)
        return self.spoil(after, observation, won.double(), ended, won)

    def show(self, seen):
        return seen

    def spoil(self, *result):
        return result

    def frame(self, state, row):
        return np.full((8, 8, 3), 100 * int(state.side[row]), np.uint8)

    def text(self, state, row):
        return f"side {int(state.side[row])}"


def spoiled(name, observation_space=None, show=None, spoil=None, **members):
    """Make a subclass of Cue that shows observations, or returns the result of a step, in a wrong way."""
    if observation_space is not None:
        members["observation_space"] = observation_space
    if show is not None:
        members["show"] = lambda self, seen: show(seen)
    if spoil is not None:
        members["spoil"] = lambda self, *result: spoil(*result)
    return type(name, (Cue,), {"__module__": __name__, **members})


FourValues = spoiled("FourValues", spoil=lambda *result: result[:4])
Narrow = spoiled("Narrow", gymnasium.spaces.Box(0, 2, (4,)), lambda seen: seen.float())
