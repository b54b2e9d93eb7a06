"""Epsilon-greedy exploration of N worlds: schedule, one epsilon a world, and held random actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds


@dataclass(frozen=True)
class ExplorationConfig:
    """How often and how long random actions are taken."""

    epsilon_start: float = 1.0
    """Probability of a random action at the first step."""
    epsilon_end: float = 0.1
    """Its last value."""
    epsilon_steps: Annotated[int, Bounds(1)] = 200_000
    """Environment steps from the first to the last value (exponential: its time constant)."""
    epsilon_schedule: Literal["linear", "exponential"] = "linear"
    """`exponential` is what the published code computes and calls linear: it nears the end, never reaches it."""
    epsilon_ladder: Annotated[float, Bounds(0)] = 0.0
    """World i of N explores with epsilon^(1 + epsilon_ladder * i / (N - 1)) (Ape-X, Horgan et al. 2018; 0: all
    alike)."""
    sticky_exponent: float = 0.0
    """Exponent of the zeta law from which a random action's duration is drawn (temporally extended epsilon-greedy,
    Dabney et al. 2021: 2); 0 holds every random action for one step. An action that is held where an episode ends is
    held on in the next one."""
    sticky_max_steps: Annotated[int, Bounds(1)] = 32
    """Longest time a random action is held, in steps."""
    random_start_steps: Annotated[int, Bounds(0)] = 0
    """Most random steps that a training episode begins with; their number is drawn uniformly from 0 to this. A policy
    that ends its episodes at once never learns what it would have seen on a detour; with random starts it is there
    already."""
    prepopulate: Annotated[int, Bounds(0)] = 0
    """Environment steps of uniform random actions before learning and the schedule begin."""

    def check(self) -> None:
        if not 0 <= self.epsilon_end <= self.epsilon_start <= 1:
            raise UserError(
                f"--epsilon-end {self.epsilon_end} and --epsilon-start {self.epsilon_start} must satisfy "
                "0 <= end <= start <= 1"
            )
        if self.sticky_exponent != 0 and self.sticky_exponent <= 1:
            raise UserError(
                f"--sticky-exponent {self.sticky_exponent} must be above 1 (the zeta law's exponent), or 0 to "
                "hold nothing"
            )

    def epsilon(self, step: int) -> float:
        """Epsilon after `step` environment steps, prepopulation not counted."""
        if self.epsilon_schedule == "exponential":
            share = (1 - 1 / self.epsilon_steps) ** step
        else:
            share = max(0.0, 1 - step / self.epsilon_steps)
        return self.epsilon_end + (self.epsilon_start - self.epsilon_end) * share


class Explorer:
    """Draws which of N worlds act at random, what they do and for how long."""

    def __init__(self, config: ExplorationConfig, num_envs: int, num_actions: int, generator: torch.Generator) -> None:
        self.config, self.num_actions, self.generator = config, num_actions, generator
        device = generator.device
        rank = torch.arange(num_envs, device=device) / max(num_envs - 1, 1)
        self.exponent = 1 + config.epsilon_ladder * rank  # (N,)
        self.held = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.left = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.leading = torch.zeros(num_envs, dtype=torch.int64, device=device)  # random steps left at the start
        # the start probability is lowered so that the share of random steps stays epsilon however long they are held
        self.survival, self.mean_hold = _durations(config, device)

    def epsilon(self, step: int) -> float:
        """The schedule's value; 1 during prepopulation."""
        learning = step - self.config.prepopulate
        return 1.0 if learning < 0 else self.config.epsilon(learning)

    def choose(self, greedy: Tensor, step: int, first: Tensor) -> Tensor:
        """Actions (N,): the greedy ones, or random ones where an exploration starts or goes on.

        `first` (N,) bool says where an episode begins.
        """
        u = torch.rand(
            3 + (self.config.random_start_steps > 0), len(greedy), generator=self.generator, device=greedy.device
        )
        epsilon = self.epsilon(step) ** self.exponent  # (N,)
        start = epsilon / (epsilon + self.mean_hold * (1 - epsilon)).clamp(min=1e-9)
        duration = 1 + (u[2].unsqueeze(1) < self.survival).sum(1)  # (N,)
        if self.config.random_start_steps:
            self.leading = torch.where(first, (u[3] * (self.config.random_start_steps + 1)).long(), self.leading)
            start = torch.where(self.leading > 0, 1.0, start)
            duration = torch.where(self.leading > 0, duration.minimum(self.leading), duration)
            self.leading = (self.leading - 1).clamp(min=0)
        starts = (self.left == 0) & (u[0] < start)
        self.held = torch.where(starts, (u[1] * self.num_actions).long(), self.held)
        self.left = torch.where(starts, duration, self.left)
        random = self.left > 0
        self.left = (self.left - 1).clamp(min=0)
        return torch.where(random, self.held, greedy)

    def state_dict(self) -> dict[str, Tensor]:
        return {"held": self.held, "left": self.left, "leading": self.leading}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in ("held", "left", "leading"):
            setattr(self, name, state[name].to(self.held.device))


def _durations(config: ExplorationConfig, device: torch.device) -> tuple[Tensor, float]:
    """P(duration > d) for d = 1 .. longest - 1, and the mean duration."""
    if config.sticky_exponent == 0:
        return torch.zeros(1, device=device), 1.0
    length = torch.arange(1, config.sticky_max_steps + 1, dtype=torch.float64)
    chance = length**-config.sticky_exponent
    chance = chance / chance.sum()
    survival = 1 - chance.cumsum(0)[:-1]
    return survival.float().to(device), float((chance * length).sum())
