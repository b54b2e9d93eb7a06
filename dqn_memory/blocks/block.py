"""The contract of every sequence block, and the one way to look a name up in a registry."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
Device = torch.device | str | None
Entry = TypeVar("Entry")


class Block(nn.Module, ABC):
    """Maps a batch of sequences to sequences of the same shape.

    `forward(x[B, T, D], lengths[B] | None) -> y[B, T, D]`. Sequences are left-aligned: positions at or after
    `lengths` are padding and never change an output before it; `lengths=None` means that all T are real.
    A block with `stateful = True` also runs one position at a time through `initial_state` and `step`, with
    the same result as the sequence form; any other block acts by encoding the window again.
    """

    stateful: bool = False
    # True: the output at t never depends on an input after t.
    causal: bool = True
    # True: the output at t depends on the input at t alone.
    pointwise: bool = False
    # True: its first values are part of what it is, and no network draws them anew.
    initialises_itself: bool = False

    @abstractmethod
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D) whose first `lengths` (B,) positions are real; returns (B, T, D)."""

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Compute the output at position `index` (B,) alone, (B, D): equal to `forward`, and cheaper in some blocks."""
        return select(self(x, lengths), index)

    @property
    def supports_prefixes(self) -> bool:
        """True when `at_every_prefix` can be computed."""
        return self.causal

    def at_every_prefix(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode every position as the last of the sequence that ends there: forward(x[:, : t + 1]) at t, (B, T, D)."""
        if not self.causal:
            raise TypeError(f"{type(self).__name__} reads ahead; encode each sequence by itself instead")
        return self(x, lengths)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make the state before the first position: a tuple of tensors, batch first."""
        raise TypeError(f"{type(self).__name__} keeps no state; encode the whole window with forward instead")

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        """Consume one position x (B, D); rows where `reset` (B,) is true start from the initial state."""
        raise TypeError(f"{type(self).__name__} keeps no state; encode the whole window with forward instead")

    def regularisation(self) -> Tensor:
        """Compute the scalar to be added to the loss: the sum over the parts that have one, else 0."""
        return penalty(self)

    @torch.no_grad()
    def project(self) -> None:
        """Bring constrained parameters back into their set, in place, after an optimiser step."""
        for part in constrained(self):
            part.project()


def constrained(module: nn.Module) -> Iterator[Any]:
    """Find the outermost blocks and priors inside a module, which say what is penalised or constrained in them."""
    for part in module.children():
        yield from [part] if hasattr(type(part), "regularisation") else constrained(part)


def penalty(module: nn.Module) -> Tensor:
    """Sum what the blocks and priors inside a module add to the loss, a scalar."""
    first = next(module.parameters(), None)
    zero = torch.zeros(()) if first is None else first.new_zeros(())
    return sum((part.regularisation() for part in constrained(module)), zero)


def select(x: Tensor, index: Tensor) -> Tensor:
    """Select one position a row: x (B, T, D), index (B,) -> (B, D)."""
    return x[torch.arange(x.shape[0], device=x.device), index]


def lookup(registry: Mapping[str, Entry], name: str, what: str) -> Entry:
    """Look up the entry called `name`; raise ValueError naming the nearest entries when there is none."""
    if name in registry:
        return registry[name]
    near = difflib.get_close_matches(name, registry, n=3) or sorted(registry)
    raise ValueError(f"unknown {what} {name!r}; did you mean {', '.join(near)}?")
