"""Train GLAM: `python -m world_models.glam.train --config glam/catch`.

This file is the algorithm. From top to bottom: a run and its loop (act in N environments, store, update the world
model, imagine, update the actor-critic), the losses and the update of the world model, those of the actor-critic, the
optimisers, and the execution of updates by an engine. All training scripts share `dqn_memory.runs.trainer`: state,
resume, logging. `--resume RUN` continues a run.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from dqn_memory.runs.backend import resolve_backend
from dqn_memory.runs.base_config import Engine
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.gradients import clip, parts_of
from dqn_memory.runs.metrics import RunStats
from dqn_memory.runs.optimizers import set_learning_rate
from dqn_memory.runs.seeding import generator, seed_dropout
from world_models.distributions import cross_entropy, entropy, kl, masked_mean, symlog_code, upcast
from world_models.glam.acting import GlamAgent, PolicyScore, build_glam, check_frames, evaluation_modes
from world_models.glam.agent import ActorCritic, lambda_return
from world_models.glam.config import ActorCriticConfig, GlamConfig, GlamLearnerConfig, GlamModelConfig
from world_models.glam.imagination import Noise, Rollouts, StartFrom, encode_context, imagine
from world_models.glam.model import GlamModel, GlamPredictions
from world_models.glam.replay import FrameBatch, FrameReplay
from world_models.settings import training_signal
from world_models.trainer import WorldModelTrainer

Metrics = dict[str, Tensor]


class ModelStats(RunStats):
    """Statistics of episodes and of the world model's updates; `agent` has those of the agent's updates."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, "losses/total", rate="--learner-learning-rate")
        self.agent = RunStats(device, "losses/agent", "grad/agent_norm", "--agent-learning-rate")

    def scalars(self) -> dict[str, float]:
        return super().scalars() | self.agent.scalars()

    def check_finite(self) -> None:
        super().check_finite()
        self.agent.check_finite()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"agent": self.agent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.agent.load_state_dict(state["agent"])


