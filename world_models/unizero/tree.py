"""Search trees of B roots as flat tensors, and the steps of a simulation as tensor operations.

Shapes are static and nothing is copied to the host, so that a whole search fits into one CUDA graph. No loop runs
over depth: all nodes are scored at once, and paths are followed by pointer doubling, in log2(nodes) steps.
`compiled_tree` does the same with scalar loops, which is faster on a CPU.

All statistics are float64, whatever the network computes in: then decisions within a tree depend on rounding in the
network only, and the 1e-6 of the tie rule lies far above that of the sums.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from world_models.unizero.config import TreeConfig
from world_models.unizero.dynamics import Window

TIE = 1e-6  # scores this close to the best are tied
SMALLEST_RANGE = 0.01  # the normalisation divides by no less


class Tree(NamedTuple):
    """B trees of up to M = simulations + 1 nodes. Node 0 is the root, node s + 1 was made by simulation s."""

    parent: Tensor  # (B, M) int64; the root's is itself
    action: Tensor  # (B, M) int64: the action that leads here
    depth: Tensor  # (B, M) int64
    path: Tensor  # (B, M, M) int64: the nodes from the root to here, in order of depth; 0 after them
    child: Tensor  # (B, M, A) int64; 0 = not expanded, as the root is nobody's child
    prior: Tensor  # (B, M, A) float64
    reward: Tensor  # (B, M) float64: of the action that leads here; 0 for the root
    visits: Tensor  # (B, M) int64; the root starts with 1
    total: Tensor  # (B, M) float64: sum of the returns backed up; the root starts with 0
    low: Tensor  # (B,) float64: smallest reward + discount * value on any path so far; inf before the first
    high: Tensor  # (B,) float64
    margin: Tensor  # (B,) float64: smallest positive gap between a best score and another one, over all decisions
    history: Tensor  # (B, M, W) int64: indices of the latents before it in a row of W + M, left-aligned
    taken: Tensor  # (B, M, W) int64: the actions that followed them
    remembered: Tensor  # (B, M) int64: how many of the W are real

    @property
    def value(self) -> Tensor:
        """Mean return of each node, (B, M); 0 where it does not exist yet."""
        return self.total / self.visits.clamp(min=1)


def init_tree(prior: Tensor, simulations: int, taken: Tensor, remembered: Tensor) -> Tree:
    """Make trees of a root only: prior (B, A); actions `taken` (B, W) and their number `remembered` (B,) before it."""
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
    """Scale values (B, ...) to 0 .. 1 by the range of their tree, low and high (B,); a range of 0 leaves them."""
    shape = [-1] + [1] * (value.dim() - 1)
    low, extent = low.reshape(shape), (high - low).reshape(shape)
    scaled = torch.where(extent > 0, (value - low) / extent.clamp(min=SMALLEST_RANGE), value)
    return scaled.clamp(0.0, 1.0)


def mean_q(tree: Tree, child_q: Tensor, known: Tensor) -> Tensor:
    """Estimate q of unvisited children, (B, n): the mean of the visited ones, below the root with the parent's mean q.

    Each mean is a linear function of its parent's, a + b x; composing them with those of nodes twice as far up, again
    and again, reaches the root, whose b is 0.
    """
    total, count = torch.where(known, child_q, 0.0).sum(-1), known.sum(-1)
    nodes = count.shape[1]
    is_root = torch.arange(nodes, device=count.device) == 0
    share = torch.where(is_root, count.clamp(min=1), count + 1).double()  # else 1 / share would be float32
    a, b = total / share, torch.where(is_root, 0.0, 1.0 / share)
    up = tree.parent[:, :nodes]
    for _ in range((nodes - 1).bit_length()):
        a, b, up = a + b * a.gather(1, up), b * b.gather(1, up), up.gather(1, up)
    return a


def scores(tree: Tree, nodes: int, config: TreeConfig) -> Tensor:
    """Compute the pUCT score of every action of the first `nodes` nodes, (B, nodes, A)."""
    child = tree.child[:, :nodes]
    flat, known = child.flatten(1), child > 0
    q = tree.reward + config.discount * tree.value  # (B, M)
    child_q = q.gather(1, flat).view_as(child)
    child_visits = torch.where(known, tree.visits.gather(1, flat).view_as(child), 0)
    value = torch.where(known, child_q, mean_q(tree, child_q, known).unsqueeze(-1))
    count = (tree.visits[:, :nodes] - 1).unsqueeze(-1).double()  # of a node's children
    root = count.clamp(min=1.0 if config.first_visit == "prior" else 0.0).sqrt()
    weight = (torch.log((count + config.c2 + 1.0) / config.c2) + config.c1) * root
    return tree.prior[:, :nodes] * (weight / (child_visits + 1.0)) + normalise(value, tree.low, tree.high)


def choose(score: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Choose a best of (..., A) scores, ties broken by a uniform number (...); also give the smallest gap above 0."""
    gap = score.amax(-1, keepdim=True) - score
    tied = gap <= TIE
    rank = tied.cumsum(-1)
    wanted = (number * rank[..., -1]).long().clamp(max=rank[..., -1] - 1) + 1
    chosen = (tied & (rank == wanted.unsqueeze(-1))).long().argmax(-1)
    return chosen, torch.where(gap > 0, gap, torch.inf).amin(-1)


