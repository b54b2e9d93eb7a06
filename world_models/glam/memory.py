"""What a world model remembers while it runs step by step: a window of the last K steps, or a carried state.

Both are pure functions of tensors over a state that the caller keeps, so that imagination and acting share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from world_models.glam.model import WorldModel

MemoryKind = Literal["window", "carried"]


class Memory(Protocol):
    """How a model goes on from what it has seen; `state` is a dataclass of tensors with leading axis B."""

    def start(self, rows: int) -> Any:
        """The state of B rows that have seen nothing."""
        ...

    def prefill(self, sample: Tensor, action: Tensor, first: Tensor) -> tuple[Tensor, Any]:
        """The memory h (B, D) of K steps, and the state behind them: (B, K, Z), (B, K), (B, K)."""
        ...

    def push(self, sample: Tensor, action: Tensor, opens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step more, (B, Z), (B,): the memory h (B, D) that has seen it, and the next state.

        `opens` (B,) bool says where all before it is to be forgotten; it must be so in the first step after `start`.
        """
        ...


@dataclass(frozen=True)
class Window:
    """The last K steps of B rows, oldest first."""

    sample: Tensor  # (B, K, Z)
    action: Tensor  # (B, K) int64
    first: Tensor  # (B, K) bool


class WindowMemory:
    """Sees exactly the last K steps and reads them anew each time, in the form the model was trained in.

    What lies before the window's first step is nothing, as at the start of a training window; steps before an
    episode's start, if some are still in the window, are cut off by its `first`. A row that opens is filled with its
    first step, as if nothing had ever moved: models that reset do not look there, and those that never do (the
    released form) find no difference there. Fewer than K steps are held in the same way.
    """

    def __init__(self, model: WorldModel, length: int) -> None:
        self.model, self.length = model, length

    def start(self, rows: int) -> Window:
        """A window of zeros."""
        like = next(self.model.parameters())
        flags = torch.zeros(rows, self.length, dtype=torch.bool, device=like.device)
        return Window(like.new_zeros(rows, self.length, self.model.config.latent), flags.long(), flags)

    def prefill(self, sample: Tensor, action: Tensor, first: Tensor) -> tuple[Tensor, Window]:
        """As `Memory`; of more than K steps the last K are kept, and before fewer than K there is nothing."""
        window = self._filled(*(each[:, -self.length :] for each in (sample, action, first)))
        return self._read(window), window

    def push(self, sample: Tensor, action: Tensor, opens: Tensor, state: Window) -> tuple[Tensor, Window]:
        """As `Memory`; the oldest step is forgotten."""
        one = opens.unsqueeze(1)  # (B, 1)
        window = Window(
            _behind(torch.where(one.unsqueeze(2), sample.unsqueeze(1), state.sample), sample),
            _behind(torch.where(one, action.unsqueeze(1), state.action), action),
            _behind(state.first, opens),
        )
        return self._read(window), window

    def _filled(self, sample: Tensor, action: Tensor, first: Tensor) -> Window:
        """K steps behind fewer: the oldest one opens what is known, and stands in all places before it."""
        missing = self.length - action.shape[1]
        if not missing:
            return Window(sample, action, first)
        opens = torch.cat((torch.ones_like(first[:, :1]), first[:, 1:]), 1)
        oldest = (each[:, :1].repeat_interleave(missing, 1) for each in (sample, action, torch.zeros_like(first)))
        return Window(*(torch.cat(pair, 1) for pair in zip(oldest, (sample, action, opens), strict=True)))

    def _read(self, window: Window) -> Tensor:
        return self.model.sequence(window.sample, window.action, window.first).h[:, -1]


class CarriedMemory:
    """Carries the recurrent state, and with it everything since the episode, or the context, began."""

    def __init__(self, model: WorldModel) -> None:
        self.model = model

    def start(self, rows: int) -> Any:
        """The model's initial state."""
        return self.model.initial_state(rows)

    def prefill(self, sample: Tensor, action: Tensor, first: Tensor) -> tuple[Tensor, Any]:
        """As `Memory`."""
        features, state = self.model.prefill(sample, action, first)
        return features.h[:, -1], state

    def push(self, sample: Tensor, action: Tensor, opens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """As `Memory`."""
        features, state = self.model.step(sample, action, opens, state)
        return features.h, state


def make_memory(model: WorldModel, kind: MemoryKind, length: int) -> Memory:
    """The memory of that kind; `length` is the window's K."""
    return WindowMemory(model, length) if kind == "window" else CarriedMemory(model)


def _behind(old: Tensor, new: Tensor) -> Tensor:
    """Drop the oldest of (B, K, ...) and append (B, ...)."""
    return torch.cat((old[:, 1:], new.unsqueeze(1)), 1)