class GlamTrainer(WorldModelTrainer[GlamConfig]):
    """One run of GLAM: environments, world model, agent, optimisers, replay and the acting agent's memory."""

    kind = "glam"
    config_class = GlamConfig
    agent_class = GlamAgent
    shown: ClassVar[Mapping[str, str]] = {
        "return": "charts/episodic_return", "model": "losses/total", "entropy": "agent/entropy",
    }  # fmt: skip
    evaluation_flags = ("num_eval_envs", "episodes_per_env", "policy")
    state_names = ("player", "acting", "drawing", "dreaming", "observation", "first")
    stats: ModelStats

    def __init__(self, config: GlamConfig) -> None:
        super().__init__(config)
        self.stats = ModelStats(self.device)
        streams, num_envs = self.streams, config.environment.num_envs
        check_frames(self.vector, config.environment.id, config.model.screen)
        self.model, self.agent = build_glam(config, self.vector.num_actions, streams.network, self.device)
        self.backend = resolve_backend([self.model], config.compute.backend, self.device)
        engine, start = self.engine, config.imagination.start_from
        capturable = engine == "cudagraph"
        self.optimizers = [adam(self.model, config.learner, capturable), adam(self.agent, config.agent, capturable)]
        self.execution = make_execution(engine, self.model, self.agent, self.optimizers, config.learner, start)
        self.context_length = config.imagination.frames(config.model.context)
        self.longest = max(config.model.batch_length, self.context_length)  # max length of a replay window
        self.replay = FrameReplay(config.replay, config.model.screen, num_envs, self.device, self.longest)
        self.acting = generator(streams.exploration, self.device)
        self.drawing = generator(streams.replay)
        self.dreaming = generator(streams.imagination, self.device)  # latents of both updates, and imagination
        seed_dropout(streams.dropout)
        self.begin()

    def begin(self) -> None:
        num_envs = self.vector.num_envs
        self.observation = self.vector.reset()  # (N, 3, S, S)
        self.first = torch.ones(num_envs, dtype=torch.bool, device=self.device)  # (N,), first frame of an episode
        self.player = self.evaluated_agent().player(num_envs)

    def iterate(self) -> None:
        """Take one step in every environment, store it, then run the updates that are due."""
        collection, num_envs = self.config.collection, self.vector.num_envs

        # act
        if self.steps < collection.learning_starts:
            action = torch.randint(self.vector.num_actions, (num_envs,), generator=self.acting, device=self.device)
        else:
            action = self.act()
        step = self.vector.step(action)

        # store
        reward, terminated = training_signal(step, collection)
        self.replay.add(
            frames=self.observation, action=action, reward=reward, terminated=terminated, first=self.first
        )  # fmt: skip
        self.observation, self.first = step.observation, step.done
        self.iterations += 1
        self.stats.count_episodes(step)

        # update the world model, then the actor-critic in imagined rollouts
        if self.replay.drawable(self.config.model.batch_length):
            for _ in range(collection.updates("model", self.iterations, self.iterations, num_envs)):
                self.learn_model()
        if self.replay.drawable(self.longest):
            for _ in range(collection.updates("agent", self.iterations, self.iterations, num_envs)):
                self.learn_agent(self.imagine())

    def act(self) -> Tensor:
        """Choose actions (N,) by the policy."""
        return self.player.act(self.observation, self.first, self.acting)

    def learn_model(self) -> None:
        """Draw a batch and update the world model."""
        config, length = self.config.learner, self.config.model.batch_length
        batch = self.replay.windows(self.replay.draw(config.batch_size, length, self.drawing), length)
        noise = self.model.noise((config.batch_size, length), self.dreaming)
        set_learning_rate(self.optimizers[0], config.final_lr_fraction, self.steps / self.config.total_steps)
        metrics = self.execution.learn_model(batch, noise)
        self.updates += 1
        self.stats.count_update(metrics, self.steps)

    def imagine(self) -> Rollouts:
        """Imagine rollouts from windows of the replay, with the schedule's horizon."""
        rows, length = self.config.imagination.num_rollouts, self.context_length
        context = self.replay.windows(self.replay.draw(rows, length, self.drawing), length)
        encoding = self.model.noise((rows, length), self.dreaming)
        noise = Noise.draw(self.model, rows, self.config.horizon.at(self.steps), self.dreaming)
        return self.execution.imagine(context, encoding, noise)

    def learn_agent(self, rollouts: Rollouts) -> None:
        """Update actor and critic from imagined rollouts."""
        fraction = self.config.agent.final_lr_fraction
        set_learning_rate(self.optimizers[1], fraction, self.steps / self.config.total_steps)
        self.stats.agent.count_update(self.execution.learn_agent(rollouts), self.steps)

    @property
    def preparing(self) -> dict[str, int]:
        """Name the phases before updates of both model and agent, and their last steps."""
        starts = self.config.collection.starts
        return {"prefill": starts("model"), "world model": starts("agent")}

    def scalars(self) -> dict[str, float]:
        return super().scalars() | {"charts/horizon": float(self.config.horizon.at(self.steps))}

    def evaluated_agent(self) -> GlamAgent:
        return GlamAgent(self.model, self.agent, self.config, self.steps, self.backend)

    def evaluate(self, final: bool = False, reset_memory: bool = False) -> PolicyScore:
        """Play episodes in the modes of `--policy`."""
        modes = evaluation_modes(self.config.evaluation.policy)
        first, *other = self.evaluation_scores(modes, final, reset_memory).values()
        return PolicyScore(**vars(first), greedy=other[0] if other else None)

    def networks(self) -> dict[str, nn.Module]:
        return {"model": self.model, "agent": self.agent}

    def state_dict(self) -> dict[str, Any]:
        """Return `Trainer`'s state and the number of actions, which `GlamAgent.load` needs."""
        return super().state_dict() | {"actions": self.vector.num_actions}

    @classmethod
    def variant(cls, config: GlamConfig) -> str:
        return f"glam-{config.model.sequence}"


