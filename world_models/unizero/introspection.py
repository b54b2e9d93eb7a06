"""What a world model attends to: its maps over a window of tokens, and the strongest link in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from world_models.unizero.config import ModelConfig
from world_models.unizero.dynamics import TokenDynamics
from world_models.unizero.layers import AttentionStack
from world_models.unizero.networks import WorldModel

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Link:
    """One query token and one key token of a window z_0 a_0 z_1 a_1 ..., and how much weight one gives the other."""

    layer: int
    head: int
    query: int
    key: int
    weight: float
    lift: float  # weight times the number of visible keys: how many times an even share it is


@torch.no_grad()
def attention_maps(model: WorldModel, latent: Tensor, action: Tensor) -> Array:
    """Maps (L, H, 2T, 2T) of a window of T <= horizon steps of latents (T, D) and actions (T,): rows are queries.

    Tokens are z_0 a_0 z_1 a_1 ..., as in a training sequence. L is 0 where the dynamics have no attention.
    """
    dynamics = model.dynamics
    if not isinstance(dynamics, TokenDynamics) or not isinstance(dynamics.stack, AttentionStack):
        return np.zeros((0, 0, 2 * len(action), 2 * len(action)))
    device = dynamics.embedding.weight.device
    x, maps = dynamics.embed(dynamics.tokens(latent[None].to(device), action[None].to(device))), []
    for layer in dynamics.stack.attention_layers():
        maps.append(layer.attention.weights(layer.norms[0](x))[0])
        x = layer(x)
    return torch.stack(maps).double().cpu().numpy()


def strongest_link(maps: Array, causal: bool, layer: int | None = None, head: int | None = None) -> Link | None:
    """The link between two different steps that is largest against an even share, in all maps or some of them.

    Early queries see few keys and give each much weight, so the weight itself would always choose those. None where
    no head looks beyond its own step.
    """
    layers, heads, tokens, _ = maps.shape
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and count == 0:
            raise UserError(f"--{name} {number}: the model's dynamics have no attention")
        if number is not None and not 0 <= number < count:
            raise UserError(f"--{name} {number} is not within 0 .. {count - 1}, the {name}s of the model's attention")
    place = np.arange(tokens)
    visible = place + 1 if causal else np.full(tokens, tokens)
    lift = maps * visible[:, None] * (place[:, None] // 2 != place // 2)  # (L, H, S, S)
    wanted = np.zeros((layers, heads), bool)
    wanted[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
    lift = lift * wanted[:, :, None, None]
    if not lift.size or lift.max() == 0:
        return None
    where = np.unravel_index(lift.argmax(), lift.shape)
    layer, head, query, key = (int(i) for i in where)
    return Link(layer, head, query, key, weight=float(maps[where]), lift=float(lift[where]))


def learned_values(model: WorldModel) -> dict[str, Array]:
    """What the priors have learned, among mu, sigma and span: (L, H) each, in tokens."""
    layers = [attention.prior.learned() for attention in model.attentions()]
    names = layers[0] if layers else {}
    return {name: torch.stack([layer[name] for layer in layers]).detach().double().cpu().numpy() for name in names}


def first_values(config: ModelConfig) -> dict[str, float]:
    """Where each of them started, the same in every head."""
    if config.dynamics != "transformer":
        return {}
    fresh = config.prior.build(config.heads, 2 * config.horizon)
    return {name: float(values.detach()[0]) for name, values in fresh.learned().items()}


@torch.no_grad()
def prior_tables(model: WorldModel) -> tuple[dict[str, Array], str]:
    """Each layer's prior by distance in tokens, (H, 2T), and what the numbers are; empty for plain causal attention."""
    tables, meaning = {}, ""
    for number, attention in enumerate(model.attentions()):
        scale, bias = attention.prior.tables(2 * model.config.horizon)
        if bias is not None:
            tables[f"layer {number}"], meaning = bias.exp().double().cpu().numpy(), "prior weight"
        elif scale is not None:
            tables[f"layer {number}"], meaning = scale.double().cpu().numpy(), "factor on the scores"
    return tables, meaning
