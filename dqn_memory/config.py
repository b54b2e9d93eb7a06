"""The config of a training run: one frozen tree of dataclasses. A TOML preset is the same tree.

Three parts are elsewhere: `NetworkConfig` (network.py), `ExplorationConfig` (exploration.py), and the parts common to
all trainers (runs/base_config.py).
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch

from dqn_memory.actors import ActingState
from dqn_memory.blocks.registry import BIDIRECTIONAL
from dqn_memory.evaluate import EvalSetup
from dqn_memory.exploration import ExplorationConfig
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.runs import base_config
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.base_config import Engine, EngineSetting, EnvironmentConfig, OutputConfig
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.settings import Bounds, OneOrSeveral, Repeatable, check_goal, check_numbers, check_parts
from dqn_memory.runs.toml import NONE


@dataclass(frozen=True)
class LearnerConfig:
    """One Q-learning update. The defaults are the corrected form; configs/paper.toml holds the published one."""

    removed: ClassVar[dict[str, Any]] = {"precision": "float32"}
    batch_size: Annotated[int, Bounds(1)] = 32
    """Windows per update."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount per environment step."""
    learning_rate: Annotated[float, Bounds(above=0)] = 3e-4
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 1.0
    """Fraction of the learning rates at the end of the run; they fall linearly (1: constant)."""
    prior_learning_rate: Annotated[float, Bounds(0)] | None = None
    """Learning rate of learned attention priors (None: that of all other parameters)."""
    max_grad_norm: Annotated[float, Bounds(above=0)] = 1.0
    """Maximum global L2 norm of the gradient."""
    normalize_reward: bool = False
    """Divide rewards by the standard deviation of the discounted returns of all steps so far; clip them to +-10."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss on the temporal-difference error."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network evaluates it."""
    n_step: Annotated[int, Bounds(1)] = 1
    """Steps of reward before the bootstrap (uncorrected for exploration)."""
    target_update_every: Annotated[int, Bounds(1)] = 10_000
    """Updates between hard copies into the target network."""
    ema_decay: Annotated[float, Bounds(0, below=1)] = 0.0
    """Decay per update of an average of the weights, which is evaluated and saved (0: no average)."""
    loss_positions: str = "auto"
    """Trained positions: all, each as a window's end (prefixes), M windows' ends (ends:M), last; auto: see docs."""
    targets: Literal["full", "shifted"] = "full"
    """`full`: targets see the window's oldest observation; `shifted`: they do not, as published."""
    window_placement: Literal["around", "ending"] = "around"
    """Place of a drawn step in its window: `around`: anywhere; `ending`: at its end, as published."""
    terminal_fraction: Annotated[float, Bounds(0, 1)] = 0.0
    """Fraction of windows drawn to end at a terminal step (0: none)."""
    terminal_weight: Annotated[float, Bounds(above=0)] = 1.0
    """Weight of terminal steps in the loss (others: 1)."""
    terminal_weight_updates: Annotated[int, Bounds(0)] = 0
    """Updates over which --terminal-weight decays geometrically to 1 (0: never)."""
    tail_fraction: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """Fraction of windows whose targets beyond the window are computed; their weight is 1/fraction."""
    mask_padding: bool = True
    """Leave padding out of the loss (published: it is in the loss)."""
    lengths: bool = True
    """Give the network the number of real positions (published: padding counts as real)."""

    def contexts_per_window(self, network: QNetwork) -> int | None:
        """Give the number of single contexts drawn for each window of a batch; None if whole windows are trained.

        Raises:
            UserError: `loss_positions` is malformed, or does not fit the network.
        """
        chosen = self.loss_positions
        if chosen == "prefixes" and not network.supports_prefixes:
            raise UserError(
                "--loss-positions prefixes needs a network in which only the recurrence of the last layer sees later "
                "steps; use ends:4"
            )
        if chosen == "auto":
            return None if network.supports_prefixes else 4
        if chosen in ("all", "prefixes", "last"):
            return 1 if chosen == "last" else None
        kind, _, number = chosen.partition(":")
        if kind != "ends" or not number.isdecimal() or len(number) > 6 or int(number) < 1:
            known = "all, prefixes, last, ends:M (M from 1 to 999999) or auto"
            raise UserError(f"--loss-positions {chosen!r} is not known; use {known}")
        return int(number)

    def trains_newest(self, network: QNetwork) -> bool:
        """Whether each position is trained as the newest of its window, without sight of later ones."""
        return self.contexts_per_window(network) is not None or self.loss_positions in ("auto", "prefixes")

    def terminal_weight_at(self, updates: int) -> float:
        """Compute the weight of terminal steps after that many updates."""
        left = max(0.0, 1 - updates / self.terminal_weight_updates) if self.terminal_weight_updates else 1.0
        return float(self.terminal_weight**left)

    def check(self, network: QNetwork) -> None:
        """Raise a UserError for a value, or a combination with this network, that cannot work."""
        single = self.contexts_per_window(network) is not None
        if self.targets == "shifted" and not (self.loss_positions == "all" or (network.causal and not single)):
            raise UserError(
                f"--targets shifted needs --loss-positions all, but --loss-positions is {self.loss_positions}"
            )
        if single and not (self.mask_padding and self.lengths):
            raise UserError(
                f"--loss-positions {self.loss_positions} trains single contexts, which have no padding to keep in the "
                "loss; leave --mask-padding and --lengths on"
            )
        if self.prior_learning_rate is not None and not network.prior_parameters():
            raise UserError(
                f"--prior-learning-rate {self.prior_learning_rate} changes nothing: this network learns no prior"
            )
        if self.n_step > network.config.context:
            raise UserError(f"--n-step {self.n_step} is longer than a window of --context {network.config.context}")
        if self.n_step > 1 and self.targets == "shifted":
            raise UserError(f"--n-step {self.n_step} needs --targets full (shifted windows hold one step each)")
        if self.terminal_weight != 1 and (single or not self.mask_padding):
            raise UserError(
                f"--terminal-weight {self.terminal_weight} weighs steps among all positions of a window; it needs "
                "--loss-positions all or prefixes, and --mask-padding"
            )
        if self.tail_fraction < 1 and (single or not self.mask_padding or self.targets == "shifted"):
            raise UserError(
                f"--tail-fraction {self.tail_fraction} leaves steps out of windows; it needs --loss-positions all or "
                "prefixes, --targets full and --mask-padding"
            )


