"""All settings of a GLAM run. Where paper and released code differ there is a flag; LossConfig names two exceptions."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch

from dqn_memory.runs.backend import Backend
from dqn_memory.runs.base_config import Engine, EnvironmentConfig, OutputConfig
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds, Repeatable, check_goal, check_numbers, check_parts, flags_of
from envs.atari import AtariConfig
from envs.worlds.catch import check_catch
from world_models import settings
from world_models.settings import WorldModelComputeConfig, WorldModelEvaluationConfig, check_environment

CATCH = "Pixel/BlinkingCatch-v0"
Form = Literal["storm", "lmamba", "double_transformer", "double_mamba", "glam", "glam_no_variation"]
FORMS: tuple[Form, ...] = get_args(Form)
MemoryKind = Literal["window", "carried"]
SMALLEST = 4  # side of the last feature map in pixels
EngineSetting = Literal["auto", "eager", "cudagraph"]
Part = Literal["model", "agent"]  # each has updates of its own


@dataclass(frozen=True)
class CatchConfig:
    """Settings of Blinking Catch alone; its frame has the size of the model's screen."""

    grid: int = 8
    """Rows and columns of cells."""
    balls: int = 10
    """Balls of an episode; also the maximum return."""
    blink: int = 4
    """The ball is visible in rows divisible by this number (1: always)."""


@dataclass(frozen=True)
class LossConfig:
    """Weights and floors of the losses (the paper's Eq. 8-10, 12 and Table 3).

    The paper's Eq. 9 has the root of an image's squared errors, and no minus sign before the cross-entropy of the
    terminations. Here the cross-entropy has its minus sign. The reconstruction loss is the sum of
    squared errors, as in the released code, whose weights are chosen for that sum.
    """

    reconstruction_weight: ClassVar[float] = 1.0  # squared errors of images
    termination_weight: ClassVar[float] = 1.0  # binary cross-entropy
    dynamics_weight: ClassVar[float] = 0.5  # KL of the prior from the stopped posterior
    representation_weight: ClassVar[float] = 0.1  # KL of the stopped prior from the posterior
    variation_weight: ClassVar[float] = 0.1  # KL of the differences' prediction from the variation target
    removed: ClassVar[dict[str, Any]] = {
        "reconstruction": "squared", "reconstruction_weight": reconstruction_weight,
        "termination_weight": termination_weight, "dynamics_weight": dynamics_weight,
        "representation_weight": representation_weight, "variation_weight": variation_weight,
    }  # fmt: skip

    reward_weight: Annotated[float, Bounds(0)] = 1.0
    """Weight of the cross-entropy of rewards with their symlog two-hot code."""
    free_bits: Annotated[float, Bounds(0)] = 1.0
    """The mean KL of dynamics and of representation has no gradient below this many nats."""
    variation_free_bits: Annotated[float, Bounds(0)] = 1.0
    """The same floor for the variation: 1 in the paper, 0.1 as released last."""


