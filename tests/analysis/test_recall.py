"""A recall profile says how far back a network looks; hindsight is what the future of a window adds to Q."""

import numpy as np
import pytest
import torch
from delayed import delayed, episode
from helpers import network

from dqn_memory.actors import StateActor, WindowActor
from dqn_memory.analysis.episodes import beginning, play_in, q_values, remembered_steps, windows
from dqn_memory.analysis.hindsight import Discrepancy, Hindsight, discrepancy
from dqn_memory.analysis.recall import Recall, RecallConfig, occlusions, recall, substitutes
from dqn_memory.blocks import PriorConfig
from dqn_memory.evaluate import EvalSetup, acting_cost, load_network
from dqn_memory.network import ARCHITECTURES

EPISODES = [episode(length, seed) for seed, length in enumerate((9, 4, 12))]
POOL = torch.cat([one.observation for one in EPISODES])
RESAMPLED = RecallConfig(resamples=3)


def drawn(seed, config=RESAMPLED, pool=POOL, rows=50):
    return list(substitutes(pool, config, torch.Generator().manual_seed(seed), rows))


def means(found, name):
    return np.array([mean for mean, _, _ in found.curve(name)])


@pytest.mark.parametrize("config", [RecallConfig(), RESAMPLED])
@pytest.mark.parametrize("steps", [0, 1, 3, 5, 6])  # 6: beyond the context, so forgotten
def test_a_network_that_looks_d_steps_back_has_its_whole_profile_at_d(monkeypatch, steps, config):
    found = recall(delayed(monkeypatch, steps), EPISODES, config, seed=1)
    assert len(found.decisions) == 6  # no window is longer than the context
    for name in ("occlusion", "flips"):
        assert np.flatnonzero(means(found, name)).tolist() == ([steps] if steps < 6 else []), name


@pytest.mark.parametrize("architecture", ["dgfqn", "dbgfqn", "drqn", "gtrxl", "dtqn_mamba", "dqn"])
def test_networks_that_remember_use_all_they_have_seen_and_others_the_newest(architecture):
    found = recall(network(architecture).eval(), EPISODES, RecallConfig(), seed=1)
    newest, *past = means(found, "occlusion") > 0
    assert newest and (not any(past) if architecture == "dqn" else all(past))


def given(net, length=5, ends=(0, 2, 4)):
    one = episode(length)
    return windows(net, one.observation, one.previous_action, torch.tensor(ends), 6)


def test_occlusion_is_the_change_of_q_when_one_observation_is_another():
    net = network("dgfqn", seed=2).eval()
    one, others = episode(5), drawn(0, rows=1)[:1]
    changes, flips = occlusions(net, given(net, ends=(4,)), lambda rows: others)
    with torch.no_grad():
        before = net(one.observation[None], one.previous_action[None])[0, -1]
        for age in range(5):
            observation = one.observation.clone()
            observation[4 - age] = others[0]
            after = net(observation[None], one.previous_action[None])[0, -1]
            assert changes[0, age] == pytest.approx(float((after - before).abs().mean()), rel=1e-9)
            assert flips[0, age] == float(after.argmax() != before.argmax())


def test_replacements_come_from_the_episodes_and_from_the_seed():
    pool = {tuple(row) for row in POOL.tolist()}
    assert len(drawn(0)) == 3 and {tuple(row) for each in drawn(0) for row in each.tolist()} <= pool
    assert all(torch.equal(a, b) for a, b in zip(drawn(0), drawn(0), strict=True))
    assert not torch.equal(drawn(0)[0], drawn(1)[0]) and not torch.equal(*drawn(0)[:2])


def test_every_episode_counts_the_same_whatever_its_length(monkeypatch):
    found = recall(delayed(monkeypatch, 1), EPISODES, RecallConfig(moments=4), seed=1)
    assert found.occlusion.shape == (3, 6) and np.isnan(found.occlusion[1, 4:]).all()
    assert not np.isnan(found.occlusion[[0, 2]]).any()
    assert found.decisions.tolist() == [12, 9, 8, 7, 5, 4]  # steps 0 3 5 8, 0 1 2 3 and 0 4 7 11, in windows of 6
    np.testing.assert_allclose(means(found, "occlusion"), np.nanmean(found.occlusion, 0))
    plain = found.plain()
    assert plain["episodes"] == [3, 3, 3, 3, 2, 2] and plain["decisions"] == found.decisions.tolist()
    assert plain["occlusion_low"][1] < plain["occlusion"][1] < plain["occlusion_high"][1]
    curve = recall(network("drqn").eval(), EPISODES[:1], RecallConfig(), seed=1).curve("occlusion")
    assert all(low is None and high is None for _, low, high in curve)  # of one episode


@pytest.mark.parametrize("architecture", ["dgfqn", "dbgfqn", "drqn", "dtqn_attention"])
def test_windows_are_what_an_actor_sees(architecture):
    net, one = network(architecture).eval(), episode(9)
    ends = torch.arange(9)
    found = q_values(net, windows(net, one.observation, one.previous_action, ends, 6))
    actor = WindowActor(net, 1, torch.device("cpu"))
    for t in range(9):
        actor.observe(one.observation[t : t + 1], one.previous_action[t : t + 1], torch.tensor([t == 0]))
        torch.testing.assert_close(found[t], actor.outputs()[0], rtol=0, atol=1e-12)


