"""The course of a training run, the same for every trainer: iterate, log, evaluate, save; start anew or resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from dqn_memory.runs.checkpoint import Checkpoint
from dqn_memory.runs.folder import Progress, Run
from dqn_memory.runs.kinds import check_kind
from dqn_memory.runs.meter import Clock, Meter
from dqn_memory.runs.progress import due
from dqn_memory.runs.resume import check_unfinished
from dqn_memory.runs.score import SUCCESS, Score, success_word, tells_success
from dqn_memory.runs.settings import to_toml


class Trainer(Protocol):
    """What the class of a training script provides: one iteration of its algorithm, and all of its state."""

    kind: ClassVar[str]
    """What its checkpoints' headers say (dqn_memory.runs.kinds)."""
    shown: ClassVar[Mapping[str, str]]
    """Words of the progress line, and the scalar that each stands for."""
    config: Any
    device: torch.device
    fleet: Any
    replay: Any
    updates: int
    solved: bool

    @property
    def meter(self) -> Meter:
        """Counts episodes and updates, and knows whether they stayed finite."""

    @property
    def steps(self) -> int:
        """Environment steps taken."""

    def iterate(self) -> None:
        """One step in every world, then this iteration's updates."""

    def scalars(self) -> dict[str, float]:
        """What a log line says; sums since the last line are cleared."""

    def evaluate(self, final: bool = False, forget: bool = False) -> Score:
        """Episodes with the evaluation stream's own seed for this step, more of them at the end of a run.

        With `forget` the agent forgets everything before each step.
        """

    def judge(self, score: Score) -> None:
        """Note whether an evaluation reached `--stop-at-success`."""

    def weights(self) -> dict[str, Tensor]:
        """All networks, by name."""

    def state_dict(self) -> dict[str, Any]:
        """Everything else that the future of the run depends on, but the replay."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made."""


T = TypeVar("T", bound=Trainer)


def run_training(training: Trainer, run: Run) -> Score:
    """Iterate to the end of the run; log, evaluate and save on the way."""
    config = training.config
    clock, began_at = Clock(run.metrics()), training.steps
    with Progress(config.total_steps, training.steps, config.environment.env) as progress:
        while training.steps < config.total_steps and not training.solved:
            training.iterate()
            if _due(training, config.output.log_every):
                scalars = training.scalars()
                scalars["charts/SPS"] = (training.steps - began_at) / clock.seconds
                run.log(training.steps, scalars | clock.scalars())
                progress.update(training.steps, **_shown(training, scalars))
            else:
                progress.update(training.steps)
            if training.updates and _evaluates(training):
                score = training.evaluate()
                run.log(training.steps, score.scalars() | clock.scalars())
                training.judge(score)
            if _due(training, config.output.checkpoint_every):
                save(training, run)
    score = training.evaluate(final=True)
    final = _named("final", score)
    if config.evaluation.memory_ablation:
        final |= _named("memory_ablation", training.evaluate(final=True, forget=True))
    run.log(training.steps, final | clock.scalars())
    save(training, run)
    return score


def _named(kind: str, score: Score) -> dict[str, float]:
    return {f"{kind}/{name.split('/')[1]}": value for name, value in score.scalars().items()}


def _due(training: Trainer, every: int) -> bool:
    return due(training.steps, every, training.config.environment.num_envs)


def _evaluates(training: Trainer) -> bool:
    """Whether an evaluation is due; not every trainer's config puts the first one off."""
    evaluation = training.config.evaluation
    return training.steps >= getattr(evaluation, "evaluate_from", 0) and _due(training, evaluation.evaluate_every)


def _shown(training: Trainer, scalars: Mapping[str, float]) -> dict[str, float]:
    names = {SUCCESS: success_word(tells_success(training.fleet))}
    return {names.get(word, word): scalars[name] for word, name in training.shown.items() if name in scalars}


def save(training: Trainer, run: Run) -> None:
    """One checkpoint; it becomes valid all at once."""
    training.meter.check_finite()
    replay = training.replay if training.config.output.checkpoint_replay == "full" else None
    header = {"kind": training.kind, "config": to_toml(training.config)}
    run.save(training.steps, training.weights(), training.state_dict(), replay, header)


def resume(make: Callable[[Any], T], config: Any, run: Run) -> T:
    """The training of a stopped run, at its last checkpoint.

    Raises:
        UserError: the checkpoint is of another kind or does not fit, or the run is complete.
    """
    training = make(config)
    checkpoint = run.resume()
    if checkpoint is None:
        print(f"{run.path} has no checkpoint yet: the run starts over", flush=True)
        run.lengthen(config.total_steps)
        return training
    check_kind(run.path, checkpoint, training.kind)
    training.restore(checkpoint)
    check_unfinished(run, config, training.steps, training.solved)
    run.lengthen(config.total_steps)
    if checkpoint.replay is None:
        print(
            f"resuming {run.path} without its replay: the continued run is not exact, episodes start anew", flush=True
        )
    return training


def resumes(argv: Sequence[str]) -> bool:
    """Whether a command line continues a run."""
    return any(word == "--resume" or word.startswith("--resume=") for word in argv)
