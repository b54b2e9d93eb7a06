"""Everything that defines a training run of GLAM: one frozen tree of dataclasses, which a TOML preset is too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from dqn_memory.runs.backend import Backend
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import EnvironmentConfig, OutputConfig, Repeatable, check_numbers, check_parts, flags_of
from envs.atari import AtariConfig as GameConfig
from envs.core import Step
from envs.worlds.catch import check as check_catch
from world_models import settings
from world_models.glam.agent import AgentConfig
from world_models.glam.config import ModelConfig
from world_models.glam.engine import Engine
from world_models.glam.learner import LearnerConfig
from world_models.glam.replay import ReplayConfig
from world_models.glam.schedule import HorizonConfig
from world_models.settings import check_counts, check_not_negative, check_run, shorter, training_signal

CATCH = "Pixel/BlinkingCatch-v0"


@dataclass(frozen=True)
class CatchConfig:
    """How Blinking Catch is played; its picture is as large as the model's screen."""

    grid: int = 8
    """Rows and columns of cells."""
    balls: int = 10
    """Balls of an episode, and the largest return there is."""
    blink: int = 4
    """The ball is seen in every row that this divides (1: always)."""


@dataclass(frozen=True)
class AtariConfig:
    """How a game is played: colour frames as large as the model's screen, and what the released code does."""

    frame_skip: int = 4
    """Emulator frames an action is held for; the last two are merged by their maximum."""
    sticky: float = 0.25
    """Probability that an emulator frame repeats the action before."""
    noops: int = 0
    """Most no-ops at the start of an episode, drawn uniformly."""
    most_frames: int = 108_000
    """Emulator frames after which an episode is truncated."""

    def check(self) -> None:
        """One sentence for every value that cannot work."""
        GameConfig(**asdict(self)).check()


@dataclass(frozen=True)
class ImaginationConfig:
    """The dreams that the agent learns from; their context and their form belong to the model."""

    num_rollouts: int = 1024
    """Trajectories that an update of the agent imagines at once."""
    start_from: Literal["posterior", "prior"] = "posterior"
    """Where they begin: at a real frame (`posterior`), or, as released, at the model's guess of the one behind it."""

    def check(self) -> None:
        """One sentence for a number that cannot work."""
        if self.num_rollouts < 1:
            raise UserError(f"--num-rollouts {self.num_rollouts} must be at least 1")

    def frames(self, context: int) -> int:
        """Length of the windows of the replay that trajectories with `context` steps before them begin from."""
        return context + 1 if self.start_from == "posterior" else context


@dataclass(frozen=True)
class CollectionConfig:
    """How experience is made, and how often it is learned from."""

    learning_starts: int = 1024
    """Environment steps of random actions before the first update."""
    agent_starts: int = 0
    """Environment steps before the agent's first update, where more than --learning-starts: the dreams of a model that
    knows nothing yet teach nothing."""
    model_replay_ratio: float = 1.0
    """Updates of the world model per environment step."""
    agent_replay_ratio: float = 1.0
    """Updates of the agent, each on a dream of its own, per environment step."""
    terminal_on_life_loss: bool = True
    """Teach the model that a lost life terminates the episode; the game goes on, and evaluations play all lives."""
    clip_rewards: bool = False
    """Learn the signs of the rewards; evaluations count the rewards themselves."""
    act_before_observing: bool = False
    """Choose an action before the newest frame is taken in, as released."""

    def training_signal(self, step: Step) -> tuple[Tensor, Tensor]:
        """Rewards (N,) as they are learned, and where (N,) the model is taught an end."""
        return training_signal(step, self.clip_rewards, self.terminal_on_life_loss)

    def check(self) -> None:
        """One sentence for each value that cannot work."""
        check_not_negative(self, ("learning_starts", "agent_starts", "model_replay_ratio", "agent_replay_ratio"))

    def model_updates(self, iteration: int, worlds: int) -> int:
        """Updates of the world model after iteration number `iteration` = 1, 2, ..."""
        return _due(self.model_replay_ratio, self.learning_starts, iteration, worlds)

    def agent_updates(self, iteration: int, worlds: int) -> int:
        """Updates of the agent after that iteration."""
        return _due(self.agent_replay_ratio, max(self.learning_starts, self.agent_starts), iteration, worlds)


def _due(ratio: float, starts: int, iteration: int, worlds: int) -> int:
    """Updates at a ratio to environment steps, from step `starts` on; their number is exact in the long run."""
    if iteration * worlds < starts:
        return 0
    return _between(ratio, iteration, iteration, worlds)


def _between(ratio: float, first: int, last: int, worlds: int) -> int:
    """Updates of the iterations from `first` to `last`."""
    return int(last * worlds * ratio) - int((first - 1) * worlds * ratio)


