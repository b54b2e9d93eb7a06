"""How updates and dreams are executed: eagerly, which is the tested reference, or as captured CUDA graphs.

What is executed is the same in both. Everything random comes in as tensors, so a captured dream is a function of its
inputs and of the weights. Of dreams and of what is learned from them the graphs of one horizon are kept: each holds
its memory for itself, and a schedule never comes back to a horizon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dqn_memory.runs.cuda_graph import Captured
from world_models.glam import agent as actor_critic
from world_models.glam import learner
from world_models.glam.agent import Agent
from world_models.glam.config import Engine, LearnerConfig
from world_models.glam.imagination import Imagined, Noise, Start, context, imagine
from world_models.glam.learner import Metrics
from world_models.glam.model import WorldModel
from world_models.glam.replay import Batch


@dataclass(frozen=True)
class Lesson(Batch):
    """What an update of the world model takes: a batch, and uniforms for its latents."""

    noise: Tensor  # (B, T, G, C)


@dataclass(frozen=True)
class Seeds:
    """What a dream of H steps takes: windows of the replay, and uniforms."""

    frames: Tensor  # (B, L, 3, S, S) uint8
    action: Tensor  # (B, L) int64
    first: Tensor  # (B, L) bool
    encoding: Tensor  # (B, L, G, C) uniforms for the latents of the frames
    latent: Tensor  # (H + 1, B, G, C), as in Noise
    choice: Tensor  # (H, B, A), as in Noise


class Execution(NamedTuple):
    """The three things that a training run does between two steps of its worlds."""

    learn_model: Callable[[Lesson], Metrics]
    dream: Callable[[Seeds], Imagined]
    learn_agent: Callable[[Imagined], Metrics]


class Optimizers(NamedTuple):
    """Adam of the world model and of the agent."""

    model: torch.optim.Adam
    agent: torch.optim.Adam


def make_optimizers(engine: Engine, model: WorldModel, agent: Agent, config: LearnerConfig) -> Optimizers:
    """Both, capturable where the engine needs it."""
    capturable = engine == "cudagraph"
    return Optimizers(learner.optimizer_for(model, config, capturable), actor_critic.optimizer_for(agent, capturable))


def make_execution(
    engine: Engine, model: WorldModel, agent: Agent, optimizers: Optimizers, config: LearnerConfig, start: Start
) -> Execution:
    """Updates and dreams under the chosen engine; `cudagraph` needs a CUDA device and capturable optimisers."""

    def learn_model(lesson: Lesson) -> Metrics:
        return learner.update(model, optimizers.model, config, lesson, lesson.noise)

    def dream(seeds: Seeds) -> Imagined:
        with config.autocast(seeds.frames.device):
            begin = context(model, seeds.frames, seeds.action, seeds.first, seeds.encoding, start)
            noise = Noise(seeds.latent, seeds.choice)
            return imagine(model, agent.policy, begin, len(seeds.choice), noise, model.config.imagination_memory)

    def learn_agent(imagined: Imagined) -> Metrics:
        return actor_critic.update(agent, optimizers.agent, imagined)

    if engine == "eager":
        return Execution(learn_model, dream, learn_agent)
    return Execution(
        Captured(learn_model, (model,), optimizers.model),
        Captured(dream, kept=1),
        Captured(learn_agent, (agent,), optimizers.agent, kept=1),
    )
