"""Train a memory agent by recurrent PPO: `python -m dqn_memory.ppo --env Gridverse/Memory-5x5-v0`.

Proximal policy optimisation (Schulman et al. 2017) with a memory, on the same rollouts as `pqn`: an actor and a critic
read the same memory, advantages are those of GAE, and an update computes whole rollouts from the state before them.
From top to bottom: the config, the network, a run, the loss; the loop is `RolloutTrainer.iterate`. `--resume RUN`
continues a run.

Shapes: N environments, T steps of a rollout, B environments of a minibatch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from dqn_memory.acting import ExplorationConfig
from dqn_memory.config import ComputeConfig, EvaluationConfig
from dqn_memory.network import NetworkConfig, QNetwork
from dqn_memory.rollout_trainer import RolloutConfig, RolloutTrainer
from dqn_memory.rollouts import NoveltyConfig, PredictionConfig, Rollout, lambda_returns, masked_mean
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.common import EnvironmentConfig, OutputConfig
from dqn_memory.runs.metrics import RunStats
from dqn_memory.runs.settings import Bounds, Repeatable


# ---- arguments -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPOLearnerConfig:
    """Rollouts and the update from them."""

    rollout_steps: Annotated[int, Bounds(2)] = 128
    """Steps T of a rollout, in every environment; gradients go back that far."""
    epochs: Annotated[int, Bounds(1)] = 4
    """Passes over each rollout."""
    minibatches: Annotated[int, Bounds(1)] = 4
    """Updates of a pass, each from its share of the environments."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount per environment step."""
    trace_decay: Annotated[float, Bounds(0, 1)] = 0.95
    """Lambda of GAE: 0 looks one step ahead, 1 to the end of the rollout."""
    clip: Annotated[float, Bounds(above=0)] = 0.2
    """How far the ratio of new to old probability may leave 1 before it earns nothing more."""
    entropy_weight: Annotated[float, Bounds(0)] = 0.03
    """Weight of the policy's entropy; it falls as the learning rate does."""
    value_weight: Annotated[float, Bounds(0)] = 0.5
    """Weight of the critic's squared error."""
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-3
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 0.1
    """Learning rates fall linearly to this fraction by the end of the run (1: constant)."""
    max_grad_norm: Annotated[float, Bounds(above=0)] = 0.5
    """Largest global L2 norm of the gradient."""
    reward_scale: Annotated[float, Bounds(above=0)] | None = 1.0
    """Factor on rewards in what is learned (None: one over the standard deviation of all episodes' returns so far)."""
    ema_decay: Annotated[float, Bounds(0, below=1)] = 0.99
    """Decay per update of an exponential moving average of the weights, which is the agent (0: the online weights)."""


@dataclass(frozen=True)
class PPOEvaluationConfig(EvaluationConfig):
    """Evaluation while training."""

    policy: Literal["sampled", "greedy"] = "sampled"
    """`sampled` draws actions as in training; `greedy` takes the most probable ones, which can walk in circles."""


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """Train one memory agent by recurrent PPO in one environment.

    `--resume RUN` continues a stopped run instead (`--resume RUN --help`).
    """

    trainer: ClassVar[str] = "ppo"
    stochastic: ClassVar[bool] = True

    environment: EnvironmentConfig = field(default_factory=lambda: EnvironmentConfig(num_envs=128))
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig("gru", initialisation="torch"))
    learner: PPOLearnerConfig = field(default_factory=PPOLearnerConfig)
    exploration: ExplorationConfig = field(
        default_factory=lambda: ExplorationConfig(
            epsilon_start=0.0, epsilon_end=0.0, random_start_steps=60, sticky_exponent=2.0, sticky_max_steps=6
        )
    )
    novelty: NoveltyConfig = field(default_factory=NoveltyConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    evaluation: PPOEvaluationConfig = field(default_factory=lambda: PPOEvaluationConfig(evaluate_every=200_000))
    output: OutputConfig = field(default_factory=lambda: OutputConfig(log_every=50_000, checkpoint_every=1_000_000))
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: Annotated[int, Bounds(0)] = 1
    """Seed of every random stream: environments, actions, minibatches, evaluation, network, dropout."""
    total_steps: Annotated[int, Bounds(1)] = 3_000_000
    """Environment steps of the run."""
    match: str | None = None
    """Trainable parameters to match, such as 100k: sets width and head width (the critic's apart)."""
    plugin: Repeatable = ()
    """Modules imported first, which register blocks, priors, architectures or environments of their own."""

    @classmethod
    def earlier(cls) -> Self:
        """Give the values that newer settings had before they existed, for the file of an old run."""
        now = cls()
        return replace(now, evaluation=replace(now.evaluation, policy="greedy"))


# ---- the network -----------------------------------------------------------------------------------------------------
class ActorCritic(nn.Module):
    """A network whose outputs are logits, and a critic that reads the same encoding."""

    def __init__(self, policy: QNetwork) -> None:
        super().__init__()
        width = policy.config.width
        self.policy = policy
        self.critic = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def initial_state(self, batch: int, device: torch.device) -> list[Any]:
        """Make the carried states for B fresh episodes."""
        return self.policy.initial_state(batch, device)

    def step(
        self, observation: Tensor, previous_action: Tensor, state: list[Any], reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Compute logits and the value of one step, (B, A + 1), and the state after it."""
        x, after = self.policy.encode_step(observation, previous_action, state, reset)
        return self.read(x), after

    def encode_sequence(
        self, observation: Tensor, previous_action: Tensor, state: list[Any], reset: Tensor
    ) -> tuple[Tensor, list[Any]]:
        """Compute the encodings of T steps that follow `state`, (B, T, D), and the state after them."""
        return self.policy.encode_sequence(observation, previous_action, state, reset)

    def read(self, x: Tensor) -> Tensor:
        """Compute logits and the value of encodings (..., D), (..., A + 1)."""
        return torch.cat((self.policy.read(x), self.critic(x)), -1)


# ---- a run -----------------------------------------------------------------------------------------------------------
class PPOTrainer(RolloutTrainer[PPOConfig]):
    """Recurrent PPO: environments, actor and critic, optimiser, random streams, counters."""

    kind = "ppo"
    evaluation_flags = (*RolloutTrainer.evaluation_flags, "policy")
    config_class = PPOConfig
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "entropy": "losses/entropy"}

    def __init__(self, config: PPOConfig) -> None:
        super().__init__(config)
        learner, streams = config.learner, self.streams
        self.stats = RunStats(self.device, "losses/loss")
        # networks
        self.build_networks(learner.ema_decay > 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.network + 1)
            model = ActorCritic(self.network).to(self.device)
        self.prepare(model)
        self.backend = resolve_backend(self.networks().values(), config.compute.backend, self.device)
        self.build_optimizer(model, self.predictor)
        self.capture()
        torch.manual_seed(streams.dropout)  # dropout draws from the default generator, nothing else does

    def networks(self) -> dict[str, Any]:
        """List the policy, its average, and the critic."""
        return super().networks() | {"critic": self.model.critic}

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
    ratio = (logs.gather(2, taken) - before.gather(2, taken)).squeeze(2).exp()  # (B, T)
    own = ~rollout.random  # the policy is held to account for these alone
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
