"""Collect rollouts, T steps of N environments, and compute their returns and the prediction loss.

`ppo` and `pqn` call these functions. An episode continues from one rollout to the next, with the network's state. An
update recomputes a whole rollout by `QNetwork.encode_sequence`, from the state before its first step.

Shapes: N environments, T steps of a rollout, B environments of a minibatch, A actions, E passes, U updates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from dqn_memory.action_distributions import ActionRowEmbedding
from dqn_memory.actors import ActingState
from dqn_memory.blocks.block import by_position
from dqn_memory.config import ComputeConfig, EvaluationConfig
from dqn_memory.evaluate import EvalSetup
from dqn_memory.exploration import ExplorationConfig, Explorer
from dqn_memory.network import NetworkConfig, ObservationSpec, QNetwork
from dqn_memory.network_trainer import DiscountedReturns, averaging, spread
from dqn_memory.runs.base_config import Engine, EnvironmentConfig, OutputConfig
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.gradients import Parts
from dqn_memory.runs.metrics import Ended
from dqn_memory.runs.seeding import seeded
from dqn_memory.runs.settings import Bounds, Repeatable, check_goal, check_numbers, check_parts
from dqn_memory.runs.stateful import Stateful
from dqn_memory.size import on_meta
from envs.actions import Actions
from envs.core import Step
from envs.vector import VectorEnvironment, check_finite


# ---- config ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PredictionConfig:
    """An auxiliary loss: predict the next observation and the reward from the encoding and the action."""

    prediction_weight: Annotated[float, Bounds(0)] = 1.0
    """Weight of the loss of predicting the reward and the next observation, images excepted (0: no prediction)."""


@dataclass(frozen=True)
class RolloutConfig:
    """The common part of the configs of `ppo` and `pqn`; each script adds its learner."""

    acting_state: ClassVar[ActingState] = "episode"
    whole_windows: ClassVar[bool] = False
    removed: ClassVar[dict[str, Any]] = {"novelty": {"novelty_weight": 0.0, "novelty_steps": ...}}
    stochastic: ClassVar[bool] = False  # whether outputs are logits to draw actions by
    first_flags: ClassVar[tuple[str, ...]] = ("config", "env", "architecture", "total_steps", "seed", "run", "device")

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(num_envs=32))
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig("gru", initialisation="torch"))
    learner: Any = None  # each script has a class for it
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    evaluation: EvaluationConfig = field(default_factory=lambda: EvaluationConfig(evaluate_every=200_000))
    output: OutputConfig = field(default_factory=lambda: OutputConfig(log_every=50_000, checkpoint_every=1_000_000))
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: Annotated[int, Bounds(0, below=2**63)] = 1
    """Seed of all random streams: environments, exploration, minibatches, evaluation, network, dropout."""
    total_steps: Annotated[int, Bounds(1)] = 3_000_000
    """Environment steps of the run, rounded up to whole rollouts of all environments."""
    keep_memory: bool = False
    """Carry memory and previous action from episode to episode, in evaluations too; returns still end with episodes."""
    match: str | None = None
    """Number of trainable parameters to match, such as 100k: sets width and head width (the critic is not counted)."""
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
        name, minibatches, num_envs = self.network.architecture, self.learner.minibatches, self.environment.num_envs
        if self.compute.engine == "compile":
            raise UserError("--engine compile is for the window learner; rollouts take eager, or cudagraph on CUDA")
        if self.compute.engine == "cudagraph" and self.fastest_on_cuda != "cudagraph":
            raise UserError(f"--engine cudagraph needs environments of tensors, which {self.environment.name} is not")
        if steps := self.exploration.prepopulate:
            raise UserError(f"--prepopulate {steps} fills a replay, and rollouts have none; use --random-start-steps")
        if dropout := self.network.dropout:
            raise UserError(
                f"--dropout {dropout} would change the network's outputs between rollout and update; use --dropout 0"
            )
        if self.network.row().positions != "none":
            own = self.network.position_encoding
            raise UserError(
                (f"--position-encoding {own}" if own else f"--architecture {name}") + " encodes positions in a window, "
                "but a carried state has none; use a memory that streams, such as gru, and --position-encoding none"
            )
        if not on_meta(self.network, ObservationSpec("continuous", (1,)), 2).stateful:
            raise UserError(
                f"--architecture {name} cannot act step by step from a carried state; use a memory that streams, such "
                "as gru, or derive your own from blocks.Memory"
            )
        if self.learner.normalize_reward and self.learner.reward_scale is None:
            raise UserError("--normalize-reward and --reward-scale None both divide rewards; leave one out")
        if minibatches > num_envs:
            raise UserError(f"--minibatches {minibatches} is more than --num-envs {num_envs}; lower it")

    @property
    def fastest_on_cuda(self) -> Engine | None:
        """The engine that is faster on CUDA than a CPU: small networks need a graph, those of images do not."""
        environments = self.environment.each()
        if all(each.is_ours for each in environments):
            return "cudagraph"
        return "eager" if all(each.id.startswith("ALE/") for each in environments) else None

    def env_kwargs(self, training: bool = True) -> dict[str, Any]:
        """Give the keywords of the environment's constructor, with the time limit of training or of evaluations."""
        return self.environment.kwargs(training)

    def eval_setup(self, device: torch.device) -> EvalSetup:
        """Make the setup of this run's evaluations in its first environment."""
        return EvalSetup.of(self, device)