@dataclass(frozen=True)
class ReplayConfig:
    """The replay, and how often the learner draws from it."""

    removed: ClassVar[dict[str, Any]] = {"update_every": 1}
    capacity: int = 500_000
    """Environment steps that the replay holds."""
    learning_starts: Annotated[int, Bounds(0)] = 1_000
    """Environment steps before the first update."""
    updates_per_iteration: Annotated[int, Bounds(1)] = 1
    """Updates per iteration of --num-envs environment steps."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation while training; Q-networks take their best actions."""

    evaluate_every: Annotated[int, Bounds(0)] = 10_000
    """Environment steps between evaluations (0: only at the end)."""
    eval_env: OneOrSeveral = ()
    """Evaluate in this environment, too, without training in it or counting it in means; repeatable."""
    episodes: Annotated[int, Bounds(1, 10**9)] = 100
    """Episodes of each evaluation; if all initial states can be enumerated, each is played once instead."""
    stop_at_success: Annotated[float, Bounds(0, 1)] | None = None
    """End the run at the first evaluation with this success rate in every environment (None: at --total-steps)."""
    final_episodes: Annotated[int, Bounds(1, 10**9)] = 1_000
    """Episodes of the last evaluation."""
    memory_ablation: bool = True
    """Also evaluate the final agent with its memory reset before every step, and measure how far back it looks."""

    @property
    def others(self) -> tuple[str, ...]:
        """The environments of `--eval-env`."""
        named = (self.eval_env,) if isinstance(self.eval_env, str) else self.eval_env
        return tuple(dict.fromkeys(id for id in named if id != NONE))


@dataclass(frozen=True)
class ComputeConfig(base_config.ComputeConfig):
    """Where and how tensors are computed."""

    engine: EngineSetting = "auto"
    """How the update is executed; all engines compute the same function (auto: cudagraph on CUDA if possible)."""
    backend: Backend = "auto"
    """Implementation of the Mamba scan (auto: simd on a CPU; on CUDA the first that works)."""


