"""The world model's update: losses (the paper's Eq. 8-10 and 12), gradient, optimiser step."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from world_models.distributions import cross_entropy, masked_mean, symlog_code, upcast
from world_models.glam.config import ActorCriticConfig, GlamLearnerConfig, GlamModelConfig
from world_models.glam.model import GlamModel, GlamPredictions
from world_models.glam.replay import FrameBatch

Metrics = dict[str, Tensor]


def update(
    model: GlamModel, optimizer: torch.optim.Optimizer, config: GlamLearnerConfig, batch: FrameBatch, noise: Tensor
) -> Metrics:
    """Take one gradient step, with uniforms `noise` (B, T, G, C); metrics stay on the device.

    The model is left in training mode.
    """
    model.train()
    with config.autocast(noise.device):
        total, metrics = losses(model.predictions(batch, noise), batch, model.config)
    return metrics | {"grad/norm": descend(total, model, optimizer, config.max_grad_norm)}


def descend(total: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
    """Take one step down the gradient of a loss, clipped to a global norm; return the norm before that."""
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    norm = nn.utils.clip_grad_norm_(trainable(module), max_norm, foreach=True)
    optimizer.step()
    return norm.detach()


def losses(predicted: GlamPredictions, batch: FrameBatch, config: GlamModelConfig) -> tuple[Tensor, Metrics]:
    """Compute the total loss, a scalar, and its parts; all are means over the positions that train."""
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
    if predicted.variation is not None and predicted.variation_target is not None:
        variation = predicted.variation[:, :-1]
        parts["variation"] = floored_kl(predicted.variation_target, variation, pairs, weights.variation_free_bits)
    total = torch.stack([getattr(weights, f"{name}_weight") * part for name, part in parts.items()]).sum()
    metrics = {f"losses/{name}": part.detach() for name, part in parts.items()}
    metrics["losses/kl"] = masked_mean(kl(posterior.detach(), prior.detach()), pairs)
    return total, metrics | {"losses/total": total.detach()}


def trained_positions(first: Tensor, config: GlamModelConfig) -> tuple[Tensor, Tensor]:
    """Find the positions that train the heads (B, T), and those of them that predict the next latent (B, T - 1).

    The first `burn_in` positions do not train, unless an episode began at or before them in this sequence. The last
    frame of an episode predicts nothing about the first frame of the next one.
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


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Compute the KL in nats, summed over the categoricals, of log-probabilities (..., G, C): (...)."""
    return (p.exp() * (p - q)).sum((-2, -1))


def floored_kl(p: Tensor, q: Tensor, mask: Tensor, floor: float) -> Tensor:
    """Compute max(floor, mean KL): the maximum of the mean, as released, not of each position."""
    return masked_mean(kl(p, q), mask).clamp(min=floor)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """List the parameters that learn: all but the slow critic and the released code's random projection."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def adam(
    module: nn.Module, config: GlamLearnerConfig | ActorCriticConfig, capturable: bool = False
) -> torch.optim.Adam:
    """Make a fused Adam whose learning rate `set_learning_rate` can change; a tensor where a CUDA graph captures it."""
    parameters, rate = trainable(module), config.learning_rate
    lr = torch.tensor(rate, device=parameters[0].device) if capturable else rate
    group = {"params": parameters, "lr": lr, "first_lr": rate}
    return torch.optim.Adam([group], lr=lr, eps=config.epsilon, fused=True, capturable=capturable)
