"""The root of Gumbel MuZero (Danihelka et al. 2022): actions without replacement, then sequential halving.

Below the root the tree is searched by pUCT, as in the paper's Gumbel MuZero (its "full" variant is not built).
"""

import torch
from torch import Tensor

from world_models.unizero.config import SearchConfig
from world_models.unizero.tree import Tree, normalise, root_children

# The constants of Danihelka et al., section 3.4: actions m that the root tries at most, and c_visit of
# sigma(q) = (c_visit + largest number of visits) q, with q normalised to 0 .. 1 by the range of the tree.
MAX_CONSIDERED_ACTIONS = 16
VISIT_OFFSET = 50.0


def schedule(considered: int, simulations: int) -> list[list[int]]:
    """Plan sequential halving of m actions by n simulations: each phase tries each action n / (log2 m * m_i) times.

    The number of actions halves from phase to phase, down to two, which share what is left. A phase is the list of the
    ranks, best first, of the actions that its simulations try, of the m_i still considered.
    """
    halvings = max((considered - 1).bit_length(), 1)
    phases: list[list[int]] = []
    kept, left = considered, simulations
    while left > 0:
        rounds = max(simulations // (halvings * kept), 1)
        phases.append((list(range(kept)) * rounds)[:left])
        left -= len(phases[-1])
        kept = max(kept // 2, min(considered, 2))
    return phases


class Halving:
    """Sequential halving at B roots of a search: logits (B, A), and Gumbel numbers g (B, A) unless it has no noise."""

    def __init__(self, tree: Tree, logits: Tensor, noise: Tensor | None, config: SearchConfig) -> None:
        self.tree, self.discount = tree, config.tree.discount
        self.logits = logits.double()
        self.start = self.logits if noise is None else self.logits + noise.double()  # g + logits, (B, A)
        considered = min(MAX_CONSIDERED_ACTIONS, logits.shape[1])
        self.phases = iter(schedule(considered, config.simulations))
        self.standing = torch.arange(logits.shape[1], device=logits.device).expand_as(self.start)  # (B, m_i)

    def phase(self, simulation: int) -> Tensor:
        """Give the root's actions (B, n) of this simulation and the next ones, up to the next halving.

        Call it for 0, then for the first simulation that has no action yet, and so on.
        """
        ranks = next(self.phases)
        score = self.start if simulation == 0 else self._score()
        order = score.gather(1, self.standing).argsort(dim=1, descending=True, stable=True)
        self.standing = self.standing.gather(1, order[:, : max(ranks) + 1])
        return self.standing[:, ranks]

    def best(self) -> Tensor:
        """Choose the action to play, (B,): of the most visited ones the best by g + logits + sigma(q)."""
        visits, _ = root_children(self.tree, self.discount)
        most = visits == visits.amax(1, keepdim=True)
        return torch.where(most, self._score(), -torch.inf).argmax(1)

    def improved(self, predicted: Tensor) -> Tensor:
        """Compute the policy target (B, A), softmax(logits + sigma(q)), where untried actions count as v_mix.

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
