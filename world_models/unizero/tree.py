"""Search trees of B roots as flat tensors, which `compiled_tree` grows.

All statistics are float64, whatever the network's precision. Decisions in a tree then depend on the network's rounding
alone: the rounding of the sums lies far below the 1e-6 of the tie rule.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from world_models.unizero.dynamics import History

# pUCT's weight of the prior, and the number of visits from which it grows (Schrittwieser et al. 2020, appendix B)
C1, C2 = 1.25, 19652.0
TIE = 1e-6  # scores this close to the best are tied
SMALLEST_RANGE = 0.01  # minimum range that the normalisation divides by


class Tree(NamedTuple):
    """B trees of at most M = simulations + 1 nodes. Node 0 is the root; simulation s adds node s + 1."""

    parent: Tensor  # (B, M) int64; the root is its own parent
    action: Tensor  # (B, M) int64: the action that leads to the node
    depth: Tensor  # (B, M) int64
    path: Tensor  # (B, M, M) int64: the nodes from the root to this one, by depth; 0 after them
    child: Tensor  # (B, M, A) int64; 0: not expanded
    prior: Tensor  # (B, M, A) float64
    reward: Tensor  # (B, M) float64: of the action that leads to the node; 0 for the root
    visits: Tensor  # (B, M) int64; the root starts with 1
    total: Tensor  # (B, M) float64: sum of the returns backed up; the root starts with 0
    low: Tensor  # (B,) float64: minimum of reward + discount * value over all backed-up nodes; inf before the first
    high: Tensor  # (B,) float64: maximum of the same; -inf before the first
    margin: Tensor  # (B,) float64: minimum positive gap between a best score and another one, over all decisions
    history: Tensor  # (B, M, W) int64: indices of the latents before the node in a row of W + M, left-aligned
    taken: Tensor  # (B, M, W) int64: the actions after these latents
    remembered: Tensor  # (B, M) int64: number of the W entries that are no padding

    @property
    def value(self) -> Tensor:
        """Mean return of each node, (B, M); 0 if it does not exist yet."""
        return self.total / self.visits.clamp(min=1)


def init_tree(prior: Tensor, simulations: int, taken: Tensor, remembered: Tensor) -> Tree:
    """Make trees with only a root: its prior (B, A), the actions `taken` (B, W) before it, their number (B,)."""
    (batch, actions), pairs = prior.shape, taken.shape[1]
    nodes, device = simulations + 1, prior.device

    def whole(*shape: int) -> Tensor:
        return torch.zeros(batch, *shape, dtype=torch.int64, device=device)

    def real(*shape: int, value: float = 0.0) -> Tensor:
        return torch.full((batch, *shape), value, dtype=torch.float64, device=device)

    tree = Tree(
        parent=whole(nodes), action=whole(nodes), depth=whole(nodes), path=whole(nodes, nodes),
        child=whole(nodes, actions), prior=real(nodes, actions), reward=real(nodes), visits=whole(nodes),
        total=real(nodes), low=real(value=torch.inf), high=real(value=-torch.inf), margin=real(value=torch.inf),
        history=whole(nodes, pairs), taken=whole(nodes, pairs), remembered=whole(nodes),
    )  # fmt: skip
    tree.prior[:, 0] = prior
    tree.visits[:, 0] = 1
    tree.history[:, 0] = torch.arange(pairs, device=device)
    tree.taken[:, 0] = taken
    tree.remembered[:, 0] = remembered
    return tree


def normalise(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Scale values (B, ...) to 0 .. 1 by the range of their tree, low and high (B,); a range of 0 only clamps."""
    shape = [-1] + [1] * (value.dim() - 1)
    low, extent = low.reshape(shape), (high - low).reshape(shape)
    scaled = torch.where(extent > 0, (value - low) / extent.clamp(min=SMALLEST_RANGE), value)
    return scaled.clamp(0.0, 1.0)


def read_order(order: Tensor) -> tuple[History, Tensor, Tensor]:
    """Unpack an order (B, 2 W + 3): the history before the node to expand, the node (B,) and the action (B,).

    The history has indices (B, W, 1) into a row of latents in place of latents.
    """
    pairs = (order.shape[1] - 3) // 2
    history = History(order[:, :pairs].unsqueeze(-1), order[:, pairs : 2 * pairs], order[:, -3])
    return history, order[:, -2], order[:, -1]


def root_children(tree: Tree, discount: float) -> tuple[Tensor, Tensor]:
    """Return visits (B, A) int64 and q = reward + discount * value (B, A) of the root's actions; 0 if untried."""
    child = tree.child[:, 0]
    q = (tree.reward + discount * tree.value).gather(1, child)
    return torch.where(child > 0, tree.visits.gather(1, child), 0), torch.where(child > 0, q, 0.0)
