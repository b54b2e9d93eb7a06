"""What a world model is trained on: four losses, each a mean over real steps (Pu et al. 2024; the paper's Table 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from world_models.distributions import cross_entropy, entropy, group_kl
from world_models.unizero.config import GROUP
from world_models.unizero.networks import Predictions, WorldModel

Metrics = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """B sequences of T environment steps; real steps come first, and `mask` says which they are."""

    observation: Tensor  # (B, T, observation), as kept in the replay
    action: Tensor  # (B, T) int64
    reward: Tensor  # (B, T)
    value: Tensor  # (B, T) n-step targets, on the scale of returns
    policy: Tensor  # (B, T, A) shares of the search's visits
    mask: Tensor  # (B, T) bool


@dataclass(frozen=True)
class LossConfig:
    """Weights of the losses, as in the paper's Table 4; each loss is a mean over the real steps."""

    latent_weight: float = 10.0
    """Next latent: group KL from the target encoder's."""
    reward_weight: float = 1.0
    """Reward: cross-entropy with its two-hot code."""
    policy_weight: float = 1.0
    """Policy: cross-entropy with the visit shares."""
    value_weight: float = 0.5
    """Value: cross-entropy with the two-hot code of the n-step target."""
    entropy_weight: float = 1e-4
    """Entropy of the policy, which is subtracted."""


def losses(model: WorldModel, batch: Batch, target_latent: Tensor, config: LossConfig) -> tuple[Tensor, Metrics]:
    """Total loss, a scalar, and its parts (device tensors). `target_latent` (B, T, D) is the target encoder's.

    Teacher forced: the gradient reaches the encoder through the tokens.
    """
    latent = model.encode(batch.observation)  # (B, T, D)
    said = model(latent, batch.action, batch.mask.sum(-1))
    return prediction_losses(model, said, batch, target_latent, config)


def prediction_losses(
    model: WorldModel, said: Predictions, batch: Batch, target_latent: Tensor, config: LossConfig
) -> tuple[Tensor, Metrics]:
    """The losses of given predictions. The last step has no next latent to learn from."""
    code, real = model.code, batch.mask
    parts = {
        "latent": _mean(group_kl(said.next_latent[:, :-1], target_latent[:, 1:], GROUP), real[:, 1:]),
        "reward": _mean(cross_entropy(said.reward, code.encode(batch.reward)), real),
        "value": _mean(cross_entropy(said.value, code.encode(batch.value)), real),
        "policy": _mean(cross_entropy(said.policy, batch.policy), real),
        "entropy": _mean(entropy(said.policy), real),
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
    """Mean of x (B, T) over the real steps; 0 where there are none."""
    return torch.where(real, x, 0.0).sum() / real.sum().clamp(min=1)
