"""The rules of the search told once more, slowly: nodes as objects, one root, no tensors; and recorded models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from tensor_tree import tensor_search

from world_models.unizero.dynamics import History
from world_models.unizero.mcts import Functions, SearchNumbers, expand_nodes, tree_search
from world_models.unizero.networks import Expansion

DISCOUNT = 0.997
SEARCHES = {"tensors": tensor_search, "compiled": tree_search}
INTEGERS = ("parent", "action", "depth", "path", "child", "visits", "remembered")
DOUBLE = torch.float64
WIDTH = 2


@dataclass
class Node:
    prior: list[float]
    reward: float = 0.0
    visits: int = 0
    total: float = 0.0
    number: int = 0
    children: dict[int, Node] = field(default_factory=dict)
    parent: Node | None = None
    action: int = 0

    def depth(self) -> int:
        return 0 if self.parent is None else 1 + self.parent.depth()

    def steps(self) -> list[tuple[int, int]]:
        """(number of the node, action taken there) for every step from the root to here."""
        return [] if self.parent is None else [*self.parent.steps(), (self.parent.number, self.action)]


class Oracle:
    """One tree. `prior` is the root's, noise included; `ties[s][d]` are its numbers."""

    def __init__(self, prior, ties, discount, forced=None):
        self.root = Node(list(prior), visits=1)
        self.nodes = [self.root]
        self.ties, self.discount, self.forced = ties, discount, forced
        self.low, self.high, self.margin, self.untied_margin = math.inf, -math.inf, math.inf, math.inf

    def q(self, node):
        return node.reward + self.discount * node.total / node.visits

    def scale(self, value):
        extent = self.high - self.low
        if extent > 0:
            value = (value - self.low) / max(extent, 0.01)
        return min(max(value, 0.0), 1.0)

    def scores(self, node, mean):
        n = node.visits - 1
        factor = math.log((n + 19652 + 1) / 19652) + 1.25
        result = []
        for action, prior in enumerate(node.prior):
            child = node.children.get(action)
            value = mean if child is None else self.q(child)
            result.append(prior * factor * math.sqrt(n) / (1 + (child.visits if child else 0)) + self.scale(value))
        return result

    def pick(self, scores, number):
        gaps = [max(scores) - score for score in scores]
        tied = [action for action, gap in enumerate(gaps) if gap <= 1e-6]
        smallest = min((gap for gap in gaps if gap > 0), default=math.inf)
        self.margin = min(self.margin, smallest)
        if len(tied) == 1:
            self.untied_margin = min(self.untied_margin, smallest)
        return tied[min(int(number * len(tied)), len(tied) - 1)]

    def select(self, simulation):
        node, above = self.root, 0.0
        while True:
            known = [self.q(child) for child in node.children.values()]
            if node is self.root:
                mean = sum(known) / len(known) if known else 0.0
            else:
                mean = (above + sum(known)) / (len(known) + 1)
            forced = self.forced(simulation, self) if self.forced and node is self.root else None
            action = forced
            if action is None:
                action = self.pick(self.scores(node, mean), self.ties[simulation][node.depth()])
            if action not in node.children:
                return node, action
            node, above = node.children[action], mean

    def grow(self, node, action, reward, prior, value):
        child = Node(list(prior), reward, number=len(self.nodes), parent=node, action=action)
        node.children[action] = child
        self.nodes.append(child)
        at = child
        while at is not None:
            at.visits += 1
            at.total += value
            self.low, self.high = min(self.low, self.q(at)), max(self.high, self.q(at))
            value = at.reward + self.discount * value
            at = at.parent


def oracle_of(model, row, numbers, config, forced=None, discount=DISCOUNT):
    prior = model.root_logits[row].softmax(0)
    if numbers.noise is not None and config.root == "puct":
        prior = 0.75 * prior + 0.25 * numbers.noise[row]
    oracle = Oracle(prior.tolist(), numbers.ties[row].tolist(), discount, forced)
    for s in range(config.simulations):
        node, action = oracle.select(s)
        policy = model.logits[s, row].softmax(0).tolist()
        oracle.grow(node, action, float(model.rewards[s, row]), policy, float(model.values[s, row]))
    return oracle


def check_against(oracle, tree, row):
    nodes = oracle.nodes
    assert tree.parent[row].tolist() == [0] + [node.parent.number for node in nodes[1:]]
    assert tree.depth[row].tolist() == [node.depth() for node in nodes]
    for name in ("action", "visits", "total"):
        assert getattr(tree, name)[row].tolist() == pytest.approx([getattr(n, name) for n in nodes], abs=1e-12)
    assert tree.low[row].item() == pytest.approx(oracle.low, abs=1e-12)
    assert tree.high[row].item() == pytest.approx(oracle.high, abs=1e-12)


def same(one, i, other, j):
    """Whether two rows are the same tree, in all that is an integer; the padding of the windows is anything."""
    real = torch.arange(one.taken.shape[2]) < one.remembered[i].unsqueeze(1)
    windows = all(
        torch.equal(getattr(one, name)[i][real], getattr(other, name)[j][real]) for name in ("history", "taken")
    )
    return windows and all(torch.equal(getattr(one, name)[i], getattr(other, name)[j]) for name in INTEGERS)


class Recorded:
    """Outputs by simulation: rewards, values (S, B), logits (S, B, A). Latents count: (simulation, row)."""

    def __init__(self, root_logits, rewards, values, logits):
        self.root_logits, self.rewards, self.values, self.logits = root_logits, rewards, values, logits
        self.seen = []

    def root(self, history, latent):
        return self.root_logits, latent.new_zeros(len(latent))

    def expand(self, history, latent, action):
        s = len(self.seen)
        self.seen.append((history, latent, action))
        rows = torch.arange(len(latent), dtype=latent.dtype)
        new = torch.stack((torch.full_like(rows, s + 1), rows), 1)
        return Expansion(self.rewards[s], new, self.logits[s], self.values[s])


def random_model(batch, actions, simulations, seed, coarse=False, scale=1.0, jitter=0.0):
    """Recorded outputs at random; coarse ones are small integers, so that everything ties (nearly, with `jitter`)."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        x = 1.5 * torch.randn(*shape, generator=generator, dtype=DOUBLE)
        jittered = jitter * torch.randn(*shape, generator=generator, dtype=DOUBLE)
        return scale * ((x / 2).round() if coarse else x) + jittered

    size = (simulations, batch)
    return Recorded(numbers(batch, actions), numbers(*size), numbers(*size), numbers(*size, actions))


def searched(model, numbers, config, history=None, walk=tree_search, discount=DISCOUNT):
    """Search with a recorded model, by default without a history of three steps; a root's latent is (0, its row)."""
    batch = len(numbers.action)
    none = torch.zeros(batch, dtype=torch.int64)
    history = history or History(torch.zeros(batch, 3, WIDTH, dtype=DOUBLE), none[:, None].repeat(1, 3), none)
    latent = torch.stack((torch.zeros(batch), torch.arange(batch)), 1).to(DOUBLE)
    functions = Functions(None, model.root, partial(expand_nodes, model), False)
    return walk(functions, history, latent, numbers, config, discount)


def silent(batch, simulations, noise=None):
    """The first candidate wins every tie."""
    zeros = torch.zeros(batch, simulations, simulations, dtype=DOUBLE)
    return SearchNumbers(zeros, noise, torch.zeros(batch, dtype=DOUBLE))
