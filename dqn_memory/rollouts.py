"""Rollouts: T steps of N environments by a network that acts from a carried state, and the returns that follow them.

What `pqn` and `ppo` share. An episode goes on from one rollout to the next, with the state that the network carries; an
update computes the whole rollout by `QNetwork.encode_sequence`, from the state that stood before its first step.

Shapes: N environments, T steps of a rollout, A outputs of the network for a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from dqn_memory.acting import Kept
from dqn_memory.network import ObservationSpec, QNetwork
from dqn_memory.runs.settings import Bounds
from envs.core import Step
from envs.fleet import Fleet

Column = tuple[Tensor, ...]  # one step of each environment: the parts of a Rollout in their order, but for the state


# ---- prediction ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PredictionConfig:
    """An auxiliary loss: tell from what is remembered and the action what comes next."""

    prediction_weight: Annotated[float, Bounds(0)] = 1.0
    """Weight of the loss of predicting the next observation (of images nothing) and the reward, at ends of episodes as
    much as elsewhere (0: none)."""


def masked_mean(values: Tensor, where: Tensor) -> Tensor:
    """Average values over the places of a mask, a scalar; 0 where there is none."""
    return torch.where(where, values, 0.0).sum() / where.sum().clamp(min=1)


class Predictor(nn.Module):
    """Predict the next observation and the reward from the network's encoding and the action."""

    def __init__(self, spec: ObservationSpec, width: int, num_actions: int, weight: float) -> None:
        super().__init__()
        self.components = 0 if spec.kind == "image" else math.prod(spec.shape)
        self.vocabulary, self.weight = spec.vocabulary, weight
        self.action = nn.Embedding(num_actions, width)
        outputs = self.components * max(spec.vocabulary, 1)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs + 1))

    def loss(self, x: Tensor, rollout: Rollout) -> Tensor:
        """Compute the weighted error from encodings x (B, T, D), a scalar: cross-entropy of tokens, else squares.

        Rewards at the ends of episodes, which are rare and tell most, weigh half of all (as Jaderberg et al. 2017
        sample them): that is what teaches a memory to compare what it saw with what it sees.
        """
        predicted = self.head(x + self.action(rollout.action))  # (B, T, outputs + 1)
        squares = (predicted[..., -1] - rollout.reward).square()  # (B, T)
        reward = 0.5 * (masked_mean(squares, rollout.terminated) + masked_mean(squares, ~rollout.terminated))
        if not self.components:
            return self.weight * reward
        predicted, after = predicted[:, :-1, :-1], rollout.observation[:, 1:].flatten(2)  # (B, T - 1, ...)
        if self.vocabulary:
            logits = predicted.unflatten(-1, (self.components, self.vocabulary)).movedim(-1, 1)
            errors = F.cross_entropy(logits, after.long(), reduction="none").mean(-1)
        else:
            errors = (predicted - after.to(predicted.dtype)).square().mean(-1)  # (B, T - 1)
        return self.weight * (reward + torch.where(rollout.reset[:, 1:], 0.0, errors).mean())


# ---- collecting ------------------------------------------------------------------------------------------------------
@dataclass
class Rollout:
    """T consecutive steps of each of N environments."""

    observation: Tensor  # (N, T, ...)
    previous_action: Tensor  # (N, T), the action that led to each observation; A where an episode begins
    reset: Tensor  # (N, T), where an episode begins
    state: list[Any]  # of the network before the first step, rows first
    action: Tensor  # (N, T)
    random: Tensor  # (N, T), where the action was not the network's own
    reward: Tensor  # (N, T), scaled
    terminated: Tensor  # (N, T)
    done: Tensor  # (N, T)
    outputs: Tensor  # (N, T, A), of the network as it acted
    following: Tensor  # (N, T, A), of the observation after each step where it ends the rollout or is cut off, else 0

    @property
    def inputs(self) -> tuple[Tensor, Tensor, list[Any], Tensor]:
        """What the network read: observations, previous actions, the state before them, resets."""
        return self.observation, self.previous_action, self.state, self.reset

    @classmethod
    def of(cls, state: list[Any], columns: Sequence[Column]) -> Self:
        """Join the columns of T steps, as `Collector.take` gives them; `state` stood before the first."""
        observation, previous, reset, *rest = (torch.stack(each, 1) for each in zip(*columns, strict=True))
        return cls(observation, previous, reset, state, *rest)

    def rows(self, index: Tensor) -> Self:
        """Select environments."""
        return replace(self, **{name: tree_map(lambda part: part[index], value) for name, value in vars(self).items()})


