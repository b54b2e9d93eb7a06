"""The search: recorded trees, an independent oracle, windows, forms of execution, halving at gumbel roots."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_oracle import (
    BACKENDS,
    DOUBLE,
    WIDTH,
    Oracle,
    Recorded,
    check_against,
    latents,
    no_history,
    oracle_of,
    random_model,
    same,
    silent,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from world_models.unizero import compiled_tree
from world_models.unizero.config import GumbelConfig, SearchConfig, TreeConfig
from world_models.unizero.gumbel import Halving, schedule
from world_models.unizero.networks import Window
from world_models.unizero.search import draw, play, probabilities, search
from world_models.unizero.tree import init_tree, root_children, scores

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "unizero" / "puct.npz")


def golden(key):
    return torch.as_tensor(GOLDEN[key])


# recorded scores and trees


def scored_node():
    """The recorded node as a root: its children with visits stand behind it, the others do not exist."""
    counts, prior = golden("score_n"), golden("score_prior")[None]
    tree = init_tree(prior, 5, torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    tree.visits[0, 0] = golden("score_total") + 1
    for action in range(3):
        node = action + 1
        tree.child[0, 0, action], tree.visits[0, node] = node, counts[action]
        tree.reward[0, node], tree.total[0, node] = golden("score_reward")[action], golden("score_W")[action]
    tree.low[0], tree.high[0] = golden("score_min"), golden("score_max")
    return tree


def test_scores_are_the_recorded_ones():
    found = scores(scored_node(), 1, TreeConfig())[0, 0]
    assert torch.equal(found.round(decimals=14), golden("score_out").round(decimals=14))


def test_compiled_scores_are_the_recorded_ones():
    walker = compiled_tree.Walker(scored_node(), TreeConfig())
    mean = compiled_tree._mean_q(walker.arrays, 0, 0, 0.0, 0.997)
    assert mean == pytest.approx(float(golden("score_parent_mean_q")), abs=1e-15)
    found = np.empty(5)
    compiled_tree._score(walker.arrays, 0, 0, mean, 0.997, walker.rule, found)
    np.testing.assert_allclose(found, GOLDEN["score_out"], rtol=0, atol=1e-15)


def recorded(cases):
    """Several recorded searches of one size as the rows of one batch."""
    parts = [[golden(f"{case}/{name}") for case in cases] for name in ("root_logits", "rewards", "values", "logits")]
    return Recorded(torch.stack(parts[0]), *(torch.stack(part, 1) for part in parts[1:]))


def check_recorded(result, row, key):
    tree = result.tree
    log = torch.stack((tree.parent[row], tree.action[row], tree.depth[row]), 1)[1:]
    assert torch.equal(log, golden(f"{key}/log"))
    assert torch.equal(result.visits[row], golden(f"{key}/root_visits"))
    assert torch.equal(tree.visits[row], golden(f"{key}/node_N"))
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(result.value[row], golden(f"{key}/root_value"), **close)
    torch.testing.assert_close(tree.total[row], golden(f"{key}/node_W"), **close)
    torch.testing.assert_close(tree.low[row], golden(f"{key}/min_q"), **close)
    torch.testing.assert_close(tree.high[row], golden(f"{key}/max_q"), **close)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["s16", "s50", "s50_flat"])
@pytest.mark.parametrize("noise", ["noise", "nonoise"])
def test_whole_searches_are_the_recorded_ones(case, noise, backend):
    simulations = len(golden(f"{case}/rewards"))
    vector = golden(f"{case}/noise_vec")[None] if noise == "noise" else None
    config, numbers = SearchConfig(simulations=simulations, backend=backend), silent(1, simulations, vector)
    result = search(recorded([case]), no_history(1), latents(1), numbers, config)
    check_recorded(result, 0, f"{case}/{noise}")
    # A margin is a difference of scores: it shows rounding that no decision shows, such as a float32 in between.
    oracle = oracle_of(recorded([case]), 0, numbers, config)
    assert oracle.untied_margin == pytest.approx(float(golden(f"{case}/{noise}/margin")), rel=1e-9)
    assert result.tree.margin.item() == pytest.approx(oracle.margin, rel=1e-9)
    if noise == "noise":
        torch.testing.assert_close(result.policy[0], golden(f"{case}/policy_target"), rtol=0, atol=1e-15)
        sampled = probabilities(result.visits, 0.25)[0]
        torch.testing.assert_close(sampled, golden(f"{case}/collect_probs_T0.25"), rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_searches_are_the_same_in_one_batch(backend):
    cases = ["s50", "s50", "s50_flat", "s50_flat"]
    model = recorded(cases)
    noise = model.root_logits.softmax(1)  # the prior as its own noise is no noise
    noise[::2] = torch.stack([golden(f"{case}/noise_vec") for case in cases[::2]])
    result = search(model, no_history(4), latents(4), silent(4, 50, noise), SearchConfig(backend=backend))
    for row, case in enumerate(cases):
        check_recorded(result, row, f"{case}/{'nonoise' if row % 2 else 'noise'}")


# any tree, against the oracle


trees = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4),
        "actions": st.integers(1, 7),
        "simulations": st.integers(1, 24),
        "seed": st.integers(0, 10**6),
        "outputs": st.sampled_from([{}, {"coarse": True}, {"coarse": True, "jitter": 1e-9}, {"scale": 1e-3}]),
        "discount": st.sampled_from([0.997, 1.0, 0.5]),
        "first_visit": st.sampled_from(["random", "prior"]),
        "quiet": st.booleans(),
    }
)


@settings(max_examples=120, deadline=None)
@given(trees)
def test_every_tree_is_the_oracles(case):
    batch, simulations = case["batch"], case["simulations"]
    rule = TreeConfig(discount=case["discount"], first_visit=case["first_visit"], c2=20.0)
    config = SearchConfig(simulations=simulations, tree=rule)
    generator = torch.Generator().manual_seed(case["seed"])
    numbers = draw(config, batch, case["actions"], generator, evaluation=case["quiet"])
    grown = []
    for backend in BACKENDS:
        model = random_model(batch, case["actions"], simulations, case["seed"], **case["outputs"])
        chosen = replace(config, backend=backend)
        grown.append(search(model, no_history(batch), latents(batch), numbers, chosen).tree)
    for row in range(batch):
        oracle = oracle_of(model, row, numbers, config)
        for tree in grown:
            check_against(oracle, tree, row)
    assert all(same(grown[0], row, grown[1], row) for row in range(batch))


# windows


@settings(max_examples=25, deadline=None)
@given(
    simulations=st.integers(1, 20),
    pairs=st.integers(1, 4),
    seed=st.integers(0, 999),
    backend=st.sampled_from(BACKENDS),
)
def test_every_expansion_sees_its_nodes_own_history(simulations, pairs, seed, backend):
    """Latents are names here: -1, -2, ... in the history, the node's number in the tree; padding is not a number."""
    batch = pairs + 1
    generator = torch.Generator().manual_seed(seed)
    count = torch.arange(batch)
    padding = torch.arange(pairs) >= count[:, None]
    names = -(torch.arange(pairs) + 1.0).expand(batch, -1)
    history = Window(
        torch.where(padding, torch.nan, names)[..., None].expand(-1, -1, WIDTH).to(DOUBLE),
        torch.where(padding, 10**6, torch.randint(2, (batch, pairs), generator=generator)),
        count,
    )
    config = SearchConfig(simulations=simulations, backend=backend, tree=TreeConfig(discount=1.0, c1=0.05))
    numbers = draw(config, batch, 2, generator)
    model = random_model(batch, 2, simulations, seed)
    tree = search(model, history, latents(batch), numbers, config).tree
    assert torch.equal(tree.taken[:, 0], history.action)  # nothing was written into the root's window
    for row in range(batch):
        oracle = oracle_of(model, row, numbers, config)
        check_against(oracle, tree, row)
        before = [(-(i + 1), int(history.action[row, i])) for i in range(row)]
        for s, (window, latent, action) in enumerate(model.seen):
            node = oracle.nodes[s + 1].parent
            expected = (before + node.steps())[-pairs:]
            held = int(window.count[row])
            seen = [(int(window.latent[row, i, 0]), int(window.action[row, i])) for i in range(held)]
            assert seen == expected
            assert int(latent[row, 0]) == node.number
            assert int(action[row]) == oracle.nodes[s + 1].action


