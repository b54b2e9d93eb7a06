"""The root of Gumbel MuZero (Danihelka et al. 2022): actions without replacement, then sequential halving.

Below the root the search uses pUCT, as in the paper's Gumbel MuZero. The paper's "full" variant is not implemented.
"""

import torch
from torch import Tensor

from world_models.unizero.tree import Tree, normalise, root_children

# Constants of Danihelka et al., section 3.4: the maximum number m of actions that the root tries, and c_visit of
# sigma(q) = (c_visit + max number of visits) q, with q normalised to 0 .. 1 by the range of the tree.
MAX_CONSIDERED_ACTIONS = 16
VISIT_OFFSET = 50.0


def schedule(considered: int, simulations: int) -> list[list[int]]:
    """Plan sequential halving of m actions by n simulations: phase i tries m_i actions n / (log2 m * m_i) times.

    The number of actions halves from phase to phase, down to two, which share the remaining simulations. A phase is a
    list with one rank for each simulation: the rank, best first, of its action among the m_i actions.
    """
    halvings = max((considered - 1).bit_length(), 1)
    phases: list[list[int]] = []
    actions, left = considered, simulations
    while left > 0:
        rounds = max(simulations // (halvings * actions), 1)
        phases.append((list(range(actions)) * rounds)[:left])
        left -= len(phases[-1])
        actions = max(actions // 2, min(considered, 2))
    return phases


class Halving:
    """Sequential halving at B roots of a search, from logits (B, A) and Gumbel noise g (B, A) (None: no noise)."""

    def __init__(self, tree: Tree, logits: Tensor, noise: Tensor | None, discount: float) -> None:
        self.tree, self.discount = tree, discount
        self.logits = logits.double()
        self.start = self.logits if noise is None else self.logits + noise.double()  # g + logits, (B, A)
        considered = min(MAX_CONSIDERED_ACTIONS, logits.shape[1])
        self.phases = iter(schedule(considered, tree.parent.shape[1] - 1))
        self.standing = torch.arange(logits.shape[1], device=logits.device).expand_as(self.start)  # (B, m_i)

    def phase(self, simulation: int) -> Tensor:
        """Return the root's actions (B, n) of this simulation and the next ones, up to the next halving.

        Call it with 0, then each time with the first simulation that has no action yet.
        """
        ranks = next(self.phases)
        score = self.start if simulation == 0 else self._score()
        order = score.gather(1, self.standing).argsort(dim=1, descending=True, stable=True)
        self.standing = self.standing.gather(1, order[:, : max(ranks) + 1])
        return self.standing[:, ranks]

    def best(self) -> Tensor:
        """Choose the action to play (B,): of the most visited ones, the one with maximum g + logits + sigma(q)."""
        visits, _ = root_children(self.tree, self.discount)
        most_visited = visits == visits.amax(1, keepdim=True)
        return torch.where(most_visited, self._score(), -torch.inf).argmax(1)

    def improved(self, predicted: Tensor) -> Tensor:
        """Compute the policy target (B, A), softmax(logits + sigma(q)); untried actions have v_mix as their q.

        v_mix (the paper's equation 33) mixes the network's value (B,) with the q of the tried actions under its policy.
        """
        visits, q = root_children(self.tree, self.discount)
        tried, count = visits > 0, visits.sum(1)
        prior = torch.where(tried, self.logits.softmax(1), 0.0)
        mean = (prior * q).sum(1) / prior.sum(1).clamp(min=torch.finfo(prior.dtype).tiny)
        mixed = (predicted + count * mean) / (1.0 + count)
        completed = torch.where(tried, q, mixed.unsqueeze(1))
        return (self.logits + self._sigma(completed, visits)).softmax(1)

    def _score(self) -> Tensor:
        visits, q = root_children(self.tree, self.discount)
        return self.start + self._sigma(q, visits)

    def _sigma(self, q: Tensor, visits: Tensor) -> Tensor:
        most, tree = visits.amax(1, keepdim=True), self.tree
        return (VISIT_OFFSET + most) * normalise(q, tree.low, tree.high)
