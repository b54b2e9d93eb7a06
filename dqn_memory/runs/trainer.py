"""What every training script shares: the state of a run, its course, and how it is started, stopped and resumed.

A script holds its algorithm alone: a subclass of `Trainer` whose `__init__` makes networks and optimisers and whose
`iterate` acts, stores and learns.
"""

import shlex
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.runs import backend
from dqn_memory.runs.backend import Choice
from dqn_memory.runs.checkpoint import Checkpoint, check_actions, check_form, foreign_state
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.metrics import Clock, RunStats
from dqn_memory.runs.modules import load_modules, load_named, modules_of, remember
from dqn_memory.runs.progress import Progress, due
from dqn_memory.runs.resume import check_unfinished, reopened, resumes
from dqn_memory.runs.score import SUCCESS, SUCCESS_TOLD, Evaluation, EvaluationOptions, Policy, Score
from dqn_memory.runs.seeding import Streams, dropout_state, restore_dropout
from dqn_memory.runs.settings import Settings, parse
from dqn_memory.runs.toml import to_toml
from envs.files import portable_name
from envs.fleet import make_fleet
from envs.gymnasium import GymnasiumFleet
from envs.replayed import ReplayedFleet
from envs.seeding import restore_generator
from envs.terminal import say

C = TypeVar("C", bound=Any)
HUGE = 1e300  # what no setting of an optimiser comes near
AFTER_STOP = 1 << 31  # of a seed a CPU's generator reads 32 bits


@dataclass(frozen=True)
class LoadedPolicy:
    """What a checkpoint's agent acts with, in the environment it was trained in."""

    config: Any
    env_kwargs: dict[str, Any]
    step: int
    """Environment steps of its training."""
    device: torch.device
    start: Callable[[int], Policy]
    """Makes the policy of N episodes, which remembers nothing yet."""
    ways: Mapping[str, Callable[[int], Policy]] = field(default_factory=dict)
    """The same by how actions are chosen, "sampled" and "greedy"; empty where there is one way."""


