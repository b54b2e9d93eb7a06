"""Settings and functions shared by the trainers of both world models."""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.runs import base_config
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds
from envs.atari import AtariStep
from envs.core import Step
from envs.packages import make_env
from envs.registry import WORLDS, make_world

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class WorldModelComputeConfig(base_config.ComputeConfig):
    """Where and how tensors are computed."""

    tf32: bool = False
    """Multiply float32 with TF32 on a GPU: several times faster, with 10 bits of mantissa."""


def to_device(model: Model, device: torch.device | str) -> Model:
    """Move a model to a device; on a GPU, convolutions get the faster channels-last memory format."""
    if torch.device(device).type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(device)


@dataclass(frozen=True)
class WorldModelEvaluationConfig:
    """Evaluation: all environments play the same number of episodes, so that short ones are not favoured."""

    evaluate_every: Annotated[int, Bounds(0)] = 10_000
    """Environment steps between evaluations (0: only at the end)."""
    num_eval_envs: Annotated[int, Bounds(1)] = 20
    """Environments that an evaluation steps at once."""
    episodes_per_env: Annotated[int, Bounds(1, 10**9)] = 1
    """Episodes in each of these environments."""
    final_episodes_per_env: Annotated[int, Bounds(1, 10**9)] = 5
    """Episodes in each of these environments in the last evaluation."""
    max_episode_steps: Annotated[int, Bounds(1)] | None = None
    """Maximum number of steps of an evaluation's episode (None: the environment's own limit)."""
    stop_at_return: float | None = None
    """End the run once an evaluation's mean return reaches this (None: run to --total-steps)."""
    memory_ablation: bool = False
    """Evaluate the final agent once more without its memory."""


def updates_due(first: int, last: int, num_envs: int, starts: int, ratio: float) -> int:
    """Count the updates after the iterations `first` to `last` = 1, 2, ...; their ratio to steps is exact.

    Args:
        first: first of these iterations; each takes one step in every environment.
        last: last of them.
        num_envs: environments N.
        starts: environment steps before the first update.
        ratio: updates per environment step.
    """
    first = max(first, -(-starts // num_envs))
    return int(last * num_envs * ratio) - int((first - 1) * num_envs * ratio) if first <= last else 0


def training_signal(step: Step, collection: Any) -> tuple[Tensor, Tensor]:
    """Return rewards and terminations (N,) as a model learns them, by a run's collection config.

    Rewards may be clipped to their signs, and a lost life may terminate an episode.
    """
    reward = step.reward.sign() if collection.clip_rewards else step.reward
    if isinstance(step, AtariStep) and collection.terminal_on_life_loss:
        return reward, step.terminated | (step.life_lost & ~step.truncated)
    return reward, step.terminated


def check_environment(environment: base_config.EnvironmentConfig) -> None:
    """Raise UserError for an option that the environment does not have."""
    environment.check()
    environment.kwargs()
    env, path = environment.id, environment.path
    if env.startswith("ALE/") and path is not None:
        raise UserError(f"--path {path} is for environments that are read from a file; {env} is not")


def env_kwargs(config: Any, training: bool, **game: Any) -> dict[str, Any]:
    """Return the keywords of an environment's constructor; training and evaluations have their own time limits.

    `game` overrides the settings of Atari games.
    """
    limit = config.environment.time_limit if training else config.evaluation.max_episode_steps
    if config.environment.id.startswith("ALE/"):
        frames = config.atari.most_frames if limit is None else limit * config.atari.frame_skip
        return asdict(config.atari) | game | {"most_frames": min(frames, config.atari.most_frames)}
    if not training and limit is None:
        return dict(config.environment.kwargs(training=False))
    own = None if training else _own_limit(replace(config.environment, time_limit=None))
    return replace(config.environment, time_limit=limit if own is None else min(limit, own)).kwargs()


def _own_limit(environment: base_config.EnvironmentConfig) -> int | None:
    """Make an environment to read its time limit (None: it has none); keywords can change the limit."""
    if environment.id.removeprefix("envs:") in WORLDS:
        return make_world(environment.id, **environment.kwargs()).time_limit
    env = make_env(environment.id, **environment.kwargs())
    env.close()
    return None if env.spec is None else env.spec.max_episode_steps
