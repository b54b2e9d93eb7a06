"""Drive the life cycle of a run for every training script: start, resume, iterate, log, evaluate, save, stop.

A script holds only its algorithm: a subclass of `Trainer` whose `__init__` makes networks and optimisers, and whose
`iterate` acts, stores and learns.
"""

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.evaluate import Evaluation, EvaluationOptions, LoadedPolicy
from dqn_memory.play import SUCCESS, SUCCESS_TOLD, Score
from dqn_memory.runs import backend
from dqn_memory.runs.backend import Choice
from dqn_memory.runs.base_config import PLACE, Engine, place
from dqn_memory.runs.callbacks import Callback, Events
from dqn_memory.runs.checkpoint import Checkpoint, check_actions, check_form, foreign_state
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run
from dqn_memory.runs.gradients import trained_values
from dqn_memory.runs.interrupts import Interrupts
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.metrics import Clock, RunStats
from dqn_memory.runs.modules import load_modules, load_named, modules_of, other_envs, remember_modules
from dqn_memory.runs.optimizers import restore_optimizer
from dqn_memory.runs.process import keep_freed_memory
from dqn_memory.runs.progress import Progress, due
from dqn_memory.runs.resume import check_unfinished, reopened, resumes
from dqn_memory.runs.seeding import Streams, dropout_state, restore_dropout
from dqn_memory.runs.settings import Settings, parse
from dqn_memory.runs.stateful import load_parts, save_parts
from dqn_memory.runs.toml import to_toml
from envs.console import say
from envs.files import portable_name
from envs.gymnasium import GymnasiumVector
from envs.replayed import ReplayedVector, spawn_seeds
from envs.rows import RowSpace
from envs.vector import MixedVector, VectorEnvironment, make_vector, single_vectors

C = TypeVar("C", bound=Any)
AFTER_STOP = 1 << 31  # seed offset of the evaluation after an early stop (CPU generators use 32 bits of a seed)