# ---- the world model's losses (the paper's Eq. 8-10 and 12) and update -----------------------------------------------
def model_losses(predicted: GlamPredictions, batch: FrameBatch, config: GlamModelConfig) -> tuple[Tensor, Metrics]:
    """Compute the total loss, a scalar, and its parts: means over the trained positions."""
    positions, pairs = trained_positions(batch.first, config)
    weights, code = config.loss, symlog_code(config.bins)
    logit = upcast(predicted.termination)
    ended = batch.terminated.to(logit.dtype)
    posterior, prior = predicted.posterior[:, 1:], predicted.prior[:, :-1]  # h_t predicts the latent of o_{t+1}
    parts = {
        "reconstruction": reconstruction(predicted.images, predicted.targets).mean(),
        "reward": masked_mean(cross_entropy(predicted.reward, code.encode(batch.reward)), positions),
        "termination": masked_mean(F.binary_cross_entropy_with_logits(logit, ended, reduction="none"), positions),
        "dynamics": floored_kl(posterior.detach(), prior, pairs, weights.free_bits),
        "representation": floored_kl(posterior, prior.detach(), pairs, weights.free_bits),
    }
    if predicted.variation is not None:
        variation = predicted.variation[:, :-1]
        parts["variation"] = floored_kl(predicted.variation_target, variation, pairs, weights.variation_free_bits)
    total = torch.stack([getattr(weights, f"{name}_weight") * part for name, part in parts.items()]).sum()
    metrics = {f"losses/{name}": part.detach() for name, part in parts.items()}
    metrics["losses/kl"] = masked_mean(kl(posterior.detach(), prior.detach()), pairs)
    return total, metrics | {"losses/total": total.detach()}


def trained_positions(first: Tensor, config: GlamModelConfig) -> tuple[Tensor, Tensor]:
    """Mask the positions that train the heads (B, T), and those of them that predict the next latent (B, T - 1).

    The first `burn_in` positions do not train unless an episode began at or before them in this sequence. The last
    frame of an episode does not predict the first frame of the next.
    """
    late = torch.arange(first.shape[1], device=first.device) >= config.burn_in  # (T,)
    if not config.reset_at_episode_start:
        positions = late.expand(first.shape)
        return positions, positions[:, :-1]
    positions = late | (first.cummax(1).values)
    return positions, positions[:, :-1] & ~first[:, 1:]


def reconstruction(images: Tensor, targets: Tensor) -> Tensor:
    """Sum the squared errors of each image, (B, T)."""
    return (upcast(images) - upcast(targets)).square().flatten(2).sum(-1)


def floored_kl(p: Tensor, q: Tensor, mask: Tensor, floor: float) -> Tensor:
    """Compute max(floor, mean KL): the floor of the mean, as released, not of each position."""
    return masked_mean(kl(p, q), mask).clamp(min=floor)


def update_model(
    model: GlamModel, optimizer: torch.optim.Optimizer, config: GlamLearnerConfig, batch: FrameBatch, noise: Tensor
) -> Metrics:
    """Take one gradient step, with uniforms `noise` (B, T, G, C); the model stays in training mode.

    The metrics stay on the device.
    """
    model.train()
    with config.autocast(noise.device):
        total, metrics = model_losses(model.predictions(batch, noise), batch, model.config)
    return metrics | descend(total, model, optimizer, config.max_grad_norm)


# ---- the actor-critic's losses and update (as in STORM: Zhang et al. 2023, section 3.3) ------------------------------
def agent_losses(agent: ActorCritic, rollouts: Rollouts) -> tuple[Tensor, Metrics]:
    """Compute the total loss of actor and critic, means over H x B steps, and its parts.

    -mean(log pi(a) sg((R - V) / max(1, S))) - entropy weight mean(H[pi]) + CE(V, sg(R)) + CE(V, sg(R_slow)): policy
    gradient with baseline, entropy and two cross-entropies. R are the lambda returns of the critic, R_slow those of the
    slow critic (Hafner et al. 2023; STORM, eq. 9 to 11). Updates the averages in S by R.
    """
    config, features = agent.config, rollouts.features()  # (H + 1, B, Z + D)
    logits, value = agent.values(features)
    returns, slow_returns = (
        lambda_return(rollouts.reward, each, rollouts.terminated, config.gamma, config.lam, config.returns)
        for each in (value.detach(), agent.values(features, slow=True)[1])
    )  # (H, B)
    scale = agent.scale.update(returns)
    advantage = (returns - value[:-1].detach()) / scale
    policy = agent.policy(features[:-1])  # (H, B, A)
    chosen = policy.log_softmax(-1).gather(-1, rollouts.action.unsqueeze(-1)).squeeze(-1)
    parts = {
        "losses/actor": -(chosen * advantage).mean(),
        "losses/critic": cross_entropy(logits[:-1], agent.code.encode(returns)).mean(),
        "losses/slow_critic": cross_entropy(logits[:-1], agent.code.encode(slow_returns)).mean(),
    }
    policy_entropy = entropy(policy).mean()
    total = torch.stack(list(parts.values())).sum() - config.entropy_weight * policy_entropy
    extra = {"agent/entropy": policy_entropy, "agent/return": returns.mean(), "agent/return_scale": scale}
    return total, {name: each.detach() for name, each in (parts | extra).items()}


