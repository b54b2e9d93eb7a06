"""Run learners of other libraries, for `python -m dqn_memory.benchmark --peer-python PYTHON`.

The benchmark starts this file as a script in the environment of the other library; nothing else imports it, and it
imports nothing of ours. Without arguments it prints the versions of the libraries that it finds, by learner. With a
learner and its settings as JSON it trains in CartPole, on one core: it prints the seconds of its first two iterations,
in which it compiles, and then for each line of standard input the milliseconds of one more. All times are of the
processor.
"""

import contextlib
import functools
import importlib.metadata
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
        """Joins the two kinds of endings of newer gymnax: memorax 1.0.1 takes one."""

        def step(self, *arguments: Any) -> tuple[Any, ...]:
            observation, state, reward, *endings, info = self._env.step(*arguments)
            return observation, state, reward, functools.reduce(operator.or_, endings), info

    class Head(nn.Module):
        @nn.compact
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
        key, state, transitions = learner.train(*carried, num_steps=num_envs * steps)
        carried = key, jax.block_until_ready(state)
        jax.block_until_ready(transitions)

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


LEARNERS = {"pqn": memorax_pqn, "ppo": recurrent_ppo}


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Measure the processor time of a piece of work."""
    begin = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - begin


def found() -> dict[str, str]:
    """List the installed libraries with their versions, by learner."""
    versions = {}
    for learner, library in LIBRARIES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[learner] = f"{library} {importlib.metadata.version(library)}"
    return versions


def main() -> None:
    """Answer on standard output; what libraries print goes to standard error."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    if len(sys.argv) < 2:
        answers.write(json.dumps(found()))
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work = LEARNERS[sys.argv[1]](json.loads(sys.argv[2]))
    answers.write(f"{seconds(work, 2)}\n")
    answers.flush()
    for _ in sys.stdin:
        answers.write(f"{1000 * seconds(work)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
