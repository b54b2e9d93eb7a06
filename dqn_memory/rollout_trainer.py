"""The trainer that `pqn` and `ppo` are made of: collect a rollout, learn from it, forget it.

From top to bottom: what their configs check, what an iteration takes from chance and schedules, the loop. On CUDA a
whole iteration can be one graph (`--engine cudagraph`): environments, acting, returns and all updates.

Shapes: N environments, T steps of a rollout, B environments of a minibatch, A outputs of the network, U updates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.acting import ActingMode, ActingState, EvalSetup, ExplorationConfig, Explorer
from dqn_memory.analysis.size import on_meta
from dqn_memory.config import ComputeConfig, EvaluationConfig
from dqn_memory.network import NetworkConfig, ObservationSpec
from dqn_memory.rollouts import Collector, PredictionConfig, Predictor, Rollout
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.common import EnvironmentConfig, OutputConfig
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.metrics import Ended
from dqn_memory.runs.seeding import generator, seed_dropout, seeded
from dqn_memory.runs.settings import Bounds, Repeatable, check_goal, check_numbers, check_parts
from dqn_memory.runs.trainer import set_learning_rate
from dqn_memory.trainer import NetworkTrainer, average_parameters, averaging
from envs.core import Step
from envs.registry import WORLDS

C = TypeVar("C", bound=Any)


# ---- config ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RolloutLearnerConfig:
    """Rollouts and the update from them, as `pqn` and `ppo` have them in common."""

    rollout_steps: Annotated[int, Bounds(2, 10**6)] = 64
    """Steps T of a rollout, in every environment; gradients go back that far."""
    epochs: Annotated[int, Bounds(1, 10**4)] = 2
    """Passes over each rollout."""
    minibatches: Annotated[int, Bounds(1)] = 4
    """Updates of a pass, each from its share of the environments."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount per environment step."""
    trace_decay: Annotated[float, Bounds(0, 1)] = 0.9
    """Lambda of Q(lambda) and of GAE: 0 looks one step ahead, 1 to the end of the rollout."""
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-3
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 0.05
    """Learning rates fall linearly to this fraction by the end of the run (1: constant)."""
    max_grad_norm: Annotated[float, Bounds(above=0)] = 1.0
    """Largest global L2 norm of the gradient."""
    reward_scale: Annotated[float, Bounds(above=0)] | None = 1.0
    """Factor on rewards in what is learned (None: one over the standard deviation of all episodes' returns so far)."""
    ema_decay: Annotated[float, Bounds(0, below=1)] = 0.99
    """Decay per update of an exponential moving average of the weights, which is the agent (0: the online weights)."""


@dataclass(frozen=True)
class RolloutConfig:
    """What the configs of `pqn` and `ppo` have in common: an agent that acts from a carried state."""

    acting: ClassVar[ActingMode] = "prefix"
    acting_state: ClassVar[ActingState] = "episode"
    whole_windows: ClassVar[bool] = False
    removed: ClassVar[dict[str, Any]] = {"novelty": {"novelty_weight": 0.0, "novelty_steps": ...}}
    stochastic: ClassVar[bool] = False  # whether outputs are logits to draw actions by
    first_flags: ClassVar[tuple[str, ...]] = ("config", "env", "architecture", "total_steps", "seed", "run", "device")

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(num_envs=256))
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig("gru", initialisation="torch"))
    learner: RolloutLearnerConfig = field(default_factory=RolloutLearnerConfig)
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    evaluation: EvaluationConfig = field(default_factory=lambda: EvaluationConfig(evaluate_every=200_000))
    output: OutputConfig = field(default_factory=lambda: OutputConfig(log_every=50_000, checkpoint_every=1_000_000))
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: Annotated[int, Bounds(0, below=2**63)] = 1
    """Seed of every random stream: environments, exploration, minibatches, evaluation, network, dropout."""
    total_steps: Annotated[int, Bounds(1)] = 3_000_000
    """Environment steps of the run, rounded up to whole rollouts of all environments."""
    match: str | None = None
    """Trainable parameters to match, such as 100k: sets width and head width (a critic's apart)."""
    plugin: Repeatable = ()
    """Modules imported first, which register blocks, priors, architectures or environments of their own. One that a
    --config names is imported only where this flag names it too."""

    def check(self) -> None:
        """Raise a UserError for values, or a combination of parts, that cannot work."""
        check_numbers(self)
        check_parts(self, "network", "exploration", "output", "compute")
        check_goal(self)
        self.network.check_prior()
        name, minibatches, num_envs = self.network.architecture, self.learner.minibatches, self.environment.num_envs
        if self.compute.engine == "compile":
            raise UserError("--engine compile is for the window learner; rollouts take eager, or cudagraph on CUDA")
        if self.compute.engine == "cudagraph" and self.environment.env.removeprefix("envs:") not in WORLDS:
            raise UserError(f"--engine cudagraph needs an environment of tensors, which {self.environment.env} is not")
        if bag := self.network.bag:
            raise UserError(f"--bag {bag} keeps what leaves a window, and rollouts have none; use --bag 0")
        if steps := self.exploration.prepopulate:
            raise UserError(f"--prepopulate {steps} fills a replay, and rollouts have none; use --random-start-steps")
        if dropout := self.network.dropout:
            raise UserError(
                f"--dropout {dropout} would let an update see other outputs than its rollout was drawn by; use "
                "--dropout 0"
            )
        if self.network.row().positions != "none":
            own = self.network.position_encoding
            raise UserError(
                (f"--position-encoding {own}" if own else f"--architecture {name}") + " encodes places in a window, "
                "which a carried state has not; use a memory that streams, such as gru, and --position-encoding none"
            )
        if not on_meta(self.network, ObservationSpec("continuous", (1,)), 2).stateful:
            raise UserError(
                f"--architecture {name} cannot act step by step from a carried state; use a memory that streams, such "
                "as gru, or derive your own from blocks.Memory"
            )
        if minibatches > num_envs:
            raise UserError(f"--minibatches {minibatches} is more than --num-envs {num_envs}; lower it")

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Give the keywords of the environment's constructor, with the time limit of training or of evaluations."""
        return self.environment.kwargs(training)

    def eval_setup(self, device: torch.device) -> EvalSetup:
        """Say where and how this run's network is evaluated."""
        return EvalSetup.of(self, device)


