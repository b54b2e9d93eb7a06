"""The agent acts as evaluation does, alone and in a batch, and refuses runs that are not its own."""

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import error_of
from trained import CAR, CARDS, MEMORY, trained

import dqn_memory
from dqn_memory.agent import Agent
from dqn_memory.analysis.episodes import play_in
from dqn_memory.config import TrainConfig
from dqn_memory.evaluate import load_network
from dqn_memory.ppo import main as ppo
from dqn_memory.runs.folder import Run

RUNS = {
    "transformer": "",
    "bidirectional": f"--architecture dbgfqn --env {CAR}",
    "carried": "--architecture adrqn --action-embedding 4 --acting-state episode",
    "actions": "--architecture adrqn --action-embedding 4",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return cache(lambda name: trained(folder / name, *RUNS[name].split()))


def follow(agent, episode):
    """Q-values of the agent on an episode's observations, the world playing along as long as actions agree."""
    q = []
    for step, observation in enumerate(episode.observation.numpy()):
        assert agent.act(observation, reset=step == 0) == episode.action[step]
        q.append(agent.q[0])
    return np.array(q)


@pytest.mark.parametrize("name", RUNS)
def test_acts_as_evaluation_does_over_several_episodes(runs, name):
    network, config, step = load_network(runs(name))
    assert step == 240 and not network.training
    episodes = play_in(config.eval_setup(torch.device("cpu")), network, seed=3, episodes=2)
    agent = Agent.load(runs(name))
    for episode in episodes:
        np.testing.assert_allclose(follow(agent, episode), episode.q, atol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_a_batch_is_so_many_single_agents(runs, name):
    batch, singles = Agent.load(runs(name)), [Agent.load(runs(name)) for _ in range(3)]
    space = batch.interface.raw
    space.seed(0)
    resets = np.random.default_rng(0).random((20, 3)) < 0.15
    resets[0] = True
    for reset in resets:
        observation = np.stack([space.sample() for _ in singles])
        actions = batch.act(observation, reset)
        alone = [agent.act(observation[row], reset[row]) for row, agent in enumerate(singles)]
        assert actions.shape == (3,) and actions.dtype == np.int64
        np.testing.assert_allclose(batch.q, np.concatenate([agent.q for agent in singles]), atol=1e-6)
        assert actions.tolist() == alone


@pytest.mark.parametrize("name", RUNS)
def test_a_reset_forgets_everything(runs, name):
    old, fresh = Agent.load(runs(name)), Agent.load(runs(name))
    space = old.interface.raw
    space.seed(0)
    for step in range(12):
        old.act(space.sample(), step == 0)
    observation = space.sample()
    remembered = old.act(observation, False), old.q
    assert old.act(observation, True) == fresh.act(observation, True)
    np.testing.assert_array_equal(old.q, fresh.q)
    assert not np.array_equal(remembered[1], fresh.q)


def test_an_environment_with_one_discrete_observation_is_loaded_again(tmp_path):
    lake = trained(tmp_path / "lake", env="FrozenLake-v1")
    assert Agent.load(lake).act(3, True) in range(4)
    assert Agent.load(lake, rows=2).act(np.array([3, 5]), np.array([True, True])).shape == (2,)
    agent = Agent.load(trained(tmp_path / "hallway", "--time-limit", "40", env="POMDP/Hallway-v0"))
    env = gymnasium.make("POMDP/Hallway-v0")
    assert agent.act(env.reset(seed=0)[0], True) in range(5)
    assert agent.act(env.step(0)[0], False) in range(5)


def test_an_atari_agent_is_loaded_again_and_plays_as_it_was_judged(tmp_path, monkeypatch):
    pytest.importorskip("ale_py")
    options = TrainConfig.env_kwargs
    monkeypatch.setattr(TrainConfig, "env_kwargs", lambda config, training=True: options(config))  # short evaluations
    small = "--total-steps 24 --learning-starts 16 --capacity 64 --context 2 --time-limit 9 --num-envs 1"
    agent = Agent.load(trained(tmp_path / "freeway", *small.split(), env="ALE/Freeway-v5"))
    assert agent.act(np.zeros((3, 64, 64), np.uint8), True) in range(3)
    assert agent.act(np.zeros((1, 3, 64, 64), np.uint8), False).shape == (1,)
    assert "(3, 64, 64)" in sentence(agent, np.zeros((64, 64, 3), np.uint8))


class Three(gymnasium.Env):
    """One of three observations, whose vocabulary has two tokens more; it draws nothing."""

    observation_space, action_space = gymnasium.spaces.Discrete(3, start=-1), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, 0.0, False, False, {}


@pytest.fixture(scope="module")
def agents(runs, tmp_path_factory):
    """An agent of whole numbers from -1 to 1, one of two rows of ten whole numbers, and one of real numbers."""
    gymnasium.register("Tests/Three-v0", lambda **kwargs: Three(), max_episode_steps=9)
    three = Agent.load(trained(tmp_path_factory.mktemp("three") / "run", env="Tests/Three-v0"))
    yield {"three": three, "cards": Agent.load(runs("transformer")), "car": Agent.load(runs("bidirectional"))}
    del gymnasium.registry["Tests/Three-v0"]


def sentence(agent, observation, reset=True):
    return error_of(agent.act, observation, reset)


def test_an_agent_refuses_to_play_where_actions_are_others(agents):
    other = Three()
    other.action_space = gymnasium.spaces.Discrete(3)
    assert (
        error_of(agents["three"].play, other)
        == "the environment has 3 actions, but the agent was trained with 2 actions"
    )


@pytest.mark.parametrize(("name", "observation", "words"), [
    *(("three", outside, "within Discrete(3, start=-1)") for outside in (2, 3, -2, [0, 2])),  # 2 and 3 are tokens too
    *(("three", fraction, "whole numbers") for fraction in (0.7, np.array([0.0, 0.5]))),
    *(("three", other, "numbers") for other in ("one", None)),
    ("three", [[1], [1, 0]], "same shape"),
    *(("car", [bad, *[0.0] * 9], "finite") for bad in (np.nan, np.inf, -np.inf)),
    ("cards", {"grid": np.zeros(10, np.int64)}, "no dictionary"),
    ("cards", (np.zeros(10, np.int64), {}), "reset returns (observation, info); give the first"),
    *(("cards", np.zeros(shape), "must be (10,), or (N, ...)") for shape in (5, (2, 5), (), (0, 10))),
    *(("cards", np.full(10, value), "within MultiDiscrete") for value in (-1, 30)),
])  # fmt: skip
def test_what_is_no_observation_is_named(agents, name, observation, words):
    agent = agents[name]
    if name == "car":
        observation = np.array(observation[: agent.interface.raw.shape[0]])
    assert words in sentence(agent, observation)


def test_one_component_too_large_is_refused_though_another_may_be_so_large(agents):
    sizes = agents["cards"].interface.raw.nvec
    assert "within MultiDiscrete" in sentence(agents["cards"], np.where(np.arange(10) == sizes.argmin(), sizes, 1))
    for inside in (-1, 0, 1, np.int8(1), 1.0, torch.tensor(1)):
        assert agents["three"].act(inside, True) in range(2)


def test_wrong_calls_leave_the_memory_alone(runs):
    agent, observation = Agent.load(runs("transformer"), rows=2), np.zeros((2, 10), np.int64)
    first = agent.act(observation, True), agent.q
    assert "2 environments, but got observations of 3" in sentence(agent, np.zeros((3, 10)), False)
    assert "must be one bool or (2,)" in sentence(agent, observation, [True, False, True])
    np.testing.assert_array_equal(agent.act(observation, True), first[0])
    assert "rows" in error_of(Agent.load, runs("transformer"), rows=0)


@pytest.mark.parametrize("reset", ["False", None, 0, 1.0, [1, 0], ["True", "True"], [True, None], [[True], []]])
def test_a_reset_is_a_bool_and_nothing_else(runs, reset):
    agent = Agent.load(runs("transformer"))
    assert "must be True or False, or an array of 2 bools" in sentence(agent, np.zeros((2, 10), np.int64), reset)
    assert isinstance(agent.act(np.zeros(10, np.int64), True), int)  # the wrong call has fixed no number of rows


def test_bools_of_every_library_are_resets(runs):
    agent, observation = Agent.load(runs("transformer"), rows=2), np.zeros((2, 10), np.int64)
    first = agent.act(observation, True), agent.q
    for reset in (np.True_, torch.tensor(True), [True, True], np.ones(2, bool), torch.ones(2, dtype=torch.bool)):
        agent.act(observation, False)
        np.testing.assert_array_equal(agent.act(observation, reset), first[0])
        np.testing.assert_array_equal(agent.q, first[1])


@pytest.mark.parametrize("device", ["cud", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there_is_one_sentence(runs, device):
    for load in (Agent.load, load_network):
        said = error_of(load, runs("transformer"), device=device)
        assert said.startswith(f"there is no device '{device}' here; use 'cpu'")


@pytest.mark.parametrize(("config", "without", "words"), [
    ("", "head", r"do not fit .*head.* is missing in the checkpoint and has"),
    (MEMORY, "nothing", "do not fit"),
    ("widht = 3", "nothing", "widht"),
])  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_one_sentence(runs, tmp_path, config, without, words):
    saved = Run.open(shutil.copytree(runs("transformer"), tmp_path / "run"))
    found = saved.load()
    weights = {name: value for name, value in found.weights.items() if without not in name}
    own = found.header["config"]
    header = found.header | {"config": own.replace(CARDS, config) if config == MEMORY else config or own}
    saved.save(found.step, weights, found.trainer, None, header)
    assert re.search(words, error_of(load_network, saved.path))


# a run of 128 steps by revision db3cf04e, before LRUs began near the unit circle: half of its |a| are below 0.7
OLD_LRU = Path(__file__).parents[1] / "data" / "runs" / "lru"


def test_an_lru_from_before_its_new_initial_values_acts_as_it_did():
    agent = Agent.load(OLD_LRU)
    for step in range(40):
        agent.act(step % 2, reset=step == 0)
    known = [0.1258460432, 0.1074079871, 0.0818238407, 0.3761169910, 0.3115398884]  # logits in that revision
    np.testing.assert_allclose(agent.q[0], known, atol=1e-6)


def test_an_lru_from_before_its_new_initial_values_trains_on(tmp_path):
    run, name = shutil.copytree(OLD_LRU, tmp_path / "lru"), "network.layers.0.sublayers.0.block.nu"
    ppo(["--resume", str(run), "--total-steps", "160"])
    before, after = (Run.open(folder).load() for folder in (OLD_LRU, run))
    assert (before.step, after.step) == (128, 160)
    change = after.weights[name] - before.weights[name]
    assert 0 < change.abs().max() < 0.01


def test_the_package_is_imported_without_torch_and_names_the_agent():
    assert dqn_memory.Agent is Agent
    with pytest.raises(AttributeError, match="nothing"):
        _ = dqn_memory.nothing
    code = "import sys, dqn_memory; assert 'torch' not in sys.modules; print(dqn_memory.Agent.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "Agent\n"
