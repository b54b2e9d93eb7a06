"""One update of the world model: value targets, losses, gradient step, moving-average target network.

Read `learn` first; it is one update from stored sequences to changed weights. Every function here has static shapes and
copies nothing to the host, so that eager, compiled and graph-captured runs share them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.settings import Engine
from world_models.distributions import cross_entropy, entropy, group_kl
from world_models.unizero.config import GROUP, LearnerConfig, LossConfig
from world_models.unizero.networks import WorldModel
from world_models.unizero.replay import Sequences

Metrics = dict[str, Tensor]
# (observations (B, T, ...), the actions (B, T) that followed, lengths (B,)) -> values (B, T)
ValueFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """B sequences of T environment steps. Padding follows the real steps, which `mask` marks."""

    observation: Tensor  # (B, T, observation), as stored in the replay
    action: Tensor  # (B, T) int64
    reward: Tensor  # (B, T)
    value: Tensor  # (B, T) n-step targets, on the scale of returns
    policy: Tensor  # (B, T, A) visit fractions of the search
    mask: Tensor  # (B, T) bool


Loss = Callable[[WorldModel, Batch, Tensor, LossConfig], tuple[Tensor, Metrics]]


# ---- losses: four, each a mean over real steps (Pu et al. 2024; Table 4 of "Learning to Focus") ----------------------


def losses(model: WorldModel, batch: Batch, target_latent: Tensor, config: LossConfig) -> tuple[Tensor, Metrics]:
    """Compute the total loss, a scalar, and its parts.

    The model is teacher forced: it reads the encoded observations, not its own predictions, and the gradient reaches
    the encoder through these tokens.

    Args:
        model: the world model, in training mode.
        batch: what it is trained on.
        target_latent: (B, T, D), the target encoder's latents of the same observations.
        config: weights of the parts.
    """
    latent = model.encode(batch.observation)  # (B, T, D)
    predicted = model(latent, batch.action, batch.mask.sum(-1))
    code, real = model.code, batch.mask
    parts = {  # the last step has no next latent to be compared with
        "latent": _mean(group_kl(predicted.next_latent[:, :-1], target_latent[:, 1:], GROUP), real[:, 1:]),
        "reward": _mean(cross_entropy(predicted.reward, code.encode(batch.reward)), real),
        "value": _mean(cross_entropy(predicted.value, code.encode(batch.value)), real),
        "policy": _mean(cross_entropy(predicted.policy, batch.policy), real),
        "entropy": _mean(entropy(predicted.policy), real),
    }
    total = (
        config.latent_weight * parts["latent"]
        + config.reward_weight * parts["reward"]
        + config.value_weight * parts["value"]
        + config.policy_weight * parts["policy"]
        - config.entropy_weight * parts["entropy"]
    )
    metrics = {f"losses/{name}": part.detach() for name, part in parts.items()}
    return total, metrics | {"losses/total": total.detach()}


def _mean(x: Tensor, real: Tensor) -> Tensor:
    """Average x (B, T) over the real steps; 0 where there are none."""
    return torch.where(real, x, 0.0).sum() / real.sum().clamp(min=1)


# ---- the update ------------------------------------------------------------------------------------------------------


def learn(
    model: WorldModel, target: WorldModel, optimizer: torch.optim.Optimizer, sequences: Sequences,
    config: LearnerConfig, loss: Loss = losses,
) -> Metrics:  # fmt: skip
    """Update the model on sequences from the replay; the target network supplies the bootstrap values first."""
    with _autocast(sequences.action, config):
        batch = make_batch(sequences, partial(target_values, target), config.gamma, config.n_step)
    return update(model, target, optimizer, batch, config, loss)


def update(
    model: WorldModel, target: WorldModel, optimizer: torch.optim.Optimizer, batch: Batch,
    config: LearnerConfig, loss: Loss = losses,
) -> Metrics:  # fmt: skip
    """Take one gradient step on `model` and move `target` towards it; the metrics stay on the device.

    `loss` computes what `losses` computes, perhaps compiled.
    """
    model.train()
    with _autocast(batch.action, config):
        target_latent = target_latents(target, batch.observation)
        total, metrics = loss(model, batch, target_latent, config.loss)
    penalty = model.regularisation()
    optimizer.zero_grad(set_to_none=True)
    (total + penalty).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm, foreach=True)
    optimizer.step()
    model.project()
    move_target(model, target, config.target_update_rate)
    return metrics | {"losses/regularisation": penalty.detach(), "grad/norm": norm.detach()}


def make_learn(
    engine: Engine, model: WorldModel, target: WorldModel, optimizer: torch.optim.Optimizer, config: LearnerConfig,
    backend: str = "inductor",
) -> Callable[[Sequences], Metrics]:  # fmt: skip
    """Execute `learn` by the chosen engine, as all of them compute it; `cudagraph` needs a capturable optimiser."""
    loss = torch.compile(losses, dynamic=False, backend=backend) if engine == "compile" else losses

    def work(sequences: Sequences) -> Metrics:
        return learn(model, target, optimizer, sequences, config, loss)

    return Captured(work, (model, target), optimizer) if engine == "cudagraph" else work


def _autocast(like: Tensor, config: LearnerConfig) -> torch.autocast:
    return torch.autocast(like.device.type, torch.bfloat16, enabled=config.precision == "bfloat16")


def make_optimizer(model: WorldModel, config: LearnerConfig, capturable: bool = False) -> torch.optim.AdamW:
    """Make AdamW. Tensors of two dimensions or more decay; priors with a learning rate of their own are a group."""
    priors = {id(p) for attention in model.attentions() for p in attention.prior.parameters()}
    apart = priors if config.prior_learning_rate is not None else set()
    own, others = ([p for p in model.parameters() if (id(p) in apart) == inside] for inside in (True, False))
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    if own:
        groups.append({"params": own, "weight_decay": 0.0, "lr": config.prior_learning_rate})
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=config.betas, eps=1e-8, fused=True, capturable=capturable
    )


# ---- the target network ----------------------------------------------------------------------------------------------


def make_target(model: WorldModel) -> WorldModel:
    """Copy the model, buffers included, without gradients."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def move_target(model: nn.Module, target: nn.Module, rate: float) -> None:
    """Move the target's parameters, but not its buffers, towards the model's by `rate`, in place."""
    torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), rate)


