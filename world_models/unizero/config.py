"""All settings of a UniZero run: model, learner, search, replay, collection, evaluation.

"Learning to Focus" and the code released with it disagree in places. There a flag's help has both values, and the
default is the paper's unless that is an error. Differences without a flag:

- Heads: two in the paper's text, four in the code. Four give the paper's own 20.77 million parameters, two give 19.59.
- SimNorm's temperature: learnable in the paper's text, 1 in its table and in the code. The linear map before each
  SimNorm can learn any temperature.
- First values of priors: "sampled" in the paper's text; equal in all heads in its figure and in the code.
- Warm-up of the span's penalty: in the code alone, over the first 3 of 25,000 updates.
- Target network: a hard update every 100 steps in the paper's table, a moving average in the code and here.
- Order: the code plays eight whole episodes, then makes all their updates; here they alternate step by step.
- Simulator: Gymnasium 0.28 in the paper, gym 0.25 in the code, ale-py here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from dqn_memory.blocks import PRIORS, PriorConfig
from dqn_memory.runs.base_config import Engine, EnvironmentConfig, OutputConfig
from dqn_memory.runs.errors import UserError, check_known, require
from dqn_memory.runs.settings import Bounds, Repeatable, check_goal, check_numbers, check_parts
from envs.atari import AtariConfig
from world_models import settings
from world_models.settings import WorldModelComputeConfig, WorldModelEvaluationConfig, check_environment

GROUP = 8  # probabilities of one SimNorm group
SPAN, SPAN_BESIDE_GAUSSIAN = 6.0, 10.0  # first values of the paper's spans


@dataclass(frozen=True)
class EncoderConfig:
    """Encodes observations. Images use `channels` and `norm`, all others `hidden`."""

    removed: ClassVar[dict[str, Any]] = {"token_width": 16}

    channels: Annotated[int, Bounds(1)] = 32
    """Channels of the first convolutions of an image encoder; later ones double them."""
    norm: Literal["batch", "group"] = "batch"
    """`batch` as published: updates and searches normalise differently; `group`: they normalise alike."""
    activation: Literal["leaky_relu", "gelu"] = "leaky_relu"
    """Activation of the encoder: `leaky_relu` as in the paper, `gelu` as in the released code."""
    hidden: Annotated[int, Bounds(1)] = 256
    """Hidden width of the encoder of vectors and tokens."""


@dataclass(frozen=True)
class UniZeroModelConfig:
    """A world model. The defaults are the published Atari model, in the paper's equations.

    Distances of the prior are tokens, two for each environment step.
    """

    removed: ClassVar[dict[str, Any]] = {"gate": "residual", "rotary": False, "span_diversity": 0.0}

    dynamics: Literal["transformer", "recurrent", "gru"] = "transformer"
    """`transformer` is UniZero; `gru` replaces attention by a GRU; `recurrent`: MuZero's, without a history."""
    width: Annotated[int, Bounds(1)] = 768
    """Width D of latents and tokens."""
    heads: Annotated[int, Bounds(1)] = 8
    """Attention heads H; must divide the width."""
    layers: Annotated[int, Bounds(1)] = 2
    """Layers of the dynamics."""
    horizon: Annotated[int, Bounds(1)] = 10
    """Environment steps T of a training sequence, two tokens each."""
    context: Annotated[int, Bounds(4)] = 8
    """Tokens of the search window, two per environment step."""
    dropout: Annotated[float, Bounds(0, below=1)] = 0.1
    """Dropout of tokens, attention weights and sublayer outputs."""
    initialisation: Literal["paper", "torch"] = "paper"
    """`paper` draws weights from N(0, 0.02); `torch` uses PyTorch's initialisation, better for small models."""
    support: Annotated[int, Bounds(1)] = 50
    """Rewards and values are distributions over the integers -support .. support, after the transform."""
    prior: PriorConfig = field(default_factory=lambda: PriorConfig(span=SPAN, regulariser_weight=0.025))
    """Temporal prior of the attention."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)

    @property
    def pairs(self) -> int:
        """Maximum number W of steps before the current one in a search window."""
        return (self.context - 2) // 2

    def with_prior(self, kind: str) -> UniZeroModelConfig:
        """Replace the prior; its span starts at the paper's value."""
        span = SPAN_BESIDE_GAUSSIAN if kind.startswith("gaussian_adaptive") else SPAN
        return replace(self, prior=replace(self.prior, kind=kind, span=span))

    def check(self) -> None:
        """Raise UserError for a combination that cannot be built."""
        check_known("prior", self.prior.kind, PRIORS)
        check_numbers(self)
        if self.width % GROUP:
            raise UserError(f"--width {self.width} must be a multiple of {GROUP}, the size of a SimNorm group")
        if self.context % 2:
            raise UserError(f"--context {self.context} must be an even number of tokens")
        if self.context > 2 * self.horizon:
            raise UserError(
                f"--context {self.context} tokens do not fit: training sequences of --horizon {self.horizon} steps "
                f"have {2 * self.horizon} tokens, and later positions would be untrained"
            )
        if self.dynamics != "transformer":
            return
        if self.width % self.heads:
            raise UserError(f"--heads {self.heads} does not divide --width {self.width}; choose a divisor of it")
        prior, tokens = self.prior, 2 * self.horizon
        require(prior.regulariser_weight >= 0, f"--regulariser-weight {prior.regulariser_weight} must not be negative")
        used: dict[str, float] = {"local-window": prior.local_window} if prior.kind == "local" else {}
        used |= {"mu": prior.mu} if "gaussian" in prior.kind else {}
        used |= {"span": prior.span} if "adaptive" in prior.kind else {}
        for name, value in used.items():
            if value >= tokens:
                raise UserError(
                    f"--{name} {value} of the {prior.kind} prior does not fit: it must be below the {tokens} tokens "
                    f"of --horizon {self.horizon} steps"
                )

    def check_used(self) -> None:
        """Raise UserError for a prior if the dynamics have no attention.

        Parameters of a prior raise nothing: presets set them for all priors.
        """
        if self.dynamics != "transformer" and self.prior.kind != PriorConfig.kind:
            raise UserError(
                f"--prior {self.prior.kind} changes nothing in --dynamics {self.dynamics}, which has no attention; "
                "leave it out, or use --dynamics transformer"
            )


