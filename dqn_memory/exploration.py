"""Decide when an action is random: scheduled epsilon-greedy exploration, sticky random actions, random starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds
from dqn_memory.runs.stateful import Stateful
from envs.actions import Actions


@dataclass(frozen=True)
class ExplorationConfig:
    """How often and for how long random actions are taken."""

    epsilon_start: float = 1.0
    """Probability of a random action at the first step."""
    epsilon_end: float = 0.1
    """Probability of a random action at the end of the schedule."""
    epsilon_steps: Annotated[int, Bounds(1)] = 200_000
    """Environment steps from the first to the last value (exponential: its time constant)."""
    epsilon_schedule: Literal["linear", "exponential"] = "linear"
    """`exponential` (the published code calls it linear) approaches --epsilon-end without reaching it."""
    epsilon_ladder: Annotated[float, Bounds(0)] = 0.0
    """Environment i of N explores with epsilon^(1 + ladder * i / (N - 1)) (Ape-X, Horgan et al. 2018; 0: all alike)."""
    sticky_exponent: float = 0.0
    """A random action lasts n steps with chance ~ n^-exponent (Dabney et al. 2021: 2; 0: always one step)."""
    sticky_max_steps: Annotated[int, Bounds(1)] = 32
    """Maximum duration of a random action, in steps."""
    random_start_steps: Annotated[int, Bounds(0)] = 0
    """Random steps at the start of a training episode, drawn uniformly from 0 to this number."""
    random_start_share: Annotated[float, Bounds(0, 1)] = 1.0
    """Part of the training episodes for which --random-start-steps holds, from 0 to 1."""
    prepopulate: Annotated[int, Bounds(0)] = 0
    """Environment steps of uniform random actions before learning and the schedule begin (`train` only)."""

    def check(self) -> None:
        """Raise a UserError for values that cannot work."""
        first, last, sticky = self.epsilon_start, self.epsilon_end, self.sticky_exponent
        if not 0 <= last <= first <= 1:
            raise UserError(f"--epsilon-end {last} and --epsilon-start {first} must satisfy 0 <= end <= start <= 1")
        if 0 != sticky <= 1:
            raise UserError(
                f"--sticky-exponent {sticky} must be above 1 (the zeta law's exponent), or 0 for single random steps"
            )

    def epsilon(self, step: int) -> float:
        """Compute epsilon after `step` environment steps, prepopulation not counted."""
        if self.epsilon_schedule == "exponential":
            fraction = (1 - 1 / self.epsilon_steps) ** step
        else:
            fraction = max(0.0, 1 - step / self.epsilon_steps)
        return self.epsilon_end + (self.epsilon_start - self.epsilon_end) * fraction


class Explorer(Stateful):
    """Decide in which of N environments to act at random, with which action, and for how many steps.

    Temporally extended epsilon-greedy (Dabney et al. 2021): a random action is repeated, and goes on
    across the end of an episode. Random starts visit states that a policy which ends its episodes early would
    never see; logs of training episodes include these steps.
    """

    state_names = ("sticky_action", "sticky_steps", "random_start_steps")

    def __init__(
        self, config: ExplorationConfig, num_envs: int, actions: Actions | int, generator: torch.Generator
    ) -> None:
        self.actions = actions if isinstance(actions, Actions) else Actions(actions)
        self.config, self.generator = config, generator
        self.device = device = generator.device
        place_on_ladder = torch.arange(num_envs, device=device) / max(num_envs - 1, 1)  # 0 .. 1
        self.exponent = 1 + config.epsilon_ladder * place_on_ladder  # (N,)
        self.sticky_action = torch.zeros_like(self.actions.none(num_envs, device))  # (N, ...), the random action
        self.sticky_steps, self.random_start_steps = (
            torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(2)
        )  # its remaining steps, and the remaining steps of a random start; (N,)
        self.survival, self.mean_duration = _durations(config, device)

    def epsilon(self, step: int) -> float:
        """Give the schedule's value; 1 during prepopulation."""
        learning = step - self.config.prepopulate
        return 1.0 if learning < 0 else self.config.epsilon(learning)

    def choose(
        self, own: Tensor, epsilon: float | Tensor, first: Tensor, legal: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Replace some of the agent's own actions (N, ...) by random ones; also return which are random, (N,).

        `first` (N,) is true where an episode begins. With the flags `legal` (N, c) of all choices, random actions are
        legal, and a repeated action that is no longer legal is replaced by another.
        """
        max_start = self.config.random_start_steps
        u = torch.rand(3 + (max_start > 0), len(own), generator=self.generator, device=own.device)
        if self.config.epsilon_ladder:
            epsilon = epsilon**self.exponent  # (N,)
        # with this probability the fraction of random steps is epsilon, whatever the durations
        probability = epsilon / (epsilon + self.mean_duration * (1 - epsilon))
        begins = u[0] < probability
        likelier = len(self.survival) - torch.searchsorted(self.survival, u[2], right=True)  # (N,), chances above u
        duration = 1 + likelier
        if max_start:
            share = self.config.random_start_share
            drawn = torch.where(u[3] < share, u[3] / max(share, 1e-9) * (max_start + 1), 0.0).long()
            self.random_start_steps = torch.where(first, drawn, self.random_start_steps)
            starting = self.random_start_steps > 0
            begins = begins | starting
            duration = torch.where(starting, duration.minimum(self.random_start_steps), duration)
            self.random_start_steps = (self.random_start_steps - 1).clamp(min=0)
        begins = begins & (self.sticky_steps == 0)
        parts = u[1] if self.actions.count else torch.rand(own.shape, generator=self.generator, device=own.device)
        drawn = begins if legal is None else begins | ~self.actions.allowed(self.sticky_action, legal)
        self.sticky_action = torch.where(self._each(drawn), self.actions.random(parts, legal), self.sticky_action)
        self.sticky_steps = torch.where(begins, duration, self.sticky_steps)
        random = self.sticky_steps > 0
        self.sticky_steps = (self.sticky_steps - 1).clamp(min=0)
        return torch.where(self._each(random), self.sticky_action, own), random

    def _each(self, flags: Tensor) -> Tensor:
        """Give flags (N,) the number of axes of the actions."""
        return flags if self.actions.count else flags.unsqueeze(1)


def _durations(config: ExplorationConfig, device: torch.device) -> tuple[Tensor, float]:
    """Compute P(duration > d) for d = maximum - 1 .. 1, ascending, and the mean duration."""
    if config.sticky_exponent == 0:
        return torch.zeros(1, device=device), 1.0
    duration = torch.arange(1, config.sticky_max_steps + 1, dtype=torch.float64)
    chance = duration**-config.sticky_exponent
    chance = chance / chance.sum()
    survival = 1 - chance.cumsum(0)[:-1]
    return survival.flip(0).float().to(device), float((chance * duration).sum())