class Collector(Kept):
    """Act in all environments, and carry observations and the network's state from one rollout to the next.

    `read` turns the network's encodings (N, D) into the outputs (N, A) that are acted on and learned.
    """

    kept = ("observation", "previous_action", "reset", "state", "moments")

    def __init__(
        self, fleet: Fleet, network: QNetwork, read: Callable[[Tensor], Tensor], length: int,
        reward_scale: float | None = None,
    ) -> None:  # fmt: skip
        self.fleet, self.network, self.read, self.length = fleet, network, read, length
        self.reward_scale = reward_scale
        self.device = fleet.device
        self.moments = torch.zeros(3, dtype=torch.float64, device=self.device)  # returns: number, sum, sum of squares
        self.begin()

    def begin(self) -> None:
        """Start episodes in all environments, with nothing remembered."""
        rows = self.fleet.num_envs
        self.observation = self.fleet.reset()  # (N, ...)
        self.previous_action = torch.full((rows,), self.fleet.num_actions, device=self.device)  # A: none yet
        self.reset = torch.ones(rows, dtype=torch.bool, device=self.device)
        self.state = self.network.initial_state(rows, self.device)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, list[Any], Tensor]:
        """What the network reads next: observation, previous action, state, reset."""
        return self.observation, self.previous_action, self.state, self.reset

    @torch.no_grad()
    def take(
        self, outputs: Tensor, state: list[Any], action: Tensor, random: Tensor, last: bool,
        count: Callable[[Step], None],
    ) -> Column:  # fmt: skip
        """Take one step with the actions (N,) chosen by `outputs` (N, A), or at `random` (N,); give the next column.

        `last` says that the rollout ends with it, `state` is the network's after it; `count` is told of the step.
        """
        observation, previous_action, _, reset = self.inputs
        step = self.fleet.step(action)
        following = torch.zeros_like(outputs)
        cut = ~step.terminated if last else step.truncated
        if self.device.type != "cpu" or bool(cut.any()):
            goes_on = torch.full_like(self.reset, False)
            x, _ = self.network.encode_step(step.final_observation, action, state, goes_on)
            following = torch.where(cut.unsqueeze(1), self.read(x), following)
        self.observation, self.reset, self.state = step.observation, step.done, state
        self.previous_action = torch.where(step.done, self.fleet.num_actions, action)
        count(step)
        known = observation, previous_action, reset, action, random, self._scaled(step)
        return *known, step.terminated, step.done, outputs, following

    def _scaled(self, step: Step) -> Tensor:
        """Divide rewards by the standard deviation of the returns of all episodes so far, where no scale is given.

        Then one learning rate and one entropy weight serve environments whose rewards are 1 and those whose are -50.
        Until as many episodes have ended as there are environments, rewards stay as they are.
        """
        if self.reward_scale is not None:
            return step.reward * self.reward_scale
        done, returns = step.done, step.episode_return
        self.moments = self.moments + torch.stack((done, done * returns, done * returns.square())).sum(1)
        mean, square = self.moments[1:] / self.moments[0].clamp(min=1)
        spread = (square - mean.square()).clamp(min=0).sqrt()
        differ = spread > 1e-4 * square.sqrt()  # else it is what rounding leaves of equal returns
        known = (self.moments[0] >= len(done)) & differ
        return (step.reward / torch.where(known, spread, 1.0)).to(step.reward.dtype)


def lambda_returns(rollout: Rollout, value: Tensor, following: Tensor, gamma: float, decay: float) -> Tensor:
    """Compute G_t = r_t + gamma ((1 - lambda) V(o_{t+1}) + lambda G_{t+1}), (N, T).

    Where an episode is cut off by a time limit, and at the rollout's end, V of the observation that it was cut off at
    stands in place of the mixture; where it terminates, 0. Subtracting V(o_t) gives the advantages of GAE (Schulman et
    al. 2016); with V = max Q these are the targets of PQN (Gallici et al. 2025).

    Args:
        rollout: the steps.
        value: V at each step, (N, T).
        following: V of what comes after a step where that is not the next one, (N, T).
        gamma: discount.
        decay: lambda.
    """
    returns, time = torch.empty_like(value), value.shape[1]
    later = following[:, -1]
    for t in range(time - 1, -1, -1):
        after = torch.where(rollout.done[:, t], following[:, t], later)
        later = rollout.reward[:, t] + gamma * torch.where(rollout.terminated[:, t], 0.0, after)
        returns[:, t] = later
        later = torch.lerp(value[:, t], later, decay)
    return returns
