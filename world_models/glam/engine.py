"""How updates and imagination are executed: eagerly, which is the tested reference, or as captured CUDA graphs.

Both execute the same functions. Everything random comes in as tensors, so captured imagination is a function of its
inputs and of the weights. Of imagination and the agent's updates only the graphs of the newest horizon are kept: each
graph holds memory of its own, and a schedule never comes back to a horizon.
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
from world_models.glam.imagination import Noise, Rollouts, StartFrom, encode_context, imagine
from world_models.glam.learner import Metrics
from world_models.glam.model import WorldModel
from world_models.glam.replay import Batch


@dataclass(frozen=True)
class ModelBatch(Batch):
    """What an update of the world model takes: a batch, and uniforms for its latents."""

    noise: Tensor  # (B, T, G, C)


@dataclass(frozen=True)
class RolloutInputs:
    """What imagining H steps takes: windows of the replay, and uniforms."""

    frames: Tensor  # (B, L, 3, S, S) uint8
    action: Tensor  # (B, L) int64
    first: Tensor  # (B, L) bool
    encoding: Tensor  # (B, L, G, C) uniforms for the latents of the frames
    latent: Tensor  # (H + 1, B, G, C), as in Noise
    choice: Tensor  # (H, B, A), as in Noise


class Execution(NamedTuple):
    """The three things that a training run does between two steps of its environments."""

    learn_model: Callable[[ModelBatch], Metrics]
    imagine: Callable[[RolloutInputs], Rollouts]
    learn_agent: Callable[[Rollouts], Metrics]


class Optimizers(NamedTuple):
    """Adam of the world model and of the agent."""

    model: torch.optim.Adam
    agent: torch.optim.Adam


def make_optimizers(engine: Engine, model: WorldModel, agent: Agent, config: LearnerConfig) -> Optimizers:
    """Make both optimisers, capturable where the engine needs it."""
    capturable = engine == "cudagraph"
    return Optimizers(learner.optimizer_for(model, config, capturable), actor_critic.optimizer_for(agent, capturable))


def make_execution(
    engine: Engine, model: WorldModel, agent: Agent, optimizers: Optimizers, config: LearnerConfig, start: StartFrom
) -> Execution:
    """Prepare updates and imagination for an engine; `cudagraph` needs a CUDA device and capturable optimisers."""

    def learn_model(batch: ModelBatch) -> Metrics:
        return learner.update(model, optimizers.model, config, batch, batch.noise)

    def imagine_rollouts(inputs: RolloutInputs) -> Rollouts:
        with config.autocast(inputs.frames.device):
            context = encode_context(model, inputs.frames, inputs.action, inputs.first, inputs.encoding, start)
            noise = Noise(inputs.latent, inputs.choice)
            return imagine(model, agent.policy, context, len(inputs.choice), noise, model.config.imagination_memory)

    def learn_agent(rollouts: Rollouts) -> Metrics:
        return actor_critic.update(agent, optimizers.agent, rollouts)

    if engine == "eager":
        return Execution(learn_model, imagine_rollouts, learn_agent)
    return Execution(
        Captured(learn_model, (model,), optimizers.model),
        Captured(imagine_rollouts, kept=1),
        Captured(learn_agent, (agent,), optimizers.agent, kept=1),
    )
