"""The search's trees walked by tensor operations: the oracle of `world_models.unizero.compiled_tree`.

No loop runs over depth: all nodes are scored at once, and paths are followed by pointer doubling, in log2(nodes) steps.
"""

import torch

from world_models.unizero.mcts import allocate, forced_actions, make_trees, read_result
from world_models.unizero.tree import C1, C2, TIE, normalise, read_order


@torch.no_grad()
def tensor_search(functions, history, latent, numbers, config, discount):
    """`search.search` with these trees: one query of the model a simulation."""
    logits, predicted = functions.root(history, latent)
    tree, halving = make_trees(logits, history, numbers, config, discount)
    latents = allocate(history.latent, latent, config.simulations)
    first = latents.shape[1] - config.simulations  # index of the first node's latent
    for begin, forced in forced_actions(numbers.ties, halving):
        for simulation in range(begin, begin + forced.shape[1]):
            held, ties = forced[:, simulation - begin], numbers.ties[:, simulation]
            order = select(tree, simulation, ties, held, discount)
            found, latents[:, first + simulation] = functions.expand(latents, order, order[:, -1])
            expand(tree, simulation, order, found, discount)
    return read_result(tree, latents, predicted, halving, discount)


def mean_q(tree, child_q, known):
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


def scores(tree, nodes, discount):
    """Compute the pUCT score of every action of the first `nodes` nodes, (B, nodes, A)."""
    child = tree.child[:, :nodes]
    flat, known = child.flatten(1), child > 0
    q = tree.reward + discount * tree.value  # (B, M)
    child_q = q.gather(1, flat).view_as(child)
    child_visits = torch.where(known, tree.visits.gather(1, flat).view_as(child), 0)
    value = torch.where(known, child_q, mean_q(tree, child_q, known).unsqueeze(-1))
    count = (tree.visits[:, :nodes] - 1).unsqueeze(-1).double()  # of a node's children
    weight = (torch.log((count + C2 + 1.0) / C2) + C1) * count.sqrt()
    return tree.prior[:, :nodes] * (weight / (child_visits + 1.0)) + normalise(value, tree.low, tree.high)


def choose(score, number):
    """Choose a best of (..., A) scores, ties broken by a uniform number (...); also give the smallest gap above 0."""
    gap = score.amax(-1, keepdim=True) - score
    tied = gap <= TIE
    rank = tied.cumsum(-1)
    wanted = (number * rank[..., -1]).long().clamp(max=rank[..., -1] - 1) + 1
    chosen = (tied & (rank == wanted.unsqueeze(-1))).long().argmax(-1)
    return chosen, torch.where(gap > 0, gap, torch.inf).amin(-1)


def select(tree, simulation, numbers, forced, discount):
    """Descend from the root to an action not tried yet; returns an order (B, 2 W + 3), see `read_order`.

    `numbers` (B, simulations) holds a uniform number for the decision at each depth; `forced` (B,) is the action
    taken at the root, or -1.
    """
    nodes = simulation + 1
    number = numbers.gather(1, tree.depth[:, :nodes])
    action, gap = choose(scores(tree, nodes, discount), number)
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


def expand(tree, simulation, order, found, discount):
    """Attach the new node of a simulation and back its value up to the root, in place.

    `found` (B, 2 + A) float64 holds its reward, value and policy.
    """
    node = simulation + 1
    _attach(tree, node, order, found)
    _back_up(tree, node, found[:, 1], discount)


def _attach(tree, node, order, found):
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


def _back_up(tree, node, value, discount):
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


def _rows(node, width):
    """Make an index (B, 1, width) that gathers whole rows of (B, M, width)."""
    return node.unsqueeze(-1).expand(-1, -1, width)