def update_agent(agent: ActorCritic, optimizer: torch.optim.Optimizer, rollouts: Rollouts) -> Metrics:
    """Take one gradient step of actor and critic and move the slow critic; the metrics stay on the device."""
    total, metrics = agent_losses(agent, rollouts)
    norms = descend(total, agent, optimizer, agent.config.max_grad_norm)
    norms["grad/agent_norm"] = norms.pop("grad/norm")  # the world model has the other name
    with torch.no_grad():  # the slow critic is a moving average of the critic
        slow: list[Tensor] = list(agent.slow_critic.parameters())
        torch._foreach_lerp_(slow, list(agent.critic.parameters()), 1 - agent.config.slow_decay)
    return metrics | {"losses/agent": total.detach()} | norms


# ---- optimisers ------------------------------------------------------------------------------------------------------
def descend(total: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> Metrics:
    """Take one gradient step, clipped to a global norm; return the norms before clipping, of all and of each part."""
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    norms = clip(parts_of(module), max_norm)
    optimizer.step()
    return norms


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """List the trained parameters: all but the slow critic and the released code's random projection."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def adam(
    module: nn.Module, config: GlamLearnerConfig | ActorCriticConfig, capturable: bool = False
) -> torch.optim.Adam:
    """Make a fused Adam for `set_learning_rate`; in a CUDA graph its learning rate is a tensor."""
    parameters, rate = trainable(module), config.learning_rate
    lr = torch.tensor(rate, device=parameters[0].device) if capturable else rate
    group = {"params": parameters, "lr": lr, "first_lr": rate}
    return torch.optim.Adam([group], lr=lr, eps=config.epsilon, fused=True, capturable=capturable)


# ---- execution of updates and imagination by an engine ---------------------------------------------------------------
class Execution(NamedTuple):
    """The functions that a training run calls between two steps of its environments."""

    learn_model: Callable[[FrameBatch, Tensor], Metrics]  # batch, uniforms (B, T, G, C) of its latents
    imagine: Callable[[FrameBatch, Tensor, Noise], Rollouts]  # windows of the replay, uniforms of their latents
    learn_agent: Callable[[Rollouts], Metrics]


def make_execution(
    engine: Engine, model: GlamModel, agent: ActorCritic, adams: Sequence[Optimizer], config: GlamLearnerConfig,
    start: StartFrom,
) -> Execution:  # fmt: skip
    """Make the functions of an engine; `cudagraph` needs CUDA and capturable optimisers.

    Captured graphs compute the same as eager execution, as all random numbers are inputs. Imagination and the agent's
    updates have one graph each, of the newest horizon: each graph has its own memory, and a schedule never returns to a
    horizon.
    """

    def imagine_rollouts(windows: FrameBatch, encoding: Tensor, noise: Noise) -> Rollouts:
        with config.autocast(encoding.device):
            context = encode_context(model, windows.frames, windows.action, windows.first, encoding, start)
            return imagine(model, agent.policy, context, noise, model.config.imagination_memory)

    learn_model = partial(update_model, model, adams[0], config)
    learn_agent = partial(update_agent, agent, adams[1])
    if engine == "eager":
        return Execution(learn_model, imagine_rollouts, learn_agent)
    return Execution(
        Captured(learn_model, (model,), adams[:1]),
        Captured(imagine_rollouts, kept=1),
        Captured(learn_agent, (agent,), adams[1:], kept=1),
    )


main = GlamTrainer.main  # starts or resumes a run and trains it to its end

if __name__ == "__main__":
    main()
