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

SMALL = {"net_arch": [16]}
DICTIONARY = ("Gridverse/Keydoor-5x5-v0", {"dictionary": True})
CAR, CARDS = ("POMDP/CarFlag-v0", {"time_limit": 40}), ("POMDP/MemoryCards-v0", {})
PLAIN = [CAR, CARDS, ("Gridverse/Memory-5x5-v0", {"time_limit": 40}), ("POMDP/HeavenHell-v0", {"time_limit": 40})]


@pytest.mark.parametrize(("world", "wrap"), [
    *((world, lambda env: env) for world in PLAIN),
    (CAR, lambda env: StepCount(PreviousAction(env))),
    (CARDS, lambda env: OneHot(PreviousAction(env))),
    (DICTIONARY, OneHot),
])  # fmt: skip
def test_both_agents_train_and_its_own_check_is_clean(world, wrap):
    id, kwargs = world
    check_env(gymnasium.make(id, **kwargs).unwrapped)
    kind = "MultiInput" if "dictionary" in kwargs else "Mlp"
    env = wrap(gymnasium.make(id, **kwargs))
    dqn = sb3.DQN(f"{kind}Policy", env, learning_starts=100, buffer_size=600, policy_kwargs=SMALL, seed=0)
    rows = make_vec_env(id, n_envs=2, env_kwargs=kwargs, wrapper_class=wrap)
    recurrent = SMALL | {"lstm_hidden_size": 16}
    ppo = contrib.RecurrentPPO(f"{kind}LstmPolicy", rows, n_steps=32, batch_size=32, policy_kwargs=recurrent)
    for agent, steps in ((dqn, 500), (ppo, 256)):
        agent.learn(steps)
        assert agent.num_timesteps >= 250
        assert all(np.isfinite(weight.detach().numpy()).all() for weight in agent.policy.parameters())
