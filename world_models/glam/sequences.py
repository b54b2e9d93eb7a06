"""From samples and actions to the features that the heads read: six forms, interchangeable by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import State
from world_models.glam.architecture import ModelConfig
from world_models.glam.branches import Branch, Direct, GlobalMamba, LocalMamba, Stack, mamba_stack, transformer_stack


@dataclass(frozen=True)
class Features:
    """What a form knows at each position, after frame and action."""

    h: Tensor  # (B, T, D)
    variation: Tensor | None  # (B, T, D), from the differences alone; None in forms that read none


@dataclass(frozen=True)
class SequenceState:
    """What a form carries from one position to the next; all tensors are batch first."""

    age: Tensor  # (B,) int64, positions since the episode opened, the last one included
    branches: tuple[State, ...]


class Stem(nn.Module):
    """The feature encoder f (Eq. 5): samples and one-hot actions to features e, without a last norm."""

    def __init__(self, config: ModelConfig, actions: int) -> None:
        super().__init__()
        self.latent, width = config.latent, config.width
        self.enter = nn.Linear(config.latent + actions, width, bias=False)
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width, bias=False))

    def forward(self, sample: Tensor, action: Tensor) -> Tensor:
        """Compute features (B, T, D) of samples (B, T, Z) and actions (B, T) int64."""
        seen, done = self.enter.weight.split([self.latent, self.enter.in_features - self.latent], 1)
        return self.leave(F.linear(sample, seen) + F.embedding(action, done.mT))


def _glam(config: ModelConfig) -> list[Branch]:
    return [GlobalMamba(config), LocalMamba(config)]


def _double(config: ModelConfig, stack: Callable[[ModelConfig], Stack]) -> list[Branch]:
    return [Direct(stack(config), nn.Linear(config.width, config.width, bias=False)) for _ in range(2)]


# The rows of the paper's Table 2, each the branches of a form. `storm` is "w/o G&L", `lmamba` is "w/o G"; a double
# form is two identical modules in parallel on the features, "Dbl."; `glam_no_variation` lacks the variation loss only.
SEQUENCES: dict[str, Callable[[ModelConfig], list[Branch]]] = {
    "storm": lambda config: [Direct(transformer_stack(config), nn.Identity())],
    "lmamba": lambda config: [LocalMamba(config)],
    "double_transformer": lambda config: _double(config, transformer_stack),
    "double_mamba": lambda config: _double(config, mamba_stack),
    "glam": _glam,
    "glam_no_variation": _glam,
}


class SequenceModel(nn.Module):
    """The sum of the branches' outputs, in the form that `config.sequence` names; each reads the stem's features.

    Where an episode opens (`first`), everything before it is forgotten, unless the config's `reset_at_episode_start` is
    False.
    """

    def __init__(self, config: ModelConfig, actions: int) -> None:
        super().__init__()
        self.resets = config.reset_at_episode_start
        branches = SEQUENCES[config.sequence](config)  # drawn before the stem, as they always were
        self.stem = Stem(config, actions)
        self.branches = nn.ModuleList(branches)

    def forward(
        self, sample: Tensor, action: Tensor, first: Tensor, state: SequenceState | None = None
    ) -> tuple[Features, SequenceState]:
        """Compute features (B, T, D) of samples (B, T, Z), actions (B, T) and `first` (B, T) bool.

        Goes on from `state`, or from nothing, and returns the state after the last position too.
        """
        state = self.initial_state(len(sample)) if state is None else state
        e, age = self.stem(sample, action), self._age(first, state.age)
        outputs, after = [], []
        variation = None
        for branch, part in zip(self.branches, state.branches, strict=True):
            y, part = branch(e, age, part)
            outputs.append(y)
            after.append(part)
            variation = y if isinstance(branch, GlobalMamba) else variation
        return Features(sum(outputs[1:], outputs[0]), variation), SequenceState(age[:, -1] + 1, tuple(after))

    def step(self, sample: Tensor, action: Tensor, first: Tensor, state: SequenceState) -> tuple[Tensor, SequenceState]:
        """Read one position: sample (B, Z), action (B,), first (B,) -> features (B, D) and the state after it."""
        features, state = self(sample[:, None], action[:, None], first[:, None], state)
        return features.h[:, 0], state

    def initial_state(self, batch: int) -> SequenceState:
        """Return the state of B rows in which nothing has been seen yet, on the model's device."""
        like = self.stem.enter.weight.detach()
        age = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return SequenceState(age, tuple(branch.initial_state(batch, like) for branch in self.branches))  # type: ignore[operator]

    def _age(self, first: Tensor, before: Tensor) -> Tensor:
        """Count positions since the last episode start (B, T); `before` (B,) is the count ahead of this sequence."""
        index = torch.arange(first.shape[1], device=first.device).expand(first.shape)
        if not self.resets:
            return index + before[:, None]
        opened = torch.where(first, index, -1).cummax(1).values
        return torch.where(opened < 0, index + before[:, None], index - opened)