@torch.no_grad()
def target_latents(target: WorldModel, observation: Tensor) -> Tensor:
    """Encode (B, T, D) what the predicted next latents are compared with, in training mode.

    Batch normalisation then uses the statistics of this batch, as the online encoder does. The target's running
    statistics are its own; they are not copied from the model.
    """
    target.train()
    return target.encode(observation)


@torch.no_grad()
def target_values(target: WorldModel, observation: Tensor, action: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Estimate values (B, S) of S observations on the scale of returns, in evaluation mode.

    One teacher-forced pass over S <= horizon steps, so the k-th value has k earlier steps as its context.
    """
    target.eval()
    return target.values(target.encode(observation), action, lengths)


# ---- value targets ---------------------------------------------------------------------------------------------------
# UniZero bootstraps every target anew from the target network, in one teacher-forced pass over the T observations that
# begin n' = min(n, max(1, left)) steps after the sequence does.


def make_batch(sequences: Sequences, values: ValueFunction, gamma: float, n: int) -> Batch:
    """Cut stored sequences to T steps and add their value targets."""
    steps = sequences.mask.shape[1]
    bootstrap = bootstrap_values(sequences, n, values).to(torch.promote_types(sequences.reward.dtype, torch.float32))
    return Batch(
        observation=sequences.observation[:, :steps],
        action=sequences.action[:, :steps],
        reward=sequences.reward[:, :steps],
        value=n_step_targets(sequences.reward, bootstrap, sequences.left, sequences.truncated, gamma, n),
        policy=sequences.policy,
        mask=sequences.mask,
    )


def bootstrap_values(sequences: Sequences, n: int, values: ValueFunction) -> Tensor:
    """Estimate values (B, T) of the observations n' .. n' + T - 1 steps after each sequence's first, in one call."""
    steps = sequences.mask.shape[1]
    count = sequences.left.clamp(1, n)  # (B,), the rewards n' that a target sums
    index = count.unsqueeze(1) + torch.arange(steps, device=count.device)  # (B, T), below T + n
    row = torch.arange(len(count), device=count.device).unsqueeze(1)
    available = sequences.left + sequences.truncated  # observations of the episode, a final one included
    real = (available - count).clamp(1, steps)  # at least one, whose value n_step_targets then ignores
    return values(sequences.observation[row, index], sequences.action[row, index], real)


def n_step_targets(reward: Tensor, bootstrap: Tensor, left: Tensor, truncated: Tensor, gamma: float, n: int) -> Tensor:
    """Compute value targets (B, T) on the scale of returns.

    The target of step c sums the rewards of steps c .. c + n' - 1, discounted, and adds gamma^n' times the value after
    them. Behind the last step of an episode rewards and value are 0; but if the episode was truncated, the value of its
    final observation takes their place.

    Args:
        reward: (B, T + n - 1 or more), from the sequence's first step on.
        bootstrap: (B, T), the values of the observations n' and more steps later.
        left: (B,), steps of the episode from the first one on; T + n stands for more than that.
        truncated: (B,) bool, whether the episode was cut and its final observation is known.
        gamma: discount of a step.
        n: steps of reward before the bootstrap.
    """
    steps = bootstrap.shape[1]
    count, left = left.clamp(1, n).unsqueeze(1), left.unsqueeze(1)  # (B, 1)
    index = torch.arange(reward.shape[1], device=reward.device)
    power = torch.arange(n, device=reward.device)
    window = torch.where(index < left, reward, 0.0).unfold(1, n, 1)[:, :steps]  # (B, T, n)
    discount = torch.where(power < count, gamma ** power.to(reward.dtype), 0.0)  # (B, n)
    step = index[:steps]
    final = truncated.unsqueeze(1) & (step < left)
    ahead = count.minimum(left - step).clamp(min=0)  # (B, T): fewer than n' where the episode was cut
    value = bootstrap.gather(1, step.minimum((left - count).clamp(min=0)))
    value = torch.where((step + count < left) | final, value, 0.0)
    return (window * discount.unsqueeze(1)).sum(2) + gamma ** ahead.to(reward.dtype) * value
