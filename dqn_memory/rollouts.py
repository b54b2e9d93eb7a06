"""Rollouts: T steps of N environments by a network that acts from a carried state, and the returns that follow them.

What `pqn` and `ppo` share. An episode goes on from one rollout to the next, with the state that the network carries; an
update computes the whole rollout by `QNetwork.sequence`, from the state that stood before its first step.

Shapes: N environments, T steps of a rollout, A outputs of the network for a step.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from dqn_memory.acting import ActingMode, ActingState, EvalSetup, Kept
from dqn_memory.analysis.size import on_meta
from dqn_memory.config import ComputeConfig
from dqn_memory.network import NetworkConfig, ObservationSpec
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.seeding import generator
from dqn_memory.runs.settings import Bounds, EnvironmentConfig, check_numbers, check_parts
from dqn_memory.runs.trainer import set_learning_rate
from dqn_memory.trainer import NetworkTrainer, average_parameters
from envs.core import Step
from envs.fleet import Fleet

C = TypeVar("C", bound=Any)


class Streaming(Protocol):
    """What acts from a carried state, and computes again what it computed."""

    def initial_state(self, batch: int, device: torch.device) -> list[Any]:
        """Make the state of B fresh episodes."""

    def step(
        self, observation: Tensor, previous_action: Tensor, state: list[Any], reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Compute the outputs (B, A) of one step, and the state after it."""

    def encode_sequence(
        self, observation: Tensor, previous_action: Tensor, state: list[Any], reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Compute the encodings (B, T, D) of T steps, and the state after them."""

    def read(self, x: Tensor) -> Tensor:
        """Compute the outputs (..., A) of encodings (..., D)."""


# ---- novelty and prediction ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class NoveltyConfig:
    """A reward for seeing in an episode what it has not shown before."""

    novelty_weight: Annotated[float, Bounds(0)] = 0.0
    """Reward for an observation that is new in its episode, in the units of scaled rewards; it falls linearly to 0 (0:
    none)."""
    novelty_steps: Annotated[int, Bounds(1)] = 1_000_000
    """Environment steps until it is 0."""

    def weight(self, step: int) -> float:
        """Compute the reward after `step` environment steps."""
        return self.novelty_weight * max(0.0, 1 - step / self.novelty_steps)


class Novelty(Kept):
    """Tell which observations an episode has not shown before, by 12 bits of a hash.

    Tokens are mixed by random odd factors; anything else gives the signs of random projections (Tang et al. 2017,
    SimHash). Episodic counts reward a search through each episode anew (Raileanu and Rocktaeschel 2020).
    """

    kept = ("seen",)
    bits = 12

    def __init__(self, spec: ObservationSpec, num_envs: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)  # the same hash in every run
        self.device, inputs = device, math.prod(spec.shape)
        if spec.kind == "discrete":
            factors = torch.randint(1 << 62, (inputs,), generator=generator)
            self.factors = (2 * factors + 1).to(device)  # (d,)
        else:
            self.directions = torch.randn(inputs, self.bits, generator=generator).to(device)  # (d, 12)
            self.offsets = (2 * torch.rand(self.bits, generator=generator) - 1).to(device)
        self.tokens = spec.kind == "discrete"
        self.seen = torch.zeros(num_envs, 1 << self.bits, dtype=torch.bool, device=device)

    def hashes(self, observation: Tensor) -> Tensor:
        """Map observations (N, ...) to 0 .. 4095, (N,)."""
        flat = observation.flatten(1)
        if self.tokens:
            mixed = (flat.long() * self.factors).sum(1) * self.factors[0]  # overflow wraps around
            return mixed >> (64 - self.bits) & ((1 << self.bits) - 1)
        signs = flat.float() @ self.directions + self.offsets > 0  # (N, 12)
        return (signs * (2 ** torch.arange(self.bits, device=self.device))).sum(1)

    def first_sight(self, observation: Tensor, after: Tensor, reset: Tensor) -> Tensor:
        """Tell where `after`, which follows `observation`, is new in its episode, (N,), and note both."""
        self.seen &= ~reset.unsqueeze(1)
        self.seen.scatter_(1, self.hashes(observation).unsqueeze(1), True)
        index = self.hashes(after).unsqueeze(1)
        new = ~self.seen.gather(1, index)
        self.seen.scatter_(1, index, True)
        return new.squeeze(1)


@dataclass(frozen=True)
class PredictionConfig:
    """An auxiliary loss: tell from what is remembered and the action what comes next."""

    prediction_weight: Annotated[float, Bounds(0)] = 0.0
    """Weight of the loss of predicting the next observation and the reward (0: none)."""


class Predictor(nn.Module):
    """Predict the next observation and the reward from the network's encoding and the action."""

    def __init__(self, spec: ObservationSpec, width: int, num_actions: int, weight: float) -> None:
        super().__init__()
        self.components, self.vocabulary, self.weight = math.prod(spec.shape), spec.vocabulary, weight
        self.action = nn.Embedding(num_actions, width)
        outputs = self.components * max(spec.vocabulary, 1)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs + 1))

    def loss(self, x: Tensor, rollout: Rollout) -> Tensor:
        """Compute the weighted error from encodings x (B, T, D), a scalar: cross-entropy of tokens, else squares."""
        predicted = self.head(x + self.action(rollout.action))  # (B, T, outputs + 1)
        reward = (predicted[..., -1] - rollout.reward).square().mean()
        predicted, after = predicted[:, :-1, :-1], rollout.observation[:, 1:].flatten(2)  # (B, T - 1, ...)
        if self.vocabulary:
            logits = predicted.unflatten(-1, (self.components, self.vocabulary)).movedim(-1, 1)
            errors = F.cross_entropy(logits, after.long(), reduction="none").mean(-1)
        else:
            errors = (predicted - after.to(predicted.dtype)).square().mean(-1)  # (B, T - 1)
        return self.weight * (reward + torch.where(rollout.reset[:, 1:], 0.0, errors).mean())


