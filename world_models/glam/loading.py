"""World model and agent: built for a world, and read back from a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch

from dqn_memory.blocks.kernels.select import Choice
from dqn_memory.runs import backend as backends
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run, check_kind
from dqn_memory.runs.settings import from_record, load_plugins
from envs.fleet import Fleet
from world_models.glam.agent import Agent
from world_models.glam.config import TrainConfig
from world_models.glam.model import WorldModel

KIND = "glam"  # what a checkpoint's header says


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds, in evaluation mode."""

    model: WorldModel
    agent: Agent
    config: TrainConfig
    step: int
    backend: Choice | None = None
    """What its Mamba runs on, where it has one."""


def build(config: TrainConfig, actions: int, seed: int, device: torch.device) -> tuple[WorldModel, Agent]:
    """A model and an agent for A actions, drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = WorldModel(config.model, actions)
        agent = Agent(config.agent, config.model.latent + config.model.width, actions)
    return model.to(device), agent.to(device)


def check_frames(fleet: Fleet, config: TrainConfig) -> None:
    """A UserError where a world does not show square frames of three colours, as large as the model's screen."""
    space, shape = fleet.observation_space, (3, config.model.screen, config.model.screen)
    if isinstance(space, gymnasium.spaces.Box) and space.shape == shape and space.dtype == np.uint8:
        return
    raise UserError(f"--env {config.environment.env} shows {space}, but GLAM needs frames Box(0, 255, {shape}, uint8)")


def load(run: Path | str, device: torch.device | str = "cpu") -> Trained:
    """Model and agent of the latest checkpoint, the run's config, and the step it was saved at.

    Nothing is written. Raises UserError for a folder without a run or checkpoint, a damaged or foreign one, or weights
    that do not fit the config.
    """
    path, device = Path(run), torch.device(device)
    checkpoint = Run.open(path, tensorboard=False).load(with_replay=False)
    check_kind(path, checkpoint, KIND)
    config = from_record(TrainConfig, checkpoint.header["config"], f"the config in the checkpoint of {path}")
    load_plugins(config.plugin)
    actions = checkpoint.trainer["actions"]
    model, agent = build(config, actions, 0, device)
    backend = backends.resolve_backend([model], "auto", device)
    checkpoint.fill(model, "model")
    checkpoint.fill(agent, "agent")
    return Trained(model.eval(), agent.eval(), config, checkpoint.step, backend)