def select(tree: Tree, simulation: int, numbers: Tensor, forced: Tensor, config: TreeConfig) -> Tensor:
    """Descend from the root to an action not tried yet; returns an order (B, 2 W + 3), see `read_order`.

    `numbers` (B, simulations) holds a uniform number for the decision at each depth; `forced` (B,) is the action
    taken at the root, or -1.
    """
    nodes = simulation + 1
    number = numbers.gather(1, tree.depth[:, :nodes])
    action, gap = choose(scores(tree, nodes, config), number)
    is_root = torch.arange(nodes, device=forced.device) == 0
    held = is_root & (forced >= 0).unsqueeze(1)  # (B, nodes)
    action = torch.where(held, forced.unsqueeze(1), action)
    following = tree.child[:, :nodes].gather(2, action.unsqueeze(2)).squeeze(2)
    following = torch.where(following > 0, following, torch.arange(nodes, device=forced.device))
    for _ in range((nodes - 1).bit_length()):
        following = following.gather(1, following)
    leaf = following[:, :1]
    path = tree.path[:, :nodes, :nodes].gather(1, _rows(leaf, nodes))[:, 0]
    visited = torch.zeros_like(held).scatter(1, path, True)
    tree.margin.copy_(tree.margin.minimum(torch.where(visited & ~held, gap, torch.inf).amin(1)))
    rows = _rows(leaf, tree.taken.shape[2])
    history, taken = tree.history.gather(1, rows).squeeze(1), tree.taken.gather(1, rows).squeeze(1)
    return torch.cat((history, taken, tree.remembered.gather(1, leaf), leaf, action.gather(1, leaf)), 1)


def expand(tree: Tree, simulation: int, order: Tensor, found: Tensor, config: TreeConfig) -> None:
    """Attach the new node of a simulation and back its value up to the root, in place.

    `found` (B, 2 + A) float64 holds its reward, value and policy.
    """
    node = simulation + 1
    _attach(tree, node, order, found)
    _back_up(tree, node, found[:, 1], config.discount)


def read_order(order: Tensor) -> tuple[Window, Tensor, Tensor]:
    """Unpack an order (B, 2 W + 3): the window before the node to expand, the node (B,) and the action (B,).

    The window holds indices (B, W, 1) into the row of latents where a model's window holds latents.
    """
    pairs = (order.shape[1] - 3) // 2
    window = Window(order[:, :pairs].unsqueeze(-1), order[:, pairs : 2 * pairs], order[:, -3])
    return window, order[:, -2], order[:, -1]


def _attach(tree: Tree, node: int, order: Tensor, found: Tensor) -> None:
    window, leaf, action = read_order(order)
    parent = leaf.unsqueeze(1)  # (B, 1)
    slot = parent * tree.child.shape[2] + action.unsqueeze(1)
    tree.child.flatten(1).scatter_(1, slot, node)
    depth = tree.depth.gather(1, parent) + 1
    tree.parent[:, node], tree.action[:, node], tree.depth[:, node] = leaf, action, depth.squeeze(1)
    path = tree.path.gather(1, _rows(parent, tree.path.shape[2])).squeeze(1)
    tree.path[:, node] = path.scatter(1, depth, node)
    tree.reward[:, node], tree.prior[:, node] = found[:, 0], found[:, 2:]
    pushed = window.push(parent + window.action.shape[1], action)  # the W of the history stand first
    tree.history[:, node], tree.taken[:, node] = pushed.latent.squeeze(-1), pushed.action
    tree.remembered[:, node] = pushed.count


def _back_up(tree: Tree, node: int, value: Tensor, discount: float) -> None:
    """Add to every node of the path its discounted return, G_y = sum of d^(z-y-1) r_z + d^(leaf-y) value."""
    path, depth = tree.path[:, node], tree.depth[:, node : node + 1]  # (B, M), (B, 1)
    index = torch.arange(path.shape[1], device=path.device)
    on = index <= depth
    ahead = index - index.unsqueeze(1)  # (y, z)
    weight = torch.where(ahead > 0, discount ** (ahead - 1).clamp(min=0).double(), 0.0)
    reward = torch.where(on, tree.reward.gather(1, path), 0.0)
    bootstrap = discount ** (depth - index).clamp(min=0).double() * value.unsqueeze(1)
    returns = torch.where(on, (reward.unsqueeze(1) * weight).sum(2) + bootstrap, 0.0)
    tree.total.scatter_add_(1, path, returns)  # after the path: zeros, for the root
    tree.visits.scatter_add_(1, path, on.long())
    q = (tree.reward + discount * tree.value).gather(1, path)
    tree.low.copy_(tree.low.minimum(torch.where(on, q, torch.inf).amin(1)))
    tree.high.copy_(tree.high.maximum(torch.where(on, q, -torch.inf).amax(1)))


def root_children(tree: Tree, discount: float) -> tuple[Tensor, Tensor]:
    """Give visits (B, A) int64 and q = reward + discount * value (B, A) of the root's actions; 0 where untried."""
    child = tree.child[:, 0]
    q = (tree.reward + discount * tree.value).gather(1, child)
    return torch.where(child > 0, tree.visits.gather(1, child), 0), torch.where(child > 0, q, 0.0)


def _rows(node: Tensor, width: int) -> Tensor:
    """Make an index (B, 1, width) that gathers whole rows of (B, M, width)."""
    return node.unsqueeze(-1).expand(-1, -1, width)