@dataclass(frozen=True)
class UniZeroLearnerConfig:
    """The optimiser, the target network and the value targets."""

    removed: ClassVar[dict[str, Any]] = {
        "betas": [0.9, 0.95], "weight_decay": 1e-4, "target_update_every": 0,
        "loss": {
            "latent_weight": 10.0, "reward_weight": 1.0, "policy_weight": 1.0, "value_weight": 0.5,
            "entropy_weight": 1e-4,
        },
    }  # fmt: skip

    batch_size: Annotated[int, Bounds(1)] = 64
    """Sequences per update."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.997
    """Discount per environment step, of value targets and of searches."""
    n_step: Annotated[int, Bounds(1)] = 5
    """Steps of reward before the bootstrap."""
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-4
    """AdamW's learning rate."""
    prior_learning_rate: Annotated[float, Bounds(0)] | None = None
    """Learning rate of learned attention priors (None: --learning-rate)."""
    max_grad_norm: Annotated[float, Bounds(above=0)] = 5.0
    """Maximum global L2 norm of the gradient (5 in the paper, 20 in the released code)."""
    target_update_rate: Annotated[float, Bounds(above=0, most=1)] = 0.05
    """Fraction by which the target's parameters move towards the model's after every update."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Autocast precision of the forward passes."""


@dataclass(frozen=True)
class UniZeroReplayConfig:
    """The replay and the sequences drawn from it."""

    removed: ClassVar[dict[str, Any]] = {"segment_length": 400}

    capacity: int = 1_000_000
    """Environment steps in the replay; rounded down to a multiple of --num-envs."""
    final_observations: bool = True
    """Store each episode's final observation; its value is the bootstrap of a truncated episode."""
    terminal_fraction: Annotated[float, Bounds(0, 1)] = 0.0
    """Share of a batch's sequences that end at a terminal step (0: uniform draws)."""


@dataclass(frozen=True)
class SearchConfig:
    """A search. The defaults are UniZero's for Atari."""

    removed: ClassVar[dict[str, Any]] = {
        "backend": ..., "query_per": ..., "dirichlet_fraction": 0.25, "dirichlet_alpha": 0.3,
        "tree": {"c1": 1.25, "c2": 19652.0, "first_visit": "random"},  # and a discount, which always was --gamma
        "gumbel": {"max_considered_actions": 16, "visit_offset": 50.0, "value_scale": 1.0},
    }  # fmt: skip

    simulations: Annotated[int, Bounds(1)] = 50
    """Expansions per root."""
    root: Literal["puct", "gumbel"] = "puct"
    """Choice of actions at the root: `puct`, or sequential halving (`gumbel`), which suits at most 16 simulations."""


