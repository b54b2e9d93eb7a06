"""What a training run is made from: flags and presets of a fresh one, the folder and few changes of a stopped one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dqn_memory.configuration import from_toml, load_plugins, parse
from dqn_memory.errors import UserError
from dqn_memory.experiment import Run
from dqn_memory.starting import ResumeConfig
from world_models.unizero.agent import check_kind
from world_models.unizero.train_config import TrainConfig


def fresh(argv: Sequence[str]) -> tuple[TrainConfig, Path]:
    """The config that flags and presets make, and the folder of its run."""
    config = parse(TrainConfig, argv)
    load_plugins(config.plugin)
    form = f"unizero-{config.model.dynamics}-{config.model.prior.kind}"
    world = config.world.env.replace("/", "-")
    return config, Path(config.output.run or f"runs/{world}/{form}/seed_{config.seed}")


def stopped(argv: Sequence[str]) -> tuple[TrainConfig, Run]:
    """A run that exists, and its config with the few changes that a resume may make."""
    flags = parse(ResumeConfig, argv)
    run = Run.open(Path(flags.resume))
    if run.has_checkpoint:  # before its config is read, which another kind of run has of its own form
        check_kind(run.path, run.load(with_replay=False))
    config = from_toml(TrainConfig, run.config_toml, str(run.path / "config.toml"))
    load_plugins(config.plugin)
    changes = {name: getattr(flags, name) for name in ("log_every", "checkpoint_every")}
    changes = {name: value for name, value in changes.items() if value is not None}
    config = replace(config, output=replace(config.output, **changes))
    if flags.total_steps is not None:
        config = replace(config, total_steps=flags.total_steps)
    if flags.device is not None:
        config = replace(config, compute=replace(config.compute, device=flags.device))
    return config, run


def check_unfinished(run: Run, config: TrainConfig, steps: int, solved: bool) -> None:
    """A UserError where there is nothing to resume."""
    if solved:
        raise UserError(f"{run.path} is complete: it reached --stop-at {config.evaluation.stop_at}")
    if steps >= config.total_steps:
        raise UserError(f"{run.path} is complete at {steps} steps; give a larger --total-steps to go on")
