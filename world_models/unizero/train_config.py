"""Everything that defines a training run of UniZero: one frozen tree of dataclasses, which a TOML preset is too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from dqn_memory import config as core
from dqn_memory.config import WorldConfig
from dqn_memory.runs.checks import check_finite, check_parts
from dqn_memory.runs.cuda_graph import Engine
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Repeatable
from envs.atari import AtariConfig
from envs.core import Step
from world_models import run_config
from world_models.run_config import check_counts, check_not_negative, check_run, shorter, training_signal
from world_models.unizero.config import ModelConfig
from world_models.unizero.learner import LearnerConfig
from world_models.unizero.replay import ReplayConfig
from world_models.unizero.search import SearchConfig


@dataclass(frozen=True)
class CollectionConfig:
    """How experience is made, and how often it is learned from."""

    temperature: float = 0.25
    """Actions are drawn with probability visits^(1/temperature); 0 takes the most visited one."""
    reset_history: Literal["episode", "released"] = "episode"
    """When a search's history is emptied: where the world's own `episode` starts; or, as in the `released` code, in all
    worlds from the first end of an episode until each world has ended one, after which the next round begins."""
    clip_rewards: bool = False
    """Learn the signs of the rewards (usual in Atari); evaluations count the rewards themselves."""
    terminal_on_life_loss: bool = False
    """Let a lost life end an episode of training (usual in Atari): no value behind it, no history from before it. The
    game goes on, and evaluations play all lives."""
    prepopulate: int = 0
    """Environment steps of uniformly random actions before the first search. They cost no search, and where rewards are
    rare the model learns from them what there is to be searched for; their policy is kept as uniform."""
    learning_starts: int = 2_000
    """Environment steps before the first update."""
    replay_ratio: float = 0.25
    """Updates per environment step."""
    update_every: int = 1
    """Iterations of --worlds environment steps between groups of updates; the ratio holds all the same."""
    reanalyse_fraction: float = 0.02
    """Share of the updates whose policies are all searched anew (0.02: every 50th). The paper's table has a "buffer
    reanalyze frequency" of 1/50 and does not say of what; this reading of it is the default. 0 in the released Atari
    configuration; in the library beneath that code it counts passes over some sequences by rounds of collection."""

    def training_signal(self, step: Step) -> tuple[Tensor, Tensor]:
        """Rewards (N,) as they are learned, and where (N,) an episode of training ends for good."""
        return training_signal(step, self.clip_rewards, self.terminal_on_life_loss)

    def check(self) -> None:
        """One sentence for each value that cannot work."""
        check_not_negative(self, ("temperature", "replay_ratio", "learning_starts", "prepopulate"))
        if self.update_every < 1:
            raise UserError(f"--update-every {self.update_every} must be at least 1")
        if not 0 <= self.reanalyse_fraction <= 1:
            raise UserError(f"--reanalyse-fraction {self.reanalyse_fraction} must lie between 0 and 1")

    def updates_due(self, iteration: int, worlds: int) -> int:
        """Updates after iteration number `iteration` = 1, 2, ...; their number per step is exact in the long run."""
        if iteration * worlds < self.learning_starts or iteration % self.update_every:
            return 0
        return self._owed(iteration, worlds) - self._owed(iteration - self.update_every, worlds)

    def updates_within(self, iterations: int, worlds: int, window: int) -> int:
        """Updates of a whole run, which learns from `window` iterations at a time."""
        before = max(window, -(-self.learning_starts // worlds)) - 1  # iterations that never learn
        first, last = (number // self.update_every * self.update_every for number in (before, iterations))
        return max(self._owed(last, worlds) - self._owed(first, worlds), 0)

    def _owed(self, iteration: int, worlds: int) -> int:
        return int(iteration * worlds * self.replay_ratio)


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation without noise: each of N worlds plays the same number of episodes, so short ones are not favoured."""

    evaluate_every: int = 10_000
    """Environment steps between evaluations (0: only at the end). 10,000 in the paper, which is the default; 5,000,
    10,000 or 20,000 in the released configurations."""
    evaluate_from: int = 20_000
    """Environment steps before the first of them (20,000 in the paper, which is the default; the released code begins
    with the untrained agent, here 0 begins with the first --evaluate-every)."""
    num_eval_envs: int = 20
    """Worlds that an evaluation plays in at once."""
    episodes_per_env: int = 1
    """Episodes of each of them."""
    final_episodes_per_env: int = 5
    """The same for the last evaluation."""
    max_episode_steps: int | None = None
    """Steps after which an evaluation's episode is cut, if the world's own limit is not sooner (None: that limit)."""
    stop_at_return: float | None = None
    """End the run as soon as an evaluation's mean return reaches this (None: run to --total-steps). The last evaluation
    plays other episodes, so it does not inherit the luck of the one that ended the run."""
    forgetful: bool = False
    """Judge the final agent once more without its memory, forgetting everything before each step."""

    def check(self) -> None:
        """One sentence for each value that cannot work."""
        check_counts(self, ("num_eval_envs", "episodes_per_env", "final_episodes_per_env", "max_episode_steps"))
        check_not_negative(self, ("evaluate_every", "evaluate_from"))