def test_depth_beyond_the_window_is_reached():
    """Guards the test above: one action makes a chain, whose windows must have dropped their oldest pairs."""
    model = random_model(1, 1, 12, 0)
    tree = search(model, no_history(1), latents(1), silent(1, 12), SearchConfig(simulations=12)).tree
    assert tree.depth[0].tolist() == list(range(13))
    assert tree.history[0, -1].tolist() == [3 + 9, 3 + 10, 3 + 11] and tree.remembered[0, -1] == 3


# forms of execution


@pytest.mark.parametrize("root", ["puct", "gumbel"])
def test_a_search_on_the_device_reads_nothing_back(root):
    """Fake tensors have no values: any read would raise. So the search can be captured in a CUDA graph."""
    config = SearchConfig(4, root, backend="torch")
    with FakeTensorMode():
        numbers = draw(config, 2, 3, torch.Generator().manual_seed(0))
        result = search(random_model(2, 3, 4, 0), no_history(2), latents(2), numbers, config)
        played = play(result, numbers, config, 0.25)
    assert played.shape == (2,) and result.policy.shape == (2, 3)


def test_numbers_depend_on_the_generator_only():
    config = SearchConfig(4)
    one, other = (draw(config, 3, 5, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one.ties, other.ties) and torch.equal(one.noise, other.noise)
    assert torch.equal(one.rows(torch.tensor([2, 0])).noise, one.noise[[2, 0]])


# gumbel roots: sequential halving, its oracle and the improved policy


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