# ---- collect ---------------------------------------------------------------------------------------------------------
class Outputs(Protocol):
    """A network's outputs, a NamedTuple of tensors whose leading dimensions are those of the encodings."""

    @property
    def value(self) -> Tensor:
        """V of each observation."""


Out = TypeVar("Out", bound=Outputs)
Read = Callable[[Tensor, Tensor], Out]  # from encodings and their observations


class Rollout(NamedTuple, Generic[Out]):
    """T consecutive steps of each of N environments. One step has no dimension T, and an empty state."""

    observation: Tensor  # (N, T, ...)
    previous_action: Tensor  # (N, T, ...), the action that led to each observation; none where an episode begins
    reset: Tensor  # (N, T), where the memory starts afresh
    action: Tensor  # (N, T, ...), a number or a row, as `Actions` says
    random: Tensor  # (N, T), where the action was not the network's own
    reward: Tensor  # (N, T), scaled
    terminated: Tensor  # (N, T)
    done: Tensor  # (N, T)
    outputs: Out  # (N, T, ...), of the network as it acted
    bootstrap: Tensor  # (N, T), V of the next observation for steps that are truncated or end the rollout, else 0
    state: list[Any]  # of the network before the first step, rows first

    @property
    def inputs(self) -> tuple[Tensor, Tensor, list[Any], Tensor]:
        """Inputs of the network: observations, previous actions, the state before them, resets."""
        return self.observation, self.previous_action, self.state, self.reset

    def rows(self, index: Tensor) -> Rollout[Out]:
        """Select environments."""
        return tree_map(lambda part: part[index], self)


