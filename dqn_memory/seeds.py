"""Train many seeds in one process: `python -m dqn_memory.pqn --seeds 8`, or the same of `dqn_memory.ppo`.

Agents that differ in their seed alone learn side by side, and their networks compute as one: S small products become
one batched one. That fills an accelerator; on a CPU the products are as fast one after the other. Everything else is
each seed's own: environments, random streams, minibatches, optimiser, and an ordinary run folder, so that `evaluate`,
`inspect` and `--resume` know nothing of the others.

Shapes: S seeds, B rows, T positions, D width, A outputs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from dqn_memory.rollout_trainer import RolloutTrainer, Schedule, ended, joined
from dqn_memory.rollouts import Column, Rollout
from dqn_memory.runs import backend
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run, check_empty
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.metrics import Ended
from dqn_memory.runs.progress import Progress
from dqn_memory.runs.resume import resumes
from dqn_memory.runs.toml import to_toml
from dqn_memory.runs.trainer import Interrupts
from envs.core import Step

C = TypeVar("C", bound=Any)
Inputs = tuple[Tensor, Tensor, list[Any], Tensor]  # observation, previous action, state, reset


class Whole(nn.Module):
    """Give encodings, outputs and the state after T steps in one call."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor, list[Any]]:
        """Compute x (B, T, D), outputs (B, T, A) and the state."""
        x, state = self.model.encode_sequence(*inputs)
        return x, self.model.read(x), state


class Stack:
    """The networks of S seeds as one, whose parameters (S, ...) are where those of each network lie."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.whole = Whole(models[0])
        self.own = [dict(Whole(model).named_parameters()) for model in models]
        buffers = [dict(Whole(model).named_buffers()) for model in models]
        self.parameters, self.buffers = _joined(self.own), _joined(buffers)
        for row, parameters in enumerate(self.own):
            for name, parameter in parameters.items():
                parameter.data = self.parameters[name][row]  # what an optimiser changes there, it changes here
        for stacked in self.parameters.values():
            stacked.requires_grad_()

    def sequence(self, inputs: Sequence[Inputs]) -> tuple[Tensor, Tensor, list[Any]]:
        """Compute x (S, B, T, D), outputs (S, B, T, A) and the states after, of each seed's inputs."""
        stacked = tree_map(lambda *parts: torch.stack(parts), *inputs)
        found: tuple[Tensor, Tensor, list[Any]] = torch.vmap(self._one)(self.parameters, self.buffers, *stacked)
        return found

    def _one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], *inputs: Any) -> Any:
        return functional_call(self.whole, (parameters, buffers), inputs)

    @torch.no_grad()
    def step(self, inputs: Sequence[Inputs]) -> list[tuple[Tensor, list[Any]]]:
        """Compute each seed's outputs (B, A) of one step and the state after it."""
        one = [(seen.unsqueeze(1), did.unsqueeze(1), state, reset.unsqueeze(1)) for seen, did, state, reset in inputs]
        _, outputs, states = self.sequence(one)
        return [(outputs[row, :, 0], _row(states, row)) for row in range(len(one))]

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, and add each network's share to its own."""
        for stacked in self.parameters.values():
            stacked.grad = None
        loss.backward()
        for row, parameters in enumerate(self.own):
            for name, parameter in parameters.items():
                if (grad := self.parameters[name].grad) is not None:
                    own = parameter.grad  # of what a network adds to the loss by itself
                    parameter.grad = grad[row] if own is None else own + grad[row]


def _joined(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([tensors[name].detach() for tensors in rows]) for name in rows[0]}


def _row(tree: Any, row: int) -> Any:
    return tree_map(lambda part: part[row], tree)