# ---- collecting ------------------------------------------------------------------------------------------------------
@dataclass
class Rollout:
    """T consecutive steps of each of N environments."""

    observation: Tensor  # (N, T, ...)
    previous_action: Tensor  # (N, T), the action that led to each observation; A where an episode begins
    reset: Tensor  # (N, T), where an episode begins
    state: list[Any]  # of the network before the first step, rows first
    action: Tensor  # (N, T)
    reward: Tensor  # (N, T), scaled
    terminated: Tensor  # (N, T)
    done: Tensor  # (N, T)
    outputs: Tensor  # (N, T, A), of the network as it acted
    following: Tensor  # (N, T, A), of the observation after each step where it ends the rollout or is cut off, else 0

    @property
    def inputs(self) -> tuple[Tensor, Tensor, list[Any], Tensor]:
        """What the network read: observations, previous actions, the state before them, resets."""
        return self.observation, self.previous_action, self.state, self.reset

    @classmethod
    def of(cls, state: list[Any], columns: Sequence[tuple[Tensor, ...]]) -> Self:
        """Join the columns of T steps, as `Collector.take` gives them; `state` stood before the first."""
        observation, previous, reset, *rest = (torch.stack(each, 1) for each in zip(*columns, strict=True))
        return cls(observation, previous, reset, state, *rest)

    def rows(self, index: Tensor) -> Self:
        """Select environments."""
        return replace(self, **{name: tree_map(lambda part: part[index], value) for name, value in vars(self).items()})


class Collector(Kept):
    """Act in all environments, and carry observations and the network's state from one rollout to the next."""

    kept = ("observation", "previous_action", "reset", "state", "returns", "moments")

    def __init__(
        self, fleet: Fleet, network: Streaming, length: int, gamma: float, reward_scale: float | None = None,
        novelty: Novelty | None = None,
    ) -> None:  # fmt: skip
        self.fleet, self.network, self.length = fleet, network, length
        self.gamma, self.reward_scale, self.novelty = gamma, reward_scale, novelty
        self.device = fleet.device
        self.returns = torch.zeros(fleet.num_envs, dtype=torch.float64, device=self.device)  # discounted, so far
        self.moments = torch.zeros(3, dtype=torch.float64, device=self.device)  # their number, sum, sum of squares
        self.begin()

    def begin(self) -> None:
        """Start episodes in all environments, with nothing remembered."""
        rows = self.fleet.num_envs
        self.observation = self.fleet.reset()  # (N, ...)
        self.previous_action = torch.full((rows,), self.fleet.num_actions, device=self.device)  # A: none yet
        self.reset = torch.ones(rows, dtype=torch.bool, device=self.device)
        self.state = self.network.initial_state(rows, self.device)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, list[Any], Tensor]:
        """What the network reads next: observation, previous action, state, reset."""
        return self.observation, self.previous_action, self.state, self.reset

    @torch.no_grad()
    def take(
        self, outputs: Tensor, state: list[Any], action: Tensor, last: bool, count: Callable[[Step], None], bonus: float
    ) -> tuple[Tensor, ...]:
        """Take one step with the actions (N,) that were chosen by `outputs` (N, A); give a rollout's next column.

        `last` says that the rollout ends with it, `state` is the network's after it; `count` is told of the step, and
        novelty earns `bonus`.
        """
        observation, previous_action, _, reset = self.inputs
        step = self.fleet.step(action)
        following = torch.zeros_like(outputs)
        cut = ~step.terminated if last else step.truncated
        if self.device.type != "cpu" or bool(cut.any()):
            goes_on = torch.full_like(self.reset, False)
            after, _ = self.network.step(step.final_observation, action, state, goes_on)
            following = torch.where(cut.unsqueeze(1), after, following)
        reward = self._scaled(step)
        if self.novelty is not None:
            reward = reward + bonus * self.novelty.first_sight(observation, step.final_observation, reset)
        self.observation, self.reset, self.state = step.observation, step.done, state
        self.previous_action = torch.where(step.done, self.fleet.num_actions, action)
        count(step)
        return observation, previous_action, reset, action, reward, step.terminated, step.done, outputs, following

    def _scaled(self, step: Step) -> Tensor:
        """Divide rewards by the standard deviation of all discounted returns so far, where no scale is given.

        Then one learning rate and one entropy weight serve environments whose rewards are 1 and those whose are -50.
        """
        if self.reward_scale is not None:
            return step.reward * self.reward_scale
        self.returns = self.gamma * self.returns + step.reward
        one = torch.ones_like(self.returns)
        self.moments = self.moments + torch.stack((one, self.returns, self.returns.square())).sum(1)
        self.returns = torch.where(step.done, 0.0, self.returns)
        mean, square = self.moments[1:] / self.moments[0]
        spread = (square - mean.square()).clamp(min=0).sqrt()
        return (step.reward / torch.where(spread > 1e-8, spread, 1.0)).to(step.reward.dtype)