class Interrupts:
    """Hold Ctrl-C and SIGTERM back until what a checkpoint holds is consistent; a second one stops at once.

    with Interrupts() as interrupts:
        while not interrupts.asked:
            step()

    Only a process's main thread can do this.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in self.SIGNALS}
            self._before = {number: old for number, old in found.items() if old is not signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, old in self._before.items():
            signal.signal(number, old)

    def _note(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("stopping after a checkpoint; once more stops at once", file=sys.stderr)


class Trainer(ABC, Generic[C]):
    """One run of one algorithm: all of its state, and its course from the command line to the last evaluation.

    Attributes:
        fleet: N environments, stepped at once.
        updates: of the networks, so far.
        solved: an evaluation reached the goal that the config sets.
    """

    kind: ClassVar[str]
    """Its name in checkpoints' headers, in studies and among the entry points."""
    config_class: ClassVar[type[Any]]
    shown: ClassVar[Mapping[str, str]]
    """Words of the progress line, and the scalar that each stands for."""
    attention_report: ClassVar[Any] = None
    """Reads what a study's report shows of a run's attention, (run, seed) -> analysis.attention.Maps or None."""
    evaluation_flags: ClassVar[tuple[str, ...]]
    """Options of `evaluate` that not every kind of run has."""
    # What a checkpoint holds besides networks, optimisers, counters and replay, by the names of attributes:
    stateful: tuple[str, ...]
    """Parts that have a state_dict of their own."""
    generators: ClassVar[tuple[str, ...]]
    """Random generators."""
    tensors: ClassVar[tuple[str, ...]]
    """Tensors that one iteration hands to the next."""

    optimizers: Sequence[torch.optim.Optimizer]
    backend: Choice | None = None
    """What its Mamba runs on, where it has one."""
    replay: Any = None
    """What was stored to learn from; None where each step is learned from once."""

    def __init__(self, config: C) -> None:
        config.check()
        self.config = config
        self.device: torch.device = config.compute.start()
        self.streams = Streams.spawn(config.seed)
        self.iterations = self.updates = 0
        self.solved = False
        self.stats, self.clock = RunStats(self.device), Clock()
        environment = config.environment
        self.fleet = make_fleet(
            environment.env, environment.num_envs, self.streams.worlds, self.device,
            observation_key=environment.observation_key, env_kwargs=config.env_kwargs(),
            workers=environment.env_workers,
        )  # fmt: skip

    # ---- the algorithm: what a subclass provides -----------------------------------------------------------------
    @abstractmethod
    def begin(self) -> None:
        """Start episodes in all environments, with nothing remembered."""

    @abstractmethod
    def iterate(self) -> None:
        """Take one step in every environment, then this iteration's updates."""

    @abstractmethod
    def networks(self) -> Mapping[str, nn.Module]:
        """All networks that a checkpoint holds, by name."""

    @abstractmethod
    def evaluate(self, final: bool = False, reset_memory: bool = False) -> Score:
        """Play episodes without learning, more of them at the end of a run.

        With `reset_memory` the agent forgets everything before each step.
        """

    def reached_goal(self, score: Score) -> bool:
        """Whether an evaluation is good enough to end the run: here, its mean return as `--stop-at-return` asks."""
        goal = self.config.evaluation.stop_at_return
        return goal is not None and float(score.returns.mean()) >= goal

    def summary(self, score: Score) -> str:
        """Say what the script prints of the last evaluation."""
        success = f", success {score.success.mean():.3f}" if score.env_reports_success else ""
        length = f"length {score.lengths.mean():.1f} on {score.episodes} episodes"
        return f"return {score.returns.mean():.2f}{success}, {length}"

    @classmethod
    @abstractmethod
    def variant(cls, config: C) -> str:
        """Name the folder between environment and seed, such as by the architecture."""

    @classmethod
    @abstractmethod
    def evaluate_run(cls, run: Path, options: EvaluationOptions) -> Evaluation:
        """How well the agent of a run's latest checkpoint does."""

    @classmethod
    @abstractmethod
    def load_policy(cls, run: Path, device: torch.device, seed: int) -> LoadedPolicy:
        """Read the policy of a run's latest checkpoint; `seed` is of whatever it draws."""

    @classmethod
    def resolve(cls, config: C) -> C:
        """Complete a fresh run's config with all that has to be computed for it."""
        return config

    @property
    def preparing(self) -> dict[str, int]:
        """Name the phases before all of the training, in their order, and the step at which each ends."""
        return {}

    def scalars(self) -> dict[str, float]:
        """Give what a log line says; sums since the last line are cleared."""
        return self.stats.scalars() | {"charts/updates": float(self.updates)}

    # ---- state ---------------------------------------------------------------------------------------------------
    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one iteration."""
        return self.fleet.num_envs

    @property
    def steps(self) -> int:
        """Environment steps taken."""
        return self.iterations * self.steps_per_iteration

    def evaluation_seed(self, final: bool) -> int:
        """Seed of the evaluation at this step, from the run's own stream of evaluations.

        Where an evaluation ended the run, the final one plays other episodes: it must not inherit its luck.
        """
        return self.streams.evaluation + self.steps + (AFTER_STOP if final and self.solved else 0)

    def weights(self) -> dict[str, Tensor]:
        """All parameters and buffers, by network and name."""
        networks = self.networks().items()
        return {f"{part}.{name}": value for part, network in networks for name, value in network.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything else that the future of the run depends on, but the replay."""
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            **{name: getattr(self, name).state_dict() for name in ("fleet", "stats", *self.stateful)},
            **{name: getattr(self, name).get_state() for name in self.generators},
            **{name: getattr(self, name) for name in self.tensors},
            **dropout_state(self.device),
            "solved": self.solved, "iterations": self.iterations, "updates": self.updates,
        }  # fmt: skip

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue where the checkpoint was made; a UserError where its networks are of another form."""
        for part, network in self.networks().items():
            checkpoint.fill(network, part)
        state, self.clock.saved = checkpoint.trainer, checkpoint.header
        device_bound = ("optimizers", *dropout_state(self.device))  # these are of another form on another device
        check_form(state, {name: own for name, own in self.state_dict().items() if name not in device_bound})
        check_actions(state, self.fleet.num_actions)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            restore_optimizer(optimizer, saved)
        for name in ("fleet", "stats", *self.stateful):
            getattr(self, name).load_state_dict(state[name])
        for name in self.generators:
            restore_generator(getattr(self, name), state[name])
        restore_dropout(state, self.device)
        for name in self.tensors:
            setattr(self, name, state[name].to(self.device))
        for name in ("solved", "iterations", "updates"):
            setattr(self, name, state[name])
        if self.replay is None:
            return
        if checkpoint.replay is None:
            self.begin()  # an episode whose beginning is lost cannot be learned from, so all start anew
        else:
            self.replay.restore(checkpoint.replay.start, checkpoint.replay.data)

    # ---- the course of a run -------------------------------------------------------------------------------------
    @classmethod
    @one_line_errors
    def main(cls, argv: Sequence[str] | None = None) -> None:
        """Start or resume a run as the command line says, and train it to its end."""
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
        facts = backend.facts(trainer.backend)
        run = Run.create(cls.folder(config), to_toml(config), trainer.device, facts=facts)
        remember(run.config_file, modules_of(config))
        return trainer, run

    def announce(self) -> None:
        """Say what a reader should know before a fresh run."""
        backend.log_backend(self.backend, self.device)
        if isinstance(self.fleet, GymnasiumFleet) and self.fleet.ignores_seed():
            say(
                f"{self.config.environment.env} ignores its seed: two copies with the same one differ, and so will "
                "runs with the same --seed, and a resume is not exact; let it draw from self.np_random",
                file=sys.stderr,
            )
        compute = self.config.compute
        if compute.engine == "eager":
            with suppress(UserError):  # no GPU here, or what runs cannot be captured
                replace(self.config, compute=replace(compute, engine="cudagraph")).check()
                say("--engine cudagraph is usually faster on a GPU")

    @classmethod
    def configure(cls, argv: Settings) -> C:
        """Make the config of a fresh run from flags and presets."""
        config = parse(cls.config_class, argv)
        load_named(argv)
        if hasattr(config, "base"):  # what was chosen brings other defaults with it
            config = parse(cls.config_class, argv, base=config.base())
        config = replace(config, plugin=tuple(dict.fromkeys(config.plugin)))  # a preset and a flag may name one twice
        load_modules(config, "the config")
        return cls.resolve(replace(config, environment=config.environment.completed()))

    @classmethod
    def folder(cls, config: C) -> Path:
        """Where a fresh run goes."""
        env, variant = portable_name(config.environment.env), portable_name(cls.variant(config))
        return Path(config.output.run or f"runs/{env}/{variant}/seed_{config.seed}")

    @classmethod
    def _resume(cls, argv: Settings) -> tuple[Self, Run]:
        """Continue a stopped run at its last checkpoint.

        Raises:
            UserError: the checkpoint is of another kind or does not fit, or the run is complete.
        """
        config, run = reopened(argv, cls.config_class)
        try:
            trainer = cls(config)
            with foreign_state(run.path):
                checkpoint = run.resume(trainer.restore)
            if checkpoint is None:
                say(f"{run.path} has no checkpoint yet: the run starts over")
                if not run.environment:
                    run.describe(trainer.device, backend.facts(trainer.backend))
            else:
                check_unfinished(run, config, trainer.steps, trainer.solved)
                if checkpoint.replay is None and trainer.replay is not None:
                    lost = "without its replay: the continued run is not exact, episodes start anew"
                    say(f"resuming {run.path} {lost}")
            run.lengthen(config.total_steps)
            remember(run.config_file, modules_of(config))
            backend.log_backend(trainer.backend, trainer.device, run.environment.get(backend.FACT))
        except BaseException:
            run.close()
            raise
        return trainer, run

    def train(self, run: Run) -> Score:
        """Iterate to the end of the run; log, evaluate and save on the way."""
        self.began_at = self.steps
        self.clock.begin(run.metrics())
        total, env = self.config.total_steps, self.config.environment.env
        run.track(self.config.output.track)
        with Interrupts() as interrupts, Progress(total, self.steps, env) as progress:
            while self.unfinished and not interrupts.asked:
                self.iterate()
                scalars = self.record(run)
                phase, end = self.phase
                progress.update(self.steps, phase, end, **self.shown_scalars(scalars))
        if interrupts.asked:
            if self.config.output.max_repeated_actions == 0:  # what cannot be repeated, a resume must not have to
                self.shorten_log()
            self.save(run)
            raise KeyboardInterrupt
        return self.finish(run)

    @property
    def phase(self) -> tuple[str, int]:
        """Name what the run does now for its progress line, and the step at which that ends."""
        total: int = self.config.total_steps
        for name, end in self.preparing.items():
            if self.steps < end:
                return name, min(end, total)
        return "training" if self.updates else "prefill", total

    @property
    def unfinished(self) -> bool:
        """Whether there is anything left to learn."""
        return self.steps < self.config.total_steps and not self.solved

    def record(self, run: Run) -> dict[str, float]:
        """Log, evaluate and save as far as due; gives what was logged."""
        config = self.config
        scalars: dict[str, float] = {}
        if self._due(config.output.log_every):
            scalars = self.scalars()
            scalars["charts/SPS"] = (self.steps - self.began_at) / self.clock.seconds
            run.log(self.steps, scalars | self.clock.scalars())
        first = getattr(config.evaluation, "evaluate_from", 0)  # not every trainer's config puts evaluations off
        if self.updates and self.steps >= first and self._due(config.evaluation.evaluate_every):
            self.stats.check_finite()
            score = self.evaluate()
            run.log(self.steps, score.scalars() | self.clock.scalars())
            self.solved = self.reached_goal(score)
            scalars = scalars | score.scalars()
        if self._due(config.output.checkpoint_every):
            self.shorten_log()
            self.save(run)
        return scalars

    def finish(self, run: Run) -> Score:
        """Save, and play the final episodes."""
        if self.steps > self.began_at:  # else the newest column of the replay is saved already, uncut
            self.shorten_log()
        self.save(run)  # the final evaluation may take minutes
        score = self.evaluate(final=True)
        final = named("final", score) | {SUCCESS_TOLD: float(score.env_reports_success)}
        if self.config.evaluation.memory_ablation:
            final |= named("memory_ablation", self.evaluate(final=True, reset_memory=True))
        run.log(self.steps, final | self.final_scalars() | self.clock.scalars())
        self.save(run)
        return score

    def final_scalars(self) -> dict[str, float]:
        """Measure what else the log says of the final agent."""
        return {}

    def save(self, run: Run) -> None:
        """One checkpoint; it becomes valid all at once."""
        self.stats.check_finite()
        replay = self.replay if self.config.output.checkpoint_replay == "full" else None
        header = {name: str(seconds) for name, seconds in self.clock.scalars().items()}
        header |= {"kind": self.kind, "config": to_toml(self.config)}
        run.save(self.steps, self.weights(), self.state_dict(), replay, header)

    def shorten_log(self) -> None:
        """Begin new episodes where a resume would repeat too many actions of a foreign environment."""
        most = self.config.output.max_repeated_actions
        if most is not None and isinstance(self.fleet, ReplayedFleet) and len(self.fleet.log) > most:
            say(f"step {self.steps}: new episodes, as a resume would repeat {len(self.fleet.log)} actions")
            if self.replay is not None:
                self.replay.cut()
            self.fleet.forget()
            self.begin()

    def _due(self, every: int) -> bool:
        return due(self.steps, every, self.steps_per_iteration)

    def shown_scalars(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Choose what the progress line shows, by the words that it shows them under."""
        told = self.fleet.reports_success
        shown = dict(self.shown) | {"evaluated": "eval/success_rate" if told else "eval/episodic_return"}
        if not told and SUCCESS in shown:
            del shown[SUCCESS]
            shown["return"] = "charts/episodic_return"
        return {word: scalars[name] for word, name in shown.items() if name in scalars}