class Collector(Stateful):
    """Act in all environments, and carry observations and the network's state from one rollout to the next."""

    state_names = ("observation", "previous_action", "reset", "state", "moments")

    def __init__(
        self,
        vector: VectorEnvironment,
        network: QNetwork,
        explorer: Explorer,
        length: int,
        reward_scale: float | None = None,
        keep_memory: bool = False,
        discounted: DiscountedReturns | None = None,
    ) -> None:
        self.vector, self.network, self.explorer, self.length = vector, network, explorer, length
        self.reward_scale, self.keep_memory, self.discounted = reward_scale, keep_memory, discounted
        self.device, rows = vector.device, vector.num_envs
        self.previous_action = vector.actions.none(rows, self.device)
        self.state = network.initial_state(rows, self.device)
        self.moments = torch.zeros(3, dtype=torch.float64, device=self.device)  # returns: number, sum, sum of squares
        self.begin()

    def begin(self) -> None:
        """Start episodes in all environments; their first steps reset the memory, unless it is kept."""
        self.observation = self.vector.reset()  # (N, ...)
        self.reset = torch.ones(self.vector.num_envs, dtype=torch.bool, device=self.device)  # where episodes begin
        if self.discounted is not None:
            self.discounted.begin()

    @torch.no_grad()
    def collect(self, read: Read[Out], choose: Callable[[Out], Tensor], epsilon: Tensor) -> tuple[Rollout[Out], Ended]:
        """Take T steps in every environment; return them and the episodes that ended, (T, N).

        Args:
            read: computes outputs (N, ...) from the network's encodings (N, D) of observations (N, ...).
            choose: chooses actions (N, ...) by outputs.
            epsilon: share of random actions at each step, (T,).
        """
        before, first = self.state, self.observation
        transitions, steps, ends = list[Rollout[Out]](), list[Step](), list[Any]()
        for t in range(self.length):
            reset = torch.zeros_like(self.reset) if self.keep_memory else self.reset
            x, state = self.network.encode_step(self.observation, self.previous_action, self.state, reset)
            outputs, legal = read(x, self.observation), self.network.legal(self.observation)
            action, random = self.explorer.choose(choose(outputs), epsilon[t], self.reset, legal)  # (N,)
            step = self.vector.step(action)
            cut = ~step.terminated if t + 1 == self.length else step.truncated
            ends.append(self._end(read, cut, [step.final_observation, action, state]))
            transitions.append(
                Rollout(
                    self.observation, self.previous_action, reset, action, random, self.scaled_reward(step),
                    step.terminated, step.done, outputs, bootstrap=cut, state=[],  # values take its place below
                )
            )  # fmt: skip
            steps.append(step)
            self.observation, self.reset, self.state = step.observation, step.done, state
            # a kept action stays: a reward can be learned from only beside the action that brought it
            self.previous_action = action if self.keep_memory else self.vector.actions.without(action, step.done)
        check_finite(self.vector, first, steps)
        rollout = tree_map(lambda *parts: torch.stack(parts, 1), *transitions)
        bootstrap = self._bootstrap(read, ends, rollout.bootstrap, torch.zeros_like(rollout.outputs.value))
        return rollout._replace(bootstrap=bootstrap, state=before), ended_episodes(steps)

    def _end(self, read: Read[Out], cut: Tensor, parts: list[Any]) -> Any:
        """Keep the rows (N,) of a step that are cut, to compute their V with those of all steps.

        An accelerator computes V (N,) of all rows at once: it would wait for the number of rows.
        """
        if self.device.type != "cpu":
            return self._next_value(read, *parts)
        rows = cut.nonzero().squeeze(1)
        return tree_map(lambda part: part[rows], parts) if len(rows) else None

    def _bootstrap(self, read: Read[Out], ends: list[Any], cut: Tensor, nothing: Tensor) -> Tensor:
        """Compute V (N, T) of the next observations where `cut` (N, T), and `nothing` (N, T) elsewhere.

        `ends` has the result of `_end` for each step.
        """
        if self.device.type != "cpu":
            return torch.where(cut, torch.stack(ends, 1), nothing)
        inputs = [each for each in ends if each is not None]
        if not inputs:
            return nothing
        value = self._next_value(read, *tree_map(lambda *parts: torch.cat(parts), *inputs))
        return nothing.T.masked_scatter(cut.T, value).T  # step by step, as the rows were kept

    def _next_value(self, read: Read[Out], observation: Tensor, action: Tensor, state: list[Any]) -> Tensor:
        """Compute V of observations that follow actions, from the states before them."""
        x, _ = self.network.encode_step(
            observation, action, state, torch.zeros(len(action), dtype=torch.bool, device=self.device)
        )
        return read(x, observation).value

    def scaled_reward(self, step: Step) -> Tensor:
        """Multiply rewards by the scale; without one, divide by the standard deviation of all returns so far.

        One learning rate and one entropy weight then suit environments with rewards of 1 and of -50. Rewards are
        divided only after as many episodes have ended as there are environments. `--normalize-reward` divides by the
        standard deviation of discounted returns instead, from the first steps on.
        """
        reward = step.reward
        if self.discounted is not None:
            self.discounted.add(step)
            reward = self.discounted.scaled(reward)
        if self.reward_scale is not None:
            return reward * self.reward_scale
        done, returns = step.done, step.episode_return
        self.moments = self.moments + torch.stack((done, done * returns, done * returns.square())).sum(1)
        return (reward / spread(self.moments, len(done))).to(reward.dtype)


def ended_episodes(steps: Sequence[Step]) -> Ended:
    """Stack the outcomes of the episodes that end in T steps, (T, N)."""
    columns = ((step.done, step.success, step.episode_return, step.episode_length) for step in steps)
    return Ended(*(torch.stack(each) for each in zip(*columns, strict=True)))