def lambda_returns(
    rollout: Rollout, value: Tensor, following: Tensor, gamma: float, decay: float, kept: Tensor | None = None
) -> Tensor:
    """Compute G_t = r_t + gamma ((1 - lambda) V(o_{t+1}) + lambda G_{t+1}), (N, T).

    Where an episode is cut off by a time limit, and at the rollout's end, V of the observation that it was cut off at
    stands in place of the mixture; where it terminates, 0. Subtracting V(o_t) gives the advantages of GAE (Schulman et
    al. 2016); with V = max Q these are the targets of PQN (Gallici et al. 2025).

    Args:
        rollout: the steps.
        value: V at each step, (N, T).
        following: V of what comes after a step where that is not the next one, (N, T).
        gamma: discount.
        decay: lambda.
        kept: where the return may go on through this step's action, (N, T): Watkins's cut is at actions that are not
            greedy. None: everywhere.
    """
    returns, time = torch.empty_like(value), value.shape[1]
    later = following[:, -1]
    for t in range(time - 1, -1, -1):
        after = torch.where(rollout.done[:, t], following[:, t], later)
        later = rollout.reward[:, t] + gamma * torch.where(rollout.terminated[:, t], 0.0, after)
        returns[:, t] = later
        mixed = torch.lerp(value[:, t], later, decay)
        later = mixed if kept is None else torch.where(kept[:, t], mixed, value[:, t])
    return returns


# ---- what both scripts are made of -----------------------------------------------------------------------------------
class RolloutConfig:
    """The methods of a config whose agent acts from a carried state."""

    acting: ClassVar[ActingMode] = "prefix"
    acting_state: ClassVar[ActingState] = "episode"
    whole_windows: ClassVar[bool] = False
    first_flags: ClassVar[tuple[str, ...]] = ("config", "env", "architecture", "total_steps", "seed", "run", "device")
    environment: EnvironmentConfig
    network: NetworkConfig
    learner: Any
    compute: ComputeConfig

    def check(self) -> None:
        """Raise a UserError for values, or a combination of parts, that cannot work."""
        check_numbers(self)
        check_parts(self, "network", "output", "compute")
        name, minibatches, num_envs = self.network.architecture, self.learner.minibatches, self.environment.num_envs
        if self.compute.engine != "eager":
            raise UserError(f"--engine {self.compute.engine} is for the window learner; rollouts take --engine eager")
        if bag := self.network.bag:
            raise UserError(f"--bag {bag} keeps what leaves a window, and rollouts have none; use --bag 0")
        if self.network.row().positions != "none":
            raise UserError(
                f"--architecture {name} encodes places in a window, which a carried state has not; use a memory that "
                "streams, such as gru"
            )
        if not on_meta(self.network, ObservationSpec("continuous", (1,)), 2).stateful:
            raise UserError(
                f"--architecture {name} cannot act step by step from a carried state; use a memory that streams, such "
                "as gru"
            )
        if minibatches > num_envs:
            raise UserError(f"--minibatches {minibatches} is more than --num-envs {num_envs}; lower it")

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Give the keywords of the environment's constructor, with the time limit of training or of evaluations."""
        return self.environment.kwargs(training)

    def eval_setup(self, device: torch.device) -> EvalSetup:
        """Say where and how this run's network is evaluated."""
        return EvalSetup.of(self, device)


