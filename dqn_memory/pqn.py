"""Train a memory agent without a replay: `python -m dqn_memory.pqn --env Gridverse/Memory-5x5-v0`.

PQN, the parallelised Q-network (Gallici et al. 2025), with a memory: many environments at once, Q(lambda) targets of
whole rollouts, no replay, a few epochs of minibatches of environments over each rollout. Unlike the published form it
takes targets from the average of its weights, without which success comes and goes (results/learning/rollouts.md).
The network acts from a carried state, so its memory must be one that streams. From top to bottom: the config, a run,
the targets, the loss; the loop is `RolloutTrainer.iterate`. `--resume RUN` continues a run.

Shapes: N environments, T steps of a rollout, B environments of a minibatch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from dqn_memory.acting import ExplorationConfig
from dqn_memory.rollout_trainer import RolloutConfig, RolloutLearnerConfig, RolloutTrainer
from dqn_memory.rollouts import Rollout, lambda_returns


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PQNLearnerConfig(RolloutLearnerConfig):
    """Rollouts and the update from them."""

    removed: ClassVar[dict[str, Any]] = {"cut": "none", "action_gap": 0.0}


@dataclass(frozen=True)
class PQNConfig(RolloutConfig):
    """Train one memory agent by PQN in one environment.

    `--resume RUN` continues a stopped run instead (`--resume RUN --help`).
    """

    trainer: ClassVar[str] = "pqn"

    learner: PQNLearnerConfig = field(default_factory=PQNLearnerConfig)
    exploration: ExplorationConfig = field(
        default_factory=lambda: ExplorationConfig(
            epsilon_steps=1_000_000, random_start_steps=60, sticky_exponent=2.0, sticky_max_steps=30
        )
    )


# ---- a run -----------------------------------------------------------------------------------------------------------
class PQNTrainer(RolloutTrainer[PQNConfig]):
    """PQN with memory: environments, network, optimiser, random streams, counters."""

    kind = "pqn"
    config_class = PQNConfig
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "loss": "losses/td_loss"}

    # ---- act, targets, loss --------------------------------------------------------------------------------------
    def choose(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def targets(self, rollout: Rollout) -> tuple[Tensor, ...]:
        """Compute Q(lambda) targets by the averaged network, whose Q does not chase its own errors.

        It begins a rollout with the state that the acting network carried, not with one of its own; what that changes
        is small and fades over the rollout's steps.
        """
        with torch.no_grad():
            q, _ = self.evaluated.sequence(*rollout.inputs)  # (N, T, A)
        return (q_lambda(rollout, q, self.config.learner),)

    def loss(self, outputs: Tensor, rollout: Rollout, *targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return td_loss(outputs, rollout.action, *targets)


# ---- targets and loss ------------------------------------------------------------------------------------------------
def q_lambda(rollout: Rollout, q: Tensor, config: PQNLearnerConfig) -> Tensor:
    """Compute Q(lambda) targets, (N, T), from Q (N, T, A) and what the network that acted said of a rollout's end."""
    value, following = q.max(2).values, rollout.following.max(2).values  # (N, T)
    return lambda_returns(rollout, value, following, config.gamma, config.trace_decay)


def td_loss(q: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
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
