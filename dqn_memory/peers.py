"""Measure learners from rollouts beside those of other libraries: `python -m dqn_memory.benchmark --only peers`.

PQN stands beside memorax's and PPO beside sb3-contrib's, in Cart Pole, with the settings of our scripts' defaults. A
peer runs in a process of its own in the environment of --peer-python (peer_script.py). Both sides take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dqn_memory.peer_script import LIBRARIES
from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import parse
from envs.console import say
from envs.tables import Value
from envs.timing import Timer, Work

SCRIPT = Path(__file__).with_name("peer_script.py")
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
PLAIN = {"prediction_weight": 0.0, "ema_decay": 0.0}
QUICK = {"num_envs": 8, "rollout_steps": 4}
Trainer = PQNTrainer | PPOTrainer
# by learner: flags of our runs, the first of which has a network of the peer's shapes
RUNS: dict[str, tuple[Any, Sequence[dict[str, Any]]]] = {
    "pqn": (PQNTrainer, ({"architecture": "gru_bare", **PLAIN}, {"prediction_weight": 0.0}, {})),
    "ppo": (PPOTrainer, ({"architecture": "lstm_bare", **PLAIN},)),
}


def settings_of(config: Any) -> dict[str, Any]:
    """List what a peer must know of the config of our run."""
    return {"width": config.network.width, "num_envs": config.environment.num_envs, **asdict(config.learner)}


# ---- the process of a peer -------------------------------------------------------------------------------------------
def peers_of(python: str) -> dict[str, str]:
    """Ask a Python for the peers in its environment: names and versions, by learner."""
    try:
        done = subprocess.run([python, "-I", str(SCRIPT)], capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        raise UserError(f"--peer-python {python} must be a Python from 3.10 on, such as peers/bin/python") from None


@contextmanager
def started(python: str, learner: str, settings: dict[str, Any]) -> Iterator[Callable[[], float]]:
    """Start a peer; give a function that takes an iteration there and returns its milliseconds."""
    command, pipe = [python, "-I", str(SCRIPT), learner, json.dumps(settings)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **ONE_THREAD}) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def iterate() -> float:
            try:
                print(file=asked, flush=True)
                return float(answers.readline())
            except (OSError, ValueError):
                raise UserError(f"{LIBRARIES[learner]} of --peer-python {python} broke off; see above") from None

        yield iterate


# ---- the table -------------------------------------------------------------------------------------------------------
def products(trainer: Trainer) -> Work:
    """Make the matrix products of an iteration alone: those of acting, and of updates forward and backward."""
    learner, num_envs = trainer.config.learner, trainer.vector.num_envs
    steps, rows, updates = learner.rollout_steps, num_envs // learner.minibatches, learner.epochs * learner.minibatches
    networks = [network for name, network in trainer.networks().items() if name != "average"]
    weights = {name: weight.detach() for each in networks for name, weight in each.named_parameters()}
    weights = {name: weight for name, weight in weights.items() if weight.dim() == 2}
    values = {size: torch.rand(rows * steps, size) for weight in weights.values() for size in weight.shape}

    def multiply() -> None:
        for name, weight in weights.items():
            after, before = (values[size] for size in weight.shape)
            for _ in range(steps):
                torch.mm(before[:num_envs], weight.T)
            for _ in range(updates):
                for part in [rows] * steps if "weight_hh" in name else [rows * steps]:
                    torch.mm(before[:part], weight.T)
                    torch.mm(after[:part], weight)
                torch.mm(after.T, before)

    return multiply


def peer_rows(pythons: Sequence[str], timer: Timer, quick: bool) -> Iterator[dict[str, Value]]:
    """Measure our runs beside the peer of their learner; say so if no Python has the peer."""
    for learner, (kind, runs) in RUNS.items():
        flags = {"env": "Control/CartPole-v0", "device": "cpu", **(QUICK if quick else {})}
        trainers = [kind(parse(kind.config_class, {**flags, **run})) for run in runs]
        python = next((each for each in pythons if learner in peers_of(each)), None)
        if python is None:
            say(f"{learner} stands alone: {' and '.join(pythons)} have no {LIBRARIES[learner]}", file=sys.stderr)
        works: dict[Any, Callable[[], float]] = {}
        for number, trainer in enumerate(trainers):
            works[number] = partial(timer.milliseconds, trainer.iterate)
            works[number, "products"] = partial(timer.milliseconds, products(trainer))
        with nullcontext() if python is None else started(python, learner, settings_of(trainers[0].config)) as iterate:
            first_s = None if iterate is None else (iterate() + iterate()) / 1000
            times = timer.turns(works if iterate is None else {**works, "peer": iterate})
        for number, trainer in enumerate(trainers):
            ours, floor, config = times[number], times[number, "products"].median, trainer.config
            steps = 1000 * trainer.steps_per_iteration
            row: dict[str, Value] = {
                "learner": learner, "architecture": config.network.architecture,
                "prediction": config.prediction.prediction_weight, "average": config.learner.ema_decay > 0,
                "steps_s": steps / ours.median, "spread": ours.spread, "reached": floor / ours.median,
            }  # fmt: skip
            if python is not None:
                peer = times["peer"]
                row |= {
                    "peer": peers_of(python)[learner], "peer_steps_s": steps / peer.median, "peer_spread": peer.spread,
                    "peer_reached": times[0, "products"].median / peer.median, "ratio": peer.median / ours.median,
                    "peer_first_s": first_s,
                }  # fmt: skip
            yield row