class RolloutTrainer(NetworkTrainer[C]):
    """A run that learns from each rollout, and then forgets it."""

    collector: Collector
    novelty: Novelty | None = None
    predictor: Predictor | None = None
    optimizer: torch.optim.Optimizer
    drawing: torch.Generator  # of minibatches
    generators = ("exploration", "drawing")
    tensors = ()

    def prepare(self, model: Any) -> None:
        """Make what collects rollouts by `model`, and what the flags add to it."""
        self.model: Any = model
        config, learner = self.config, self.config.learner
        if config.novelty.novelty_weight:
            self.novelty = Novelty(self.spec, self.fleet.num_envs, self.device)
            self.stateful = (*self.stateful, "novelty")
        if weight := config.prediction.prediction_weight:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.streams.network + 2)
                self.predictor = Predictor(self.spec, config.network.width, self.num_actions, weight).to(self.device)
        self.collector = Collector(
            self.fleet, model, learner.rollout_steps, learner.gamma, learner.reward_scale, self.novelty
        )
        self.drawing = generator(self.streams.replay)

    def networks(self) -> dict[str, Any]:
        """List the network, its average, and the predictor where there is one."""
        return super().networks() | ({} if self.predictor is None else {"predictor": self.predictor})

    def begin(self) -> None:
        """Start episodes in all environments, with nothing remembered."""
        self.collector.begin()

    # ---- the algorithm: what a script provides -------------------------------------------------------------------
    @abstractmethod
    def choose(self, outputs: Tensor, reset: Tensor, t: int) -> Tensor:
        """Choose actions (N,) by the network's outputs (N, A) at step t of a rollout."""

    @abstractmethod
    def targets(self, rollout: Rollout) -> tuple[Tensor, ...]:
        """Compute what a whole rollout teaches, each (N, T)."""

    @abstractmethod
    def loss(self, outputs: Tensor, rollout: Rollout, *targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of the network's outputs (B, T, A) now, a scalar, and its metrics."""

    # ---- the loop ------------------------------------------------------------------------------------------------
    def iterate(self) -> None:
        """Collect one rollout, then learn from it."""
        # act
        before, columns = self.collector.state, []
        for t in range(self.collector.length):
            with torch.no_grad():
                outputs, state = self.model.step(*self.collector.inputs)
            columns.append(self.take(outputs, state, t))
        rollout = Rollout.of(before, columns)

        # learn
        targets = self.targets(rollout)
        for rows in self.minibatches():
            part = rollout.rows(rows)
            x, _ = self.model.encode_sequence(*part.inputs)
            loss, metrics = self.losses(x, self.model.read(x), part, [target[rows] for target in targets])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.descend(metrics)
        self.iterations += 1

    def take(self, outputs: Tensor, state: list[Any], t: int) -> tuple[Tensor, ...]:
        """Take step t of a rollout by the network's outputs (N, A)."""
        action = self.choose(outputs, self.collector.reset, t)
        bonus, last = self.config.novelty.weight(self.steps), t + 1 == self.collector.length
        return self.collector.take(outputs, state, action, last, self.stats.count_episodes, bonus)

    def losses(
        self, x: Tensor, outputs: Tensor, rollout: Rollout, targets: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum all that an update lowers, from encodings x (B, T, D) and outputs (B, T, A)."""
        loss, metrics = self.loss(outputs, rollout, *targets)
        loss = loss + self.network.regularisation()
        return (loss if self.predictor is None else loss + self.predictor.loss(x, rollout)), metrics

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        steps: int = self.fleet.num_envs * self.config.learner.rollout_steps
        return steps

    @staticmethod
    def learned(*modules: nn.Module | None) -> list[nn.Parameter]:
        """List the parameters of all modules that there are."""
        return [parameter for module in modules if module is not None for parameter in module.parameters()]

    def minibatches(self) -> Iterator[Tensor]:
        """Draw the environments (B,) of each update from one rollout."""
        for _ in range(self.config.learner.epochs):
            order = torch.randperm(self.fleet.num_envs, generator=self.drawing).to(self.device)
            yield from order.chunk(self.config.learner.minibatches)

    def descend(self, metrics: dict[str, Tensor]) -> None:
        """Take one step along the gradients, and let the average follow."""
        learner = self.config.learner
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        set_learning_rate(self.optimizer, learner.final_lr_fraction, self.steps / self.config.total_steps)
        norm = nn.utils.clip_grad_norm_(parameters, learner.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.network.project()
        self.updates += 1
        if self.evaluated is not self.network:
            average_parameters(self.network, self.evaluated, learner.ema_decay, self.updates)
        # `steps` still counts up to the rollout's beginning
        self.stats.count_update(metrics | {"grad/norm": norm.detach()}, self.steps + self.steps_per_iteration)

    def scalars(self) -> dict[str, float]:
        """Give what a log line says; sums since the last line are cleared."""
        return super().scalars() | self.network.memory_scalars()
