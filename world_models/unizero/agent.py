"""The world model of a run folder, read back."""

from __future__ import annotations

from pathlib import Path

import torch

from dqn_memory.observations import observation_spec
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import check_kind
from dqn_memory.runs.settings import from_record, load_plugins
from envs.fleet import make_fleet
from world_models.unizero.networks import WorldModel, build
from world_models.unizero.train_config import TrainConfig

KIND = "unizero"  # what a checkpoint's header says


def load_model(run: Path | str, device: torch.device | str = "cpu") -> tuple[WorldModel, TrainConfig, int]:
    """The model of the latest checkpoint in evaluation mode, the run's config, and the step it was saved at.

    Nothing is written. Raises UserError for a folder without a run or checkpoint, a damaged or foreign one,
    or weights that do not fit the config.
    """
    path = Path(run)
    checkpoint = Run.open(path, tensorboard=False).load(with_replay=False)
    check_kind(path, checkpoint, KIND)
    config = from_record(TrainConfig, checkpoint.header["config"], f"the config in the checkpoint of {path}")
    load_plugins(config.plugin)
    world = config.world
    fleet = make_fleet(
        world.env, 1, 0, observation_key=world.observation_key, env_kwargs=config.env_kwargs(training=False)
    )
    with torch.random.fork_rng(devices=[]):  # the first weights are overwritten at once
        model = build(config.model, observation_spec(fleet.observation_space), fleet.num_actions)
    checkpoint.fill(model, "model")
    return model.to(device).eval(), config, checkpoint.step
