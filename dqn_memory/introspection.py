"""What a network looks at and leans on: attention maps, sensitivity of a decision, and hindsight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from dqn_memory.acting import ActingMode
from dqn_memory.blocks import EncoderLayer, Sublayer
from dqn_memory.networks import QNetwork


@dataclass(frozen=True)
class Hindsight:
    """How much Q inside a window differs from Q of the prefix that acting would see there (dimension of Q).

    The last position has no future and is not counted; all are 0 for a causal network, but for rounding.
    """

    positions: int  # those that have a future inside the window
    gap: float  # mean |Q_j(window) - Q_j(prefix)| over positions and actions
    largest: float
    flips: float  # share of positions whose greedy action differs
    spread: float  # standard deviation of the prefix Q-values, for scale


@torch.no_grad()
def attention_maps(network: QNetwork, observation: Tensor, previous_action: Tensor) -> dict[int, Tensor]:
    """Attention maps of one window (T, ...) by layer number, each (H, T, T); layers without attention are left out."""
    x = network.positions(network.embed(observation[None], previous_action[None]))  # (1, T, D)
    maps = {}
    for place, layer in enumerate(network.layers):
        if isinstance(layer, EncoderLayer) and layer.attention is not None:
            first = cast(Sublayer, layer.sublayers[0])
            maps[place] = layer.attention.weights(first._enter(x))[0]  # in identity order it reads LN(x)
        x = layer(x, None)
    return maps


def sensitivity(network: QNetwork, observation: Tensor, previous_action: Tensor) -> Tensor:
    """Share of each step of a window (T, ...) in its last decision, (T,), summing to 1.

    The norm of the gradient of Q(best) - Q(second best) at the last step with respect to each step's embedding:
    unlike attention it sees what recurrence carries too.
    """
    with torch.enable_grad():
        inputs = network.embed(observation[None], previous_action[None]).detach().requires_grad_()
        x = network.positions(inputs)
        for layer in network.layers:
            x = layer(x, None)
        best = network.head(network.norm(x)[0, -1]).topk(min(2, network.num_actions)).values  # (2,)
        (gradient,) = torch.autograd.grad(best[0] - best[1:].sum(), inputs)
    norm = gradient[0].norm(dim=-1)  # (T,)
    return norm / norm.sum().clamp(min=1e-12)


@torch.no_grad()
def hindsight(
    network: QNetwork, observation: Tensor, previous_action: Tensor, acting: ActingMode = "prefix"
) -> Hindsight:
    """Compare Q at each position of one window (T, ...) with Q of the prefix that ends there (Hindsight)."""
    inside = network(observation[None], previous_action[None])[0]  # (T, A)
    alone = prefix_q_values(network, observation, previous_action, acting)  # (T, A)
    difference = (inside - alone)[:-1].abs()  # (T - 1, A)
    positions = len(difference)
    if positions == 0:
        return Hindsight(0, 0.0, 0.0, 0.0, 0.0)
    flips = (inside.argmax(-1) != alone.argmax(-1))[:-1].double().mean()
    return Hindsight(
        positions=positions,
        gap=float(difference.mean()),
        largest=float(difference.max()),
        flips=float(flips),
        spread=float(alone[:-1].std(correction=0)),
    )


@torch.no_grad()
def prefix_q_values(
    network: QNetwork, observation: Tensor, previous_action: Tensor, acting: ActingMode = "prefix"
) -> Tensor:
    """Q at the end of every prefix of a window (T, ...), as acting computes it, (T, A).

    `padded` acting feeds K observations and no lengths, so the padding behind the prefix is seen.
    """
    length, spec = len(observation), network.spec
    width = network.config.context if acting == "padded" else length
    end = torch.arange(length, device=observation.device)
    real = torch.arange(width, device=observation.device) <= end.unsqueeze(1)  # (T, S)
    wide = real.reshape(*real.shape, *[1] * len(spec.shape))
    padded = torch.full((width, *spec.shape), spec.padding, dtype=observation.dtype, device=end.device)
    padded[:length] = observation
    actions = torch.full((width,), network.num_actions, device=end.device)
    actions[:length] = previous_action
    windows = torch.where(wide, padded, spec.padding).to(observation.dtype)  # (T, S, ...)
    previous = torch.where(real, actions, network.num_actions)  # (T, S)
    return network.at(windows, previous, None if acting == "padded" else end + 1, end)
