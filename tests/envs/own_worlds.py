"""Worlds as somebody from outside would write them: one that is right, and its spoiled subclasses."""

from dataclasses import dataclass, replace

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


class Narrow(Cue):
    """Spreads out to four copies where nobody looks."""

    observation_space = gymnasium.spaces.Box(0, 2, (4,))

    def show(self, seen):
        return seen.float()


class Padded(Cue):
    """Shows the number that stands for padding in a network's table."""

    observation_space = gymnasium.spaces.Discrete(2)


class FromOne(Cue):
    observation_space = gymnasium.spaces.Discrete(3, start=1)

    def show(self, seen):
        return seen + 1


class Halves(Cue):
    def show(self, seen):
        return seen / 2


class NotANumber(Cue):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))

    def show(self, seen):
        return seen * torch.nan


class NoState(Cue):
    def reset(self, u):
        return super().reset(u).observation, {}


class FourValues(Cue):
    def spoil(self, *result):
        return result[:4]


class ColumnRewards(Cue):
    def spoil(self, after, observation, reward, *rest):
        return after, observation, reward[:, None], *rest


class WholeRewards(Cue):
    def spoil(self, after, observation, reward, *rest):
        return after, observation, reward.long(), *rest


class NumberEnds(Cue):
    def spoil(self, after, observation, reward, terminated, success):
        return after, observation, reward, terminated.long(), success


class OneSuccess(Cue):
    def spoil(self, *result):
        return *result[:4], result[4][:1]


class EarlySuccess(Cue):
    def spoil(self, *result):
        return *result[:4], ~result[3]


class StandingClock(Cue):
    def spoil(self, after, *rest):
        return replace(after, steps=after.steps - 1), *rest


class LostReturns(Cue):
    def spoil(self, after, observation, reward, *rest):
        return after, observation, reward + 1, *rest


class OldSights(Cue):
    def spoil(self, after, observation, *rest):
        return after, observation.clamp(max=0), *rest


class Scribbler(Cue):
    def step(self, state, action, u):
        state.returns += 1
        return super().step(replace(state, returns=state.returns - 1), action, u)


@dataclass
class Single(Sided):
    score: Tensor


class OneForAll(Cue):
    def reset(self, u):
        return Single(*vars(super().reset(u)).values(), score=torch.zeros(()))
