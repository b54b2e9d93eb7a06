"""Train a memory agent by recurrent PPO: `python -m dqn_memory.ppo --env Gridverse/Memory-5x5-v0`.

Proximal policy optimisation (Schulman et al. 2017) with a memory, on the same rollouts as `pqn`: an actor and a critic
read the same memory, advantages are those of GAE, and an update computes whole rollouts from the state before them.
From top to bottom: the config, a run, the loss; the loop is `RolloutTrainer.iterate`. `--resume RUN`
continues a run.

Shapes: N environments, T steps of a rollout, B environments of a minibatch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from dqn_memory.config import EvaluationConfig
from dqn_memory.evaluation import evaluate
from dqn_memory.exploration import ExplorationConfig
from dqn_memory.rollout_trainer import RolloutConfig, RolloutLearnerConfig, RolloutTrainer
from dqn_memory.rollouts import Rollout, lambda_returns, masked_mean
from dqn_memory.runs.common import EnvironmentConfig
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.metrics import RunStats
from dqn_memory.runs.seeding import seeded
from dqn_memory.runs.settings import Bounds
from dqn_memory.runs.trainer import named


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPOLearnerConfig(RolloutLearnerConfig):
    """Rollouts and the update from them."""

    rollout_steps: Annotated[int, Bounds(2, 10**6)] = 128
    epochs: Annotated[int, Bounds(1, 10**4)] = 4
    trace_decay: Annotated[float, Bounds(0, 1)] = 0.95
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 0.1
    max_grad_norm: Annotated[float, Bounds(above=0)] = 0.5
    clip: Annotated[float, Bounds(above=0)] = 0.2
    """How far the ratio of new to old probability may leave 1 before it earns nothing more."""
    entropy_weight: Annotated[float, Bounds(0)] = 0.03
    """Weight of the policy's entropy; it falls as the learning rate does."""
    value_weight: Annotated[float, Bounds(0)] = 0.5
    """Weight of the critic's squared error."""


@dataclass(frozen=True)
class PPOEvaluationConfig(EvaluationConfig):
    """Evaluation while training."""

    policy: Literal["sampled", "greedy"] = "sampled"
    """`sampled` draws actions as in training; `greedy` takes the most probable ones, which can walk in circles, and
    plays sampled ones at the end, too."""


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """Train one memory agent by recurrent PPO in one environment.

    `--resume RUN` continues a stopped run instead (`--resume RUN --help`).
    """

    trainer: ClassVar[str] = "ppo"
    stochastic: ClassVar[bool] = True

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(num_envs=128))
    learner: PPOLearnerConfig = field(default_factory=PPOLearnerConfig)
    exploration: ExplorationConfig = field(
        default_factory=lambda: ExplorationConfig(
            epsilon_start=0.0, epsilon_end=0.0, random_start_steps=60, sticky_exponent=2.0, sticky_max_steps=6
        )
    )
    evaluation: PPOEvaluationConfig = field(default_factory=lambda: PPOEvaluationConfig(evaluate_every=200_000))

    def check(self) -> None:
        """Refuse also random actions in mid-episode.

        Advantages of the policy's own actions would hold what random ones earn after them. Random starts come before
        all own actions of their episode.
        """
        super().check()
        if epsilon := self.exploration.epsilon_start:
            raise UserError(
                f"--epsilon-start {epsilon}: returns would credit PPO's own actions with the random ones after them; "
                "use --epsilon-start 0 --epsilon-end 0, and --entropy-weight or --random-start-steps to explore"
            )


