"""Q of a window and of its prefix differ by what the future adds: exactly nothing in a causal network."""

import numpy as np
import pytest
import torch
from delayed import delayed, episode
from helpers import network

from dqn_memory.analysis.hindsight import Discrepancy, Hindsight, discrepancy
from dqn_memory.blocks import PriorConfig
from dqn_memory.network import ARCHITECTURES

CAUSAL = [name for name in ARCHITECTURES if not name.startswith("db")]
BIDIRECTIONAL = [name for name in ARCHITECTURES if name.startswith("db")]


def found(net, length=15, acting="prefix", seed=0):
    one = episode(length, seed)
    return discrepancy(net, one.observation, one.previous_action, acting)


@pytest.mark.parametrize("acting", ["prefix", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("architecture", CAUSAL)
def test_a_causal_network_has_exactly_none(architecture, dtype, acting):
    changes = {"action_embedding": 3} if architecture == "adrqn" else {}
    each = found(network(architecture, **changes).to(dtype).eval(), acting=acting)
    assert (each.inside == each.alone).all() and (each.gap == 0).all() and not each.flips.any()
    summary = Hindsight.of([each])
    assert (summary.gap, summary.largest, summary.flips) == (0.0, 0.0, 0.0) and summary.spread > 0


@pytest.mark.parametrize("kind", ["gaussian", "adaptive", "gaussian_gate", "local"])
def test_causal_priors_have_exactly_none(kind):
    prior = PriorConfig(kind=kind, mu=2.0, span=4.0, local_window=3)
    net = network("dgfqn", prior=prior).float().eval()
    assert net.causal and (found(net).gap == 0).all()


@pytest.mark.parametrize("architecture", BIDIRECTIONAL)
def test_a_bidirectional_network_has_some_wherever_there_is_a_future(architecture):
    each = found(network(architecture).eval())
    assert each.future.tolist() == [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0, 2, 1, 0]  # windows of 6, 6 and 3 steps
    assert (each.gap[each.future > 0] > 0).all() and (each.gap[each.future == 0] == 0).all()
    assert Hindsight.of([each]).positions == 12


def test_a_prior_that_shows_the_future_has_some():
    net = network("dgfqn", prior=PriorConfig(kind="adaptive_gate", span=4.0)).eval()
    assert not net.causal and found(net).gap.max() > 0


def test_both_sides_are_what_they_say():
    net, one = network("dbgfqn", seed=3).eval(), episode(8)
    each = discrepancy(net, one.observation, one.previous_action)
    with torch.no_grad():
        for begin, end in ((0, 6), (6, 8)):
            seen, previous = one.observation[None, begin:end], one.previous_action[None, begin:end]
            np.testing.assert_allclose(each.inside[begin:end], net(seen, previous)[0], rtol=0, atol=1e-12)
            for t in range(end - begin):
                prefix = net(seen[:, : t + 1], previous[:, : t + 1])[0, -1]
                np.testing.assert_allclose(each.alone[begin + t], prefix, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ahead", [1, 4])
def test_a_network_that_reads_d_steps_ahead_differs_where_there_are_as_many(monkeypatch, ahead):
    each = found(delayed(monkeypatch, -ahead), length=6)
    np.testing.assert_array_equal(each.gap > 0, each.future >= ahead)


def test_the_summary_counts_positions_with_a_future_over_all_episodes():
    inside = np.array([[1.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
    alone = np.array([[0.0, 1.0], [0.0, 1.0], [9.0, 9.0]])
    one = Discrepancy(inside, alone, np.array([2, 1, 0]))
    summary = Hindsight.of([one, one])
    assert (summary.positions, summary.gap, summary.largest, summary.flips) == (4, 0.75, 1.0, 0.5)
    assert summary.spread == pytest.approx(np.std([0, 1, 0, 1]))
    np.testing.assert_array_equal(one.gap, [1.0, 0.5, 0.0])
    np.testing.assert_array_equal(one.flips, [True, False, False])
    assert "not causal): mean |Q(window) - Q(prefix)| 0.75, largest 1 " in summary.words(False, True)
    nothing = Hindsight.of([found(network("dbgfqn").eval(), 1)])
    assert nothing.positions == 0 and "no future to leak" in nothing.words(False, True)
