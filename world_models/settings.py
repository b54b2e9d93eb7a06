"""What the configs of both world models' trainers have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dqn_memory.runs import settings
from dqn_memory.runs.errors import UserError
from envs.atari import AtariStep
from envs.core import Step
from envs.gymnasium_fleet import make_env
from envs.registry import WORLDS, make_world


@dataclass(frozen=True)
class ComputeConfig(settings.ComputeConfig):
    """Where and how tensors are computed."""

    tf32: bool = False
    """Multiply float32 with TF32 on a GPU, in convolutions too: several times faster, with 10 bits of mantissa."""


def training_signal(step: Step, clip_rewards: bool, terminal_on_life_loss: bool) -> tuple[Tensor, Tensor]:
    """Give the rewards (N,) to learn, and where (N,) an episode terminates: at a lost life too, if asked for."""
    reward = step.reward.sign() if clip_rewards else step.reward
    if isinstance(step, AtariStep) and terminal_on_life_loss:
        return reward, step.terminated | (step.life_lost & ~step.truncated)
    return reward, step.terminated


def check_environment(environment: settings.EnvironmentConfig) -> None:
    """Raise UserError for an option that this environment does not have."""
    environment.kwargs()
    env, path, key = environment.env, environment.path, environment.observation_key
    game = env.startswith("ALE/")
    if game and path is not None:
        raise UserError(f"--path {path} is for environments that are read from a file, which {env} is not")
    if key is not None and (game or _ours(environment)):
        raise UserError(f"--observation-key {key} is for dictionary observations, which {env} has not")


def shorter(environment: settings.EnvironmentConfig, limit: int | None) -> int | None:
    """Limit an episode's steps to `limit` or to the environment's own limit, whichever is lower (None: the own one).

    Not for games, whose limit counts frames.
    """
    own = None if limit is None else _own_limit(replace(environment, time_limit=None))
    return limit if own is None or limit is None else min(limit, own)


def _own_limit(environment: settings.EnvironmentConfig) -> int | None:
    """Look up an environment's time limit, None where it has none. It must be made for that: keywords can change it."""
    if _ours(environment):
        return make_world(environment.env, **environment.kwargs()).time_limit
    env = make_env(environment.env, **environment.kwargs())
    env.close()
    return None if env.spec is None else env.spec.max_episode_steps


def _ours(environment: settings.EnvironmentConfig) -> bool:
    return environment.env.removeprefix("envs:") in WORLDS
