"""The settings of a GLAM run: one frozen tree of dataclasses, which a TOML preset is too.

Every point in which the paper and the released code differ is an option.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch

from dqn_memory.runs.backend import Backend
from dqn_memory.runs.common import EnvironmentConfig, OutputConfig
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds, Repeatable, check_goal, check_numbers, check_parts, flags_of
from envs.worlds.catch import check_catch as check_catch
from world_models import settings
from world_models.settings import WorldModelComputeConfig, WorldModelEvaluationConfig, check_environment

CATCH = "Pixel/BlinkingCatch-v0"
Form = Literal["storm", "lmamba", "double_transformer", "double_mamba", "glam", "glam_no_variation"]
FORMS: tuple[Form, ...] = get_args(Form)
MemoryKind = Literal["window", "carried"]
SMALLEST = 4  # pixels of the last feature map
Engine = Literal["eager", "cudagraph"]
Part = Literal["model", "agent"]  # of a GLAM agent, each with updates of its own


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
class GlamAtariConfig:
    """How a game is played: colour frames as large as the model's screen, and what the released code does."""

    frame_skip: Annotated[int, Bounds(1)] = 4
    """Emulator frames an action is held for; the last two are merged by their maximum."""
    sticky: Annotated[float, Bounds(0, below=1)] = 0.25
    """Probability that an emulator frame repeats the action before."""
    noops: Annotated[int, Bounds(0)] = 0
    """Most no-ops at the start of an episode, drawn uniformly."""
    most_frames: Annotated[int, Bounds(1)] = 108_000
    """Emulator frames after which an episode is truncated."""


@dataclass(frozen=True)
class LossConfig:
    """Weights and floors of the losses (the paper's Eq. 8-10, 12 and Table 3).

    The paper's Eq. 9 writes the root of an image's squared errors and no minus sign before the terminations'
    cross-entropy. Here are the sum, as released, for which the weights were tuned, and the sign.
    """

    removed: ClassVar[dict[str, Any]] = {
        "reconstruction": "squared", "reconstruction_weight": 1.0, "termination_weight": 1.0, "dynamics_weight": 0.5,
        "representation_weight": 0.1, "variation_weight": 0.1,
    }  # fmt: skip
    reconstruction_weight: ClassVar[float] = 1.0  # squared errors of images
    termination_weight: ClassVar[float] = 1.0  # binary cross-entropy
    dynamics_weight: ClassVar[float] = 0.5  # KL of the prior from the stopped posterior
    representation_weight: ClassVar[float] = 0.1  # KL of the stopped prior from the posterior
    variation_weight: ClassVar[float] = 0.1  # KL of the differences' prediction from the variation target

    reward_weight: Annotated[float, Bounds(0)] = 1.0
    """Weight of the rewards' cross-entropy with their symlog two-hot code."""
    free_bits: Annotated[float, Bounds(0)] = 1.0
    """The mean KL of dynamics and of representation has no gradient below this many nats."""
    variation_free_bits: Annotated[float, Bounds(0)] = 1.0
    """The same floor for the variation: 1 in the paper, 0.1 as released last."""


