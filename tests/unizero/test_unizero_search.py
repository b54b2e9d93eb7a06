"""The search: recorded trees, an independent oracle, windows, forms of execution, errors."""

from dataclasses import replace
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

from dqn_memory.runs.errors import UserError
from world_models.unizero import compiled_tree
from world_models.unizero.config import GumbelConfig, SearchConfig, TreeConfig
from world_models.unizero.networks import Window
from world_models.unizero.search import draw, play, probabilities, search
from world_models.unizero.tree import init_tree, scores

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
    config = SearchConfig(simulations=simulations, backend=backend)
    model = recorded([case])
    result = search(model, no_history(1), latents(1), silent(1, simulations, vector), config)
    check_recorded(result, 0, f"{case}/{noise}")
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


def test_margins_are_the_recorded_ones():
    """A margin is a difference of scores: it shows rounding that no decision shows, such as a float32 in between."""
    for case in ("s16", "s50", "s50_flat"):
        simulations = len(golden(f"{case}/rewards"))
        for noise in ("noise", "nonoise"):
            vector = golden(f"{case}/noise_vec")[None] if noise == "noise" else None
            config = SearchConfig(simulations=simulations)
            numbers = silent(1, simulations, vector)
            model = recorded([case])
            oracle = oracle_of(model, 0, numbers, config)
            assert oracle.untied_margin == pytest.approx(float(golden(f"{case}/{noise}/margin")), rel=1e-9)
            for backend in BACKENDS:
                model = recorded([case])
                chosen = replace(config, backend=backend)
                tree = search(model, no_history(1), latents(1), numbers, chosen).tree
                assert tree.margin.item() == pytest.approx(oracle.margin, rel=1e-9)


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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SearchConfig(0), "--simulations 0 must be at least 1"),
        (SearchConfig(dirichlet_fraction=1.5), "--dirichlet-fraction 1.5 must lie between 0 and 1"),
        (SearchConfig(dirichlet_alpha=0.0), "--dirichlet-alpha 0.0 must be above 0"),
        (SearchConfig(tree=TreeConfig(discount=0.0)), "--discount 0.0 must be above 0 and at most 1"),
        (SearchConfig(tree=TreeConfig(c2=0.0)), "--c2 0.0 must be above 0"),
        (SearchConfig(tree=TreeConfig(c1=-1.0)), "--c1 -1.0 must not be negative"),
        (SearchConfig(gumbel=GumbelConfig(max_considered_actions=0)), "--max-considered-actions 0 must be at least 1"),
        (SearchConfig(gumbel=GumbelConfig(value_scale=-1.0)), "--value-scale -1.0 must not be negative"),
    ],
)
def test_impossible_searches_are_refused(config, message):
    with pytest.raises(UserError, match=message):
        config.check()