class Trainer(ABC, Generic[C]):
    """One run of one algorithm, from the command line to the last evaluation.

    Attributes:
        vector: N environments, stepped at once.
        updates: number of updates of the networks so far.
        solved: whether an evaluation reached the config's goal.
        stopped: whether a callback called `stop`.
    """

    kind: ClassVar[str]
    """Name of this kind of run in checkpoints, studies and entry points."""
    config_class: ClassVar[type[Any]]
    shown: ClassVar[Mapping[str, str]]
    """Metric of each word of the progress line."""
    evaluation_flags: ClassVar[tuple[str, ...]]
    """Options of `evaluate` that this kind of run supports, of those that some kinds lack."""
    reads_rows: ClassVar[bool] = False
    """Whether it reads observations of several entries and masks of actions (`envs.rows`)."""
    takes_several: ClassVar[bool] = False
    """Whether it trains in several environments at once."""
    takes_parts: ClassVar[bool] = False
    """Whether an action may be a row of parts (`envs.actions`) instead of a number."""
    attention_report: ClassVar[Any] = None
    """Function (run, seed) -> analysis.attention.Maps or None: the attention of a run in a study's report."""
    state_names: tuple[str, ...]
    """Attributes that a checkpoint holds besides networks, optimisers, environments, counters and replay: tensors,
    random generators, and objects with a `state_dict` of their own."""

    optimizers: Sequence[torch.optim.Optimizer]
    backend: Choice | None = None
    """The backend of the run's Mamba layers; None without such layers."""
    replay: Any = None
    """The replay from which updates draw; None if each step is used once."""

    def __init__(self, config: C) -> None:
        config.check()
        self.config = config
        fastest: Engine | None = getattr(config, "fastest_on_cuda", "eager")
        self.placement = place(config.compute.device, config.compute.engine, torch.cuda.is_available(), fastest)
        self.device: torch.device = replace(config.compute, device=self.placement.device).start()
        self.engine = self.placement.engine
        if config.output.histograms and self.engine == "cudagraph":
            raise UserError("--histograms cannot read the gradients of a captured update; use --engine eager")
        self.streams = Streams.spawn(config.seed)
        self.iterations = self.updates = 0
        self.solved = self.stopped = False
        self.events = Events()
        environment = config.environment
        self.vector = self.make_environments()
        self.stats, self.clock = RunStats(self.device, rows=self.rows), Clock()
        if isinstance(self.vector.observation_space, RowSpace) and not self.reads_rows:
            what = "masks its actions" if self.vector.observation_space.flags else "shows several entries"
            raise UserError(
                f"{environment.name} {what}, which {self.kind} cannot read but train, pqn and ppo can; choose one "
                "entry by --observation-key, or leave out --action-masks True"
            )
        if not (self.vector.actions.count or self.takes_parts):
            raise UserError(
                f"--actions {environment.actions} draws each part of an action by itself, which only ppo does; leave "
                "the flag out, so that combinations are numbered"
            )

    def make_environments(self) -> VectorEnvironment:
        """Make the environments of training; the first kind draws from the stream that it would have alone."""
        config, streams = self.config, self.streams
        each = config.environment.each()
        seeds = [streams.worlds, *spawn_seeds([streams.worlds, 1], len(each) - 1)]
        parts = {
            one.id: make_vector(
                one.id, one.num_envs, seed, self.device, replace(config, environment=one).env_kwargs(),
                one.interface, one.env_workers,
            )
            for one, seed in zip(each, seeds, strict=True)
        }  # fmt: skip
        return MixedVector(parts) if len(parts) > 1 else parts[each[0].id]

    @property
    def rows(self) -> dict[str, int]:
        """The number of copies of each environment by id, if there are several."""
        vector = self.vector
        return {id: part.num_envs for id, part in vector.parts.items()} if isinstance(vector, MixedVector) else {}

    # ---- the algorithm: methods of a subclass --------------------------------------------------------------------
    @abstractmethod
    def begin(self) -> None:
        """Start episodes in all environments from fresh states of the agent."""

    @abstractmethod
    def iterate(self) -> None:
        """Act in every environment, then update the networks."""

    @abstractmethod
    def networks(self) -> Mapping[str, nn.Module]:
        """Give all networks that a checkpoint holds, by name."""

    @abstractmethod
    def evaluate(self, final: bool = False, reset_memory: bool = False) -> Score:
        """Play episodes without learning; the `final` evaluation plays more of them.

        `reset_memory` resets the agent's state before each step.
        """

    def reached_goal(self, score: Score) -> bool:
        """Tell whether a score ends the run: its mean return reaches `--stop-at-return`."""
        goal = self.config.evaluation.stop_at_return
        return goal is not None and float(score.returns.mean()) >= goal

    def summary(self, score: Score) -> str:
        """Write the script's last line, about the final evaluation."""
        success = f", success {score.success_rate:.3f}" if score.env_reports_success else ""
        length = f"length {score.lengths.mean():.1f} on {score.episodes} episodes"
        return f"return {score.returns.mean():.2f}{success}, {length}"

    @classmethod
    @abstractmethod
    def variant(cls, config: C) -> str:
        """Name the folder between environment and seed, for example by the architecture."""

    @classmethod
    @abstractmethod
    def evaluate_run(cls, run: Path, options: EvaluationOptions) -> Evaluation:
        """Evaluate the agent of a run's latest checkpoint."""

    @classmethod
    @abstractmethod
    def load_policy(cls, run: Path, device: torch.device, seed: int) -> LoadedPolicy:
        """Read the policy of a run's latest checkpoint; `seed` seeds all its random draws."""

    @classmethod
    def resolve(cls, config: C) -> C:
        """Complete the config of a fresh run with computed values."""
        return config

    @property
    def preparing(self) -> dict[str, int]:
        """Name the phases before training in order, with the last step of each."""
        return {}

    def scalars(self) -> dict[str, float]:
        """Give the metrics of a log line, and clear the sums since the last line."""
        return self.stats.scalars() | {"charts/updates": float(self.updates)}

    # ---- state ---------------------------------------------------------------------------------------------------
    @property
    def steps_per_iteration(self) -> int:
        """Count the environment steps of one iteration."""
        return self.vector.num_envs

    @property
    def steps(self) -> int:
        """Count the environment steps so far."""
        return self.iterations * self.steps_per_iteration

    def evaluation_seed(self, final: bool) -> int:
        """Give the seed of the evaluation at this step.

        The final evaluation after an early stop plays other episodes; else the stop would bias it.
        """
        stopped = self.solved or self.stopped
        return self.streams.evaluation + self.steps + (AFTER_STOP if final and stopped else 0)

    def weights(self) -> dict[str, Tensor]:
        """Give all parameters and buffers, by network and name."""
        networks = self.networks().items()
        return {f"{part}.{name}": value for part, network in networks for name, value in network.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Give the rest of a checkpoint: everything that the run's future depends on, except weights and replay."""
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "fleet": self.vector.state_dict(),
            **save_parts(self, ("stats", *self.state_names)),
            **dropout_state(self.device),
            "solved": self.solved, "iterations": self.iterations, "updates": self.updates,
        }  # fmt: skip

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; a UserError says that its networks have another form."""
        for part, network in self.networks().items():
            checkpoint.fill(network, part)
        state, self.clock.saved = checkpoint.trainer, checkpoint.header
        device_bound = ("optimizers", *dropout_state(self.device))  # their form differs between devices
        check_form(state, {name: own for name, own in self.state_dict().items() if name not in device_bound})
        check_actions(state, self.vector.num_actions)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            restore_optimizer(optimizer, saved)
        self.vector.load_state_dict(state["fleet"])
        load_parts(self, {name: state[name] for name in ("stats", *self.state_names)}, self.device)
        restore_dropout(state, self.device)
        for name in ("solved", "iterations", "updates"):
            setattr(self, name, state[name])
        if self.replay is None:
            return
        if checkpoint.replay is None:
            self.begin()  # new episodes, because the replay has lost the beginnings of the running ones
        else:
            self.replay.restore(checkpoint.replay.start, checkpoint.replay.data)

    # ---- the life cycle ------------------------------------------------------------------------------------------
    @classmethod
    @one_line_errors
    def main(cls, argv: Sequence[str] | None = None) -> None:
        """Start or resume a run by the command line, and train it to its end."""
        keep_freed_memory()
        try:
            trainer, run = cls.start(sys.argv[1:] if argv is None else argv)
        except KeyboardInterrupt:
            say("stopped before training began; the same command begins it again", file=sys.stderr)
            raise SystemExit(130) from None
        with run:
            try:
                score = trainer.train(run)
            except KeyboardInterrupt:
                saved = (
                    "goes on from its last checkpoint"
                    if run.has_checkpoint
                    else "starts it over: nothing was saved yet"
                )
                word = f"python -m {script_of(cls.kind)} --resume {shlex.quote(str(run.path))}"
                say(f"stopped at step {trainer.steps}; {word} {saved}", file=sys.stderr)
                raise SystemExit(130) from None
        say(f"{run.path}: {trainer.summary(score)}")

    @classmethod
    def start(cls, argv: Settings) -> tuple[Self, Run]:
        """Start a fresh run from flags and presets, or continue a stopped one at its last checkpoint."""
        if resumes(argv):
            return cls._resume(argv)
        config = cls.configure(argv)
        trainer = cls(config)
        trainer.announce()
        taken = trainer.take_weights()
        run = Run.create(cls.folder(config), to_toml(config), trainer.device, facts=trainer.facts | taken)
        if taken:
            trainer.save(run)  # a killed run then needs its source no more
        remember_modules(run.config_file, modules_of(config))
        trainer.placement.log()
        return trainer, run

    def announce(self) -> None:
        """Print the backend of a fresh run, and warnings about its settings."""
        backend.log_backend(self.backend, self.device)
        for id, part in zip(self.config.environment.ids, single_vectors(self.vector), strict=True):
            if isinstance(part, GymnasiumVector) and part.ignores_seed():
                say(
                    f"{id} ignores its seed: two copies with the same one differ, and so will runs with the same "
                    "--seed, and a resume is not exact; let it draw from self.np_random",
                    file=sys.stderr,
                )

    def take_weights(self) -> dict[str, Any]:
        """Take the weights of another run if the config names one; give facts about it, else none."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """Give the facts of environment.json that a resume compares."""
        return backend.facts(self.backend) | self.placement.facts

    @classmethod
    def configure(cls, argv: Settings) -> C:
        """Make the config of a fresh run from flags and presets."""
        config = parse(cls.config_class, argv)
        load_named(argv)
        if hasattr(config, "base"):  # a choice in the config changes defaults of other fields
            config = parse(cls.config_class, argv, base=config.base())
        config = replace(config, plugin=tuple(dict.fromkeys(config.plugin)))  # a preset and a flag may name one twice
        load_modules(config, "the config")
        ids = config.environment.ids
        if len(ids) > 1 and not cls.takes_several:
            raise UserError(f"--env {' '.join(ids)}: {cls.kind} learns one environment; ppo, pqn, train take several")
        environment = config.environment.completed(cls.reads_rows, other_envs(config))
        return cls.resolve(replace(config, environment=environment))

    @classmethod
    def folder(cls, config: C) -> Path:
        """Give the folder of a fresh run."""
        env, variant = portable_name(config.environment.folder), portable_name(cls.variant(config))
        return Path(config.output.run or f"runs/{env}/{variant}/seed_{config.seed}")

    @classmethod
    def _resume(cls, argv: Settings) -> tuple[Self, Run]:
        """Continue a stopped run at its last checkpoint.

        Raises:
            UserError: the checkpoint has another kind or another form, or the run is complete.
        """
        config, run = reopened(argv, cls.config_class)
        try:
            trainer = cls(config)
            with foreign_state(run.path):
                checkpoint = run.resume(trainer.restore)
            if checkpoint is None:
                say(f"{run.path} has no checkpoint yet: the run starts over")
                if not run.environment:
                    run.describe(trainer.device, trainer.facts)
            else:
                check_unfinished(run, config, trainer.steps, trainer.solved)
                if checkpoint.replay is None and trainer.replay is not None:
                    lost = "without its replay: the continued run is not exact, episodes start anew"
                    say(f"resuming {run.path} {lost}")
            run.lengthen(config.total_steps)
            remember_modules(run.config_file, modules_of(config))
            trainer.placement.log(run.environment.get(PLACE))
            backend.log_backend(trainer.backend, trainer.device, run.environment.get(backend.FACT))
        except BaseException:
            run.close()
            raise
        return trainer, run

    def train(self, run: Run, callbacks: Sequence[Callback] = ()) -> Score:
        """Iterate to the end of the run; log, evaluate and save when they are due."""
        self.began_at, self.events = self.steps, Events(callbacks)
        self.clock.begin(run.metrics())
        total, env = self.config.total_steps, self.config.environment.title
        run.track(self.config.output.track)
        with Interrupts() as interrupts, Progress(total, self.steps, env) as progress:
            while self.unfinished and not interrupts.received:
                self.iterate()
                scalars = self.record(run)
                phase, end = self.phase
                progress.update(self.steps, phase, end, **self.shown_scalars(scalars))
                self._call_back(run)
        if interrupts.received:
            self._save_early(run)
            raise KeyboardInterrupt
        return self.finish(run)

    def stop(self) -> None:
        """End training after this step: save, evaluate and return, as at the run's end; a resume goes on."""
        self.stopped = True

    def _call_back(self, run: Run) -> None:
        """Call the callbacks; the run can go on from a checkpoint of this step if one of them fails."""
        try:
            self.events.tell(self)
        except Exception:
            self._save_early(run)
            raise

    def _save_early(self, run: Run) -> None:
        """Save before the run's end."""
        if self.config.output.max_repeated_actions == 0:  # a resume must not repeat any actions
            self.shorten_log()
        self.save(run)

    @property
    def phase(self) -> tuple[str, int]:
        """Name the phase of the run for its progress line, and give its last step."""
        total: int = self.config.total_steps
        for name, end in self.preparing.items():
            if self.steps < end:
                return name, min(end, total)
        return "training" if self.updates else "prefill", total

    @property
    def unfinished(self) -> bool:
        """Tell whether training continues."""
        return self.steps < self.config.total_steps and not (self.solved or self.stopped)

    def record(self, run: Run) -> dict[str, float]:
        """Log, evaluate and save if they are due; give the logged metrics."""
        config = self.config
        scalars: dict[str, float] = {}
        if self._due(config.output.log_every):
            scalars = self.scalars()
            scalars["charts/SPS"] = (self.steps - self.began_at) / self.clock.seconds
            scalars |= self.clock.scalars()
            run.log(self.steps, scalars)
            if config.output.histograms:
                run.log_histograms(self.steps, trained_values(self.networks(), self.optimizers))
            self.events.add("on_log", scalars)
        first = getattr(config.evaluation, "evaluate_from", 0)  # the configs of some trainers lack it
        if self.updates and self.steps >= first and self._due(config.evaluation.evaluate_every):
            self.stats.check_finite()
            score = self.evaluate()
            run.log(self.steps, score.scalars() | self.clock.scalars())
            self.events.add("on_evaluate", score)
            self.solved = self.reached_goal(score)
            scalars = scalars | score.scalars()
        if self._due(config.output.checkpoint_every):
            self.shorten_log()
            self.save(run)
            self.events.add("on_checkpoint", run.path)
        return scalars

    def finish(self, run: Run) -> Score:
        """Save, and run the final evaluation."""
        if self.steps > self.began_at:  # else the checkpoint already holds the newest steps of the replay
            self.shorten_log()
        self.save(run)  # the final evaluation may take minutes
        score = self.evaluate(final=True)
        final = score.scalars("final") | {SUCCESS_TOLD: float(score.env_reports_success)}
        if self.config.evaluation.memory_ablation:
            final |= self.evaluate(final=True, reset_memory=True).scalars("memory_ablation")
        run.log(self.steps, final | self.final_scalars() | self.clock.scalars())
        self.save(run)
        self.events.add("on_checkpoint", run.path)
        self.events.tell(self)
        return score

    def final_scalars(self) -> dict[str, float]:
        """Give further metrics of the final agent."""
        return {}

    def save(self, run: Run) -> None:
        """Write a checkpoint, which becomes valid at its last write."""
        self.stats.check_finite()
        replay = self.replay if self.config.output.checkpoint_replay == "full" else None
        header = {name: str(seconds) for name, seconds in self.clock.scalars().items()}
        header |= {"kind": self.kind, "config": to_toml(self.config)}
        run.save(self.steps, self.weights(), self.state_dict(), replay, header)

    def shorten_log(self) -> None:
        """Begin new episodes if a resume would have to repeat too many actions."""
        limit = self.config.output.max_repeated_actions
        replayed = [part for part in single_vectors(self.vector) if isinstance(part, ReplayedVector)]
        repeats = sum(part.repeats for part in replayed)
        if limit is not None and repeats > limit:
            say(f"step {self.steps}: new episodes, as a resume would repeat {repeats} actions")
            if self.replay is not None:
                self.replay.cut()
            for part in replayed:
                part.forget()
            self.begin()

    def _due(self, every: int) -> bool:
        return due(self.steps, every, self.steps_per_iteration)

    def shown_scalars(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Choose the metrics of the progress line, by word."""
        has_success = self.vector.reports_success
        shown = dict(self.shown) | {"evaluated": "eval/success_rate" if has_success else "eval/episodic_return"}
        if not has_success and SUCCESS in shown:
            del shown[SUCCESS]
            shown["return"] = "charts/episodic_return"
        return {word: scalars[name] for word, name in shown.items() if name in scalars}
