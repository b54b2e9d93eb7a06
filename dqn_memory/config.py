"""Everything that defines a training run, as one frozen tree of dataclasses; a TOML preset is the same tree."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from dqn_memory.acting import ActingMode, ActingState
from dqn_memory.evaluation import Arena
from dqn_memory.exploration import ExplorationConfig
from dqn_memory.learner_config import LearnerConfig
from dqn_memory.network import NetworkConfig
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.checks import check_finite, check_least, check_parts, check_positive
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.precision import set_tf32
from dqn_memory.runs.settings import Repeatable
from envs.atari import AtariConfig
from envs.registry import WORLDS

# The least values of settings, by path.
LEAST = dict.fromkeys(
    ("environment.num_envs", "environment.time_limit", "replay.updates_per_iteration", "replay.update_every",
     "evaluation.episodes", "evaluation.final_episodes", "total_steps"), 1
) | dict.fromkeys(
    ("seed", "learner.prior_learning_rate", "replay.learning_starts", "exploration.epsilon_ladder",
     "exploration.prepopulate", "evaluation.evaluate_every", "output.log_every", "output.checkpoint_every"), 0
)  # fmt: skip


@dataclass(frozen=True)
class EnvironmentConfig:
    """The world and how many copies of it run."""

    env: str = "Gridverse/Memory-5x5-v0"
    """A world of this suite or any Gymnasium id with a discrete action space."""
    num_envs: int = 16
    """Parallel copies N; one iteration of training is N environment steps."""
    time_limit: int | None = None
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
    learning_starts: int = 1_000
    """Environment steps before the first update."""
    updates_per_iteration: int = 1
    """Updates per iteration of --num-envs environment steps."""
    update_every: int = 1
    """Iterations between the groups of updates."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluation while training."""

    evaluate_every: int = 10_000
    """Environment steps between evaluations (0: only at the end)."""
    episodes: int = 100
    """Episodes of each evaluation, unless every initial state can be tried."""
    stop_at_success: float | None = None
    """End the run as soon as an evaluation reaches this success rate (None: run to --total-steps). The world says what
    a success is, a Gymnasium world by `success` or `is_success` in the info of an episode's last step; where it says
    nothing, a return above 0 counts, which may tell little, and printed lines say `positive return`. Where episodes are
    drawn, the last evaluation plays others and does not inherit the luck of the one that ended the run; where every
    initial state is tried, it is the same evaluation again, so its score is the best seen, not an unbiased one."""
    final_episodes: int = 1_000
    """Episodes of the last evaluation."""
    memory_ablation: bool = True
    """Judge the final agent once more without its memory, forgetting everything before each step."""


@dataclass(frozen=True)
class OutputConfig:
    """Where a run lives and what it writes."""

    run: str | None = None
    """Run folder (None: runs/<env>/<architecture>/seed_<seed>); it must not hold a run yet."""
    log_every: int = 2_000
    """Environment steps between log lines."""
    checkpoint_every: int = 50_000
    """Environment steps between checkpoints (0: only at the end)."""
    checkpoint_replay: Literal["full", "none"] = "full"
    """`none` leaves the replay out of checkpoints: small files, but a resumed run is no longer exact."""


def check_engine(engine: str, device: torch.device) -> None:
    """A UserError for an engine that the device, or the machine, cannot have."""
    if engine == "cudagraph" and device.type != "cuda":
        raise UserError("--engine cudagraph needs --device cuda; use another engine on a CPU")
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch chooses it
    if engine == "compile" and sys.platform != "win32" and shutil.which(compiler) is None:
        raise UserError(f"--engine compile needs a C++ compiler, and there is no {compiler} here; use --engine eager")


@dataclass(frozen=True)
class ComputeConfig:
    """Where and how tensors are computed."""

    device: str = "auto"
    """cpu, cuda, cuda:1 ... (auto: cuda where there is one)."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""
    engine: Literal["eager", "compile", "cudagraph"] = "eager"
    """How the update is executed; all three compute the same function."""
    backend: Backend = "auto"
    """What a mamba block's scan runs on (auto: simd on a CPU; on CUDA the first that works of triton, mamba_ssm and
    torch). All compute the same function; a network without mamba has no use for it."""

    def check(self) -> None:
        """One sentence for threads, a device or an engine that cannot be had."""
        if self.threads is not None and self.threads < 1:
            raise UserError(f"--threads {self.threads} must be at least 1")
        check_engine(self.engine, self.torch_device())

    def start(self) -> torch.device:
        """The device, after setting what float sums depend on: threads, and full float32 on an accelerator."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        set_tf32(False)
        return self.torch_device()

    def torch_device(self) -> torch.device:
        """The device, or one sentence that says why it cannot be used."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise UserError(f"--device {self.device} is not a device of torch; use cpu, cuda or auto") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"--device {self.device}: torch sees no CUDA device here; use cpu")
        try:
            torch.Generator(device)  # every trainer has one there
        except RuntimeError:
            raise UserError(f"--device {self.device} cannot be used here; use cpu, cuda or auto") from None
        return device


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
    seed: int = 1
    """Seed of every stream: worlds, exploration, replay, evaluation, network, dropout."""
    total_steps: int = 200_000
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
        check_finite(self)
        check_least(self, LEAST)
        check_positive(self, ("learner.learning_rate", "learner.max_grad_norm"))
        check_parts(self, "network", "exploration", "compute")
        if not 0 <= self.learner.gamma <= 1:
            raise UserError(f"--gamma {self.learner.gamma} must lie between 0 and 1")
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
