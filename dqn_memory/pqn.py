"""Train a memory agent by Q(lambda) on rollouts (PQN): `python -m dqn_memory.pqn --env Gridverse/Memory-5x5-v0`.

PQN, the parallelised Q-network (Gallici et al. 2025), with a memory: many environments at once, Q(lambda) targets of
whole rollouts, no replay, a few epochs of minibatches of environments over each rollout. Unlike the published form it
computes targets with averaged weights; without the average, success is unstable (results/learning/rollouts.md).
The network acts from a carried state, so its memory must be one that streams. From top to bottom: the config, the
set-up, actions, the loop (collect, targets, updates), Q(lambda), the loss. `rollouts.py` collects rollouts.
`--resume RUN` continues a run.

Shapes: N environments, T steps of a rollout, B environments of a minibatch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dqn_memory import rollouts
from dqn_memory.exploration import ExplorationConfig, Explorer
from dqn_memory.network_trainer import NetworkTrainer, average_parameters
from dqn_memory.rollouts import Collector, IterationInputs, Predictor, Rollout, RolloutConfig, lambda_returns
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.gradients import clip
from dqn_memory.runs.metrics import Ended
from dqn_memory.runs.optimizers import set_learning_rate
from dqn_memory.runs.seeding import generator, seed_dropout
from dqn_memory.runs.settings import Bounds


# ---- config ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PQNLearnerConfig:
    """Rollouts and the update from them."""

    removed: ClassVar[dict[str, Any]] = {"cut": "none", "action_gap": 0.0}

    rollout_steps: Annotated[int, Bounds(2, 10**6)] = 64
    """Steps T of a rollout, in every environment; gradients go back that far."""
    epochs: Annotated[int, Bounds(1, 10**4)] = 2
    """Passes over each rollout."""
    minibatches: Annotated[int, Bounds(1)] = 4
    """Updates of a pass, each from its share of the environments."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount per environment step."""
    trace_decay: Annotated[float, Bounds(0, 1)] = 0.9
    """Lambda of Q(lambda): 0 looks one step ahead, 1 to the end of the rollout."""
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-3
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 0.05
    """Learning rates fall linearly to this fraction by the end of the run (1: constant)."""
    max_grad_norm: Annotated[float, Bounds(above=0)] = 1.0
    """Maximum global L2 norm of the gradient."""
    reward_scale: Annotated[float, Bounds(above=0)] | None = 1.0
    """Factor on rewards in returns (None: 1 / standard deviation of the returns of all episodes so far)."""
    normalize_reward: bool = False
    """Divide rewards by the standard deviation of the discounted returns of all steps so far; clip them to +-10."""
    ema_decay: Annotated[float, Bounds(0, below=1)] = 0.99
    """Decay per update of the averaged weights, which are the agent (0: the online weights are)."""


@dataclass(frozen=True)
class PQNConfig(RolloutConfig):
    """Train one memory agent by PQN, in one environment or in several.

    `--resume RUN` continues a stopped run instead (`--resume RUN --help`).
    """

    trainer: ClassVar[str] = "pqn"

    learner: PQNLearnerConfig = field(default_factory=PQNLearnerConfig)
    exploration: ExplorationConfig = field(
        default_factory=lambda: ExplorationConfig(
            epsilon_steps=1_000_000, random_start_steps=60, sticky_exponent=2.0, sticky_max_steps=30
        )
    )


class QValues(NamedTuple):
    """Outputs of a Q-network for one encoding."""

    q: Tensor  # (..., A)

    @property
    def value(self) -> Tensor:
        """V of each observation: Q of the best action, (...)."""
        return self.q.amax(-1)


