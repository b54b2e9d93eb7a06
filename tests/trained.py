"""Tiny trained runs for the tests of the scripts that look at a run."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from dqn_memory.runs.cuda_graph import mapped
from dqn_memory.runs.stateful import Stateful
from dqn_memory.train import main

SMALL = (
    "--width 16 --heads 2 --layers 1 --context 8 --num-envs 4 --batch-size 8 --learning-starts 64 --log-every 100 "
    "--target-update-every 20 --threads 1 --no-memory-ablation "  # which would take half of so short a run's time
)
TRAINING = f"{SMALL}--epsilon-steps 500 --evaluate-every 400 --episodes 8 --final-episodes 8"
MEMORY, CAR, CARDS = "Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0", "POMDP/MemoryCards-v0"


def training_flags(run: Path | str, *more: str, steps: int = 600) -> list[str]:
    """Flags of a run for tests of training itself."""
    return f"{TRAINING} --total-steps {steps} --run {run} {' '.join(map(str, more))}".split()


def rollout_flags(run: Path | str, *more: str, steps: int = 512) -> list[str]:
    """Flags of a run of pqn or ppo."""
    short = (
        "--width 16 --heads 2 --num-envs 4 --rollout-steps 16 --minibatches 2 --context 8 --final-lr-fraction 1 "
        "--log-every 128 --evaluate-every 0 --episodes 8 --final-episodes 8 --threads 1 "
        f"--no-memory-ablation --total-steps {steps} --run {run}"
    )
    return [*short.split(), *map(str, more)]


def trained(folder: Path, *flags: str, env: str = CARDS) -> Path:
    """A run of 240 steps; by default in the world whose episodes are shortest."""
    short = f"{SMALL}--epsilon-steps 300 --evaluate-every 0 --episodes 4 --final-episodes 4 --total-steps 240"
    named = () if "--env" in flags else ("--env", env)
    main([*short.split(), "--learning-rate", "0.003", *named, "--run", str(folder), *flags])
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Hash of every file but locks, which say who had them last, so that a test can show that nothing changed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def in_place_of_a_graph(*trainers: Any) -> Any:
    """Do with a function what `Captured` does: it sees copies of its inputs, and leaves nothing but what it gives."""
    parts = [part for trainer in trainers for part in vars(trainer).values() if isinstance(part, Stateful)]

    def captured(function: Any, *_: Any, **__: Any) -> Any:
        def call(*inputs: Any) -> Any:
            found = mapped(torch.Tensor.clone, function(*mapped(torch.Tensor.clone, inputs)))
            for part, name in ((each, name) for each in parts for name in each.state_names):
                setattr(part, name, tree_map(torch.zeros_like, getattr(part, name)))
            for trainer in trainers:
                trainer.vector.carry(mapped(torch.zeros_like, trainer.vector.carried()))
            return found

        return call

    return captured
