"""Training against acting: Q inside a whole window, and Q of the prefix that acting sees.

A bidirectional block that is trained on whole windows reads the future in them. An agent has no future to read, so what
it acts on differs from what was trained, by the two numbers compared here; where training itself sees prefixes alone
(`--loss-positions ends`), the difference is what it would have leaked. For a causal network both numbers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.acting import ActingMode
from dqn_memory.analysis.episodes import q_values, windows
from dqn_memory.network import QNetwork

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Discrepancy:
    """Both Q-values at every step of one episode, cut into windows of K steps one after the other."""

    inside: Array  # (T, A) of the whole window
    alone: Array  # (T, A) of the prefix that ends at the step
    future: Array  # (T,) steps of the window that lie ahead; where there are none, both are one

    @property
    def gap(self) -> Array:
        """Mean |difference| over the actions, (T,)."""
        gap: Array = np.abs(self.inside - self.alone).mean(1)
        return gap

    @property
    def flips(self) -> Array:
        """Steps (T,) at which the greedy action differs."""
        flips: Array = self.inside.argmax(1) != self.alone.argmax(1)
        return flips


@dataclass(frozen=True)
class Hindsight:
    """How much Q inside a window differs from Q of the prefix that acting would see there (dimension of Q).

    The last position of a window has no future and is not counted; gap, largest and flips are 0 for a causal network.
    """

    positions: int  # those that have a future inside their window
    gap: float  # mean |Q_j(window) - Q_j(prefix)| over positions and actions
    largest: float
    flips: float  # share of positions whose greedy action differs
    spread: float  # standard deviation of the prefix Q-values, for scale

    @classmethod
    def of(cls, found: Sequence[Discrepancy]) -> Hindsight:
        """Summarise some episodes."""
        counted = [each.future > 0 for each in found]
        positions = int(sum(each.sum() for each in counted))
        if positions == 0:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        inside = np.concatenate([each.inside[kept] for each, kept in zip(found, counted, strict=True)])
        alone = np.concatenate([each.alone[kept] for each, kept in zip(found, counted, strict=True)])
        difference = np.abs(inside - alone)  # (P, A)
        return cls(
            positions=positions,
            gap=float(difference.mean()),
            largest=float(difference.max()),
            flips=float((inside.argmax(1) != alone.argmax(1)).mean()),
            spread=float(alone.std()),
        )

    def words(self, causal: bool, whole: bool) -> str:
        """One sentence; `whole` says that training learns on whole windows."""
        kind = "causal" if causal else "not causal" if whole else "not causal, but trained on prefixes alone"
        if not self.positions:
            return f"hindsight ({kind}): every window holds one step, which has no future to leak"
        return (
            f"hindsight ({kind}): mean |Q(window) - Q(prefix)| {self.gap:.3g}, largest {self.largest:.3g} "
            f"(Q itself spreads by {self.spread:.3g}); greedy action flips at {self.flips:.1%} "
            f"of {self.positions} positions"
        )


@torch.no_grad()
def discrepancy(
    network: QNetwork, observation: Tensor, previous_action: Tensor, acting: ActingMode = "prefix"
) -> Discrepancy:
    """Compare Q of window and prefix at each step of one episode (T, ...), (T,).

    Both go through the network in tensors of the same shape, so that rounding makes no difference: what is not
    exactly 0 comes from the future.
    """
    size = min(network.config.context, len(observation))
    parts = zip(observation.split(size), previous_action.split(size), strict=True)
    pairs = [_window(network, seen, previous, size, acting) for seen, previous in parts]
    inside, alone = (torch.cat(each).double().cpu().numpy() for each in zip(*pairs, strict=True))
    counts = [len(each) for each, _ in pairs]
    future = np.concatenate([np.arange(count - 1, -1, -1) for count in counts])
    return Discrepancy(inside, alone, future)


def _window(
    network: QNetwork, observation: Tensor, previous_action: Tensor, size: int, acting: ActingMode
) -> tuple[Tensor, Tensor]:
    """Q of the whole window (T, ...) and of its prefixes, both (T, A)."""
    ends = torch.arange(len(observation), device=observation.device)
    prefixes = windows(network, observation, previous_action, ends, size, acting)
    last = windows(network, observation, previous_action, ends[-1].expand_as(ends), size, acting)  # T times the same
    return q_values(network, replace(last, position=ends), acting), q_values(network, prefixes, acting)