# ---- a run -----------------------------------------------------------------------------------------------------------
class PQNTrainer(NetworkTrainer[PQNConfig]):
    """PQN with memory: environments, network, optimiser, random streams, counters."""

    kind = "pqn"
    config_class = PQNConfig
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "loss": "losses/td_loss"}
    state_names = ("collector", "explorer", "exploration", "drawing")

    def __init__(self, config: PQNConfig) -> None:
        super().__init__(config)
        learner, streams, num_envs = config.learner, self.streams, config.environment.num_envs
        # networks
        self.build_networks(learner.ema_decay > 0)
        self.predictor = Predictor.build(config.prediction, self.network, streams.network + 2)
        self.backend = resolve_backend(self.networks().values(), config.compute.backend, self.device)
        # rollouts
        self.exploration = generator(streams.exploration, self.device)  # of actions
        self.explorer = Explorer(config.exploration, num_envs, self.actions, self.exploration)
        self.collector = Collector(
            self.vector,
            self.network,
            self.explorer,
            learner.rollout_steps,
            learner.reward_scale,
            config.keep_memory,
            self.discounted,
        )
        # updates
        self.drawing = generator(streams.replay)  # of minibatches
        self.parts = rollouts.learned_parts(self.network, predictor=self.predictor)
        self.optimizer = rollouts.make_adam(self.parts, learner.learning_rate, self.device)
        self.optimizers = [self.optimizer]
        self.learn_once = self.learn  # or the same as one CUDA graph
        if self.engine == "cudagraph":
            networks = self.networks().values()
            self.learn_once = rollouts.CapturedIteration(self.learn, self.collector, networks, self.optimizer)
        seed_dropout(streams.dropout)

    # ---- act -----------------------------------------------------------------------------------------------------
    def read(self, x: Tensor, observation: Tensor) -> QValues:
        """Compute Q from the network's encodings (..., D) of observations."""
        return QValues(self.network.read(x, observation))

    def choose(self, outputs: QValues) -> Tensor:
        """Choose the best actions (N,)."""
        return outputs.q.argmax(1)

    # ---- the loop ------------------------------------------------------------------------------------------------
    def iterate(self) -> None:
        """Collect one rollout and learn from it."""
        learner, progress = self.config.learner, self.steps / self.config.total_steps
        set_learning_rate(self.optimizer, learner.final_lr_fraction, progress)
        inputs = IterationInputs.draw(
            learner, self.explorer, self.drawing, self.vector.num_envs, self.steps, self.updates
        )
        episodes, metrics = self.learn_once(inputs)
        self.iterations += 1
        self.updates += learner.epochs * learner.minibatches
        self.stats.count_episodes(episodes)
        self.stats.count_update(metrics, self.steps)

    def learn(self, inputs: IterationInputs) -> tuple[Ended, dict[str, Tensor]]:
        """Collect one rollout and learn from it; give the episodes that ended, and metrics of all updates."""
        learner, updates = self.config.learner, []

        # collect
        rollout, episodes = self.collector.collect(self.read, self.choose, inputs.epsilon)
        target = self.targets(rollout)  # (N, T)

        # update
        for rows, decay in inputs.minibatches(learner.minibatches):
            part = rollout.rows(rows)
            x, _ = self.network.encode_sequence(*part.inputs)  # (B, T, D)
            loss, metrics = q_loss(self.read(x, part.observation).q, part.action, target[rows])
            loss = loss + self.network.regularisation()
            if self.predictor is not None:
                error = self.predictor.loss(x, part._replace(observation=self.network.normalized(part.observation)))
                loss, metrics["losses/prediction"] = loss + error, error.detach()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norms = clip(self.parts, learner.max_grad_norm)
            self.optimizer.step()
            self.network.project()
            if self.evaluated is not self.network:
                average_parameters(self.network, self.evaluated, decay)
            updates.append(metrics | norms)
        self.observe(rollout.observation.flatten(0, 1))  # not before: updates must compute what acting computed
        return episodes, rollouts.stack_metrics(updates)

    @torch.no_grad()
    def targets(self, rollout: Rollout[QValues]) -> Tensor:
        """Compute Q(lambda) targets (N, T) with the averaged network, so that Q does not chase its own errors.

        The averaged network starts a rollout from the state of the acting network, not from a state of its own. The
        difference is small and fades within the rollout. Without an average, Q is that of acting.
        """
        q = rollout.outputs.q  # (N, T, A)
        if self.evaluated is not self.network:
            q, _ = self.evaluated.sequence(*rollout.inputs)
        return q_lambda(rollout, q, self.config.learner.gamma, self.config.learner.trace_decay)

    # ---- methods of the base class -------------------------------------------------------------------------------
    def begin(self) -> None:
        self.collector.begin()

    def networks(self) -> dict[str, Any]:
        """List the network, its average, and the predictor if there is one."""
        return super().networks() | ({} if self.predictor is None else {"predictor": self.predictor})

    @classmethod
    def variant(cls, config: PQNConfig) -> str:
        return f"{cls.kind}-{super().variant(config)}"

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        return self.vector.num_envs * self.config.learner.rollout_steps


# ---- targets and loss ------------------------------------------------------------------------------------------------
def q_lambda(rollout: Rollout[QValues], q: Tensor, gamma: float, decay: float) -> Tensor:
    """Compute the Q(lambda) targets of PQN (Gallici et al. 2025), (N, T), from Q (N, T, A)."""
    return lambda_returns(rollout, q.max(2).values, gamma, decay)


def q_loss(q: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute half of the mean squared error of Q (B, T, A) of the actions taken (B, T), a scalar, and its metrics."""
    chosen = q.gather(2, action.unsqueeze(2)).squeeze(2)  # (B, T)
    loss = 0.5 * (chosen - target).square().mean()
    return loss, {
        "losses/td_loss": loss.detach(),
        "losses/q_values": chosen.detach().mean(),
        "losses/targets": target.mean(),
    }


main = PQNTrainer.main  # starts or resumes a run and trains it to its end

if __name__ == "__main__":
    main()
