"""The steps of a simulation as scalar loops over the arrays of `tree.Tree`, compiled by numba.

A simulation walks down by the best score, attaches a node, and walks up to add returns. numba caches the machine code
beside this file, so only the first run on a machine waits for the compiler. The cache is renewed if this file changes,
but not if another does; therefore constants are arguments and `Arrays` is defined here.
"""

import math
from collections import namedtuple

import numba
import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels.custom_operator import environment_alone
from world_models.unizero.tree import C1, C2, SMALLEST_RANGE, TIE, Tree

environment_alone()
compiled = numba.njit(cache=True)  # to machine code, without reordering float arithmetic
Arrays = namedtuple(
    "Arrays", "parent action depth path child prior reward visits total low high margin history taken remembered"
)


class Runner:
    """Grow trees in place and independently; one query of the network covers K actions of a node.

    A tree waits if it tries an action whose outcome is not known yet. `advance` returns when every tree waits or is
    done. If K = A, the network is queried once for each node with children; if K = 1, once for each child. Both give
    the same trees. `found` (B, S, K, 2 + A) has the network's outputs of each round of queries.
    """

    def __init__(self, tree: Tree, discount: float, ties: Tensor, alternatives: int) -> None:
        batch, nodes, actions = tree.child.shape
        self.arrays = Arrays(**{name: value.numpy() for name, value in tree._asdict().items()})
        self.discount = discount
        self.rule = (C1, C2, SMALLEST_RANGE, TIE)
        self.ties, self.whole, self.rounds = ties.numpy(), alternatives == actions, 0
        self.made = np.zeros(batch, np.int64)  # simulations
        self.round = np.full((batch, nodes, actions), -1)  # round of the query of an action; -1: none yet
        # numbers of the nodes' latents: 0 for the root, then in the order of the queries
        self.number = torch.zeros(batch, nodes, dtype=torch.int64)
        self.found = np.empty((batch, nodes - 1, alternatives, 2 + actions))
        self.waiting = np.full(batch, -1)  # node at which the tree waits; -1: none
        self.forced = np.full((batch, nodes - 1), -1)
        self.order = torch.zeros(batch, 2 * tree.taken.shape[2] + 3, dtype=torch.int64)

    def advance(self, begin: int, forced: Tensor) -> Tensor | None:
        """Run the n simulations from `begin` on; `forced` (B, n) are the root's actions, -1: the tree chooses.

        Returns the order (B, 2 W + 3) of nodes and actions to query, or None if all n simulations are done. An order
        has the numbers of latents. Rows of trees that are done have no meaning.
        """
        until = begin + forced.shape[1]
        self.forced[:, begin:until] = forced.numpy()
        state = (self.made, self.round, self.number.numpy(), self.found, self.waiting)
        order = self.order.numpy()
        waits = _run(self.arrays, self.discount, self.rule, self.ties, self.forced, until, state, order)
        return self.order.clone() if waits else None

    def record(self, found: Tensor) -> None:
        """Store the network's outputs for an order: (B, K, 2 + A) float64, or (B, 2 + A) if K = 1."""
        self.found[:, self.rounds] = found.numpy().reshape(self.found[:, 0].shape)
        rows = np.flatnonzero(self.waiting >= 0)
        actions = slice(None) if self.whole else self.order.numpy()[rows, -1]
        self.round[rows, self.waiting[rows], actions] = self.rounds
        self.rounds += 1


@compiled
def _run(tree, discount, rule, ties, forced, until, state, order):  # type: ignore[no-untyped-def]
    made, queried, number, found, waiting = state
    alternatives, pairs, waits = found.shape[2], tree.taken.shape[2], 0
    for b in range(len(made)):
        while made[b] < until:
            s = made[b]
            if waiting[b] >= 0:
                parent, action = waiting[b], order[b, 2 * pairs + 2]
                waiting[b] = -1
            else:
                parent, action = _descend(tree, b, discount, rule, ties[b, s], forced[b, s])
            row = queried[b, parent, action]
            if row < 0:
                _write_order(tree, b, parent, action, number, order)
                waiting[b] = parent
                waits += 1
                break
            node, column = s + 1, action if alternatives > 1 else 0
            number[b, node] = 1 + row * alternatives + column
            _attach(tree, b, node, parent, action, found[b, row, column])
            _back_up(tree, b, node, found[b, row, column, 1], discount)
            made[b] = s + 1
    return waits


