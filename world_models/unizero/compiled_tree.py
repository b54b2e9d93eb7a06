"""`tree.Walker` as scalar loops over the same arrays, compiled by numba, for trees on a CPU.

They follow the rules of the search step by step: walk down by the best score, attach a node, walk up adding returns.
numba caches the machine code beside this file, so only the first run on a machine waits for the compiler. The cache is
renewed when this file changes but not when another does, so constants come as arguments and `Arrays` is defined here.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numba
import numpy as np
import torch
from torch import Tensor

from world_models.unizero.config import TreeConfig
from world_models.unizero.tree import SMALLEST_RANGE, TIE, Tree

compiled = numba.njit(cache=True)  # to machine code, without reordering float arithmetic
Arrays = namedtuple(
    "Arrays",
    "parent action depth path child prior reward visits total low high margin history taken remembered",
)


class Walker:
    """As `tree.Walker`, on the CPU; it shares the tree's memory."""

    def __init__(self, tree: Tree, config: TreeConfig) -> None:
        self.arrays = Arrays(**{name: value.numpy() for name, value in tree._asdict().items()})
        self.discount = config.discount
        self.rule = (config.c1, config.c2, config.first_visit == "prior", SMALLEST_RANGE, TIE)

    def select(self, simulation: int, numbers: Tensor, forced: Tensor) -> Tensor:
        """As `tree.Walker.select`."""
        order = torch.empty(len(forced), 2 * self.arrays.taken.shape[2] + 3, dtype=torch.int64)
        _select(self.arrays, self.discount, self.rule, numbers.numpy(), forced.numpy(), order.numpy())
        return order

    def expand(self, simulation: int, order: Tensor, found: Tensor) -> None:
        """As `tree.Walker.expand`."""
        _expand(self.arrays, simulation + 1, order.numpy(), found.numpy(), self.discount)


class NodeRunner(Walker):
    """Trees that advance on their own, where one query of the network covers all actions of a node.

    A tree waits when it tries an action of a node that was not queried yet; `advance` returns when every tree waits or
    is done. So the network is queried once for each node that has children, not once for each child. The trees equal
    those of `Walker`. `found` (B, S, A, 2 + A) and the numbers of latents have an entry for each round of queries.
    """

    def __init__(self, tree: Tree, config: TreeConfig, ties: Tensor) -> None:
        batch, nodes, actions = tree.child.shape
        super().__init__(tree, config)
        self.ties, self.rounds = ties.numpy(), 0
        self.made = np.zeros(batch, np.int64)  # simulations
        self.round = np.full((batch, nodes), -1)  # in which a node was queried
        # of a node's latent: 0 = the root's, then as queried
        self.number = torch.zeros(batch, nodes, dtype=torch.int64)
        self.found = np.empty((batch, nodes - 1, actions, 2 + actions))
        self.waiting = np.zeros(batch, np.int64)  # at which node, or -1
        self.forced = np.full((batch, nodes - 1), -1)
        self.order = torch.zeros(batch, 2 * tree.taken.shape[2] + 3, dtype=torch.int64)

    def advance(self, begin: int, forced: Tensor) -> Tensor | None:
        """Run the simulations from `begin` on for which `forced` (B, n) is the root's action, or -1.

        Returns:
            The order (B, 2 W + 3) of the nodes to query, whose last column means nothing, or None when all of these
            simulations are done. Its latents are given by their numbers; rows of trees that are done mean nothing.
        """
        until = begin + forced.shape[1]
        self.forced[:, begin:until] = forced.numpy()
        state = (self.made, self.round, self.number.numpy(), self.found, self.waiting)
        order = self.order.numpy()
        waits = _run(self.arrays, self.discount, self.rule, self.ties, self.forced, until, state, order)
        return self.order if waits else None

    def record(self, found: Tensor) -> None:
        """Store the network's answer for all actions of the ordered nodes, (B, A, 2 + A) float64."""
        self.found[:, self.rounds] = found.numpy()
        rows = np.flatnonzero(self.waiting >= 0)
        self.round[rows, self.waiting[rows]] = self.rounds
        self.rounds += 1


@compiled
def _run(tree, discount, rule, ties, forced, until, state, order):  # type: ignore[no-untyped-def]
    made, queried, number, found, waiting = state
    actions, pairs, waits = found.shape[2], tree.taken.shape[2], 0
    for b in range(len(made)):
        waiting[b] = -1
        while made[b] < until:
            s = made[b]
            parent, action = _descend(tree, b, discount, rule, ties[b, s], forced[b, s])
            if queried[b, parent] < 0:
                _write_order(tree, b, parent, action, order)
                for w in range(pairs):
                    if order[b, w] >= pairs:  # a node's, not one of the history before the root
                        order[b, w] = pairs + number[b, order[b, w] - pairs]
                order[b, 2 * pairs + 1] = number[b, parent]
                waiting[b] = parent
                waits += 1
                break
            node, row = s + 1, queried[b, parent]
            number[b, node] = 1 + row * actions + action
            _attach(tree, b, node, parent, action, found[b, row, action])
            _back_up(tree, b, node, found[b, row, action, 1], discount)
            made[b] = s + 1
    return waits


@compiled
def _select(tree, discount, rule, numbers, forced, order):  # type: ignore[no-untyped-def]
    for b in range(len(forced)):
        node, action = _descend(tree, b, discount, rule, numbers[b], forced[b])
        _write_order(tree, b, node, action, order)


@compiled
def _descend(tree, b, discount, rule, numbers, forced):  # type: ignore[no-untyped-def]
    scores = np.empty(tree.prior.shape[2])
    node, mean, depth = 0, 0.0, 0
    while True:
        mean = _mean_q(tree, b, node, mean, discount)
        if depth == 0 and forced >= 0:
            chosen = forced
        else:
            _score(tree, b, node, mean, discount, rule, scores)
            chosen = _choose(tree, b, scores, rule[4], numbers[depth])
        following = tree.child[b, node, chosen]
        if following == 0:
            return node, chosen
        node, depth = following, depth + 1


@compiled
def _write_order(tree, b, node, action, order):  # type: ignore[no-untyped-def]
    pairs = tree.taken.shape[2]
    order[b, :pairs] = tree.history[b, node]
    order[b, pairs : 2 * pairs] = tree.taken[b, node]
    order[b, 2 * pairs] = tree.remembered[b, node]
    order[b, 2 * pairs + 1], order[b, 2 * pairs + 2] = node, action


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
def _score(tree, b, node, mean, discount, rule, scores):  # type: ignore[no-untyped-def]
    c1, c2, by_prior, smallest_range, _ = rule
    count = tree.visits[b, node] - 1
    root = math.sqrt(max(count, 1) if by_prior else count)
    weight = (math.log((count + c2 + 1.0) / c2) + c1) * root
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
def _expand(tree, node, order, found, discount):  # type: ignore[no-untyped-def]
    for b in range(len(order)):
        _attach(tree, b, node, order[b, -2], order[b, -1], found[b])
        _back_up(tree, b, node, found[b, 1], discount)


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
    full = 1 if count == pairs else 0  # then the oldest pair goes
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
