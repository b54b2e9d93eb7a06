"""Train a memory agent by recurrent PPO: `python -m dqn_memory.ppo --env Gridverse/Memory-5x5-v0`.

Proximal policy optimisation (Schulman et al. 2017) with a memory that an actor and a critic read. From top to bottom:
the config, the set-up, actions, the loop (collect, advantages, updates), GAE, the loss. `rollouts.py` collects
rollouts. An update recomputes whole rollouts from their first state. `--resume RUN` continues a run.

Shapes: N environments, T steps of a rollout, B environments of a minibatch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dqn_memory import action_distributions, rollouts
from dqn_memory.config import EvaluationConfig
from dqn_memory.exploration import ExplorationConfig, Explorer
from dqn_memory.network_trainer import NetworkTrainer, average_parameters
from dqn_memory.rollouts import (
    Collector,
    IterationInputs,
    Predictor,
    Rollout,
    RolloutConfig,
    lambda_returns,
    masked_mean,
)
from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.gradients import clip
from dqn_memory.runs.metrics import Ended, RunStats
from dqn_memory.runs.optimizers import set_learning_rate
from dqn_memory.runs.seeding import generator, seed_dropout, seeded
from dqn_memory.runs.settings import Bounds
from envs.actions import Actions


# ---- config ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPOLearnerConfig:
    """Rollouts and the update from them."""

    rollout_steps: Annotated[int, Bounds(2, 10**6)] = 128
    """Steps T of a rollout, in every environment; gradients go back that far."""
    epochs: Annotated[int, Bounds(1, 10**4)] = 4
    """Passes over each rollout."""
    minibatches: Annotated[int, Bounds(1)] = 4
    """Updates of a pass, each from its share of the environments."""
    gamma: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount per environment step."""
    trace_decay: Annotated[float, Bounds(0, 1)] = 0.95
    """Lambda of GAE: 0 looks one step ahead, 1 to the end of the rollout."""
    learning_rate: Annotated[float, Bounds(above=0)] = 1e-3
    """Adam's learning rate."""
    final_lr_fraction: Annotated[float, Bounds(0, 1)] = 0.1
    """Learning rates fall linearly to this fraction by the end of the run (1: constant)."""
    max_grad_norm: Annotated[float, Bounds(above=0)] = 0.5
    """Maximum global L2 norm of the gradient."""
    reward_scale: Annotated[float, Bounds(above=0)] | None = 1.0
    """Factor on rewards in returns (None: 1 / standard deviation of the returns of all episodes so far)."""
    normalize_reward: bool = False
    """Divide rewards by the standard deviation of the discounted returns of all steps so far; clip them to +-10."""
    ema_decay: Annotated[float, Bounds(0, below=1)] = 0.99
    """Decay per update of the averaged weights, which are the agent (0: the online weights are)."""
    clip: Annotated[float, Bounds(above=0)] = 0.2
    """Clip range around 1 of the ratio of new to old probability."""
    entropy_weight: Annotated[float, Bounds(0)] = 0.03
    """Weight of the policy's entropy; it falls with the learning rate."""
    value_weight: Annotated[float, Bounds(0)] = 0.5
    """Weight of the critic's squared error."""
    critic_on_random_steps: bool = True
    """Train the critic on the random first steps of episodes, too."""


@dataclass(frozen=True)
class PPOEvaluationConfig(EvaluationConfig):
    """Evaluation while training."""

    policy: Literal["sampled", "greedy"] = "sampled"
    """`sampled`: draw actions as in training; `greedy`: take the most probable ones; the last evaluation does both."""


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """Train one memory agent by recurrent PPO, in one environment or in several.

    `--resume RUN` continues a stopped run instead (`--resume RUN --help`).
    """

    trainer: ClassVar[str] = "ppo"
    stochastic: ClassVar[bool] = True

    learner: PPOLearnerConfig = field(default_factory=PPOLearnerConfig)
    exploration: ExplorationConfig = field(
        default_factory=lambda: ExplorationConfig(
            epsilon_start=0.0, epsilon_end=0.0, random_start_steps=60, sticky_exponent=2.0, sticky_max_steps=6
        )
    )
    evaluation: PPOEvaluationConfig = field(default_factory=lambda: PPOEvaluationConfig(evaluate_every=200_000))

    def check(self) -> None:
        """Also refuse random actions in mid-episode.

        They would add their rewards to the advantages of the policy's earlier actions. Random starts are allowed: they
        come before the first action of the policy.
        """
        super().check()
        if epsilon := self.exploration.epsilon_start:
            raise UserError(
                f"--epsilon-start {epsilon}: returns would credit the policy's actions with later random ones; "
                "use --epsilon-start 0 --epsilon-end 0, and --entropy-weight or --random-start-steps to explore"
            )


class ActorCritic(NamedTuple):
    """Outputs of the actor and of the critic for one encoding."""

    logits: Tensor  # (..., O): logits of A actions, or what else describes a policy (action_distributions.py)
    value: Tensor  # (...)


