"""The agent acts as evaluation does, alone and in a batch, and refuses runs that are not its own."""

import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from trained import CAR, CARDS, MEMORY, contents, trained

from dqn_memory.agent import Agent, load_network
from dqn_memory.analysis.episodes import play_in
from dqn_memory.runs.checkpoint import CheckpointFolder
from dqn_memory.runs.errors import UserError

RUNS = {
    "transformer": ((), {}),
    "bidirectional": (("--architecture", "dbgfqn", "--env", CAR), {}),
    "carried": (("--architecture", "drqn", "--acting-state", "episode"), {}),
    "actions": (("--architecture", "adrqn", "--action-embedding", "4"), {}),
    "padded": (("--acting", "padded", "--no-lengths", "--env", CAR), {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = {}

    def get(name):
        if name not in made:
            made[name] = trained(folder / name, *RUNS[name][0])
        return made[name]

    return get


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


def test_drives_a_gymnasium_environment(runs):
    agent, env = Agent.load(runs("transformer")), gymnasium.make("envs:POMDP/MemoryCards-v0")
    observation, reset, steps = env.reset(seed=1)[0], True, 0
    while not (reset and steps):
        action = agent.act(observation, reset)
        assert isinstance(action, int)
        observation, _, terminated, truncated, _ = env.step(action)
        reset, steps = terminated or truncated, steps + 1
    assert steps <= 50


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


def test_other_gymnasium_worlds_speak_their_own_numbers(tmp_path):
    lake = trained(tmp_path / "lake", env="FrozenLake-v1")
    agent = Agent.load(lake)
    assert agent.act(3, True) in range(4)
    assert Agent.load(lake, rows=2).act(np.array([3, 5]), np.array([True, True])).shape == (2,)
    with pytest.raises(UserError, match="16"):
        agent.act(40, False)


def test_a_world_with_one_discrete_observation_is_loaded_again(tmp_path):
    hallway = trained(tmp_path / "hallway", "--time-limit", "40", env="POMDP/Hallway-v0")
    agent = Agent.load(hallway)
    env = gymnasium.make("POMDP/Hallway-v0")
    assert agent.act(env.reset(seed=0)[0], True) in range(5)
    assert agent.act(env.step(0)[0], False) in range(5)


def test_an_atari_agent_is_loaded_again_and_plays_as_it_was_judged(tmp_path):
    pytest.importorskip("ale_py")
    small = (
        "--total-steps",
        "24",
        "--learning-starts",
        "16",
        "--capacity",
        "64",
        "--context",
        "2",
        "--time-limit",
        "9",
    )
    run = trained(tmp_path / "freeway", *small, "--num-envs", "1", "--final-episodes", "1", env="ALE/Freeway-v5")
    agent = Agent.load(run)
    assert agent.act(np.zeros((3, 64, 64), np.uint8), True) in range(3)
    assert agent.act(np.zeros((2, 3, 64, 64), np.uint8)[:1], False).shape == (1,)
    with pytest.raises(UserError, match=r"\(3, 64, 64\)"):
        agent.act(np.zeros((64, 64, 3), np.uint8), False)


def test_a_dictionary_that_lacks_what_is_seen_is_named(runs):
    with pytest.raises(UserError, match="no dictionary"):
        Agent.load(runs("transformer")).act({"grid": np.zeros(10, np.int64)}, True)


def test_wrong_calls_are_named_and_leave_the_memory_alone(runs):
    agent = Agent.load(runs("transformer"), rows=2)
    observation = np.zeros((2, 10), np.int64)
    first = agent.act(observation, True), agent.q
    for wrong in (np.zeros(5), np.zeros((2, 5)), np.zeros((3, 10)), np.zeros(()), observation - 1, observation + 30):
        with pytest.raises(UserError):
            agent.act(wrong, False)
    with pytest.raises(UserError, match="reset"):
        agent.act(observation, [True, False, True])
    again = agent.act(observation, True)
    np.testing.assert_array_equal(first[0], again)
    with pytest.raises(UserError, match="rows"):
        Agent.load(runs("transformer"), rows=0)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """An agent of a world with one of three observations, whose vocabulary has two tokens more."""
    gymnasium.register("Tests/Three-v0", lambda **kwargs: Three(), max_episode_steps=9)
    yield trained(tmp_path_factory.mktemp("three") / "run", env="Tests/Three-v0")
    del gymnasium.registry["Tests/Three-v0"]


class Three(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(3, start=-1), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, 0.0, False, False, {}


def sentence(agent, observation, reset=True):
    with pytest.raises(UserError) as raised:
        agent.act(observation, reset)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_an_observation_outside_its_space_is_refused_though_the_network_has_a_token_for_it(three, runs):
    agent = Agent.load(three)
    for inside in (-1, 0, 1, np.int8(1), 1.0, torch.tensor(1)):
        assert agent.act(inside, True) in range(2)
    for outside in (2, 3, -2, [0, 2]):
        assert "within Discrete(3, start=-1)" in sentence(agent, outside)
    cards = Agent.load(runs("transformer"))
    sizes = cards.interface.raw.nvec
    sizes = np.where(
        np.arange(len(sizes)) == sizes.argmin(), sizes, 1
    )  # one component too large, of the smallest range
    assert "within MultiDiscrete" in sentence(cards, sizes)


def test_only_numbers_that_mean_something_are_observed(three, runs):
    agent = Agent.load(three)
    assert "whole numbers" in sentence(agent, 0.7) and "whole numbers" in sentence(agent, np.array([0.0, 0.5]))
    assert "numbers" in sentence(agent, "one") and "numbers" in sentence(agent, None)
    assert "same shape" in sentence(agent, [[1], [1, 0]])
    car = Agent.load(runs("bidirectional"))
    observation = np.zeros(car.interface.raw.shape, np.float32)
    for bad in (np.nan, np.inf, -np.inf):
        assert "finite" in sentence(car, np.where(np.arange(observation.size) == 0, bad, observation))
    assert car.act(observation, True) in range(car.network.num_actions)


def test_both_that_reset_returns_are_no_observation(runs):
    env = gymnasium.make("envs:POMDP/MemoryCards-v0")
    said = sentence(Agent.load(runs("transformer")), env.reset(seed=0))
    assert "reset returns (observation, info); give the first" in said


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
        with pytest.raises(UserError, match=f"^there is no device '{device}' here; use 'cpu'") as raised:
            load(runs("transformer"), device=device)
        assert "\n" not in str(raised.value)


def test_loading_changes_nothing(runs):
    before = contents(runs("transformer"))
    Agent.load(runs("transformer")).act(np.zeros(10, np.int64), True)
    assert contents(runs("transformer")) == before


def resave(run, folder, weights=None, header=None):
    """A copy of a run's checkpoint with other weights or another header, as another program would write it."""
    saved, _ = CheckpointFolder(run / "checkpoints").load()
    folder.mkdir()
    (folder / "config.toml").write_bytes((run / "config.toml").read_bytes())
    copy = CheckpointFolder(folder / "checkpoints")
    copy.save(saved.step, weights or saved.weights, saved.trainer, None, {**saved.header, **(header or {})}, 0)
    return folder


def test_foreign_and_unfitting_checkpoints_are_one_sentence(runs, tmp_path):
    run = runs("transformer")
    saved, _ = CheckpointFolder(run / "checkpoints").load()
    cut = {name: value for name, value in saved.weights.items() if "head" not in name}
    elsewhere = saved.header["config"].replace(CARDS, MEMORY)
    cases = {
        "foreign": (resave(run, tmp_path / "a", header={"kind": "another program"}), "another program"),
        "cut": (resave(run, tmp_path / "b", weights=cut), r"do not fit .*head.* is missing in the checkpoint and has"),
        "other world": (resave(run, tmp_path / "c", header={"config": elsewhere}), "do not fit"),
        "bad config": (resave(run, tmp_path / "d", header={"config": "widht = 3"}), "widht"),
    }
    for folder, message in cases.values():
        with pytest.raises(UserError, match=message) as raised:
            load_network(folder)
        assert "\n" not in str(raised.value)


def test_damaged_and_missing_checkpoints_are_one_sentence(runs, tmp_path):
    copy = resave(runs("transformer"), tmp_path / "copy")
    (weights,) = (copy / "checkpoints").glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(UserError, match="damaged"):
        Agent.load(copy)
    (copy / "checkpoints" / "manifest.json").write_text(json.dumps({"format": "else"}))
    with pytest.raises(UserError, match="foreign"):
        Agent.load(copy)
    (copy / "checkpoints" / "manifest.json").unlink()
    with pytest.raises(UserError, match="no checkpoint"):
        Agent.load(copy)
    with pytest.raises(UserError, match="no run folder"):
        Agent.load(tmp_path / "nowhere")


def test_the_package_is_imported_without_torch_and_names_the_agent():
    code = "import sys, dqn_memory; assert 'torch' not in sys.modules; print(dqn_memory.Agent.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "Agent\n"