# ---- a run -----------------------------------------------------------------------------------------------------------
class PPOTrainer(RolloutTrainer[PPOConfig]):
    """Recurrent PPO: environments, actor and critic, optimiser, random streams, counters."""

    kind = "ppo"
    evaluation_flags = (*RolloutTrainer.evaluation_flags, "policy")
    config_class = PPOConfig
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "entropy": "losses/entropy"}
    critic: nn.Sequential

    def __init__(self, config: PPOConfig) -> None:
        super().__init__(config)
        self.stats = RunStats(self.device, "losses/loss")

    def build_networks(self, averaged: bool) -> None:
        """Build the networks, and a critic that reads what the policy reads."""
        super().build_networks(averaged)
        width = self.network.config.width
        with seeded(self.streams.network + 1):
            critic = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.critic = critic.to(self.device)

    def read(self, x: Tensor) -> Tensor:
        """Compute logits and the value of encodings (..., D), (..., A + 1)."""
        return torch.cat((super().read(x), self.critic(x)), -1)

    def final_scalars(self) -> dict[str, float]:
        """Score sampled actions, too, where evaluations are greedy: what PPO learns is a policy to sample from."""
        found = super().final_scalars()
        if self.config.evaluation.policy == "greedy":
            setup = replace(self.config.eval_setup(self.device), sampled=True)
            episodes, seed = self.config.evaluation.final_episodes, self.evaluation_seed(final=True)
            found |= named("sampled", evaluate(self.evaluated, setup, episodes, seed))
        return found

    # ---- act, targets, loss --------------------------------------------------------------------------------------
    def choose(self, outputs: Tensor) -> Tensor:
        """Draw actions from the policy: the least of exponential times, whose rates are its probabilities."""
        times = torch.empty_like(outputs[:, :-1]).exponential_(generator=self.exploration)  # (N, A)
        return (outputs[:, :-1].softmax(1) / times).argmax(1)

    def targets(self, rollout: Rollout) -> tuple[Tensor, ...]:
        """Compute returns and advantages (GAE)."""
        value, following, learner = rollout.outputs[..., -1], rollout.following[..., -1], self.config.learner  # (N, T)
        returns = lambda_returns(rollout, value, following, learner.gamma, learner.trace_decay)
        return returns, returns - value

    def loss(self, outputs: Tensor, rollout: Rollout, *targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the clipped objective with the critic's error and the entropy."""
        learner = self.config.learner
        entropy_weight = learner.entropy_weight * self.optimizer.param_groups[0]["lr"] / learner.learning_rate
        return ppo_loss(outputs, rollout, targets, learner, entropy_weight)


# ---- loss ------------------------------------------------------------------------------------------------------------
def ppo_loss(
    outputs: Tensor, rollout: Rollout, targets: tuple[Tensor, ...], config: PPOLearnerConfig,
    entropy_weight: float | Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Compute the clipped objective of the policy, the critic's error and the entropy, a scalar, and its metrics.

    `outputs` (B, T, A + 1) are of the network now, those in the rollout of the network that acted; `targets` are
    returns and advantages.
    """
    returns, advantage = targets
    taken = rollout.action.unsqueeze(2)
    logs, before = outputs[..., :-1].log_softmax(2), rollout.outputs[..., :-1].log_softmax(2)  # (B, T, A)
    own = ~rollout.random  # the policy is held to account for these alone
    change = (logs.gather(2, taken) - before.gather(2, taken)).squeeze(2)  # (B, T)
    ratio = torch.where(own, change, 0.0).exp()  # a random action can be so unlikely that its own would overflow
    scaled = advantage - masked_mean(advantage, own)
    scaled = scaled / (masked_mean(scaled.square(), own).sqrt() + 1e-8)
    policy = -masked_mean(torch.minimum(ratio * scaled, ratio.clamp(1 - config.clip, 1 + config.clip) * scaled), own)
    error = (outputs[..., -1] - returns).square().mean()
    entropy = -masked_mean((logs.exp() * logs).sum(2), own)
    loss = policy + config.value_weight * error - entropy_weight * entropy
    return loss, {
        "losses/loss": loss.detach(),
        "losses/policy": policy.detach(),
        "losses/value": error.detach(),
        "losses/entropy": entropy.detach(),
    }


main = PPOTrainer.main  # starts or resumes a run and trains it to its end

if __name__ == "__main__":
    main()