@dataclass(frozen=True)
class GlamModelConfig:
    """A world model. The defaults are the preset `paper` at its published size, but for the prior's head.

    Eq. 10's variation target, sg(z_{t+1} - z_t), is a difference of one-hot samples and hence no distribution, so its
    KL cannot be computed. Our named reading is `posterior`: from the differences alone, predict the unimixed, stopped
    posterior of o_{t+1}.
    """

    removed: ClassVar[dict[str, Any]] = {"unimix": 0.01, "local_window": 4, "attention_window": 64}
    unimix: ClassVar[float] = 0.01  # share of the uniform distribution in every predicted categorical
    local_window: ClassVar[int] = 4  # frames of a local window, whose last output counts
    attention_window: ClassVar[int] = 64  # positions that an attention layer sees, the current one included

    sequence: Form = "glam"
    """The sequence module: GLAM's, or one of the five other rows of the paper's Table 2."""
    screen: int = 64
    """Pixels S of a square frame of three colours: a power of two, 8 or more."""
    channels: Annotated[int, Bounds(1)] = 32
    """Channels of the first convolution; each later one has twice as many as the one before."""
    categoricals: Annotated[int, Bounds(1)] = 32
    """Categorical variables G of a latent."""
    classes: Annotated[int, Bounds(2)] = 32
    """Classes C of each of them."""
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
    """--no-chained as released: every layer of GMamba reads the same differences, all but the last are dead."""
    attention_layers: Annotated[int, Bounds(1)] = 2
    """Layers of a Transformer (`storm`, `double_transformer`)."""
    heads: Annotated[int, Bounds(1)] = 8
    """Its attention heads."""
    dropout: Annotated[float, Bounds(0, below=1)] = 0.1
    """Its dropout."""
    bins: Annotated[int, Bounds(2)] = 255
    """Points of the two-hot code of rewards on symlog [-20, 20]."""
    prior_head: Literal["linear", "mlp"] = "linear"
    """Predicts the next latent: `mlp` as in the paper (presets `paper` and `fast`), `linear` as released."""
    variation_head: Literal["shared", "own"] = "shared"
    """`shared`: the prior's head predicts from the differences too (Eq. 10); `own`: a second head, as released."""
    variation_target: Literal["posterior", "random_projection"] = "posterior"
    """`posterior`: see above; `random_projection` as released: a random map of the encoder's difference."""
    reset_at_episode_start: bool = True
    """Forget everything before an episode's first frame; the released windows run across episodes."""
    burn_in: int = 3
    """First positions of a sequence that train no head, unless an episode began there (3; 4 as released)."""
    batch_length: int = 64
    """Frames of a training sequence: 64 in Table 3, 68 as released."""
    imagination_memory: MemoryKind = "window"
    """`window` reads the last `context` frames anew at each step; `carried` goes on from a recurrent state."""
    context: Annotated[int, Bounds(1)] = 16
    """Frames before an imagined rollout: 16 in Table 3, 8 as released."""
    acting_context: Annotated[int, Bounds(1)] = 16
    """Frames that the acting agent's model sees where it works on windows."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Weights and floors."""

    @property
    def latent(self) -> int:
        """Width Z = G C of a flat sample."""
        return self.categoricals * self.classes

    @property
    def maps(self) -> list[int]:
        """List the channels of the feature maps, one for each convolution, from the largest map to the smallest."""
        return [self.channels * 2**stage for stage in range((self.screen // SMALLEST).bit_length() - 1)]

    @property
    def embedding(self) -> int:
        """Width of the flattened last feature map."""
        return self.maps[-1] * SMALLEST**2

    def check(self) -> None:
        """Refuse every combination that cannot be built."""
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
    """How the world model learns. The defaults are the paper's Table 3 and, where it is silent, the code's."""

    removed: ClassVar[dict[str, Any]] = {"epsilon": 1e-8, "max_grad_norm": 1000.0}
    epsilon: ClassVar[float] = 1e-8  # of Adam
    max_grad_norm: ClassVar[float] = 1000.0  # global L2 norm

    batch_size: Annotated[int, Bounds(1)] = 32
    """Sequences of an update; their length belongs to the model."""
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-4
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 1.0
    """Step size at the end of the run, as a share of the first; it moves there on a straight line."""
    bfloat16: bool = False
    """Run the networks under bfloat16 autocast; scans, distributions and losses stay float32."""

    def autocast(self, device: torch.device) -> torch.autocast:
        """Give the precision that the world model's networks run in."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16)


@dataclass(frozen=True)
class ActorCriticConfig:
    """Actor, critic and their update. The defaults are the paper's Table 3 and, where it is silent, the code's."""

    removed: ClassVar[dict[str, Any]] = {
        "lam": 0.95, "epsilon": 1e-5, "max_grad_norm": 100.0, "slow_decay": 0.98, "scale_decay": 0.99,
    }  # fmt: skip
    lam: ClassVar[float] = 0.95  # share of longer returns in the lambda return
    epsilon: ClassVar[float] = 1e-5  # of Adam
    max_grad_norm: ClassVar[float] = 100.0  # global L2 norm of actor and critic together
    slow_decay: ClassVar[float] = 0.98  # share of the slow critic that stays after every update

    hidden: Annotated[int, Bounds(1)] = 512
    """Width of the hidden layers of actor and critic."""
    layers: Annotated[int, Bounds(1)] = 2
    """Hidden layers of each."""
    bins: Annotated[int, Bounds(2)] = 255
    """Points of the critic's two-hot distribution, on symlog values from -20 to 20."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.985
    """Discount per environment step."""
    entropy_weight: Annotated[float, Bounds(0)] = 3e-4
    """Weight of the policy's entropy, in nats."""
    learning_rate: Annotated[float, Bounds(above=0)] = 3e-5
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 1.0
    """Step size at the end of the run, as a share of the first; it moves there on a straight line."""
    returns: Literal["textbook", "released"] = "textbook"
    """`textbook` lambda returns, or the `released` ones, which have V_t where V_{t+1} belongs."""
    bfloat16: bool = False
    """Run the networks under bfloat16 autocast; values, returns and losses stay float32."""


@dataclass(frozen=True)
class GlamReplayConfig:
    """What is kept and which windows are drawn."""

    capacity: int = 100_000
    """Environment steps kept; rounded down to whole columns of all environments."""
    recent_windows: Annotated[int, Bounds(0)] = 0
    """How many windows of every draw are the newest ones (5 in the released code)."""


@dataclass(frozen=True)
class ImaginationConfig:
    """The imagined rollouts that the agent learns from; the model's config says how they remember."""

    num_rollouts: Annotated[int, Bounds(1)] = 1024
    """Rollouts that an update of the agent imagines at once."""
    start_from: Literal["posterior", "prior"] = "posterior"
    """Rollouts start at a real frame (`posterior`), or at the model's prediction (`prior`, as released)."""

    def frames(self, context: int) -> int:
        """Return the length of the replay windows from which rollouts with `context` steps before them start."""
        return context + 1 if self.start_from == "posterior" else context


@dataclass(frozen=True)
class HorizonConfig:
    """How far ahead the agent imagines, by the steps taken. The defaults are the paper's Table 3: 16, 24, at last 32.

    The paper's equation 11 exchanges the number of steps and the growth; this follows its text.
    """

    kind: Literal["stepped", "smooth"] = "stepped"
    """`stepped` grows at once every `growth_every` steps (the paper); `smooth` by 1, in the same slope (released)."""
    start: Annotated[int, Bounds(1)] = 16
    """Imagined steps at the beginning."""
    growth: Annotated[int, Bounds(0)] = 8
    """Steps more after every `growth_every` environment steps."""
    growth_every: Annotated[int, Bounds(1)] = 25_000
    """Environment steps."""
    maximum: int = 32
    """Imagined steps at most."""

    def at(self, step: int) -> int:
        """Return the horizon H after `step` environment steps."""
        smooth, every = self.kind == "smooth", self.growth_every
        added = step * self.growth // every if smooth else step // every * self.growth
        return min(self.start + added, self.maximum)


@dataclass(frozen=True)
class GlamCollectionConfig:
    """How experience is made, and how often it is learned from."""

    learning_starts: Annotated[int, Bounds(0)] = 1024
    """Environment steps of random actions before the first update."""
    agent_starts: Annotated[int, Bounds(0)] = 0
    """Environment steps before the agent's first update, where more than --learning-starts."""
    model_replay_ratio: Annotated[float, Bounds(0, 1e4)] = 1.0
    """Updates of the world model per environment step."""
    agent_replay_ratio: Annotated[float, Bounds(0, 1e4)] = 1.0
    """Updates of the agent, each on rollouts of its own, per environment step."""
    terminal_on_life_loss: bool = True
    """Teach the model that a lost life terminates the episode; the game goes on, and evaluations play all lives."""
    clip_rewards: bool = False
    """Learn the signs of the rewards; evaluations count the rewards themselves."""
    act_before_observing: bool = False
    """Choose an action before the newest frame is taken in, as in the released code."""

    def starts(self, part: Part) -> int:
        """Environment steps before the first update of a part."""
        return self.learning_starts if part == "model" else max(self.learning_starts, self.agent_starts)

    def updates(self, part: Part, first: int, last: int, num_envs: int) -> int:
        """Count a part's updates after the iterations `first` to `last` = 1, 2, ...; their ratio to steps is exact."""
        ratio = self.model_replay_ratio if part == "model" else self.agent_replay_ratio
        first = max(first, -(-self.starts(part) // num_envs))
        return int(last * num_envs * ratio) - int((first - 1) * num_envs * ratio) if first <= last else 0


@dataclass(frozen=True)
class GlamEvaluationConfig(WorldModelEvaluationConfig):
    """Evaluation of the policy."""

    policy: Literal["both", "sampled", "greedy"] = "both"
    """`sampled` draws actions, as in training; `greedy` takes the most probable ones; `both` logs both."""


@dataclass(frozen=True)
class GlamComputeConfig(WorldModelComputeConfig):
    """Where and how tensors are computed."""

    engine: Engine = "eager"
    """How updates and imagination are executed; `cudagraph` captures them, on CUDA."""
    backend: Backend = "auto"
    """Backend of Mamba's scan (auto: simd on a CPU; on CUDA the first that works of triton, mamba_ssm, torch)."""


@dataclass(frozen=True)
class GlamConfig:
    """Train a GLAM agent in one environment.

    `--resume RUN` continues a stopped run instead (`--resume RUN --help`).
    """

    trainer: ClassVar[str] = "glam"
    first_flags: ClassVar[tuple[str, ...]] = (
        "config", "env", "sequence", "total_steps", "seed", "run", "device", "threads",
    )  # fmt: skip

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(env=CATCH, num_envs=1))
    atari: GlamAtariConfig = field(default_factory=GlamAtariConfig)
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
    """Seed of every stream: environments, acting, replay, evaluation, networks, dropout, imagination."""
    total_steps: Annotated[int, Bounds(1)] = 100_000
    """Environment steps of the run."""
    plugin: Repeatable = ()
    """Modules imported first, which register environments; a preset's needs this flag too."""

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Return keywords of the environment's constructor, with the time limit of training or of evaluations."""
        kwargs = settings.env_kwargs(self, training, size=self.model.screen, grayscale=False)
        return kwargs | asdict(self.catch) | {"size": self.model.screen} if self._plays_catch else kwargs

    def check(self) -> None:
        """Refuse every combination of parts that cannot work together."""
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
        return self.environment.env.removeprefix("envs:") == CATCH

    def _check_updates(self) -> None:
        """Refuse a run that would end without having learned; --agent-replay-ratio 0 trains the model alone."""
        collection, num_envs, length = self.collection, self.environment.num_envs, self.model.batch_length
        windows: dict[Part, int] = {"model": length}
        if collection.agent_replay_ratio:
            windows["agent"] = max(length, self.imagination.frames(self.model.context))
        for part, window in windows.items():
            if not collection.updates(part, window, -(-self.total_steps // num_envs), num_envs):
                who = "world model" if part == "model" else part
                ratio = getattr(collection, f"{part}_replay_ratio")
                raise UserError(
                    f"--total-steps {self.total_steps} in --num-envs {num_envs} would never update the {who}: that "
                    f"begins after {collection.starts(part)} steps (--learning-starts, --agent-starts) and windows of "
                    f"{window} steps (--batch-length, --context) of one environment, with --{part}-replay-ratio "
                    f"{ratio:g} updates a step"
                )