@compiled
def _descend(tree, b, discount, rule, numbers, forced):  # type: ignore[no-untyped-def]
    scores = np.empty(tree.prior.shape[2])
    node, mean, depth = 0, 0.0, 0
    while True:
        mean = _mean_q(tree, b, node, mean, discount)
        if depth == 0 and forced >= 0:
            chosen = forced
        else:
            _puct_scores(tree, b, node, mean, discount, rule, scores)
            chosen = _choose(tree, b, scores, rule[3], numbers[depth])
        child = tree.child[b, node, chosen]
        if child == 0:
            return node, chosen
        node, depth = child, depth + 1


@compiled
def _write_order(tree, b, node, action, number, order):  # type: ignore[no-untyped-def]
    pairs = tree.taken.shape[2]
    for w in range(pairs):
        index = tree.history[b, node, w]
        order[b, w] = index if index < pairs else pairs + number[b, index - pairs]  # the history's or a node's
        order[b, pairs + w] = tree.taken[b, node, w]
    order[b, 2 * pairs] = tree.remembered[b, node]
    order[b, 2 * pairs + 1], order[b, 2 * pairs + 2] = number[b, node], action


@compiled
def _q(tree, b, node, discount):  # type: ignore[no-untyped-def]
    return tree.reward[b, node] + discount * (tree.total[b, node] / tree.visits[b, node])


@compiled
def _mean_q(tree, b, node, parent, discount):  # type: ignore[no-untyped-def]
    total, count = 0.0, 0
    for child in tree.child[b, node]:
        if child > 0:
            total += _q(tree, b, child, discount)
            count += 1
    if node == 0:
        return total / max(count, 1)
    return (parent + total) / (count + 1)


@compiled
def _puct_scores(tree, b, node, mean, discount, rule, scores):  # type: ignore[no-untyped-def]
    c1, c2, smallest_range, _ = rule
    count = tree.visits[b, node] - 1
    weight = (math.log((count + c2 + 1.0) / c2) + c1) * math.sqrt(count)
    low, extent = tree.low[b], tree.high[b] - tree.low[b]
    for a in range(len(scores)):
        child = tree.child[b, node, a]
        value = _q(tree, b, child, discount) if child > 0 else mean
        visits = tree.visits[b, child] if child > 0 else 0
        if extent > 0:
            value = (value - low) / max(extent, smallest_range)
        scores[a] = tree.prior[b, node, a] * (weight / (visits + 1.0)) + min(max(value, 0.0), 1.0)


@compiled
def _choose(tree, b, scores, tie, number):  # type: ignore[no-untyped-def]
    best, tied = scores.max(), 0
    for score in scores:
        gap = best - score
        if gap <= tie:
            tied += 1
        if gap > 0:
            tree.margin[b] = min(tree.margin[b], gap)
    wanted = min(int(number * tied), tied - 1)
    for a in range(len(scores)):
        if best - scores[a] <= tie:
            if wanted == 0:
                return a
            wanted -= 1
    return 0  # never reached: the best score ties with itself


@compiled
def _attach(tree, b, node, parent, action, found):  # type: ignore[no-untyped-def]
    depth = tree.depth[b, parent] + 1
    tree.parent[b, node], tree.action[b, node], tree.depth[b, node] = parent, action, depth
    tree.path[b, node, :depth] = tree.path[b, parent, :depth]
    tree.path[b, node, depth] = node
    tree.child[b, parent, action] = node
    tree.reward[b, node] = found[0]
    tree.prior[b, node] = found[2:]
    pairs, count = tree.history.shape[2], tree.remembered[b, parent]
    full = 1 if count == pairs else 0  # 1: the oldest pair is dropped
    for w in range(count - full):
        tree.history[b, node, w] = tree.history[b, parent, w + full]
        tree.taken[b, node, w] = tree.taken[b, parent, w + full]
    tree.history[b, node, count - full] = parent + pairs
    tree.taken[b, node, count - full] = action
    tree.remembered[b, node] = count - full + 1


@compiled
def _back_up(tree, b, node, value, discount):  # type: ignore[no-untyped-def]
    while True:
        tree.total[b, node] += value
        tree.visits[b, node] += 1
        q = _q(tree, b, node, discount)
        tree.low[b], tree.high[b] = min(tree.low[b], q), max(tree.high[b], q)
        if node == 0:
            break
        value = tree.reward[b, node] + discount * value
        node = tree.parent[b, node]
