"""Train other libraries' learners, for `python -m dqn_memory.benchmark --only peers`.

The benchmark starts this file as a script in the environment of the other library; it imports nothing of ours. Without
arguments it prints the versions of the libraries there, by learner. With a learner and its settings as JSON it trains
in Cart Pole on one core. Each line of standard input asks for one iteration, and is answered by its milliseconds of
processor time.
"""

import functools
import importlib.metadata
import importlib.util
import json
import operator
import os
import sys
import time
from collections.abc import Callable
from typing import Any

LIBRARIES = {"pqn": "memorax", "ppo": "sb3-contrib"}  # by learner


def memorax_pqn(settings: dict[str, Any]) -> Callable[[], object]:
    """Make an iteration of memorax's PQN: a rollout, and the updates from it."""
    import flax.linen as nn
    import jax
    import optax
    from memorax.algorithms import PQN, PQNConfig
    from memorax.environments import environment
    from memorax.networks import MLP, RNN, FeatureExtractor, Network, heads
    from memorax.utils.wrappers import GymnaxWrapper

    class Done(GymnaxWrapper):
        """Joins both kinds of endings of newer versions of gymnax: memorax 1.0.1 takes one."""

        def step(self, *arguments: Any) -> tuple[Any, ...]:
            observation, state, reward, *endings, info = self._env.step(*arguments)
            return observation, state, reward, functools.reduce(operator.or_, endings), info

    class Head(nn.Module):
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, **unused: Any) -> Any:
            return heads.DiscreteQNetwork(2)(MLP((width,))(x))

    width, num_envs, steps = settings["width"], settings["num_envs"], settings["rollout_steps"]
    config = PQNConfig(
        name="pqn", num_envs=num_envs, num_eval_envs=1, num_steps=steps, gamma=settings["gamma"],
        td_lambda=settings["trace_decay"], num_minibatches=settings["minibatches"], update_epochs=settings["epochs"],
    )  # fmt: skip
    network = Network(FeatureExtractor(observation_extractor=MLP((width,))), RNN(nn.GRUCell(width)), Head())
    clip, adam = optax.clip_by_global_norm(settings["max_grad_norm"]), optax.adam(settings["learning_rate"])
    env, parameters = environment.make("gymnax::CartPole-v1")
    learner = PQN(config, Done(env), parameters, network, optax.chain(clip, adam), optax.constant_schedule(0.1))
    carried = learner.init(jax.random.key(0))

    def iterate() -> None:
        nonlocal carried
        *carried, _ = jax.block_until_ready(learner.train(*carried, num_steps=num_envs * steps))

    return iterate


def recurrent_ppo(settings: dict[str, Any]) -> Callable[[], object]:
    """Make an iteration of sb3-contrib's RecurrentPPO: a rollout, and the updates from it."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Dense(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, width)
            self.dense = torch.nn.Linear(space.shape[0], width)

        def forward(self, observation: Any) -> Any:
            return self.dense(observation)

    torch.set_num_threads(1)
    width, num_envs, steps = settings["width"], settings["num_envs"], settings["rollout_steps"]
    policy = {"lstm_hidden_size": width, "shared_lstm": True, "enable_critic_lstm": False, "net_arch": [width]}
    learner = RecurrentPPO(
        "MlpLstmPolicy", make_vec_env("CartPole-v1", num_envs, seed=0), n_steps=steps, device="cpu", seed=0,
        batch_size=num_envs * steps // settings["minibatches"], n_epochs=settings["epochs"], gamma=settings["gamma"],
        gae_lambda=settings["trace_decay"], learning_rate=settings["learning_rate"], clip_range=settings["clip"],
        ent_coef=settings["entropy_weight"], max_grad_norm=settings["max_grad_norm"],
        policy_kwargs={**policy, "activation_fn": torch.nn.ReLU, "features_extractor_class": Dense},
    )  # fmt: skip
    return lambda: learner.learn(num_envs * steps, reset_num_timesteps=False)


def versions() -> dict[str, str]:
    """List the libraries that are installed, by learner."""
    names = {learner: name for learner, name in LIBRARIES.items() if importlib.util.find_spec(name.replace("-", "_"))}
    return {learner: f"{name} {importlib.metadata.version(name)}" for learner, name in names.items()}


def main(learner: str, settings: str) -> None:
    """Answer on standard output; what libraries print goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    iterate = {"pqn": memorax_pqn, "ppo": recurrent_ppo}[learner](json.loads(settings))
    for _ in sys.stdin:
        begin = time.process_time()
        iterate()
        print(1000 * (time.process_time() - begin), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        print(json.dumps(versions()))  # noqa: T201
