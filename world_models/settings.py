"""The settings that both world models' trainers have in common."""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.runs import common
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds
from envs.atari import AtariStep
from envs.core import Step
from envs.packages import make_env
from envs.registry import WORLDS, make_world

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class WorldModelComputeConfig(common.ComputeConfig):
    """Where and how tensors are computed."""

    tf32: bool = False
    """Multiply float32 with TF32 on a GPU: several times faster, with 10 bits of mantissa."""


def place(model: Model, device: torch.device | str) -> Model:
    """Move a model to a device; on a GPU the channels of convolutions come last in memory, which is faster there."""
    if torch.device(device).type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(device)


@dataclass(frozen=True)
class WorldModelEvaluationConfig:
    """Evaluations, in which all environments play as many episodes, so that short ones are not favoured."""

    evaluate_every: Annotated[int, Bounds(0)] = 10_000
    """Environment steps between evaluations (0: only at the end)."""
    num_eval_envs: Annotated[int, Bounds(1)] = 20
    """Environments that an evaluation plays in at once."""
    episodes_per_env: Annotated[int, Bounds(1, 10**9)] = 1
    """Episodes in each of them."""
    final_episodes_per_env: Annotated[int, Bounds(1, 10**9)] = 5
    """The same for the last evaluation."""
    max_episode_steps: Annotated[int, Bounds(1)] | None = None
    """Steps after which an evaluation cuts an episode (None: the environment's own limit)."""
    stop_at_return: float | None = None
    """End the run as soon as an evaluation's mean return reaches this (None: run to --total-steps)."""
    memory_ablation: bool = False
    """Evaluate the final agent once more without its memory."""


def training_signal(step: Step, collection: Any) -> tuple[Tensor, Tensor]:
    """Give the rewards (N,) to learn, and where (N,) an episode terminates: at a lost life too, if asked for.

    `collection` is how the run of either trainer collects.
    """
    reward = step.reward.sign() if collection.clip_rewards else step.reward
    if isinstance(step, AtariStep) and collection.terminal_on_life_loss:
        return reward, step.terminated | (step.life_lost & ~step.truncated)
    return reward, step.terminated


def check_environment(environment: common.EnvironmentConfig) -> None:
    """Raise UserError for an option that this environment does not have."""
    environment.kwargs()
    env, path = environment.env, environment.path
    if env.startswith("ALE/") and path is not None:
        raise UserError(f"--path {path} is for environments that are read from a file, which {env} is not")


def env_kwargs(config: Any, training: bool, **game: Any) -> dict[str, Any]:
    """Give the keywords of an environment's constructor; training and evaluations have their own time limits.

    `game` lays over how a run's games are played.
    """
    limit = config.environment.time_limit if training else config.evaluation.max_episode_steps
    if config.environment.env.startswith("ALE/"):
        frames = config.atari.most_frames if limit is None else limit * config.atari.frame_skip
        return asdict(config.atari) | game | {"most_frames": min(frames, config.atari.most_frames)}
    if not training and limit is None:
        return dict(config.environment.kwargs(training=False))
    own = None if training else _own_limit(replace(config.environment, time_limit=None))
    return replace(config.environment, time_limit=limit if own is None else min(limit, own)).kwargs()


def _own_limit(environment: common.EnvironmentConfig) -> int | None:
    """Look up an environment's time limit, None where it has none. It must be made for that: keywords can change it."""
    if environment.env.removeprefix("envs:") in WORLDS:
        return make_world(environment.env, **environment.kwargs()).time_limit
    env = make_env(environment.env, **environment.kwargs())
    env.close()
    return None if env.spec is None else env.spec.max_episode_steps
