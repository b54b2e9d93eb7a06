"""Everything that defines a training run, as one frozen tree of dataclasses; a TOML preset is the same tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch

from dqn_memory.acting import ActingMode, ActingState
from dqn_memory.evaluation import Arena
from dqn_memory.exploration import ExplorationConfig
from dqn_memory.learner_config import LearnerConfig
from dqn_memory.network import NetworkConfig
from dqn_memory.runs import settings
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds, Engine, OutputConfig, Repeatable, check_numbers, check_parts
from envs.atari import AtariConfig
from envs.registry import WORLDS


@dataclass(frozen=True)
class EnvironmentConfig:
    """The world and how many copies of it run."""

    env: str = "Gridverse/Memory-5x5-v0"
    """A world of this suite or any Gymnasium id with a discrete action space."""
    num_envs: Annotated[int, Bounds(1)] = 16
    """Parallel copies N; one iteration of training is N environment steps."""
    time_limit: Annotated[int, Bounds(1)] | None = None
    """Steps after which a training episode is cut (None: the world's own). Evaluation keeps the world's own limit."""
    path: str | None = None
    """File that a world is read from, where it takes one."""
    observation_key: str | None = None
    """Which entry of a dictionary observation is seen."""
    observe: Literal["observation", "state"] = "observation"
    """`state` shows the state in place of the world's own observation: what the same agent does with nothing hidden
    (worlds of this suite)."""

    def kwargs(self, training: bool = True) -> dict[str, Any]:
        """Keywords of the world's constructor; a UserError where they ask for what only worlds of this suite have."""
        ours = self.env.removeprefix("envs:") in WORLDS
        if self.observe == "state" and not ours:
            raise UserError(
                f"--observe state needs a world of this suite, which {self.env} is not; use --observe observation"
            )
        limit = "time_limit" if ours else "max_episode_steps"  # the keyword of gymnasium.make
        given = {limit: self.time_limit if training else None, "path": self.path}
        if self.env.startswith("ALE/"):
            frames = AtariConfig().frame_skip * (given.pop(limit) or 0)
            given["most_frames"] = frames or None
        given |= {"observe": self.observe if self.observe == "state" else None}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ReplayConfig:
    """The replay and how often it is learned from."""

    capacity: int = 500_000
    """Environment steps kept."""
    learning_starts: Annotated[int, Bounds(0)] = 1_000
    """Environment steps before the first update."""
    updates_per_iteration: Annotated[int, Bounds(1)] = 1
    """Updates per iteration of --num-envs environment steps."""
    update_every: Annotated[int, Bounds(1)] = 1
    """Iterations between the groups of updates."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluation while training."""

    evaluate_every: Annotated[int, Bounds(0)] = 10_000
    """Environment steps between evaluations (0: only at the end)."""
    episodes: Annotated[int, Bounds(1)] = 100
    """Episodes of each evaluation, unless every initial state can be tried."""
    stop_at_success: float | None = None
    """End the run as soon as an evaluation reaches this success rate (None: run to --total-steps). The world says what
    a success is, a Gymnasium world by `success` or `is_success` in the info of an episode's last step; where it says
    nothing, a return above 0 counts, which may tell little, and printed lines say `positive return`. Where episodes are
    drawn, the last evaluation plays others and does not inherit the luck of the one that ended the run; where every
    initial state is tried, it is the same evaluation again, so its score is the best seen, not an unbiased one."""
    final_episodes: Annotated[int, Bounds(1)] = 1_000
    """Episodes of the last evaluation."""
    memory_ablation: bool = True
    """Judge the final agent once more without its memory, forgetting everything before each step."""


@dataclass(frozen=True)
class ComputeConfig(settings.ComputeConfig):
    """Where and how tensors are computed."""

    engine: Engine = "eager"
    """How the update is executed; all three compute the same function."""
    backend: Backend = "auto"
    """What a mamba block's scan runs on (auto: simd on a CPU; on CUDA the first that works of triton, mamba_ssm and
    torch). All compute the same function; a network without mamba has no use for it."""


@dataclass(frozen=True)
class TrainConfig:
    """Train one memory agent in one world. `--resume RUN` continues a stopped run instead (`--resume RUN --help`)."""

    trainer: ClassVar[str] = "q_network"

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: Annotated[int, Bounds(0)] = 1
    """Seed of every stream: worlds, exploration, replay, evaluation, network, dropout."""
    total_steps: Annotated[int, Bounds(1)] = 200_000
    """Environment steps of the run."""
    acting: ActingMode = "prefix"
    """`prefix` feeds the real observations; `padded` feeds all K and reads the last real index (no lengths)."""
    acting_state: ActingState = "window"
    """`window` re-encodes the last K observations; `episode` carries a recurrent state (published DRQN)."""
    match: str | None = None
    """Trainable parameters to match, such as 100k: sets width and head width."""
    plugin: Repeatable = ()
    """Modules imported first, which register blocks, architectures or worlds of their own."""

    @classmethod
    def earlier(cls) -> TrainConfig:
        """What keys meant before they existed: the file of an old run has all keys of its version, and no others."""
        now = cls()
        return replace(now, evaluation=replace(now.evaluation, memory_ablation=False))

    def check(self) -> None:
        """One sentence for every combination of parts that cannot work together."""
        check_numbers(self)
        check_parts(self, "network", "exploration", "compute")
        if self.evaluation.stop_at_success is not None and not 0 <= self.evaluation.stop_at_success <= 1:
            raise UserError(
                f"--stop-at-success {self.evaluation.stop_at_success} is a share of episodes won, between 0 and 1"
            )
        if self.acting == "padded" and self.learner.lengths:
            raise UserError("--acting padded needs --no-lengths: training must see padding as acting does")
        if self.acting == "padded" and self.acting_state == "episode":
            raise UserError("--acting padded has no meaning with --acting-state episode, which feeds no window")
        if self.acting_state == "episode" and self.network.row().positions != "none":
            raise UserError("--acting-state episode has no place in a window to encode; use --position-encoding none")
        if self.replay.capacity < self.environment.num_envs * self.network.context:
            raise UserError(
                f"--capacity {self.replay.capacity} must hold at least one window of each world, "
                f"--num-envs {self.environment.num_envs} x --context {self.network.context}"
            )
        self._check_updates()

    def _check_updates(self) -> None:
        """One sentence for a run that would end without having learned."""
        starts, worlds = max(self.replay.learning_starts, self.exploration.prepopulate), self.environment.num_envs
        iterations, every = -(-self.total_steps // worlds), self.replay.update_every
        if iterations // every * every < max(-(-starts // worlds), 1):
            raise UserError(
                f"--total-steps {self.total_steps} in --num-envs {worlds} would never update the network: that begins "
                f"after {starts} steps (--learning-starts, --prepopulate), every {every} iterations (--update-every); "
                "lower those or raise --total-steps"
            )

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Keywords of the environment's constructor, with the time limit of training or of evaluations."""
        return self.environment.kwargs(training)

    def arena(self, device: torch.device) -> Arena:
        """How this run's network is evaluated."""
        return Arena(
            env=self.environment.env,
            env_kwargs=self.environment.kwargs(training=False),
            observation_key=self.environment.observation_key,
            device=device,
            acting=self.acting,
            acting_state=self.acting_state,
        )