@dataclass(frozen=True)
class TrainConfig:
    """Train one memory agent by deep Q-learning, in one environment or in several.

    `--resume RUN` continues a stopped run instead (`--resume RUN --help`).
    """

    trainer: ClassVar[str] = "q_network"
    fastest_on_cuda: ClassVar[Engine] = "cudagraph"
    removed: ClassVar[dict[str, Any]] = {"acting": "prefix"}
    keep_memory: ClassVar[bool] = False
    stochastic: ClassVar[bool] = False  # whether outputs are logits to draw actions by; Q-values are not
    first_flags: ClassVar[tuple[str, ...]] = (
        "config", "env", "architecture", "prior", "total_steps", "seed", "run", "device",
    )  # fmt: skip

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: Annotated[int, Bounds(0, below=2**63)] = 1
    """Seed of all random streams: environments, exploration, replay, evaluation, network, dropout."""
    total_steps: Annotated[int, Bounds(1)] = 200_000
    """Environment steps of the run."""
    acting_state: ActingState = "window"
    """`window`: encode the last K observations again; `episode`: carry a recurrent state (published DRQN)."""
    match: str | None = None
    """Number of trainable parameters to match, such as 100k: sets width and head width."""
    start_from: str | None = None
    """Run folder or shipped agent; training starts from those of its weights that fit the network."""
    plugin: Repeatable = ()
    """Modules to import first; a module that a --config names must be named here too."""

    def check(self) -> None:
        """Raise a UserError for values, or a combination of parts, that cannot work."""
        check_numbers(self)
        check_parts(self, "environment", "network", "exploration", "output", "compute")
        check_goal(self)
        self.network.check_prior()
        if self.acting_state == "episode" and self.network.row().positions != "none":
            raise UserError(
                "--acting-state episode has no window positions to encode; use a memory that streams, such as gru, "
                "and --position-encoding none"
            )
        if self.replay.capacity < self.environment.num_envs * self.network.context:
            raise UserError(
                f"--capacity {self.replay.capacity} must hold at least one window of each environment, --num-envs "
                f"{self.environment.num_envs} x --context {self.network.context}"
            )
        if not self.updates:
            raise UserError(
                f"--total-steps {self.total_steps} in --num-envs {self.environment.num_envs} would never update the "
                f"network: updates begin after {self.first_steps} steps (--learning-starts, --prepopulate); lower "
                "those or raise --total-steps"
            )

    def warnings(self, network: QNetwork) -> list[str]:
        """List warnings of settings with which this network can hardly learn."""
        warnings = []
        if self.updates < 3 * self.learner.target_update_every:
            warnings.append(
                f"the target network is copied only every {self.learner.target_update_every:,} of {self.updates:,} "
                "updates: raise --total-steps or lower --target-update-every (--config short has settings for runs of "
                "minutes)"
            )
        bidirectional = self.network.row().memory in BIDIRECTIONAL and len(network.layers)
        if bidirectional and self.learner.trains_newest(network):
            warnings.append(
                "the backward recurrence of the last layer keeps its initial weights: only the newest position of a "
                "window is trained, where that recurrence takes one step from zero (--loss-positions all trains it)"
            )
        return warnings

    @property
    def first_steps(self) -> int:
        """Steps before the first update."""
        return max(self.replay.learning_starts, self.exploration.prepopulate)

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        num_envs = self.environment.num_envs
        first, iterations = math.ceil(self.first_steps / num_envs), math.ceil(self.total_steps / num_envs)
        return max(0, iterations - max(first, 1) + 1) * self.replay.updates_per_iteration

    @property
    def whole_windows(self) -> bool:
        """Whether positions are trained with sight of later ones in their window."""
        return self.learner.loss_positions == "all"

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Give the keywords of the environment's constructor, with the time limit of training or of evaluations."""
        return self.environment.kwargs(training)

    def eval_setup(self, device: torch.device) -> EvalSetup:
        """Make the setup of this run's evaluations in its first environment."""
        return EvalSetup.of(self, device)
