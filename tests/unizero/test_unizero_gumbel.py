"""Gumbel roots: sequential halving, its oracle and the improved policy."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_oracle import (
    BACKENDS,
    DOUBLE,
    Oracle,
    check_against,
    latents,
    no_history,
    random_model,
)

from world_models.unizero.config import GumbelConfig, SearchConfig, TreeConfig
from world_models.unizero.gumbel import Halving, schedule
from world_models.unizero.search import draw, play, search
from world_models.unizero.tree import init_tree, root_children


def test_timetables_spend_every_simulation_and_halve():
    def phases(m, n):
        starts = [i for i, turn in enumerate(schedule(m, n)) if turn.keep] + [n]
        return [(schedule(m, n)[i].keep, j - i) for i, j in pairwise(starts)]

    assert phases(4, 16) == [(4, 8), (2, 8)]
    assert phases(16, 200) == [(16, 48), (8, 48), (4, 48), (2, 50), (2, 6)]
    assert phases(16, 16) == [(16, 16)]
    assert phases(6, 16)[:2] == [(6, 6), (3, 3)]
    assert phases(1, 5) == [(1, 5)]


@given(st.integers(1, 18), st.integers(1, 60))
def test_timetables_visit_the_standing_equally(considered, simulations):
    turns = schedule(considered, simulations)
    assert len(turns) == simulations and turns[0].keep == considered
    assert min(simulations, considered) == len({turn.rank for turn in turns[:considered]})
    standing = 0
    for turn in turns:
        standing = turn.keep or standing
        assert turn.rank < standing


def gumbel_oracle(model, row, numbers, config):
    """Sequential halving with lists: rounds over the standing actions, the better half stays."""
    logits, noise = model.root_logits[row].tolist(), numbers.noise[row].tolist()
    start = [a + b for a, b in zip(logits, noise, strict=True)]
    state = {"standing": list(range(len(logits))), "queue": []}

    def value(oracle, action):
        child = oracle.root.children[action]
        most = max(c.visits for c in oracle.root.children.values())
        return start[action] + (50 + most) * oracle.scale(oracle.q(child))

    def forced(simulation, oracle):
        m = min(config.gumbel.max_considered_actions, len(logits))
        if not state["queue"]:
            if simulation == 0:
                kept, key = m, lambda action: start[action]
            else:
                kept, key = max(len(state["standing"]) // 2, min(m, 2)), lambda action: value(oracle, action)
            state["standing"] = sorted(state["standing"], key=key, reverse=True)[:kept]
            phases = max(int(np.ceil(np.log2(m))), 1)
            state["queue"] = state["standing"] * max(config.simulations // (phases * kept), 1)
        return state["queue"].pop(0)

    oracle = Oracle(
        torch.tensor(logits, dtype=DOUBLE).softmax(0).tolist(), numbers.ties[row].tolist(), config.tree, forced
    )
    for s in range(config.simulations):
        node, action = oracle.select(s)
        policy = model.logits[s, row].softmax(0).tolist()
        oracle.grow(node, action, float(model.rewards[s, row]), policy, float(model.values[s, row]))
    most = max(child.visits for child in oracle.root.children.values())
    last = [action for action, child in oracle.root.children.items() if child.visits == most]
    return oracle, max(last, key=lambda action: value(oracle, action))


@settings(max_examples=40, deadline=None)
@given(
    actions=st.integers(1, 18),
    simulations=st.sampled_from([1, 3, 8, 16, 50]),
    considered=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 10**6),
    backend=st.sampled_from(BACKENDS),
)
def test_gumbel_roots_halve_as_the_oracle_does(actions, simulations, considered, seed, backend):
    config = SearchConfig(simulations, "gumbel", gumbel=GumbelConfig(considered), backend=backend)
    numbers = draw(config, 2, actions, torch.Generator().manual_seed(seed))
    model = random_model(2, actions, simulations, seed)
    result = search(model, no_history(2), latents(2), numbers, config)
    for row in range(2):
        oracle, best = gumbel_oracle(model, row, numbers, config)
        check_against(oracle, result.tree, row)
        assert result.action[row] == best
    assert torch.equal(play(result, numbers, config, 1.0), result.action)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 10), st.sampled_from([2, 4, 16]), st.integers(0, 10**6))
def test_the_improved_policy_is_no_worse_by_the_completed_values(actions, simulations, seed):
    """The paper's theorem: softmax(logits + monotone(q)) expects at least the prior's q."""
    config = SearchConfig(simulations, "gumbel")
    numbers = draw(config, 1, actions, torch.Generator().manual_seed(seed))
    model = random_model(1, actions, simulations, seed)
    result = search(model, no_history(1), latents(1), numbers, config)
    visits, q = root_children(result.tree, config.tree.discount)
    prior = model.root_logits.softmax(1)
    tried = visits > 0
    mean = (prior * q).sum() / prior[tried].sum()
    mixed = (0.0 + visits.sum() * mean) / (1 + visits.sum())  # the recorded root value is 0
    completed = torch.where(tried, q, mixed)
    scaled = ((completed - result.tree.low) / (result.tree.high - result.tree.low).clamp(min=0.01)).clamp(0, 1)
    expected = (model.root_logits + (50 + visits.max()) * scaled).softmax(1)
    torch.testing.assert_close(result.policy, expected, rtol=0, atol=1e-12)
    assert (result.policy * completed).sum() >= (prior * completed).sum() - 1e-12


def test_gumbel_without_noise_starts_with_the_likeliest():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]], dtype=DOUBLE)
    halving = Halving(logits, None, 16, GumbelConfig(max_considered_actions=2))
    tree = init_tree(logits.softmax(1), 16, torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert halving.phase(0, tree, TreeConfig())[0, :2].tolist() == [1, 3]
