"""Stable-Baselines3's DQN and sb3-contrib's RecurrentPPO train on the worlds as they are."""

import gymnasium
import numpy as np
import pytest

from envs.wrappers import OneHot, PreviousAction, StepCount

REASON = "trains Stable-Baselines3 agents; `pip install stable-baselines3 sb3-contrib` in an environment of their own"
sb3 = pytest.importorskip("stable_baselines3", reason=REASON)
contrib = pytest.importorskip("sb3_contrib", reason=REASON)

from stable_baselines3.common.env_checker import check_env  # noqa: E402, after the skip
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402, after the skip

IDS = [
    "POMDP/CarFlag-v0",
    "POMDP/MemoryCards-v0",
    "POMDP/Hallway-v0",
    "Gridverse/Memory-5x5-v0",
    "Gridverse/Memory-NineRooms-13x13-v0",
    "Gridverse/Keydoor-5x5-v0",
]
DICTIONARY = ("Gridverse/Keydoor-5x5-v0", {"dictionary": True})
SMALL = {"net_arch": [16]}


def dqn(env, policy="MlpPolicy"):
    agent = sb3.DQN(policy, env, learning_starts=100, buffer_size=600, policy_kwargs=SMALL, seed=0)
    agent.learn(500)
    return agent


def recurrent_ppo(env, policy="MlpLstmPolicy"):
    kwargs = {**SMALL, "lstm_hidden_size": 16}
    agent = contrib.RecurrentPPO(policy, env, n_steps=32, batch_size=32, n_epochs=2, policy_kwargs=kwargs, seed=0)
    agent.learn(256)
    return agent


def trained(agent):
    """Steps were taken and the weights are numbers."""
    assert agent.num_timesteps >= 250
    assert all(np.isfinite(weight.detach().numpy()).all() for weight in agent.policy.parameters())


@pytest.mark.parametrize("id", IDS)
def test_its_own_check_is_clean(id):
    check_env(gymnasium.make(id).unwrapped)


@pytest.mark.parametrize("id", IDS)
def test_dqn_trains_on_the_world_as_it_is(id):
    trained(dqn(gymnasium.make(id, time_limit=40)))


@pytest.mark.parametrize("id", [*IDS, "POMDP/HeavenHell-v0"])
def test_recurrent_ppo_trains_on_the_world_as_it_is(id):
    trained(recurrent_ppo(make_vec_env(id, n_envs=2, env_kwargs={"time_limit": 40})))


def test_wrapped_worlds():
    trained(dqn(StepCount(PreviousAction(gymnasium.make("POMDP/CarFlag-v0", time_limit=40)))))
    trained(dqn(OneHot(PreviousAction(gymnasium.make("POMDP/MemoryCards-v0")))))


def test_dictionaries():
    id, kwargs = DICTIONARY
    trained(dqn(OneHot(gymnasium.make(id, **kwargs)), "MultiInputPolicy"))
    rows = make_vec_env(id, n_envs=2, env_kwargs=kwargs, wrapper_class=OneHot)
    trained(recurrent_ppo(rows, "MultiInputLstmPolicy"))