def named(kind: str, score: Score) -> dict[str, float]:
    """Give a score's scalars under the name of their kind, such as `final`."""
    return {f"{kind}/{name.split('/')[1]}": value for name, value in score.scalars().items()}


def set_learning_rate(optimizer: torch.optim.Optimizer, final_fraction: float, progress: float) -> None:
    """Set learning rates after the fraction `progress` of a run.

    They fall on a straight line from `first_lr`, which every parameter group has, to `final_fraction` of it.
    """
    for group in optimizer.param_groups:
        value = group["first_lr"] * (1 + (final_fraction - 1) * min(progress, 1.0))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict` that was read onto a CPU, perhaps written on another device.

    Whether a graph can capture the steps, and whether learning rates are tensors, where the graph looks, stay its own.
    """
    groups = []
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for name in ("lr", "first_lr"):
            if name in own and not isinstance(saved.get(name), float | Tensor):
                raise TypeError(f"the optimizer's {name} is no number")
        others = {name: value for name, value in own.items() if name not in ("lr", "first_lr", "params", "capturable")}
        saved = others | saved  # another version of torch may have had fewer
        for name, value in others.items():
            number = isinstance(value, int | float)
            if number and not (isinstance(saved[name], int | float) and abs(saved[name]) < HUGE):
                raise TypeError(f"the optimizer's {name} is no number")
            check_form(saved[name], None if number else value, f"the optimizer's {name}.")
        lr = torch.tensor(float(saved["lr"])) if isinstance(own["lr"], Tensor) else float(saved["lr"])
        groups.append(saved | {"lr": lr} | {name: own[name] for name in ("capturable",) if name in own})
    optimizer.load_state_dict(state | {"param_groups": groups})
    names = {name for held in optimizer.state.values() for name in held}
    for parameter, held in optimizer.state.items():
        for name in names:
            value = held.get(name)
            if not isinstance(value, Tensor) or value.shape != (() if name == "step" else parameter.shape):
                raise TypeError(f"the optimizer's {name} does not fit its parameter")
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].to(group["params"][0].device)