@dataclass(frozen=True)
class UniZeroCollectionConfig:
    """Collection of experience, and the number of updates per step."""

    removed: ClassVar[dict[str, Any]] = {"update_every": 1}

    temperature: Annotated[float, Bounds(0)] = 0.25
    """Actions are sampled by visits^(1/temperature); 0 takes the most visited one. Gumbel roots ignore it."""
    reset_history: Literal["episode", "released"] = "episode"
    """`episode`: an end empties its own history; `released`: the first end empties all until each has had one."""
    clip_rewards: bool = False
    """Train on the signs of rewards (usual in Atari); evaluations use the rewards themselves."""
    terminal_on_life_loss: bool = False
    """End training episodes at a lost life; evaluations play all lives."""
    prepopulate: Annotated[int, Bounds(0)] = 0
    """Environment steps of uniformly random actions before the first search."""
    learning_starts: Annotated[int, Bounds(0)] = 2_000
    """Environment steps before the first update."""
    replay_ratio: Annotated[float, Bounds(0, 1e4)] = 0.25
    """Updates per environment step."""
    reanalyse_fraction: Annotated[float, Bounds(0, 1)] = 0.02
    """Fraction of updates that take all policy targets from new searches (0.02: every 50th)."""

    def updates(self, first: int, last: int, num_envs: int) -> int:
        """Count the updates after the iterations `first` to `last` = 1, 2, ..."""
        return settings.updates_due(first, last, num_envs, self.learning_starts, self.replay_ratio)

    def reanalyses(self, update: int) -> bool:
        """Decide whether update `update` = 0, 1, ... reanalyses all its sequences; the fraction of these is exact.

        An accelerator searches many roots in hardly more time than few. One batch with all sequences therefore costs
        far less than the same number of sequences spread over batches.
        """
        return int((update + 1) * self.reanalyse_fraction) > int(update * self.reanalyse_fraction)


@dataclass(frozen=True)
class UniZeroEvaluationConfig(WorldModelEvaluationConfig):
    """Evaluation without noise; every 10,000 steps in the paper, every 5,000 to 20,000 in the released code."""

    evaluate_from: Annotated[int, Bounds(0)] = 20_000
    """Environment steps before the first evaluation (0: the first --evaluate-every)."""


@dataclass(frozen=True)
class UniZeroConfig:
    """Train a UniZero agent. `--resume RUN` continues a stopped run instead (`--resume RUN --help`)."""

    trainer: ClassVar[str] = "unizero"
    fastest_on_cuda: ClassVar[Engine] = "cudagraph"
    first_flags: ClassVar[tuple[str, ...]] = (
        "config", "env", "dynamics", "prior", "total_steps", "seed", "run", "device",
    )  # fmt: skip

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(num_envs=8))
    atari: AtariConfig = field(default_factory=lambda: AtariConfig(sticky=0.25))
    model: UniZeroModelConfig = field(default_factory=UniZeroModelConfig)
    learner: UniZeroLearnerConfig = field(default_factory=UniZeroLearnerConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    replay: UniZeroReplayConfig = field(default_factory=UniZeroReplayConfig)
    collection: UniZeroCollectionConfig = field(default_factory=UniZeroCollectionConfig)
    evaluation: UniZeroEvaluationConfig = field(default_factory=UniZeroEvaluationConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    compute: WorldModelComputeConfig = field(default_factory=WorldModelComputeConfig)
    seed: Annotated[int, Bounds(0, below=2**63)] = 1
    """Seed of every random stream: environments, search, replay, evaluation, network, dropout."""
    total_steps: Annotated[int, Bounds(1)] = 100_000
    """Environment steps of the run (100,000 in the paper, 115,000 in most released configurations)."""
    plugin: Repeatable = ()
    """Modules that register blocks or environments, imported first; a preset's needs this flag too."""

    def base(self) -> UniZeroConfig:
        """Return the defaults for this config's prior, whose span starts at the paper's value."""
        defaults = UniZeroConfig()
        return replace(defaults, model=defaults.model.with_prior(self.model.prior.kind))

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Return the keywords of the environment's constructor; training and evaluations have their own time limits."""
        return settings.env_kwargs(self, training)

    def check(self) -> None:
        """Raise UserError for a combination of parts that cannot work together."""
        check_numbers(self)
        check_parts(self, "atari", "model", "output", "compute")
        check_goal(self)
        check_environment(self.environment)
        self.model.check_used()
        num_envs, window = self.environment.num_envs, self.model.horizon + self.learner.n_step
        collection, iterations = self.collection, -(-self.total_steps // num_envs)
        if not collection.updates(window, iterations, num_envs):
            raise UserError(
                f"--total-steps {self.total_steps} in --num-envs {num_envs} would never update the model: updates need "
                f"{collection.learning_starts} steps (--learning-starts) and sequences of {window} steps "
                f"(--horizon, --n-step), at --replay-ratio {collection.replay_ratio:g} updates a step; "
                "lower those or raise --total-steps"
            )
