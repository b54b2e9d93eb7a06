"""How updates and imagination are executed: eagerly, which is the tested reference, or as captured CUDA graphs.

Both execute the same functions. Everything random comes in as tensors, so captured imagination is a function of its
inputs and of the weights. Of imagination and the agent's updates only the graphs of the newest horizon are kept: each
graph holds memory of its own, and a schedule never comes back to a horizon.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dqn_memory.runs.cuda_graph import Captured
from world_models.glam import agent as actor_critic
from world_models.glam import learner
from world_models.glam.agent import Agent
from world_models.glam.config import Engine, LearnerConfig
from world_models.glam.imagination import Noise, Rollouts, StartFrom, encode_context, imagine
from world_models.glam.learner import Metrics, adam
from world_models.glam.model import WorldModel
from world_models.glam.replay import Batch


class Execution(NamedTuple):
    """The three things that a training run does between two steps of its environments."""

    learn_model: Callable[[Batch, Tensor], Metrics]  # with uniforms (B, T, G, C)
    imagine: Callable[[Batch, Tensor, Noise], Rollouts]  # from windows of the replay, with uniforms for their latents
    learn_agent: Callable[[Rollouts], Metrics]


class Optimizers(NamedTuple):
    """Adam of the world model and of the agent."""

    model: torch.optim.Adam
    agent: torch.optim.Adam


def make_optimizers(engine: Engine, model: WorldModel, agent: Agent, config: LearnerConfig) -> Optimizers:
    """Make both optimisers, capturable where the engine needs it."""
    capturable = engine == "cudagraph"
    return Optimizers(adam(model, config, capturable), adam(agent, agent.config, capturable))


def make_execution(
    engine: Engine, model: WorldModel, agent: Agent, optimizers: Optimizers, config: LearnerConfig, start: StartFrom
) -> Execution:
    """Prepare updates and imagination for an engine; `cudagraph` needs a CUDA device and capturable optimisers."""

    def imagine_rollouts(seen: Batch, encoding: Tensor, noise: Noise) -> Rollouts:
        with config.autocast(encoding.device):
            context = encode_context(model, seen.frames, seen.action, seen.first, encoding, start)
            return imagine(model, agent.policy, context, len(noise.action), noise, model.config.imagination_memory)

    learn_model = partial(learner.update, model, optimizers.model, config)
    learn_agent = partial(actor_critic.update, agent, optimizers.agent)
    if engine == "eager":
        return Execution(learn_model, imagine_rollouts, learn_agent)
    return Execution(
        Captured(learn_model, (model,), optimizers.model),
        Captured(imagine_rollouts, kept=1),
        Captured(learn_agent, (agent,), optimizers.agent, kept=1),
    )
