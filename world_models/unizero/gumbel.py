"""The root of Gumbel MuZero (Danihelka et al. 2022): actions without replacement, then sequential halving.

Below the root the tree is searched by pUCT, as in the paper's Gumbel MuZero (its "full" variant is not built).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from world_models.unizero.config import GumbelConfig, TreeConfig
from world_models.unizero.tree import Tree, normalise, root_children


@dataclass(frozen=True)
class RootStep:
    """What one simulation does at the root."""

    rank: int  # which of the actions still considered it tries, best first
    keep: int  # how many are considered from here on; 0 = as before


def schedule(considered: int, simulations: int) -> list[RootStep]:
    """Plan sequential halving of m actions by n simulations: each phase tries each action n / (log2 m * m_i) times.

    The number of actions halves from phase to phase, down to two, which share what is left.
    """
    phases = max((considered - 1).bit_length(), 1)
    turns: list[RootStep] = []
    kept = considered
    while len(turns) < simulations:
        rounds = max(simulations // (phases * kept), 1)
        turns += [RootStep(rank, 0 if r or rank else kept) for r in range(rounds) for rank in range(kept)]
        kept = max(kept // 2, min(considered, 2))
    return turns[:simulations]


class Halving:
    """Sequential halving at B roots in one search.

    Args:
        logits: (B, A).
        noise: (B, A) Gumbel numbers g, or None for a search without noise.
        simulations: of the search.
        config: its constants.
    """

    def __init__(self, logits: Tensor, noise: Tensor | None, simulations: int, config: GumbelConfig) -> None:
        self.logits = logits.double()
        self.start = self.logits if noise is None else self.logits + noise.double()  # g + logits, (B, A)
        self.config = config
        self.turns = schedule(min(config.max_considered_actions, logits.shape[1]), simulations)
        self.standing = torch.arange(logits.shape[1], device=logits.device).expand_as(self.start)  # (B, m_i)

    def phase(self, simulation: int, tree: Tree, config: TreeConfig) -> Tensor:
        """Give the root's actions (B, n) of this simulation and the next ones, up to the next halving.

        Call it for 0, then for the first simulation that has no action yet, and so on.
        """
        keep = self.turns[simulation].keep
        score = self.start if simulation == 0 else self._score(tree, config)
        order = score.gather(1, self.standing).argsort(dim=1, descending=True, stable=True)[:, :keep]
        self.standing = self.standing.gather(1, order)
        turns = takewhile(lambda turn: not turn.keep, self.turns[simulation + 1 :])
        return self.standing[:, [self.turns[simulation].rank, *(turn.rank for turn in turns)]]

    def best(self, tree: Tree, config: TreeConfig) -> Tensor:
        """Choose the action to play, (B,): of the most visited ones the best by g + logits + sigma(q)."""
        visits, _ = root_children(tree, config.discount)
        most = visits == visits.amax(1, keepdim=True)
        return torch.where(most, self._score(tree, config), -torch.inf).argmax(1)

    def improved(self, tree: Tree, predicted: Tensor, config: TreeConfig) -> Tensor:
        """Compute the policy target (B, A), softmax(logits + sigma(q)), where untried actions count as v_mix.

        v_mix (the paper's equation 33) mixes the network's value with the q of the tried actions under its policy.
        """
        visits, q = root_children(tree, config.discount)
        tried, count = visits > 0, visits.sum(1)
        prior = torch.where(tried, self.logits.softmax(1), 0.0)
        mean = (prior * q).sum(1) / prior.sum(1).clamp(min=torch.finfo(prior.dtype).tiny)
        mixed = (predicted + count * mean) / (1.0 + count)
        completed = torch.where(tried, q, mixed.unsqueeze(1))
        return (self.logits + self._sigma(completed, visits, tree)).softmax(1)

    def _score(self, tree: Tree, config: TreeConfig) -> Tensor:
        visits, q = root_children(tree, config.discount)
        return self.start + self._sigma(q, visits, tree)

    def _sigma(self, q: Tensor, visits: Tensor, tree: Tree) -> Tensor:
        most = visits.amax(1, keepdim=True)
        return (self.config.visit_offset + most) * self.config.value_scale * normalise(q, tree.low, tree.high)