# ---- an iteration ----------------------------------------------------------------------------------------------------
@dataclass
class Schedule:
    """What an iteration takes from schedules and from chance; a captured one reads it from the same places."""

    epsilon: Tensor  # (T,), share of random actions
    order: Tensor  # (E, N), environments as each of E passes takes them
    decay: Tensor  # (U,), of the average at each update


def ended(steps: Sequence[Step]) -> Ended:
    """Join what T steps tell of their ends."""
    columns = ((step.done, step.success, step.episode_return, step.episode_length) for step in steps)
    return Ended(*(torch.stack(each) for each in zip(*columns, strict=True)))


# ---- the loop --------------------------------------------------------------------------------------------------------
class RolloutTrainer(NetworkTrainer[C]):
    """A run that learns from each rollout, and then forgets it."""

    collector: Collector
    predictor: Predictor | None = None
    critic: nn.Module | None = None
    optimizer: torch.optim.Optimizer
    exploration: torch.Generator  # of actions
    drawing: torch.Generator  # of minibatches
    captured: Captured[Any, Any] | None = None
    generators = ("exploration", "drawing")
    stateful: tuple[str, ...] = ("collector", "explorer")
    tensors = ()

    def __init__(self, config: C) -> None:
        super().__init__(config)
        learner, rows = config.learner, self.fleet.num_envs
        # networks
        self.build_networks(learner.ema_decay > 0)
        if weight := config.prediction.prediction_weight:
            with seeded(self.streams.network + 2):
                self.predictor = Predictor(self.spec, config.network.width, self.num_actions, weight).to(self.device)
        self.backend = resolve_backend(self.networks().values(), config.compute.backend, self.device)
        # what collects rollouts
        self.collector = Collector(self.fleet, self.network, self.read, learner.rollout_steps, learner.reward_scale)
        self.exploration = generator(self.streams.exploration, self.device)
        self.explorer = Explorer(config.exploration, rows, self.num_actions, self.exploration)
        self.drawing = generator(self.streams.replay)
        # optimiser; a captured graph reads its rate as a tensor
        rate, cuda = learner.learning_rate, self.device.type == "cuda"
        learned = [module for module in (self.network, self.critic, self.predictor) if module is not None]
        parameters = [parameter for module in learned for parameter in module.parameters()]
        group = {"params": parameters, "lr": torch.tensor(rate, device=self.device) if cuda else rate, "first_lr": rate}
        self.optimizer = torch.optim.Adam([group], eps=1e-5, fused=True, capturable=cuda)
        self.optimizers = [self.optimizer]
        self.capture()
        seed_dropout(self.streams.dropout)

    @classmethod
    def variant(cls, config: C) -> str:
        return f"{cls.kind}-{super().variant(config)}"

    def networks(self) -> dict[str, Any]:
        """List the network, its average, and what else there is."""
        others = {"predictor": self.predictor, "critic": self.critic}
        return super().networks() | {name: module for name, module in others.items() if module is not None}

    def read(self, x: Tensor) -> Tensor:
        """Compute the outputs of encodings (..., D), (..., A)."""
        return self.network.read(x)

    def begin(self) -> None:
        self.collector.begin()

    # ---- the algorithm: what a script provides -------------------------------------------------------------------
    @abstractmethod
    def choose(self, outputs: Tensor) -> Tensor:
        """Choose actions (N,) by the network's outputs (N, A)."""

    @abstractmethod
    def targets(self, rollout: Rollout) -> tuple[Tensor, ...]:
        """Compute what a whole rollout teaches, each (N, T)."""

    @abstractmethod
    def loss(self, outputs: Tensor, rollout: Rollout, *targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of the network's outputs (B, T, A) now, a scalar, and its metrics."""

    # ---- the loop ------------------------------------------------------------------------------------------------
    def iterate(self) -> None:
        """Collect one rollout, then learn from it."""
        schedule = self.schedule()
        if self.captured is None:
            ended, metrics = self.work(schedule)
        else:
            carried, ended, metrics = self.captured(self.carried(), schedule)
            self.carry(carried)
        self.count(ended, metrics)

    def work(self, schedule: Schedule) -> tuple[Ended, dict[str, Tensor]]:
        """Do what an iteration does to tensors; give the episodes that ended, and metrics of U updates (U,)."""
        # act
        before, columns, steps = self.collector.state, [], list[Step]()
        for t in range(self.collector.length):
            with torch.no_grad():
                x, state = self.network.encode_step(*self.collector.inputs)
                outputs = self.read(x)
            last = t + 1 == self.collector.length
            action, random = self.explorer.choose(self.choose(outputs), schedule.epsilon[t], self.collector.reset)
            columns.append(self.collector.take(outputs, state, action, random, last, steps.append))
        rollout = Rollout.of(before, columns)

        # learn
        targets, found = self.targets(rollout), []
        minibatches = [rows for order in schedule.order for rows in order.tensor_split(self.config.learner.minibatches)]
        for decay, rows in zip(schedule.decay, minibatches, strict=True):
            part = rollout.rows(rows)
            x, _ = self.network.encode_sequence(*part.inputs)
            loss, metrics = self.losses(x, self.read(x), part, [target[rows] for target in targets])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            found.append(metrics | self.descend(decay))
        return ended(steps), {name: torch.stack([each[name] for each in found]) for name in found[0]}

    def losses(
        self, x: Tensor, outputs: Tensor, rollout: Rollout, targets: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum all that an update lowers, from encodings x (B, T, D) and outputs (B, T, A)."""
        loss, metrics = self.loss(outputs, rollout, *targets)
        loss = loss + self.network.regularisation()
        if self.predictor is None:
            return loss, metrics
        error = self.predictor.loss(x, rollout)
        return loss + error, metrics | {"losses/prediction": error.detach()}

    def descend(self, decay: Tensor) -> dict[str, Tensor]:
        """Take one step along the gradients, and let the average follow; give the gradient's norm."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.learner.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.network.project()
        if self.evaluated is not self.network:
            average_parameters(self.network, self.evaluated, decay)
        return {"grad/norm": norm.detach()}

    # ---- around it -----------------------------------------------------------------------------------------------
    def schedule(self) -> Schedule:
        """Set the learning rate, and draw and compute what else an iteration takes."""
        learner, rows = self.config.learner, self.fleet.num_envs
        set_learning_rate(self.optimizer, learner.final_lr_fraction, self.steps / self.config.total_steps)
        epsilon = [self.explorer.epsilon(self.steps + t * rows) for t in range(learner.rollout_steps)]
        order = [torch.randperm(rows, generator=self.drawing) for _ in range(learner.epochs)]
        updates = range(self.updates + 1, self.updates + 1 + learner.epochs * learner.minibatches)
        decay = [averaging(learner.ema_decay, update) for update in updates]
        epsilon_t, decay_t = (torch.tensor(each).to(self.device) for each in (epsilon, decay))
        return Schedule(epsilon_t, torch.stack(order).to(self.device), decay_t)

    def count(self, ended: Ended, metrics: dict[str, Tensor]) -> None:
        """Count what an iteration did."""
        self.stats.count_episodes(ended)
        # `steps` still counts up to the rollout's beginning
        self.stats.count_update(metrics, self.steps + self.steps_per_iteration)
        self.updates += self.config.learner.epochs * self.config.learner.minibatches
        self.iterations += 1

    def carried(self) -> dict[str, Any]:
        """List the tensors that one iteration leaves to the next, besides networks and optimiser."""
        kept = {name: getattr(self, name).state_dict() for name in self.stateful}
        fleet: Any = self.fleet
        return kept | {"fleet": dict(vars(fleet.state))}

    def carry(self, carried: dict[str, Any]) -> None:
        """Go on from what `carried` gave."""
        for name in self.stateful:
            getattr(self, name).load_state_dict(carried[name])
        fleet: Any = self.fleet
        fleet.state = replace(fleet.state, **carried["fleet"])

    def capture(self) -> None:
        """Make an iteration one CUDA graph, where the config asks for that."""
        if self.config.compute.engine != "cudagraph":
            return

        def work(carried: dict[str, Any], schedule: Schedule) -> tuple[dict[str, Any], Ended, dict[str, Tensor]]:
            self.carry(carried)
            ended, metrics = self.work(schedule)
            return self.carried(), ended, metrics

        fleet: Any = self.fleet
        modules, drawn_from = list(self.networks().values()), (self.exploration, fleet.generator)
        self.captured = Captured(work, modules, self.optimizers, generators=drawn_from)

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        steps: int = self.fleet.num_envs * self.config.learner.rollout_steps
        return steps

    def scalars(self) -> dict[str, float]:
        told = {"charts/epsilon": self.explorer.epsilon(self.steps)} | self.network.memory_scalars()
        return super().scalars() | told