@dataclass(frozen=True)
class EvaluationConfig:
    """Each of N worlds plays the same number of episodes, so short ones are not favoured."""

    evaluate_every: int = 10_000
    """Environment steps between evaluations (0: only at the end)."""
    num_eval_envs: int = 20
    """Worlds that an evaluation plays in at once."""
    episodes_per_env: int = 1
    """Episodes of each of them."""
    final_episodes_per_env: int = 5
    """The same for the last evaluation."""
    max_episode_steps: int | None = None
    """Steps after which an evaluation's episode is cut, if the world's own limit is not sooner (None: that limit)."""
    policy: Literal["both", "sampled", "greedy"] = "both"
    """`sampled` draws actions as in training, as paper and released code evaluate; `greedy` takes the most probable
    ones. With `both` the sampled ones are the run's score and the greedy ones stand beside it."""
    stop_at_return: float | None = None
    """End the run as soon as an evaluation's mean return reaches this (None: run to --total-steps). The last evaluation
    plays other episodes, so it does not inherit the luck of the one that ended the run."""
    memory_ablation: bool = False
    """Judge the final agent once more without its memory, forgetting everything before each step."""

    def check(self) -> None:
        """One sentence for each value that cannot work."""
        check_counts(self, ("num_eval_envs", "episodes_per_env", "final_episodes_per_env", "max_episode_steps"))
        check_not_negative(self, ("evaluate_every",))


@dataclass(frozen=True)
class ComputeConfig(settings.ComputeConfig):
    """Where and how tensors are computed."""

    engine: Engine = "eager"
    """How updates and dreams are executed; `cudagraph` captures them, on CUDA. Both compute the same function."""
    backend: Backend = "auto"
    """What the scan of a Mamba runs on (auto: simd on a CPU; on CUDA the first that works of triton, mamba_ssm and
    torch). All compute the same function."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a GLAM agent in one world. `--resume RUN` continues a stopped run instead (`--resume RUN --help`)."""

    trainer: ClassVar[str] = "glam"

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(env=CATCH, num_envs=1))
    atari: AtariConfig = field(default_factory=AtariConfig)
    catch: CatchConfig = field(default_factory=CatchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)
    horizon: HorizonConfig = field(default_factory=HorizonConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    collection: CollectionConfig = field(default_factory=CollectionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: int = 1
    """Seed of every stream: worlds, acting, replay, evaluation, networks, dropout, dreams."""
    total_steps: int = 100_000
    """Environment steps of the run."""
    plugin: Repeatable = ()
    """Modules imported first, which register worlds of their own."""

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Keywords of the world's constructor, with the time limit of training or of evaluations."""
        limit = self.environment.time_limit if training else self.evaluation.max_episode_steps
        if self.environment.env.startswith("ALE/"):
            game = asdict(self.atari) | {"size": self.model.screen, "grayscale": False}
            frames = self.atari.most_frames if limit is None else limit * self.atari.frame_skip
            return game | {"most_frames": min(frames, self.atari.most_frames)}
        limit = limit if training else shorter(self.environment, limit)
        kwargs = replace(self.environment, time_limit=limit).kwargs()
        if self._plays_catch:
            return kwargs | asdict(self.catch) | {"size": self.model.screen}
        return kwargs

    def check(self) -> None:
        """One sentence for every combination of parts that cannot work together."""
        check_numbers(self)
        check_parts(
            self, "atari", "model", "learner", "imagination", "horizon", "agent", "replay", "collection", "evaluation",
            "compute",
        )  # fmt: skip
        if self._plays_catch:
            with flags_of(self, "catch", size="screen"):
                check_catch(self.model.screen, **asdict(self.catch))
        check_run(self)
        self._check_updates()

    @property
    def _plays_catch(self) -> bool:
        return self.environment.env.removeprefix("envs:") == CATCH

    def _check_updates(self) -> None:
        """Refuse a run that would end without having learned; --agent-replay-ratio 0 trains the model alone."""
        told = self.collection
        length = self.model.batch_length
        self._check_learner("world model", "model", told.learning_starts, length)
        if told.agent_replay_ratio:
            window = max(length, self.imagination.frames(self.model.context))
            self._check_learner("agent", "agent", max(told.learning_starts, told.agent_starts), window)

    def _check_learner(self, who: str, part: str, starts: int, window: int) -> None:
        ratio, worlds = getattr(self.collection, f"{part}_replay_ratio"), self.environment.num_envs
        last, first = -(-self.total_steps // worlds), max(window, -(-starts // worlds))  # iterations
        if last < first or not _between(ratio, first, last, worlds):
            raise UserError(
                f"--total-steps {self.total_steps} in --num-envs {worlds} would never update the {who}: that begins "
                f"after {starts} steps (--learning-starts, --agent-starts) and windows of {window} steps of one world "
                f"(--batch-length, --context), with --{part}-replay-ratio {ratio:g} updates a step"
            )
