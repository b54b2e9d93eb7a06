"""What a training run is made from: flags and presets of a fresh one, the folder and few changes of a stopped one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dqn_memory.runs.folder import Run
from dqn_memory.runs.resume import reopened, with_backend
from dqn_memory.runs.settings import load_plugins, parse
from world_models.glam.loading import KIND
from world_models.glam.train_config import TrainConfig


def fresh(argv: Sequence[str]) -> tuple[TrainConfig, Path]:
    """The config that flags and presets make, and the folder of its run."""
    config = parse(TrainConfig, argv)
    load_plugins(config.plugin)
    world = config.environment.env.replace("/", "-")
    return config, Path(config.output.run or f"runs/{world}/glam-{config.model.sequence}/seed_{config.seed}")


def stopped(argv: Sequence[str]) -> tuple[TrainConfig, Run]:
    """A run that exists, and its config with the few changes that a resume may make."""
    config, run, backend = reopened(argv, TrainConfig, KIND)
    return with_backend(config, run, backend), run