# ---- a run -----------------------------------------------------------------------------------------------------------
class PPOTrainer(NetworkTrainer[PPOConfig]):
    """Recurrent PPO: environments, actor and critic, optimiser, random streams, counters."""

    kind = "ppo"
    config_class = PPOConfig
    takes_parts = True
    evaluation_flags = (*NetworkTrainer.evaluation_flags, "policy")
    shown: ClassVar[Mapping[str, str]] = {"success": "charts/success_rate", "entropy": "losses/entropy"}
    state_names = ("collector", "explorer", "exploration", "drawing")

    def __init__(self, config: PPOConfig) -> None:
        super().__init__(config)
        learner, streams, num_envs = config.learner, self.streams, config.environment.num_envs
        self.stats = RunStats(self.device, "losses/loss", rows=self.rows)
        # networks
        self.build_networks(learner.ema_decay > 0)
        width = config.network.width
        with seeded(streams.network + 1):
            critic = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.critic = critic.to(self.device)
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
        self.parts = rollouts.learned_parts(self.network, critic=self.critic, predictor=self.predictor)
        self.optimizer = rollouts.make_adam(self.parts, learner.learning_rate, self.device)
        self.optimizers = [self.optimizer]
        self.learn_once = self.learn  # or the same as one CUDA graph
        if self.engine == "cudagraph":
            networks = self.networks().values()
            self.learn_once = rollouts.CapturedIteration(self.learn, self.collector, networks, self.optimizer)
        seed_dropout(streams.dropout)

    # ---- act -----------------------------------------------------------------------------------------------------
    def read(self, x: Tensor, observation: Tensor) -> ActorCritic:
        """Compute logits and values from the network's encodings (..., D) of observations."""
        # two tensors would round gradients differently
        both = torch.cat((self.network.read(x, observation), self.critic(x)), -1)
        return ActorCritic(both[..., :-1], both[..., -1])

    def choose(self, outputs: ActorCritic) -> Tensor:
        """Draw actions (N, ...) from the policy."""
        return action_distributions.draw(self.actions, outputs.logits, self.exploration)

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
        entropy_weight = learner.entropy_weight * self.optimizer.param_groups[0]["lr"] / learner.learning_rate

        # collect
        rollout, episodes = self.collector.collect(self.read, self.choose, inputs.epsilon)
        advantage, returns = gae(rollout, learner.gamma, learner.trace_decay)  # (N, T)
        explained = {"losses/explained_variance": 1 - advantage.var() / returns.var().clamp(min=1e-8)}

        # update
        for rows, decay in inputs.minibatches(learner.minibatches):
            part = rollout.rows(rows)
            x, _ = self.network.encode_sequence(*part.inputs)  # (B, T, D)
            loss, metrics = ppo_loss(
                self.actions, self.read(x, part.observation), part, advantage[rows], returns[rows], learner,
                entropy_weight,
            )  # fmt: skip
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
            updates.append(metrics | explained | norms)
        self.observe(rollout.observation.flatten(0, 1))  # not before: updates must compute what acting computed
        return episodes, rollouts.stack_metrics(updates)

    # ---- methods of the base class -------------------------------------------------------------------------------
    def begin(self) -> None:
        self.collector.begin()

    def networks(self) -> dict[str, Any]:
        """List the network, its average, the critic, and the predictor if there is one."""
        predictor = {} if self.predictor is None else {"predictor": self.predictor}
        return super().networks() | predictor | {"critic": self.critic}

    @classmethod
    def variant(cls, config: PPOConfig) -> str:
        return f"{cls.kind}-{super().variant(config)}"

    @classmethod
    def resolve(cls, config: PPOConfig) -> PPOConfig:
        """Also decide how actions of several parts are drawn."""
        return super().resolve(replace(config, environment=config.environment.in_parts()))

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of a rollout."""
        return self.vector.num_envs * self.config.learner.rollout_steps

    def final_scalars(self) -> dict[str, float]:
        """Also score sampled actions if evaluations are greedy, because PPO trains a policy to sample from."""
        scalars = super().final_scalars()
        if self.config.evaluation.policy == "greedy":
            episodes, seed = self.config.evaluation.final_episodes, self.evaluation_seed(final=True)
            scalars |= self.evaluate_with(episodes, seed, sampled=True).scalars("sampled")
        return scalars


# ---- advantages and loss ---------------------------------------------------------------------------------------------
def gae(rollout: Rollout[ActorCritic], gamma: float, decay: float) -> tuple[Tensor, Tensor]:
    """Compute advantages and returns, both (N, T), by generalised advantage estimation (Schulman et al. 2016)."""
    value = rollout.outputs.value
    returns = lambda_returns(rollout, value, gamma, decay)
    return returns - value, returns


def ppo_loss(
    actions: Actions, outputs: ActorCritic, rollout: Rollout[ActorCritic], advantage: Tensor, returns: Tensor,
    config: PPOLearnerConfig, entropy_weight: float | Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Compute the clipped objective of the policy, the critic's error and the entropy, a scalar, and its metrics.

    `outputs` (B, T) come from the current network, those of the rollout from the network that acted.
    """
    new, old = (
        action_distributions.log_prob(actions, each.logits, rollout.action) for each in (outputs, rollout.outputs)
    )
    own = ~rollout.random  # only these actions are credited to the policy
    log_ratio = torch.where(own, new - old, 0.0)  # (B, T); the ratio of an unlikely random action could overflow
    ratio = log_ratio.exp()
    advantage = advantage - masked_mean(advantage, own)
    advantage = advantage / (masked_mean(advantage.square(), own).sqrt() + 1e-8)
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -masked_mean(torch.minimum(ratio * advantage, clipped * advantage), own)
    errors = (outputs.value - returns).square()
    value_loss = errors.mean() if config.critic_on_random_steps else masked_mean(errors, own)
    entropy = masked_mean(action_distributions.entropy(actions, outputs.logits), own)
    loss = policy_loss + config.value_weight * value_loss - entropy_weight * entropy
    return loss, {
        "losses/loss": loss.detach(),
        "losses/policy": policy_loss.detach(),
        "losses/value": value_loss.detach(),
        "losses/entropy": entropy.detach(),
        "losses/approx_kl": masked_mean(ratio - 1 - log_ratio, own).detach(),  # from the policy that acted
        "losses/clip_fraction": masked_mean((clipped != ratio).float(), own).detach(),
    }


main = PPOTrainer.main  # starts or resumes a run and trains it to its end

if __name__ == "__main__":
    main()