@dataclass(frozen=True)
class OutputConfig(core.OutputConfig):
    """Where a run lives and what it writes."""

    run: str | None = None
    """Run folder (None: runs/<env>/unizero-<dynamics>-<prior>/seed_<seed>); it must not hold a run yet."""


@dataclass(frozen=True)
class ComputeConfig(run_config.ComputeConfig):
    """Where and how tensors are computed."""

    engine: Engine = "eager"
    """How searches ask the model and how updates are executed; all three compute the same function."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a UniZero agent in one world. `--resume RUN` continues a stopped run instead (`--resume RUN --help`)."""

    trainer: ClassVar[str] = "unizero"

    world: WorldConfig = field(default_factory=lambda: WorldConfig(worlds=8))
    atari: AtariConfig = field(default_factory=lambda: AtariConfig(sticky=0.25))
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    collection: CollectionConfig = field(default_factory=CollectionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: int = 1
    """Seed of every stream: worlds, search, replay, evaluation, network, dropout."""
    total_steps: int = 100_000
    """Environment steps of the run (100,000 in the paper, which is the default; 115,000 in most of the released
    configurations, whose curves are cut at 100,000)."""
    plugin: Repeatable = ()
    """Modules imported first, which register blocks or worlds of their own."""

    def base(self) -> TrainConfig:
        """The defaults under this config's prior, whose span starts where the paper starts it."""
        defaults = TrainConfig()
        return replace(defaults, model=defaults.model.with_prior(self.model.prior.kind))

    @classmethod
    def earlier(cls) -> TrainConfig:
        """What keys meant before they existed: the file of an old run has all keys of its version, and no others."""
        now = cls()
        encoder = replace(now.model.encoder, activation="gelu")
        return replace(
            now, model=replace(now.model, encoder=encoder), evaluation=replace(now.evaluation, evaluate_from=0)
        )

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Keywords of the world's constructor, with the time limit of training or of evaluations."""
        limit = self.world.time_limit if training else self.evaluation.max_episode_steps
        if not self.world.env.startswith("ALE/"):
            limit = limit if training else shorter(self.world, limit)
            return replace(self.world, time_limit=limit).kwargs()
        game = asdict(self.atari)
        frames = game["most_frames"] if limit is None else min(game["most_frames"], limit * game["frame_skip"])
        return game | {"most_frames": frames}

    def check(self) -> None:
        """One sentence for every combination of parts that cannot work together."""
        check_finite(self)
        check_parts(self, "atari", "model", "learner", "search", "replay", "collection", "evaluation", "compute")
        check_run(self)
        self.model.check_used()
        if self.search.tree.discount != self.learner.gamma:
            raise UserError(
                f"--discount {self.search.tree.discount} of the search and --gamma {self.learner.gamma} of the value "
                "targets must be the same number"
            )
        self._check_updates()

    def _check_updates(self) -> None:
        """One sentence for a run that would end without having learned."""
        worlds, told, window = self.world.worlds, self.collection, self.model.horizon + self.learner.n_step
        if not told.updates_within(-(-self.total_steps // worlds), worlds, window):
            raise UserError(
                f"--total-steps {self.total_steps} in --worlds {worlds} would never update the model: that begins "
                f"after {told.learning_starts} steps (--learning-starts) and sequences of {window} steps of one world "
                f"(--horizon, --n-step), with --replay-ratio {told.replay_ratio:g} updates a step every "
                f"{told.update_every} iterations; lower those or raise --total-steps"
            )