@dataclass(frozen=True)
class GlamModelConfig:
    """A world model. The defaults are the paper's, at its published size.

    The variation target of Eq. 10, sg(z_{t+1} - z_t), is a difference of one-hot samples and not a distribution, so
    it has no KL. Our interpretation is `posterior`: predict the unimixed, stopped posterior of o_{t+1} from the
    differences alone.
    """

    local_window: ClassVar[int] = 4  # frames of a local window
    attention_window: ClassVar[int] = 64  # positions that an attention layer sees, with the current one
    removed: ClassVar[dict[str, Any]] = {
        "unimix": 0.01, "local_window": local_window, "attention_window": attention_window,
    }  # fmt: skip

    sequence: Form = "glam"
    """Sequence module: GLAM's, or one of the five other rows of the paper's Table 2."""
    screen: int = 64
    """Pixels S of a square frame of three colours: a power of two, 8 or more."""
    channels: Annotated[int, Bounds(1)] = 32
    """Channels of the first convolution; each later one doubles them."""
    categoricals: Annotated[int, Bounds(1)] = 32
    """Categorical variables G of a latent."""
    classes: Annotated[int, Bounds(2)] = 32
    """Classes C of each categorical."""
    width: Annotated[int, Bounds(1)] = 256
    """Width D of the features."""
    state_size: Annotated[int, Bounds(1)] = 16
    """States of each Mamba channel."""
    global_layers: Annotated[int, Bounds(1)] = 1
    """Mamba layers that read the differences."""
    local_layers: Annotated[int, Bounds(1)] = 1
    """Mamba layers that read the windows."""
    post_norm: bool = True
    """LayerNorm between a mixer and its residual sum, as in Eq. 6 and 7; the released layers have none."""
    chained: bool = True
    """--no-chained as released: all GMamba layers read the same differences, and only the last has an effect."""
    attention_layers: Annotated[int, Bounds(1)] = 2
    """Layers of a Transformer (`storm`, `double_transformer`)."""
    heads: Annotated[int, Bounds(1)] = 8
    """Attention heads of a Transformer."""
    dropout: Annotated[float, Bounds(0, below=1)] = 0.1
    """Dropout of a Transformer."""
    bins: Annotated[int, Bounds(2)] = 255
    """Points of the two-hot code of rewards on symlog [-20, 20]."""
    prior_head: Literal["linear", "mlp"] = "mlp"
    """Head that predicts the next latent: `mlp` as in the paper, `linear` as released."""
    variation_head: Literal["shared", "own"] = "shared"
    """`shared`: the prior's head also predicts from the differences (Eq. 10); `own`: a second head, as released."""
    variation_target: Literal["posterior", "random_projection"] = "posterior"
    """`posterior` of the next frame, or, as released, a `random_projection` of the encoder's difference."""
    reset_at_episode_start: bool = True
    """Reset the memory at an episode's first frame; the released windows run across episodes."""
    burn_in: int = 3
    """First positions of a sequence that train no head unless an episode began there (4 as released)."""
    batch_length: int = 64
    """Frames of a training sequence: 64 in Table 3, 68 as released."""
    imagination_memory: MemoryKind = "window"
    """`window` reads the last --context frames at each step; `carried` continues from a recurrent state."""
    context: Annotated[int, Bounds(1)] = 16
    """Frames before an imagined rollout: 16 in Table 3, 8 as released."""
    acting_context: Annotated[int, Bounds(1)] = 16
    """Frames in the acting agent's window."""
    loss: LossConfig = field(default_factory=LossConfig)

    @property
    def latent(self) -> int:
        """Width Z = G C of a flat sample."""
        return self.categoricals * self.classes

    @property
    def maps(self) -> list[int]:
        """List the channels of the feature maps, from the largest map to the smallest."""
        return [self.channels * 2**stage for stage in range((self.screen // SMALLEST).bit_length() - 1)]

    @property
    def embedding(self) -> int:
        """Width of the flattened last feature map."""
        return self.maps[-1] * SMALLEST**2

    def check(self) -> None:
        """Raise UserError for a combination that cannot be built."""
        if self.screen < 2 * SMALLEST or self.screen & (self.screen - 1):
            raise UserError(f"--screen {self.screen} must be a power of two, 8 or more")
        if not 0 <= self.burn_in < self.batch_length - 1:
            raise UserError(
                f"--burn-in {self.burn_in} must be at least 0 and below --batch-length {self.batch_length} by 2 or more"
            )
        attention = "transformer" in self.sequence or self.sequence == "storm"
        if attention and (self.width % self.heads or self.width // self.heads % 2):
            raise UserError(f"--heads {self.heads} must divide --width {self.width} into heads of even width")


@dataclass(frozen=True)
class GlamLearnerConfig:
    """The world model's updates. The defaults are those of the paper's Table 3, else of the code."""

    epsilon: ClassVar[float] = 1e-8  # of Adam
    max_grad_norm: ClassVar[float] = 1000.0  # global L2 norm
    removed: ClassVar[dict[str, Any]] = {"epsilon": epsilon, "max_grad_norm": max_grad_norm}

    batch_size: Annotated[int, Bounds(1)] = 32
    """Sequences per update, each of --batch-length frames."""
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-4
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 1.0
    """Learning rate at the end of the run, as a fraction of the first; it changes linearly."""
    bfloat16: bool = False
    """Run the networks under bfloat16 autocast; scans, distributions and losses stay float32."""

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the autocast context of the world model's networks."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16)


@dataclass(frozen=True)
class ActorCriticConfig:
    """Actor, critic and their updates. The defaults are those of the paper's Table 3, else of the code."""

    lam: ClassVar[float] = 0.95  # share of longer returns in the lambda return
    epsilon: ClassVar[float] = 1e-5  # of Adam
    max_grad_norm: ClassVar[float] = 100.0  # global L2 norm of actor and critic together
    slow_decay: ClassVar[float] = 0.98  # decay of the slow critic's average per update
    removed: ClassVar[dict[str, Any]] = {
        "lam": lam, "epsilon": epsilon, "max_grad_norm": max_grad_norm, "slow_decay": slow_decay, "scale_decay": 0.99,
    }  # fmt: skip

    hidden: Annotated[int, Bounds(1)] = 512
    """Width of the hidden layers of actor and critic."""
    layers: Annotated[int, Bounds(1)] = 2
    """Hidden layers of actor and critic."""
    bins: Annotated[int, Bounds(2)] = 255
    """Points of the critic's two-hot distribution, on symlog values from -20 to 20."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.985
    """Discount per environment step."""
    entropy_weight: Annotated[float, Bounds(0)] = 3e-4
    """Weight of the policy's entropy, in nats."""
    learning_rate: Annotated[float, Bounds(above=0)] = 3e-5
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 1.0
    """Learning rate at the end of the run, as a fraction of the first; it changes linearly."""
    returns: Literal["textbook", "released"] = "textbook"
    """`textbook` lambda returns, or `released` ones, with V_t in place of V_{t+1}."""
    bfloat16: bool = False
    """Run the networks under bfloat16 autocast; values, returns and losses stay float32."""


@dataclass(frozen=True)
class GlamReplayConfig:
    """The replay and the windows drawn from it."""

    capacity: int = 100_000
    """Environment steps in the replay; rounded down to a multiple of --num-envs."""
    recent_windows: Annotated[int, Bounds(0)] = 0
    """Number of newest windows in every draw (5 in the released code)."""


@dataclass(frozen=True)
class ImaginationConfig:
    """The imagined rollouts that the agent learns from."""

    num_rollouts: Annotated[int, Bounds(1)] = 1024
    """Rollouts per update of the agent."""
    start_from: Literal["posterior", "prior"] = "posterior"
    """Rollouts start at a real frame (`posterior`), or at the model's prediction (`prior`, as released)."""

    def frames(self, context: int) -> int:
        """Return the length of the replay windows for rollouts with `context` steps before them."""
        return context + 1 if self.start_from == "posterior" else context


@dataclass(frozen=True)
class HorizonConfig:
    """The imagination horizon by environment steps. The defaults are the paper's Table 3: 16, then 24, then 32.

    The paper's equation 11 swaps the number of steps and the growth; this schedule follows the text.
    """

    kind: Literal["stepped", "smooth"] = "stepped"
    """`stepped` grows every --growth-every steps (the paper); `smooth` grows by 1 at the same rate (released)."""
    start: Annotated[int, Bounds(1)] = 16
    """First number of imagined steps."""
    growth: Annotated[int, Bounds(0)] = 8
    """Imagined steps added per --growth-every environment steps."""
    growth_every: Annotated[int, Bounds(1)] = 25_000
    """Environment steps between two growths."""
    maximum: int = 32
    """Maximum number of imagined steps."""

    def at(self, step: int) -> int:
        """Return the horizon H after `step` environment steps."""
        smooth, every = self.kind == "smooth", self.growth_every
        added = step * self.growth // every if smooth else step // every * self.growth
        return min(self.start + added, self.maximum)


@dataclass(frozen=True)
class GlamCollectionConfig:
    """Collection of experience, and the number of updates per step."""

    learning_starts: Annotated[int, Bounds(0)] = 1024
    """Environment steps of random actions before the first update."""
    agent_starts: Annotated[int, Bounds(0)] = 0
    """Environment steps before the agent's first update, if more than --learning-starts."""
    model_replay_ratio: Annotated[float, Bounds(0, 1e4)] = 1.0
    """Updates of the world model per environment step."""
    agent_replay_ratio: Annotated[float, Bounds(0, 1e4)] = 1.0
    """Updates of the agent per environment step, each on new rollouts."""
    terminal_on_life_loss: bool = True
    """Train the model to predict an end at a lost life; the game goes on, and evaluations play all lives."""
    clip_rewards: bool = False
    """Train on the signs of rewards; evaluations use the rewards themselves."""
    act_before_observing: bool = False
    """Choose an action before the model reads the newest frame, as in the released code."""

    def starts(self, part: Part) -> int:
        """Return the environment steps before a part's first update."""
        return self.learning_starts if part == "model" else max(self.learning_starts, self.agent_starts)

    def updates(self, part: Part, first: int, last: int, num_envs: int) -> int:
        """Count a part's updates after the iterations `first` to `last` = 1, 2, ..."""
        ratio = self.model_replay_ratio if part == "model" else self.agent_replay_ratio
        return settings.updates_due(first, last, num_envs, self.starts(part), ratio)


@dataclass(frozen=True)
class GlamEvaluationConfig(WorldModelEvaluationConfig):
    """Evaluation of the policy."""

    policy: Literal["both", "sampled", "greedy"] = "both"
    """`sampled` actions, as in training; `greedy`: the most probable ones; `both`: one score for each."""


@dataclass(frozen=True)
class GlamComputeConfig(WorldModelComputeConfig):
    """Where and how tensors are computed."""

    engine: EngineSetting = "auto"
    """Execution of updates and imagination; `cudagraph` captures them, on CUDA (auto: wherever it can)."""
    backend: Backend = "auto"
    """Backend of Mamba's scan (auto: simd on a CPU; on CUDA triton, mamba_ssm or torch, the first that works)."""


@dataclass(frozen=True)
class GlamConfig:
    """Train a GLAM agent. `--resume RUN` continues a stopped run instead (`--resume RUN --help`)."""

    trainer: ClassVar[str] = "glam"
    fastest_on_cuda: ClassVar[Engine] = "cudagraph"
    first_flags: ClassVar[tuple[str, ...]] = (
        "config", "env", "sequence", "total_steps", "seed", "run", "device", "threads",
    )  # fmt: skip
    removed: ClassVar[dict[str, Any]] = {
        "atari": {"frame_skip": 4, "sticky": 0.25, "noops": 0, "most_frames": 108_000},
    }  # fmt: skip
    atari: ClassVar[AtariConfig] = AtariConfig(sticky=0.25, noops=0)

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(env=CATCH, num_envs=1))
    catch: CatchConfig = field(default_factory=CatchConfig)
    model: GlamModelConfig = field(default_factory=GlamModelConfig)
    learner: GlamLearnerConfig = field(default_factory=GlamLearnerConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)
    horizon: HorizonConfig = field(default_factory=HorizonConfig)
    agent: ActorCriticConfig = field(default_factory=ActorCriticConfig)
    replay: GlamReplayConfig = field(default_factory=GlamReplayConfig)
    collection: GlamCollectionConfig = field(default_factory=GlamCollectionConfig)
    evaluation: GlamEvaluationConfig = field(default_factory=GlamEvaluationConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    compute: GlamComputeConfig = field(default_factory=GlamComputeConfig)
    seed: Annotated[int, Bounds(0, below=2**63)] = 1
    """Seed of every random stream: environments, acting, replay, evaluation, networks, dropout, imagination."""
    total_steps: Annotated[int, Bounds(1)] = 100_000
    """Environment steps of the run."""
    plugin: Repeatable = ()
    """Modules that register environments, imported first; a preset's needs this flag too."""

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Return the keywords of the environment's constructor; training and evaluations have their own time limits."""
        kwargs = settings.env_kwargs(self, training, size=self.model.screen, grayscale=False)
        return kwargs | asdict(self.catch) | {"size": self.model.screen} if self._plays_catch else kwargs

    def check(self) -> None:
        """Raise UserError for a combination of parts that cannot work together."""
        check_numbers(self)
        check_parts(self, "model", "output", "compute")
        check_goal(self)
        if self.horizon.maximum < self.horizon.start:
            raise UserError(f"--maximum {self.horizon.maximum} must be at least --start {self.horizon.start}")
        if self._plays_catch:
            with flags_of(self, "catch", size="screen"):
                check_catch(self.model.screen, **asdict(self.catch))
        check_environment(self.environment)
        self._check_updates()

    @property
    def _plays_catch(self) -> bool:
        return self.environment.id.removeprefix("envs:") == CATCH

    def _check_updates(self) -> None:
        """Raise UserError for a run without updates; --agent-replay-ratio 0 trains the model alone."""
        collection, num_envs, length = self.collection, self.environment.num_envs, self.model.batch_length
        windows: dict[Part, int] = {"model": length}
        if collection.agent_replay_ratio:
            windows["agent"] = max(length, self.imagination.frames(self.model.context))
        for part, window in windows.items():
            if not collection.updates(part, window, -(-self.total_steps // num_envs), num_envs):
                name = "world model" if part == "model" else part
                ratio = getattr(collection, f"{part}_replay_ratio")
                raise UserError(
                    f"--total-steps {self.total_steps} in --num-envs {num_envs} would never update the {name}: updates "
                    f"need {collection.starts(part)} steps (--learning-starts, --agent-starts) and windows of {window} "
                    f"steps (--batch-length, --context) of one environment, at --{part}-replay-ratio {ratio:g} updates "
                    "a step"
                )
