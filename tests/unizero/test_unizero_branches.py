"""All actions of a node at once: the same answers, the same trees, fewer questions."""

from dataclasses import replace

import pytest
import torch
import unizero_models
from hypothesis import given, settings
from hypothesis import strategies as st
from search_oracle import same
from unizero_models import ACTIONS, GATED, model, simplex, windows

from dqn_memory.blocks import PRIORS
from dqn_memory.runs.errors import UserError
from world_models.unizero.config import SearchConfig
from world_models.unizero.engine import make_planning
from world_models.unizero.networks import Window
from world_models.unizero.search import Functions, draw, search

CLOSE = {"rtol": 0, "atol": 1e-12}
SUMS = {"rtol": 1e-10, "atol": 1e-10}  # of many such, on the scale of values
FORMS = [
    *(pytest.param(prior, {}, id=prior) for prior in PRIORS),
    *(pytest.param(prior, {"rotary": True}, id=f"{prior}-rotary") for prior in ("causal", "gaussian", "adaptive_gate")),
    pytest.param("gaussian", GATED, id="gated"),
    pytest.param("causal", {"dynamics": "gru"}, id="gru"),
    pytest.param("causal", {"dynamics": "recurrent"}, id="muzero"),
]


@pytest.mark.parametrize(("prior", "changes"), FORMS)
def test_alternatives_are_answered_as_each_alone(prior, changes):
    net = model(prior, **changes)
    window = windows(net.config.pairs)
    rows = len(window.count)
    z, action = simplex(rows, seed=2), torch.tensor([[2, 0, 1, 0]]).repeat(rows, 1)
    together = net.expand(window, z, action)
    for k in range(4):
        alone = net.expand(window, z, action[:, k])
        for name, value in vars(alone).items():
            torch.testing.assert_close(getattr(together, name)[:, k], value, **CLOSE)


def counting(functions, calls):
    """The functions, whose questions about outcomes are written down."""

    def outcome(*inputs):
        calls.append(inputs)
        return functions.outcome(*inputs)

    return functions._replace(outcome=outcome)


def both(net, rows, config, seed, evaluation=False):
    """The same search, asking for nodes and for actions: results and questions of each."""
    numbers = draw(config, rows, ACTIONS, torch.Generator().manual_seed(seed), evaluation)
    some = windows(net.config.pairs, seed=seed)
    index = torch.arange(rows) % len(some.count)
    history = Window(some.latent[index], some.action[index], some.count[index])
    found = []
    for asking in ("node", "action"):
        calls = []
        functions = counting(make_planning("eager", net).functions, calls)
        chosen = replace(config, query_per=asking)
        found.append((search(functions, history, simplex(rows, seed=seed + 1), numbers, chosen), calls))
    return found


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from([("causal", {}), ("gaussian", {}), ("adaptive_gate", {}), ("causal", {"dynamics": "gru"})]),
    root=st.sampled_from(["puct", "gumbel"]),
    rows=st.integers(1, 5),
    simulations=st.integers(1, 30),
    seed=st.integers(0, 10**6),
    evaluation=st.booleans(),
)
def test_trees_are_the_same(form, root, rows, simulations, seed, evaluation):
    net = model(form[0], seed=seed % 7, noise=1.0, **form[1])
    (nodes, few), (actions, many) = both(net, rows, SearchConfig(simulations, root), seed, evaluation)
    assert all(same(nodes.tree, row, actions.tree, row) for row in range(rows))
    for name in ("total", "reward", "low", "high"):
        torch.testing.assert_close(getattr(nodes.tree, name), getattr(actions.tree, name), **SUMS)
    torch.testing.assert_close(nodes.latent, actions.latent, **SUMS, equal_nan=True)
    torch.testing.assert_close(nodes.policy, actions.policy, **SUMS)
    assert torch.equal(nodes.action, actions.action)
    assert len(few) <= len(many) == simulations


def test_questions_are_the_inner_nodes_of_the_tree_that_has_most():
    net, unlike = model("gaussian", noise=1.0), 0
    for seed in range(5):
        (result, calls), _ = both(net, 4, SearchConfig(25), seed)
        inner = (result.tree.child > 0).any(-1).sum(1)
        assert len(calls) == inner.max() < 20
        unlike += len(inner.unique()) > 1
    assert unlike  # some trees were through before others


def test_whom_auto_asks():
    """It asks for nodes where alternatives share what is before them, and for few branches."""
    net = model()
    config = SearchConfig(6)

    def questions(functions, rows, config=config):
        calls, numbers = [], draw(config, rows, ACTIONS, torch.Generator().manual_seed(0))
        search(counting(functions, calls), net.window(rows), simplex(rows), numbers, config)
        return len(calls)

    shared = make_planning("eager", net).functions
    assert questions(shared, 4) < 6
    assert questions(shared, 40) == 6  # 120 branches
    assert questions(shared, 4, replace(config, query_per="action")) == 6
    assert questions(shared, 4, replace(config, backend="torch")) == 6
    assert questions(Functions.of(net), 4) == 6
    assert questions(make_planning("eager", model("adaptive_gate")).functions, 4) == 6


def test_trees_of_tensors_cannot_ask_for_nodes():
    with pytest.raises(UserError, match="--query-per node needs trees that are walked on the CPU"):
        SearchConfig(backend="torch", query_per="node").check()


def test_a_roots_tree_is_the_same_in_any_batch():
    """Trees wait for one another when nodes are asked for: that must not show."""
    net = model("gaussian", noise=1.0)
    config = SearchConfig(16, query_per="node")
    numbers = draw(config, 4, unizero_models.ACTIONS, torch.Generator().manual_seed(3))
    history, latent = windows(3), simplex(4, seed=9)

    def grown(rows):
        window = Window(history.latent[rows], history.action[rows], history.count[rows])
        return search(net, window, latent[rows], numbers.rows(rows), config).tree

    whole = grown(torch.arange(4))
    for group in ([0], [1], [2], [3], [3, 0], [1, 1, 2]):
        tree = grown(torch.tensor(group))
        assert all(same(whole, row, tree, j) for j, row in enumerate(group))
