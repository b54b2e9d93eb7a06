"""What a world model remembers while it runs step by step: a window of the last K steps, or a carried state.

Both are pure functions of tensors over a state that the caller keeps, so that imagination and acting share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from world_models.glam.architecture import MemoryKind
from world_models.glam.model import WorldModel


@dataclass(frozen=True)
class Window:
    """The last K steps of B rows, oldest first."""

    sample: Tensor  # (B, K, Z)
    action: Tensor  # (B, K) int64
    first: Tensor  # (B, K) bool


class WindowMemory:
    """The last K steps, read anew at each step as in training.

    Nothing lies before the window's first step, as at the start of a training sequence; `first` hides steps of the
    episode before. A row that opens an episode is filled with copies of its first step: models that reset at episode
    starts do not look at them, and for those that do not (as released) all differences between them are 0.
    """

    def __init__(self, model: WorldModel, length: int) -> None:
        self.model, self.length = model, length

    def start(self, rows: int) -> Any:
        """Return the state of B rows that have seen nothing: a window of zeros."""
        like = next(self.model.parameters())
        flags = torch.zeros(rows, self.length, dtype=torch.bool, device=like.device)
        return Window(like.new_zeros(rows, self.length, self.model.config.latent), flags.long(), flags)

    def prefill(self, sample: Tensor, action: Tensor, first: Tensor) -> tuple[Tensor, Any]:
        """Read steps (B, T, Z), (B, T), (B, T): return the memory h (B, D) and the state after them.

        Of more than K steps the last K are kept, and fewer than K have nothing before them.
        """
        window = self._filled(*(each[:, -self.length :] for each in (sample, action, first)))
        return self._read(window), window

    def push(self, sample: Tensor, action: Tensor, opens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one more step (B, Z), (B,) and forget the oldest: return h (B, D) after it and the next state.

        `opens` (B,) bool marks the rows that forget everything before it: all rows in the first step after `start`.
        """
        one = opens.unsqueeze(1)  # (B, 1)
        window = Window(
            _appended(torch.where(one.unsqueeze(2), sample.unsqueeze(1), state.sample), sample),
            _appended(torch.where(one, action.unsqueeze(1), state.action), action),
            _appended(state.first, opens),
        )
        return self._read(window), window

    def _filled(self, sample: Tensor, action: Tensor, first: Tensor) -> Window:
        """Fill fewer than K steps up: copies of the oldest one stand before it, and it opens the episode."""
        missing = self.length - action.shape[1]
        if not missing:
            return Window(sample, action, first)
        opens = torch.cat((torch.ones_like(first[:, :1]), first[:, 1:]), 1)
        oldest = (each[:, :1].repeat_interleave(missing, 1) for each in (sample, action, torch.zeros_like(first)))
        return Window(*(torch.cat(pair, 1) for pair in zip(oldest, (sample, action, opens), strict=True)))

    def _read(self, window: Window) -> Tensor:
        return self.model.sequence(window.sample, window.action, window.first).h[:, -1]


class CarriedMemory:
    """The recurrent state, which knows everything since the episode, or the context, began; used as a WindowMemory."""

    def __init__(self, model: WorldModel) -> None:
        self.core = model.sequence_model
        self.start, self.push = self.core.initial_state, self.core.step

    def prefill(self, sample: Tensor, action: Tensor, first: Tensor) -> tuple[Tensor, Any]:
        """Do as WindowMemory."""
        features, state = self.core(sample, action, first)
        return features.h[:, -1], state


Memory = WindowMemory | CarriedMemory


def make_memory(model: WorldModel, kind: MemoryKind, length: int) -> Memory:
    """Make a memory of that kind; `length` is the window's K."""
    return WindowMemory(model, length) if kind == "window" else CarriedMemory(model)


def _appended(old: Tensor, new: Tensor) -> Tensor:
    """Drop the oldest of (B, K, ...) and append (B, ...)."""
    return torch.cat((old[:, 1:], new.unsqueeze(1)), 1)