# ---- returns ---------------------------------------------------------------------------------------------------------
def lambda_returns(rollout: Rollout[Out], value: Tensor, gamma: float, decay: float) -> Tensor:
    """Compute G_t = r_t + gamma ((1 - lambda) V(o_{t+1}) + lambda G_{t+1}), (N, T), from V (N, T).

    The mixture is replaced by the rollout's bootstrap where an episode is truncated and at the end of the rollout, and
    by 0 where an episode terminates.
    """
    returns, time = torch.empty_like(value), value.shape[1]
    later = rollout.bootstrap[:, -1]
    for t in range(time - 1, -1, -1):
        after = torch.where(rollout.done[:, t], rollout.bootstrap[:, t], later)
        found = rollout.reward[:, t] + gamma * torch.where(rollout.terminated[:, t], 0.0, after)
        later = torch.lerp(value[:, t], found, decay)
        returns[:, t] = found
    return returns


# ---- update ----------------------------------------------------------------------------------------------------------
class IterationInputs(NamedTuple):
    """Inputs of one iteration that are computed outside the CUDA graph, by schedules and random orders."""

    epsilon: Tensor  # (T,), share of random actions
    order: Tensor  # (E, N), order of the environments in each of E passes
    decay: Tensor  # (U,), of the average at each update

    @classmethod
    def draw(
        cls, learner: Any, explorer: Explorer, drawing: torch.Generator, num_envs: int, step: int, updates: int
    ) -> IterationInputs:
        """Draw the inputs of an iteration that begins after `step` environment steps and `updates` updates."""
        epsilon = [explorer.epsilon(step + t * num_envs) for t in range(learner.rollout_steps)]
        order = [torch.randperm(num_envs, generator=drawing) for _ in range(learner.epochs)]
        count = learner.epochs * learner.minibatches
        decay = [averaging(learner.ema_decay, updates + 1 + update) for update in range(count)]
        parts = torch.tensor(epsilon), torch.stack(order), torch.tensor(decay)
        return cls(*(part.to(explorer.device) for part in parts))

    def minibatches(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the environments (B,) of each update, `count` of them a pass, and the average's decay, ()."""
        return zip((rows for order in self.order for rows in order.tensor_split(count)), self.decay, strict=True)


def learned_parts(network: QNetwork, **others: nn.Module | None) -> dict[str, list[nn.Parameter]]:
    """List the trained parameters of the network's parts and of further modules, by name."""
    return network.parts() | {name: list(each.parameters()) for name, each in others.items() if each is not None}


def make_adam(parts: Parts, learning_rate: float, device: torch.device) -> torch.optim.Adam:
    """Make the optimiser; on CUDA its learning rate is a tensor, which a captured graph reads at every call."""
    cuda = device.type == "cuda"
    group = {
        "params": list(chain.from_iterable(parts.values())),
        "lr": torch.tensor(learning_rate, device=device) if cuda else learning_rate,
        "first_lr": learning_rate,
    }
    return torch.optim.Adam([group], eps=1e-5, fused=True, capturable=cuda)


def stack_metrics(updates: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Join the metrics of U updates, each (U,)."""
    return {name: torch.stack([metrics[name] for metrics in updates]) for name in updates[0]}


def masked_mean(values: Tensor, where: Tensor) -> Tensor:
    """Average values over the true entries of a mask, a scalar; 0 if there are none."""
    return torch.where(where, values, 0.0).sum() / where.sum().clamp(min=1)


# ---- predict ---------------------------------------------------------------------------------------------------------
class Predictor(nn.Module):
    """Predict the next observation and the reward from the network's encoding and the action."""

    @classmethod
    def build(cls, config: PredictionConfig, network: QNetwork, seed: int) -> Predictor | None:
        """Build the predictor of a network, initialised from `seed`; None if the weight of its loss is 0."""
        if not config.prediction_weight:
            return None
        with seeded(seed):
            made = cls(network.spec, network.config.width, network.actions, config.prediction_weight)
        return made.to(next(network.parameters()).device)

    def __init__(self, spec: ObservationSpec, width: int, actions: Actions, weight: float) -> None:
        super().__init__()
        self.parts = [(place, part) for place, part in spec.parts if part.kind != "image"]
        self.weight = weight
        self.action = nn.Embedding(actions.count, width) if actions.count else ActionRowEmbedding(actions, width)
        self.outputs = [sum(part.sizes) or math.prod(part.shape) * max(part.vocabulary, 1) for _, part in self.parts]
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, sum(self.outputs) + 1))

    def _predict(self, x: Tensor, action: Tensor) -> Tensor:
        predicted: Tensor = self.head(x + self.action(action))
        return predicted

    def loss(self, x: Tensor, rollout: Rollout[Any]) -> Tensor:
        """Compute the weighted error from encodings x (B, T, D), a scalar: cross-entropy for tokens, else squares.

        Rewards at the ends of episodes are rare and informative: they teach a memory to compare an earlier observation
        with the current one. They get half of the weight of all rewards (as Jaderberg et al. 2017 sample them).
        """
        predicted = by_position(self._predict, x, rollout.action)  # (B, T, outputs + 1)
        squares = (predicted[..., -1] - rollout.reward).square()  # (B, T)
        reward = 0.5 * (masked_mean(squares, rollout.terminated) + masked_mean(squares, ~rollout.terminated))
        if not self.parts:
            return self.weight * reward
        after = rollout.observation[:, 1:].flatten(2)  # (B, T - 1, n)
        guesses = predicted[:, :-1, :-1].split(self.outputs, -1)
        parts = zip(guesses, self.parts, strict=True)
        errors = [_errors(guess, after[..., place], part) for guess, (place, part) in parts]
        error = torch.cat(errors, -1).mean(-1)  # (B, T - 1), every number counts alike
        return self.weight * (reward + torch.where(rollout.done[:, :-1], 0.0, error).mean())


