"""What the configs of both world models' trainers have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

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


def training_signal(step: Step, clip_rewards: bool, life_ends: bool) -> tuple[Tensor, Tensor]:
    """Rewards (N,) as they are learned, and where (N,) an episode ends for good: at a lost life too, if asked for."""
    reward = step.reward.sign() if clip_rewards else step.reward
    if isinstance(step, AtariStep) and life_ends:
        return reward, step.terminated | (step.life_lost & ~step.truncated)
    return reward, step.terminated


def check_counts(config: object, names: Iterable[str]) -> None:
    """A UserError for the first of these flags that is set to less than 1."""
    for name in names:
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(config, name)} must be at least 1")


def check_not_negative(config: object, names: Iterable[str]) -> None:
    """A UserError for the first of these flags that is below 0."""
    for name in names:
        if getattr(config, name) is not None and getattr(config, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} {getattr(config, name)} must not be negative")


def check_run(config: Any) -> None:
    """A UserError for what no run of either trainer can have."""
    check_counts(config, ("total_steps",))
    check_not_negative(config, ("seed",))
    _check_world(config.environment)


def _check_world(world: settings.EnvironmentConfig) -> None:
    """A UserError for an option that this world would not be asked about."""
    world.kwargs()
    game = world.env.startswith("ALE/")
    if game and world.path is not None:
        raise UserError(f"--path {world.path} is for worlds that are read from a file, which {world.env} is not")
    if world.observation_key is not None and (game or _ours(world)):
        raise UserError(
            f"--observation-key {world.observation_key} is for dictionary observations, which {world.env} has not"
        )


def shorter(world: settings.EnvironmentConfig, limit: int | None) -> int | None:
    """A limit of an episode's steps that can cut the world's own one and not lengthen it; None: the world's own.

    Not for games, whose limit counts frames.
    """
    own = None if limit is None else _own_limit(replace(world, time_limit=None))
    return limit if own is None or limit is None else min(limit, own)


def _own_limit(world: settings.EnvironmentConfig) -> int | None:
    """Steps of a world's longest episode; None where it knows no limit. Only a made world says what its table and its
    keywords come to.
    """
    if _ours(world):
        return make_world(world.env, **world.kwargs()).time_limit
    env = make_env(world.env, **world.kwargs())
    env.close()
    return None if env.spec is None else env.spec.max_episode_steps


def _ours(world: settings.EnvironmentConfig) -> bool:
    return world.env.removeprefix("envs:") in WORLDS
