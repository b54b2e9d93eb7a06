"""Measure learners from rollouts beside those of other libraries: `python -m dqn_memory.benchmark --only peers`.

PQN stands beside memorax's and PPO beside sb3-contrib's, in Cart Pole: networks of the same shapes, settings of our
scripts' defaults, learning included, each on one core. A peer runs in a process of its own, in the environment of
--peer-python (`peer_script.py`). Both sides take turns, and count the time of the processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dqn_memory.peer_script import LIBRARIES
from dqn_memory.ppo import PPOTrainer
from dqn_memory.pqn import PQNTrainer
from dqn_memory.runs.errors import UserError
from envs.tables import Value
from envs.terminal import say
from envs.timing import Timer, Timing, Work

SCRIPT = Path(__file__).with_name("peer_script.py")
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
Trainer = PQNTrainer | PPOTrainer


@dataclass(frozen=True)
class Case:
    """A network of ours, and what it learns by beside the algorithm itself."""

    architecture: str
    prediction: float = 0.0  # --prediction-weight
    average: bool = False  # whether its weights are averaged

    def trainer(self, kind: type[Trainer], quick: bool) -> Trainer:
        """Make a run in Cart Pole, with the defaults of its script otherwise."""
        config: Any = kind.config_class()
        learner = config.learner if self.average else replace(config.learner, ema_decay=0.0)
        environment = replace(config.environment, env="Control/CartPole-v0")
        if quick:
            learner, environment = replace(learner, rollout_steps=4), replace(environment, num_envs=8)
        return kind(
            replace(
                config,
                environment=environment,
                network=replace(config.network, architecture=self.architecture),
                learner=learner,
                prediction=replace(config.prediction, prediction_weight=self.prediction),
                compute=replace(config.compute, device="cpu"),
            )
        )


# by learner; the first network of each has the shapes of the peer's
CASES: dict[str, tuple[type[Trainer], Sequence[Case]]] = {
    "pqn": (PQNTrainer, (Case("gru_bare"), Case("gru", 0.0, True), Case("gru", 1.0, True))),
    "ppo": (PPOTrainer, (Case("lstm_bare"),)),
}


# ---- the process of a peer -------------------------------------------------------------------------------------------
def peers_of(python: str) -> dict[str, str]:
    """Ask a Python which peers its environment has: names and versions, by learner."""
    try:
        done = subprocess.run([python, "-I", str(SCRIPT)], capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        raise UserError(f"--peer-python {python} must be a Python from 3.10 on, such as peers/bin/python") from None


class Peer:
    """A learner of another library in a process of its own, which takes one iteration when asked."""

    def __init__(self, python: str, learner: str, settings: dict[str, Any]) -> None:
        self.python, self.learner = python, learner
        command = [python, "-I", str(SCRIPT), learner, json.dumps(settings)]
        pipe, environment = subprocess.PIPE, {**os.environ, **ONE_THREAD}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.first_s = self.answer()  # processor seconds of the first two iterations

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()  # ends it, because its input ends

    def iterate(self) -> float:
        """Take an iteration; return its milliseconds of processor time."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> float:
        """Read the next number."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return float(line)
        status = self.process.wait()
        raise UserError(f"{self.learner} of --peer-python {self.python} broke off with exit status {status}, see above")


# ---- the table -------------------------------------------------------------------------------------------------------
def products(trainer: Trainer) -> Work:
    """Make the matrix products of an iteration alone: those of acting, and of updates forward and backward."""
    learner, num_envs = trainer.config.learner, trainer.vector.num_envs
    steps, rows, updates = learner.rollout_steps, num_envs // learner.minibatches, learner.epochs * learner.minibatches
    networks = (network for name, network in trainer.networks().items() if name != "average")
    named = [pair for network in networks for pair in network.named_parameters() if pair[1].dim() == 2]
    weights = [(weight.detach(), "weight_hh" in name) for name, weight in named]
    values = {size: torch.rand(max(rows * steps, num_envs), size) for weight, _ in weights for size in weight.shape}

    def multiply() -> None:
        for weight, recurrent in weights:
            after, before = (values[size] for size in weight.shape)
            for _ in range(steps):
                torch.mm(before[:num_envs], weight.T)
            for _ in range(updates):
                for part in [rows] * steps if recurrent else [rows * steps]:
                    torch.mm(before[:part], weight.T)
                    torch.mm(after[:part], weight)
                torch.mm(after[: rows * steps].T, before[: rows * steps])

    return multiply


def measure(
    python: str | None, learner: str, timer: Timer, quick: bool
) -> tuple[dict[Case, Trainer], dict[Any, Timing], float | None]:
    """Measure our cases, the products of each, and the peer if there is a Python for it, all by turns."""
    kind, cases = CASES[learner]
    trainers = {case: case.trainer(kind, quick) for case in cases}
    works = {case: partial(timer.milliseconds, trainer.iterate) for case, trainer in trainers.items()}
    floors = {(case, "floor"): partial(timer.milliseconds, products(each)) for case, each in trainers.items()}
    if python is None:
        return trainers, timer.turns({**works, **floors}), None
    config = trainers[cases[0]].config
    settings = {"width": config.network.width, "num_envs": config.environment.num_envs, **asdict(config.learner)}
    with Peer(python, learner, settings) as peer:
        return trainers, timer.turns({**works, **floors, "peer": peer.iterate}), peer.first_s


def peer_rows(pythons: Sequence[str], timer: Timer, quick: bool) -> Iterator[dict[str, Value]]:
    """Measure each case beside the peer of its learner; say so if no Python has the peer."""
    timer = replace(timer, clock="cpu")
    for learner, library in LIBRARIES.items():
        python = next((each for each in pythons if learner in peers_of(each)), None)
        if python is None:
            say(f"{learner} has no peer: {library} is not installed for {' or '.join(pythons)}", file=sys.stderr)
        trainers, times, first_s = measure(python, learner, timer, quick)
        for case, trainer in trainers.items():
            ours, floor, theirs = times[case], times[case, "floor"], times.get("peer")
            steps = 1000 * trainer.steps_per_iteration
            yield {
                "learner": learner, "architecture": case.architecture, "prediction": case.prediction,
                "average": case.average, "envs": trainer.vector.num_envs,
                "steps_s": steps / ours.median, "spread": ours.spread, "reached": floor.median / ours.median,
                "peer": None if python is None else peers_of(python)[learner],
                "peer_steps_s": None if theirs is None else steps / theirs.median,
                "peer_spread": None if theirs is None else theirs.spread,
                "peer_reached": None if theirs is None else times[next(iter(trainers)), "floor"].median / theirs.median,
                "ratio": None if theirs is None else theirs.median / ours.median, "peer_first_s": first_s,
            }  # fmt: skip