def _errors(predicted: Tensor, after: Tensor, spec: ObservationSpec) -> Tensor:
    """Compute the error of each number of an entry, (B, T, n), from predictions (B, T, n [x V]).

    If discrete components have different numbers of values, neighbours with the same number are compared together.
    """
    if not spec.vocabulary:
        return (predicted - after.to(predicted.dtype)).square()
    sizes = spec.sizes or (spec.vocabulary,) * math.prod(spec.shape)
    groups = [(size, len(list(same))) for size, same in itertools.groupby(sizes)]
    logits = predicted.split([size * count for size, count in groups], -1)
    values = after.long().split([count for _, count in groups], -1)
    errors = [
        F.cross_entropy(each.unflatten(-1, (count, size)).movedim(-1, 1), value, reduction="none")
        for each, value, (size, count) in zip(logits, values, groups, strict=True)
    ]
    return torch.cat(errors, -1)


# ---- a whole iteration as one CUDA graph (`--engine cudagraph`) ------------------------------------------------------
R = TypeVar("R")


class CapturedIteration(Generic[R]):
    """Collect and learn in one CUDA graph: environments, acting, returns and all updates.

    A graph reads and writes fixed addresses. An iteration is therefore a function of its inputs and of the tensors
    that the previous iteration returned. Networks and optimiser are updated in place.
    """

    def __init__(
        self,
        learn: Callable[[IterationInputs], R],
        collector: Collector,
        modules: Iterable[nn.Module],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.learn, self.collector = learn, collector
        vector: Any = collector.vector
        self.vector, drawn_from = vector, (collector.explorer.generator, *vector.generators)
        self.graph = Captured(self._iteration, list(modules), [optimizer], generators=drawn_from)

    def __call__(self, inputs: IterationInputs) -> R:
        """Run one iteration."""
        after, result = self.graph(self._carried(), inputs)
        self._carry(after)
        return result

    def _iteration(self, carried: dict[str, Any], inputs: IterationInputs) -> tuple[dict[str, Any], R]:
        self._carry(carried)
        result = self.learn(inputs)
        return self._carried(), result

    def _parts(self) -> dict[str, Stateful]:
        """List the objects whose tensors one iteration passes to the next."""
        parts = {"collector": self.collector, "explorer": self.collector.explorer}
        return parts if self.collector.discounted is None else parts | {"discounted": self.collector.discounted}

    def _carried(self) -> dict[str, Any]:
        """List the tensors that one iteration passes to the next."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return parts | {"vector": self.vector.carried()}

    def _carry(self, carried: dict[str, Any]) -> None:
        """Restore the tensors that `_carried` lists."""
        for name, part in self._parts().items():
            part.load_state_dict(carried[name])
        self.vector.carry(carried["vector"])
