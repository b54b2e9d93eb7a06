"""The observability gap compares two agents in the very same episodes, and refuses agents that cannot be compared."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from run_folders import told

from dqn_memory.analysis.state_gap import Gap, check_pair, differences, known, observability, words
from dqn_memory.config import LearnerConfig, TrainConfig
from dqn_memory.evaluation import Score
from dqn_memory.exploration import ExplorationConfig
from dqn_memory.network import NetworkConfig, observation_spec
from dqn_memory.ppo import PPOConfig
from dqn_memory.runs.common import EnvironmentConfig
from dqn_memory.train import QTrainer
from envs import WORLDS
from envs.registry import make_world

FILES = {"Gridverse/Yaml-v0": "dynamic_obstacles.5x5", "POMDP/File-v0": "tests/data/envs/pomdp/tiger.pomdp"}
SMALL = NetworkConfig(width=16, heads=2, layers=1, context=4)


def config(env="POMDP/HeavenHell-v0", observe="observation", **changes):
    return TrainConfig(environment=EnvironmentConfig(env=env, observe=observe, num_envs=2), network=SMALL, **changes)


def build(made):
    """An untrained network for a config's world."""
    world = make_world(made.environment.env, **made.environment.kwargs(training=False))
    torch.manual_seed(0)
    return made.network.build(observation_spec(world.observation_space), world.num_actions).eval()


@pytest.mark.parametrize("id", sorted(WORLDS))
def test_every_world_of_ours_trains_on_its_state(id, request):
    path = FILES.get(id)
    path = str(request.config.rootpath / path) if path and path.startswith("tests") else path
    learning = replace(config().replay, learning_starts=4, capacity=64)
    made = TrainConfig(
        environment=EnvironmentConfig(env=id, observe="state", num_envs=2, path=path),
        network=SMALL, replay=learning, learner=LearnerConfig(batch_size=2),
        exploration=ExplorationConfig(prepopulate=0),
    )  # fmt: skip
    training = QTrainer(made)
    for _ in range(4):
        training.iterate()
    assert training.updates > 0 and training.fleet.observation_space == training.fleet.world.state_space
    assert torch.isfinite(training.network.head[0].weight).all()


def test_both_agents_play_the_same_episodes(monkeypatch):
    """Two networks that always take the same action see the same returns and lengths, whatever they observe."""
    monkeypatch.setattr("dqn_memory.analysis.state_gap.EPISODES", 20)
    for env in ("POMDP/MemoryCards-v0", "POMDP/HeavenHell-v0"):
        pair = [config(env, observe) for observe in ("observation", "state")]
        nets = [build(each) for each in pair]
        for net in nets:
            with torch.no_grad():
                net.head[-1].weight.zero_()
                net.head[-1].bias.copy_(torch.arange(net.num_actions) == 1)
        gap = observability(nets[0], pair[0], nets[1], pair[1], torch.device("cpu"), 5)
        np.testing.assert_array_equal(gap.seen.returns, gap.state.returns)
        np.testing.assert_array_equal(gap.seen.lengths, gap.state.lengths)
        assert gap.difference()[0] == 0 and gap.seen.exhaustive == (env == "POMDP/HeavenHell-v0")


def test_both_agents_take_their_best_actions_where_one_draws_none():
    draws = PPOConfig(EnvironmentConfig("POMDP/HeavenHell-v0"), NetworkConfig("gru", width=16))
    other = config("POMDP/HeavenHell-v0", "state")
    gap = observability(build(draws), draws, build(other), other, torch.device("cpu"), 5)
    assert gap.seen.exhaustive and gap.state.exhaustive


def score(returns, exhaustive=False):
    returns = np.array(returns)
    return Score(returns > 0, returns, np.ones(len(returns), int), exhaustive)


def test_the_difference_is_taken_episode_by_episode():
    gap = Gap(score([0.0, 1.0, -1.0, 5.0]), score([1.0, 2.0, 0.5, 6.0]))
    mean, low, high = gap.difference()
    each = np.array([1.0, 1.0, 1.5, 1.0])
    assert mean == pytest.approx(1.125) and high - mean == pytest.approx(1.959964 * each.std(ddof=1) / 2)
    plain = gap.plain()
    assert plain["return_gap"] == [mean, low, high] and plain["success_gap"] == pytest.approx(0.5)
    assert plain["state"]["return"][0] == pytest.approx(2.375) and plain["episodes"] == 4
    assert "return 2.38 with the state, 1.25 without, +1.12 [" in words(gap, [])
    assert "learner.batch 8 and 4" in words(gap, ["learner.batch 8 and 4"])
    all_of_them = Gap(score([0.0, 1.0], True), score([1.0, 1.0], True))
    assert all_of_them.difference() == (0.5, None, None) and "2 initial states" in words(all_of_them, [])


def test_runs_that_cannot_be_compared_are_refused():
    ours, state = config(), config(observe="state")
    check_pair(ours, state, "b")
    wrong = {
        "observes the state itself": (state, state),
        "--state-run b observes its world": (ours, ours),
        "is of POMDP/Hallway-v0, but the run is of POMDP/HeavenHell-v0": (ours, config("POMDP/Hallway-v0", "state")),
        "File-v0 {'path': 'b'}, but the run is of POMDP/File-v0 {'path': 'a'}": tuple(
            TrainConfig(EnvironmentConfig("POMDP/File-v0", path=path, observe=observe), SMALL)
            for path, observe in (("a", "observation"), ("b", "state"))
        ),
        "is a drqn, but the run is a dgfqn": (ours, replace(state, network=replace(SMALL, architecture="drqn"))),
    }
    for sentence, (one, other) in wrong.items():
        assert sentence in told(check_pair, one, other, "b")


def test_other_differences_are_told():
    state = replace(config(observe="state", seed=7, total_steps=9), network=replace(SMALL, width=32))
    assert differences(config(), config(observe="state")) == []
    assert differences(config(), state) == ["network.width 16 and 32"]


def test_lines_are_known_of_worlds_as_they_are():
    assert known(config()).id == "POMDP/HeavenHell-v0" and known(config("POMDP/File-v0")) is None
