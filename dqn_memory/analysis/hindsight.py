"""Compare Q inside a whole window with Q of the prefix that acting sees.

A bidirectional block that is trained on whole windows reads the future in them. An acting agent has no future to read,
so its Q-values differ from those that were trained. If training sees prefixes only (`--loss-positions prefixes` or
`ends:M`), the difference is the leak that whole windows would have had. For a causal network both are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dqn_memory.analysis.episodes import q_values, windows
from dqn_memory.network import QNetwork
from envs.spaces import Array


@dataclass(frozen=True)
class Discrepancy:
    """Q-values at each step of an episode, cut into windows of K steps: of the whole window, and of its prefix."""

    inside: Array  # (T, A) of the whole window
    alone: Array  # (T, A) of the prefix that ends at the step
    future: Array  # (T,) number of later steps in the window; both Q-values are equal if it is 0

    @property
    def gap(self) -> Array:
        """Mean |difference| over the actions, (T,)."""
        legal = np.isfinite(self.alone)  # illegal actions have -inf in both
        return np.abs(np.subtract(self.inside, self.alone, where=legal, out=np.zeros_like(self.alone))).mean(
            1, where=legal
        )

    @property
    def flips(self) -> Array:
        """Steps (T,) at which the greedy action differs."""
        return np.asarray(self.inside.argmax(1) != self.alone.argmax(1))


@dataclass(frozen=True)
class Hindsight:
    """Difference between Q inside a window and Q of the prefix that acting would see there, in units of Q.

    The last position of a window has no future and is not counted. A causal network has gap, largest and flips of 0.
    """

    positions: int  # those that have a future inside their window
    gap: float  # mean |Q_j(window) - Q_j(prefix)| over positions and actions
    largest: float
    flips: float  # share of positions whose greedy action differs
    spread: float  # standard deviation of the prefix Q-values, for scale

    @classmethod
    def of(cls, found: Sequence[Discrepancy]) -> Self:
        """Summarise some episodes."""
        counted = np.concatenate([each.future for each in found]) > 0
        if not counted.any():
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        inside = np.concatenate([each.inside for each in found])[counted]
        alone = np.concatenate([each.alone for each in found])[counted]
        legal = np.isfinite(alone)  # illegal actions have -inf in both
        difference = np.abs(inside[legal] - alone[legal])
        return cls(
            positions=int(counted.sum()),
            gap=float(difference.mean()),
            largest=float(difference.max()),
            flips=float((inside.argmax(1) != alone.argmax(1)).mean()),
            spread=float(alone[legal].std()),
        )

    def words(self, causal: bool, whole: bool, outputs: str = "Q") -> str:
        """Describe it in one sentence. `whole`: training uses whole windows; `outputs`: Q or logits."""
        kind = "causal" if causal else "not causal" if whole else "not causal, but trained on prefixes alone"
        if not self.positions:
            return f"hindsight ({kind}): every window holds one step, which has no future to leak"
        return (
            f"hindsight ({kind}): mean |{outputs}(window) - {outputs}(prefix)| {self.gap:.3g}, "
            f"largest {self.largest:.3g} (spread of {outputs}: {self.spread:.3g}); "
            f"greedy action flips at {self.flips:.1%} of {self.positions} positions"
        )


@torch.no_grad()
def discrepancy(network: QNetwork, observation: Tensor, previous_action: Tensor) -> Discrepancy:
    """Compare Q of window and prefix at each step of one episode (T, ...), (T,).

    Both go through the network in tensors of the same shape, so that rounding is the same. A difference that is not
    exactly 0 then comes from the future.
    """
    size = min(network.config.context, len(observation))
    found = []
    for seen, previous in zip(observation.split(size), previous_action.split(size), strict=True):
        ends = torch.arange(len(seen), device=seen.device)
        prefixes = windows(network, seen, previous, ends, size)
        whole = windows(network, seen, previous, ends[-1].expand_as(ends), size)  # T times the same
        pair = (q_values(network, replace(whole, position=ends)), q_values(network, prefixes))
        found.append((pair[0].double(), pair[1].double(), ends.flip(0)))
    return Discrepancy(*(torch.cat(each).cpu().numpy() for each in zip(*found, strict=True)))
