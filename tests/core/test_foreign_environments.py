"""Runs in environments of others: evaluations end, agents are told what is wrong, replays fit."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import DictInfoToList
from run_folders import error_of

from dqn_memory import agent
from dqn_memory import evaluate as evaluation
from dqn_memory.analysis import episodes
from dqn_memory.api import Agent, evaluate, load_run, train
from dqn_memory.network import ObservationSpec
from dqn_memory.replay import Replay
from envs.machine import device_memory
from world_models import trainer as world_trainer
from world_models.glam import replay as glam
from world_models.glam.config import GlamReplayConfig as GlamReplay
from world_models.unizero import replay as unizero
from world_models.unizero.config import UniZeroReplayConfig as UniZeroReplay

TINY = {
    "track": ["none"], "threads": 1, "total_steps": 64, "num_envs": 4, "rollout_steps": 8, "width": 8,
    "final_episodes": 4, "memory_ablation": False, "minibatches": 1,
}  # fmt: skip
MOST = 20


class Endless(gymnasium.Env):
    """Goes on for ever."""

    action_space, observation_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(action), float(action), False, False, {}


class Coin(Endless):
    """Ends at once, and draws from numpy's global generator."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue = np.random.randint(2)
        return self.cue, {}

    def step(self, action):
        return 0, float(action == self.cue), True, False, {}


class Big(Endless):
    """Shows pictures of which no machine holds many."""

    observation_space = spaces.Box(0, 255, (250, 250, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        return np.zeros((250, 250, 3), np.uint8), {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    for kind in (Endless, Coin, Big):
        gymnasium.register(f"Mine/{kind.__name__}-v0", kind)
    yield
    for kind in (Endless, Coin, Big):
        del gymnasium.registry[f"Mine/{kind.__name__}-v0"]


@pytest.fixture(scope="module")
def endless(tmp_path_factory, registered):
    """A run in an environment whose episodes nothing ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "MAX_STEPS", MOST)
        run, score = train("ppo", env="Mine/Endless-v0", run=str(tmp_path_factory.mktemp("run") / "a"), **TINY)
    assert score.lengths.tolist() == [MOST] * 4
    return run


def test_evaluations_of_episodes_that_never_end_are_bounded(endless, monkeypatch):
    for module in (evaluation, agent, episodes, world_trainer):
        monkeypatch.setattr(module, "MAX_STEPS", MOST)
    assert evaluate(endless, episodes=3).score.lengths.tolist() == [MOST] * 3
    player = Agent.load(endless)
    assert player.play(Endless(), 2).lengths.tolist() == [MOST] * 2
    network, config, _ = evaluation.load_network(endless)
    setup = config.eval_setup(torch.device("cpu"))
    assert [len(each) for each in episodes.play_in(setup, network, seed=0, episodes=2)] == [MOST] * 2
    vector = world_trainer.EvalEnvironments("Mine/Endless-v0", {}, torch.device("cpu")).vector(2, 0)
    vector.reset()
    cut = [vector.step(torch.zeros(2, dtype=torch.int64)).truncated.all() for _ in range(MOST)]
    assert cut == [False] * (MOST - 1) + [True]
    assert "Endless" in error_of(player.play, SyncVectorEnv([Endless] * 2), 2)


@pytest.mark.parametrize("changes", [
    {"reward": lambda given: given.astype(str)}, {"reward": lambda given: given[:1]},
    {"reward": lambda given: given * np.nan}, {"flag": lambda given: given.astype(float)},
    {"flag": lambda given: None}, {"info": lambda given: None}, {"info": lambda given: {"success": "yes"}},
    {"info": lambda given: {"final_info": [1]}}, {"info": lambda given: {"is_success": np.ones(3)}},
    {"observation": lambda given: given[:1]}, {"observation": lambda given: None},
    {"observation": lambda given: given + 0.5}, {"observation": lambda given: given + 7},
])  # fmt: skip
def test_a_wrong_value_of_a_vector_environment_is_one_sentence(endless, changes):
    class Wrong(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            observation, reward, ended, cut, info = super().step(actions)
            parts = {"observation": observation, "reward": reward, "flag": ended, "info": info}
            parts = {name: changes.get(name, lambda given: given)(value) for name, value in parts.items()}
            return parts["observation"], parts["reward"], parts["flag"], cut, parts["info"]

    envs = SyncVectorEnv([lambda: TimeLimit(Endless(), 3)] * 2)
    error_of(Agent.load(endless).play, Wrong(envs), 4)


def test_infos_as_lists_are_one_sentence(endless):
    envs = DictInfoToList(SyncVectorEnv([lambda: TimeLimit(Endless(), 3)] * 2))
    assert "list" in error_of(Agent.load(endless).play, envs, 2)


def test_runs_in_an_environment_of_global_randomness_are_repeated(tmp_path):
    losses = []
    for name in "ab":
        run, _ = train("ppo", env="Mine/Coin-v0", seed=1, run=str(tmp_path / name), log_every=32, **TINY)
        losses.append(load_run(run).metrics["losses/loss"].value.tolist())
    assert losses[0] == losses[1]


def test_a_replay_that_never_fits_is_one_sentence_from_python(tmp_path):
    assert "--capacity" in error_of(
        train, env="Mine/Big-v0", capacity=10_000_000, track=["none"], run=str(tmp_path / "r")
    )


@pytest.mark.parametrize("made", [
    lambda count: Replay(ObservationSpec("image", (64, 64, 3), 0, torch.uint8), 2, 4, count, torch.device("cpu")),
    lambda count: glam.FrameReplay(GlamReplay(capacity=count), 64, 4, torch.device("cpu"), 8),
    lambda count: unizero.SequenceReplay(
        UniZeroReplay(capacity=count), ObservationSpec("continuous", (3_000,)), 2, 4, torch.device("cpu"), 5, 5
    ),
])  # fmt: skip
def test_every_replay_says_that_it_does_not_fit(made):
    assert "--capacity" in error_of(made, device_memory()[1] // 10_000)
    assert len(made(400).cells) >= 5