class Together:
    """Trainers that take their iterations side by side, as each would take them alone."""

    def __init__(self, trainers: Sequence[RolloutTrainer[Any]]) -> None:
        self.trainers = trainers
        self.stack = Stack([trainer.model for trainer in trainers])
        try:
            self.stack.step([trainer.collector.inputs for trainer in trainers])
        except RuntimeError as error:
            if "Batching rule not implemented" not in str(error):
                raise
            name = trainers[0].config.network.architecture
            raise UserError(f"--seeds: torch cannot compute {name} for many seeds at once; use --seeds 1") from error

        self.captured: Captured[Any, Any] | None = None
        if trainers[0].config.compute.engine == "cudagraph":
            networks = (network for trainer in trainers for network in trainer.networks().values())
            generators = [generator for trainer in trainers for generator in trainer.drawn_from]
            optimizers = [trainer.optimizer for trainer in trainers]
            self.captured = Captured(self._carry_on, (*networks,), optimizers, generators=generators)

    def iterate(self) -> None:
        """Let every seed collect one rollout, then learn from it: `RolloutTrainer.iterate` for all."""
        schedules = [trainer.schedule() for trainer in self.trainers]
        if self.captured is None:
            found = self.work(schedules)
        else:
            carried, found = self.captured([trainer.carried() for trainer in self.trainers], schedules)
            self._carry(carried)
        for trainer, (episodes, metrics) in zip(self.trainers, found, strict=True):
            trainer.count(episodes, metrics)

    def work(self, schedules: Sequence[Schedule]) -> list[tuple[Ended, dict[str, Tensor]]]:
        """Do what an iteration does to tensors, as `RolloutTrainer.work` for all."""
        trainers, collectors = self.trainers, [trainer.collector for trainer in self.trainers]
        # act
        before: list[list[Any]] = [collector.state for collector in collectors]
        columns: list[list[Column]] = [[] for _ in trainers]
        steps: list[list[Step]] = [[] for _ in trainers]
        for t in range(collectors[0].length):
            found = self.stack.step([collector.inputs for collector in collectors])
            for seed, (trainer, (outputs, state)) in enumerate(zip(trainers, found, strict=True)):
                columns[seed].append(trainer.take(outputs, state, t, schedules[seed], steps[seed]))
        rollouts = [Rollout.of(state, column) for state, column in zip(before, columns, strict=True)]

        # learn
        targets = [trainer.targets(rollout) for trainer, rollout in zip(trainers, rollouts, strict=True)]
        metrics: list[list[dict[str, Tensor]]] = [[] for _ in trainers]
        orders = (trainer.minibatches(schedule) for trainer, schedule in zip(trainers, schedules, strict=True))
        for update, rows in enumerate(zip(*orders, strict=True)):
            parts = [rollout.rows(index) for rollout, index in zip(rollouts, rows, strict=True)]
            x, outputs, _ = self.stack.sequence([part.inputs for part in parts])
            losses = []
            for seed, trainer in enumerate(trainers):
                trainer.optimizer.zero_grad(set_to_none=True)
                taught = [target[rows[seed]] for target in targets[seed]]
                losses.append(trainer.losses(x[seed], outputs[seed], parts[seed], taught))
            self.stack.backward(torch.stack([loss for loss, _ in losses]).sum())
            for seed, (trainer, (_, named)) in enumerate(zip(trainers, losses, strict=True)):
                metrics[seed].append(named | trainer.descend(schedules[seed].decay[update]))
        return [(ended(taken), joined(named)) for taken, named in zip(steps, metrics, strict=True)]

    def _carry(self, carried: Sequence[dict[str, Any]]) -> None:
        for trainer, each in zip(self.trainers, carried, strict=True):
            trainer.carry(each)

    def _carry_on(self, carried: Sequence[dict[str, Any]], schedules: Sequence[Schedule]) -> Any:
        self._carry(carried)
        found = self.work(schedules)
        return [trainer.carried() for trainer in self.trainers], found


def train_seeds(kind: type[RolloutTrainer[C]], config: C) -> None:
    """Train `config.seeds` agents from the seed `config.seed` on, each in a run folder of its own.

    Raises:
        UserError: the network drops out at random or cannot be batched, a goal would end one run before the others, or
            a folder is taken.
    """
    if config.network.dropout:
        raise UserError(f"--seeds {config.seeds} takes --dropout 0: all seeds would draw from one generator")
    if config.evaluation.stop_at_success is not None:
        raise UserError(f"--seeds {config.seeds} runs to a fixed length; leave --stop-at-success out")
    root, count = config.output.run, config.seeds
    seeds = range(config.seed, config.seed + count)
    outputs = [replace(config.output, run=root and f"{root}/seed_{seed}") for seed in seeds]
    configs = [replace(config, seeds=1, seed=seed, output=out) for seed, out in zip(seeds, outputs, strict=True)]
    for each in configs:  # before the first of them is begun
        check_empty(kind.folder(each))
    trainers = [kind(each) for each in configs]
    together = Together(trainers)
    trainers[0].announce()
    facts = backend.facts(trainers[0].backend)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(Run.create(kind.folder(each), to_toml(each), trainers[0].device, facts=facts))
            for each in configs
        ]
        try:
            _train(together, runs, f"{count} x {config.environment.env}")
        except KeyboardInterrupt:
            word = f"python -m {script_of(kind.kind)} --resume {shlex.quote(str(runs[0].path))}"
            print(f"stopped at step {trainers[0].steps}; every run goes on by itself: {word}", file=sys.stderr)
            raise SystemExit(130) from None


def _train(together: Together, runs: Sequence[Run], title: str) -> None:
    """Iterate to the end of all runs, and print what each came to."""
    trainers = together.trainers
    first = trainers[0]
    clocks = [trainer.begin_log(run, len(runs)) for trainer, run in zip(trainers, runs, strict=True)]
    with Interrupts() as interrupts, Progress(first.config.total_steps, 0, title) as progress:
        while first.unfinished:
            with interrupts.held():
                together.iterate()
                for trainer, run, clock in zip(trainers, runs, clocks, strict=True):
                    scalars = trainer.record(run, clock, interrupts.asked)
                    if trainer is first:
                        progress.update(first.steps, "training", **first.shown_scalars(scalars))
            if interrupts.asked:
                raise KeyboardInterrupt
    for trainer, run, clock in zip(trainers, runs, clocks, strict=True):
        print(f"{run.path}: {trainer.summary(trainer.finish(run, clock))}")


class ManySeedsTrainer(RolloutTrainer[C]):
    """A learner from rollouts whose script can train many seeds at once."""

    def __init__(self, config: C) -> None:
        if config.seeds > 1:
            raise UserError(
                f"--seeds {config.seeds} makes as many runs and is for the command line; train one at a time"
            )
        super().__init__(config)

    @classmethod
    @one_line_errors
    def main(cls, argv: Sequence[str] | None = None) -> None:
        """As `Trainer.main`; with --seeds above 1 train that many agents side by side."""
        words = sys.argv[1:] if argv is None else argv
        if not resumes(words) and (config := cls.configure(words)).seeds > 1:
            train_seeds(cls, config)
        else:
            super().main(words)
