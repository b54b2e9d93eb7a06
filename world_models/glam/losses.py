"""What the world model is trained on (Eq. 8-10 and 12), as means over the positions that train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from world_models.distributions import SymlogCode, cross_entropy, wide
from world_models.glam.config import LossConfig, ModelConfig

Metrics = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """B sequences of T environment steps: a frame, the action taken at it, and what followed."""

    frames: Tensor  # (B, T, 3, S, S) uint8
    action: Tensor  # (B, T) int64
    reward: Tensor  # (B, T) float32
    terminated: Tensor  # (B, T) bool, by that action
    first: Tensor  # (B, T) bool, True where the frame opens an episode


@dataclass(frozen=True)
class Predictions:
    """Everything that the losses compare, in log-probabilities (B, T, G, C) where nothing else is said."""

    images: Tensor  # (B, T, 3, S, S) decoded
    targets: Tensor  # (B, T, 3, S, S) in [0, 1]
    posterior: Tensor
    prior: Tensor  # of the next latent
    reward: Tensor  # (B, T, R) logits
    termination: Tensor  # (B, T) logits
    variation: Tensor | None  # of the next latent, or of what the target is; None in forms that predict none
    variation_target: Tensor | None  # (B, T - 1, G, C), stopped


def losses(said: Predictions, batch: Batch, config: ModelConfig) -> tuple[Tensor, Metrics]:
    """Total loss, a scalar, and its parts (device tensors)."""
    here, pairs = trained(batch.first, config)
    weights, code = config.loss, SymlogCode(bins=config.bins)
    target, prior = said.posterior[:, 1:], said.prior[:, :-1]  # h_t says what o_{t+1} will be
    parts = {
        "reconstruction": reconstruction(said.images, said.targets, weights.reconstruction).mean(),
        "reward": mean(cross_entropy(said.reward, code.encode(batch.reward)), here),
        "termination": mean(termination_loss(said.termination, batch.terminated), here),
        "dynamics": floored_kl(target.detach(), prior, pairs, weights.free_bits),
        "representation": floored_kl(target, prior.detach(), pairs, weights.free_bits),
    }
    if said.variation is not None and said.variation_target is not None:
        variation = said.variation[:, :-1]
        parts["variation"] = floored_kl(said.variation_target, variation, pairs, weights.variation_free_bits)
    total = torch.stack([weight_of(weights, name) * part for name, part in parts.items()]).sum()
    metrics = {f"losses/{name}": part.detach() for name, part in parts.items()}
    metrics["losses/kl"] = mean(kl(target.detach(), prior.detach()), pairs)
    return total, metrics | {"losses/total": total.detach()}


def trained(first: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Which positions train the heads (B, T), and which of them know their successor's latent (B, T - 1).

    The first `burn_in` positions do not, unless an episode opened at or before them in this very sequence; and what
    an episode ends with says nothing about the frame that opens the next.
    """
    late = torch.arange(first.shape[1], device=first.device) >= config.burn_in  # (T,)
    if not config.reset_at_episode_start:
        here = late.expand(first.shape)
        return here, here[:, :-1]
    here = late | (first.cummax(1).values)
    return here, here[:, :-1] & ~first[:, 1:]


def reconstruction(images: Tensor, targets: Tensor, form: str) -> Tensor:
    """Error of each image, (B, T): the sum of squares, or its root."""
    squares = (wide(images) - wide(targets)).square().flatten(2).sum(-1)
    return squares if form == "squared" else squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()


def termination_loss(logit: Tensor, terminated: Tensor) -> Tensor:
    """Binary cross-entropy (B, T)."""
    logit = wide(logit)
    return F.binary_cross_entropy_with_logits(logit, terminated.to(logit.dtype), reduction="none")


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL in nats, summed over the categoricals, of log-probabilities (..., G, C): (...)."""
    return (p.exp() * (p - q)).sum((-2, -1))


def floored_kl(p: Tensor, q: Tensor, mask: Tensor, floor: float) -> Tensor:
    """max(floor, mean KL): the maximum is taken of the mean, as released, not of every position."""
    return mean(kl(p, q), mask).clamp(min=floor)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of x (B, T) where the mask holds; 0 where it never does."""
    return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)


def weight_of(weights: LossConfig, name: str) -> float:
    """The factor of the part called `name`."""
    factor: float = getattr(weights, f"{name}_weight")
    return factor