def test_a_carried_state_remembers_the_whole_episode():
    net, one = network("drqn").eval(), episode(9)
    actor = StateActor(net, 1, torch.device("cpu"))
    actor.q, actor.state = actor.q.double(), net.initial_state(1, torch.device("cpu"))
    for t in range(9):
        actor.observe(one.observation[t : t + 1], one.previous_action[t : t + 1], torch.tensor([t == 0]))
    size = remembered_steps(net, 9, "episode")
    whole = windows(net, one.observation, one.previous_action, torch.tensor([8]), size)
    torch.testing.assert_close(q_values(net, whole), actor.outputs(), rtol=0, atol=1e-12)
    assert len(recall(net, [one], RecallConfig(), 0, state="episode").decisions) == 9
    assert remembered_steps(net, 9, "window") == 6 and remembered_steps(net, 4, "window") == 4


def test_many_windows_are_computed_in_parts(monkeypatch):
    net, one = network("dgfqn").eval(), episode(12)
    many = windows(net, one.observation, one.previous_action, torch.arange(12), 6)
    whole = q_values(net, many)
    monkeypatch.setattr("dqn_memory.analysis.episodes.TOKENS", 13)
    torch.testing.assert_close(q_values(net, many), whole, rtol=0, atol=1e-12)


def test_the_words_tell_how_far_back_half_of_it_lies(monkeypatch):
    near, far = (recall(delayed(monkeypatch, steps), EPISODES, RecallConfig(), 1).words() for steps in (1, 4))
    assert "the last 1 of 5 past steps" in near and "the last 4 of 5 past steps" in far
    assert "does not change Q" in recall(network("dqn").eval(), EPISODES, RecallConfig(), 1).words()
    assert "does not change Q" in recall(network("drqn").eval(), [episode(1)], RecallConfig(), 1).words()


@pytest.mark.parametrize(("change", "steps"), [(1e-7, 0), (1e-4, 2)])  # rounding of 32 bits, and more
def test_rounding_is_no_recall(change: float, steps: int) -> None:
    occlusion = np.array([[1.0, change, change, change]])
    assert Recall(occlusion, occlusion, np.ones(4), spread=1.0).distance == steps


def test_a_beginning_is_the_episode_cut_short():
    net, config, _ = load_network("demo", torch.device("cpu"))
    setup = config.eval_setup(torch.device("cpu"))
    (whole,), short = play_in(setup, net, 3), beginning(setup, net, 3, 2)
    assert len(short) == 2 < len(whole) == len(beginning(setup, net, 3, 100))
    assert torch.equal(short.observation, whole.observation[:2]) and (short.action == whole.action[:2]).all()


@pytest.mark.parametrize(("state", "carried"), [
    ("episode", lambda net: 2 * 8 * net.config.width),  # h and c in float64
    ("window", lambda net: net.config.context * (2 * net.spec.dtype.itemsize + 8) + 8),  # tokens, action, length
])  # fmt: skip
def test_what_an_actor_remembers_is_counted_in_bytes(state, carried):
    net = network("drqn").eval()
    found = acting_cost(net, EvalSetup("FrozenLake-v1", {}, torch.device("cpu"), acting_state=state))
    assert found["final/remembered_bytes"] == carried(net) and 1 < found["time/acting_us"] < 1e5


def test_a_loaded_state_is_on_the_actors_device():
    net = network("drqn")
    saved = StateActor(net, 2, torch.device("cpu")).state_dict()
    actor = StateActor(net.to("meta"), 2, torch.device("meta"))
    actor.load_state_dict(saved)
    assert {part.device.type for layer in actor.state for part in layer} | {actor.q.device.type} == {"meta"}


# ---- hindsight: Q of a window and of its prefix differ by what the future adds, in a causal network by nothing -------
CAUSAL = [name for name in ARCHITECTURES if not name.startswith("db")]
BIDIRECTIONAL = [name for name in ARCHITECTURES if name.startswith("db")]


def gaps(net, length=15, seed=0):
    one = episode(length, seed)
    return discrepancy(net, one.observation, one.previous_action)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("architecture", CAUSAL)
def test_a_causal_network_has_exactly_none(architecture, dtype):
    changes = {"action_embedding": 3} if architecture == "adrqn" else {}
    each = gaps(network(architecture, **changes).to(dtype).eval())
    assert (each.inside == each.alone).all() and (each.gap == 0).all() and not each.flips.any()
    summary = Hindsight.of([each])
    assert (summary.gap, summary.largest, summary.flips) == (0.0, 0.0, 0.0) and summary.spread > 0


@pytest.mark.parametrize("kind", ["gaussian", "adaptive", "gaussian_gate", "local", "adaptive_gate"])
def test_causal_priors_have_exactly_none_and_one_that_shows_the_future_some(kind):
    prior = PriorConfig(kind=kind, mu=2.0, span=4.0, local_window=3)
    net = network("dgfqn", prior=prior).float().eval()
    assert net.causal == (gaps(net).gap == 0).all() == (kind != "adaptive_gate")


@pytest.mark.parametrize("architecture", BIDIRECTIONAL)
def test_a_bidirectional_network_has_some_wherever_there_is_a_future(architecture):
    each = gaps(network(architecture).eval())
    assert each.future.tolist() == [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0, 2, 1, 0]  # windows of 6, 6 and 3 steps
    assert (each.gap[each.future > 0] > 0).all() and (each.gap[each.future == 0] == 0).all()
    assert Hindsight.of([each]).positions == 12


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
    each = gaps(delayed(monkeypatch, -ahead), length=6)
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
    nothing = Hindsight.of([gaps(network("dbgfqn").eval(), 1)])
    assert nothing.positions == 0 and "no future to leak" in nothing.words(False, True)
