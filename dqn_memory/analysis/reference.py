"""The yardstick of the benchmark: the published update as its reference computes it, written from its description.

Nothing here is used to train. Attention is `nn.MultiheadAttention` with its weights materialised and an additive
causal mask; every update runs three full forwards, an unmasked squared error, and an unfused Adam (DTQN,
Esslinger et al. 2022; DBGFQN: the feed-forward sublayer replaced by a bidirectional GRU).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dqn_memory.replay import WindowBatch

Memory = Literal["feedforward", "bigru"]


@dataclass(frozen=True)
class BaselineConfig:
    """Sizes of one network."""

    width: int
    """Model width D."""
    num_actions: int
    """Actions A."""
    components: int
    """Numbers d in one observation."""
    vocabulary: int
    """Tokens V of a discrete observation, padding included; 0 for real-valued ones."""
    memory: Memory = "feedforward"
    """Second sublayer: feed-forward of 4 D, or a bidirectional GRU of D/2 a direction."""
    heads: int = 8
    """Attention heads H."""
    layers: int = 2
    """Encoder layers."""
    context: int = 50
    """Context length K."""

    def build(self) -> BaselineNetwork:
        """Build a network with PyTorch's own initial values; copy weights into it with `copy_weights`."""
        return BaselineNetwork(self)


@dataclass
class BaselineBatch:
    """B pairs of windows, the second one step later."""

    observation: Tensor  # (B, T, d)
    next_observation: Tensor  # (B, T, d)
    action: Tensor  # (B, T) int64
    reward: Tensor  # (B, T)
    done: Tensor  # (B, T) bool


def baseline_batch(batch: WindowBatch, padding: float) -> BaselineBatch:
    """Split windows of K + 1 observations into two windows of K: the first one's own, and those one step later."""
    observation = batch.observation
    observation = observation if observation.is_floating_point() else observation.long()
    real = torch.arange(batch.action.shape[1]) < batch.lengths[:, None]  # (B, T)
    return BaselineBatch(
        observation[:, :-1].masked_fill(~real[..., None], padding), observation[:, 1:].contiguous(),
        batch.action, batch.reward, batch.terminated,
    )  # fmt: skip


class BaselineLayer(nn.Module):
    """x <- LN(x + relu(attention x)); x <- LN(x + relu(memory x))."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        width = config.width
        self.attention = nn.MultiheadAttention(width, config.heads, batch_first=True)
        self.norm_attention, self.norm_memory = nn.LayerNorm(width), nn.LayerNorm(width)
        self.memory: nn.Module = (
            nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
            if config.memory == "bigru"
            else nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode x (B, T, D) under an additive mask (T, T)."""
        mixed, _ = self.attention(x, x, x, attn_mask=mask, need_weights=True)
        x = self.norm_attention(x + F.relu(mixed))
        y = self.memory(x)
        return self.norm_memory(x + F.relu(y[0] if isinstance(y, tuple) else y))


class BaselineNetwork(nn.Module):
    """Q-values (B, T, A) of observations (B, T, d)."""

    mask: Tensor  # (K, K)

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        width, self.discrete = config.width, config.vocabulary > 0
        self.table = nn.Embedding(config.vocabulary, 8) if self.discrete else nn.Identity()
        self.embed = nn.Linear(config.components * (8 if self.discrete else 1), width)
        self.positions = nn.Parameter(torch.zeros(1, config.context, width))
        self.layers = nn.ModuleList(BaselineLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, config.num_actions))
        mask = torch.full((config.context, config.context), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        """Every position of every window."""
        time = observation.shape[1]
        tokens = self.table(observation).flatten(2) if self.discrete else observation
        x = self.embed(tokens) + self.positions[:, :time]  # (B, T, D)
        for layer in self.layers:
            x = layer(x, self.mask[:time, :time])
        return self.head(self.norm(x))  # (B, T, A)


def baseline_loss(
    network: BaselineNetwork, target: BaselineNetwork, batch: BaselineBatch, gamma: float = 0.99
) -> Tensor:
    """Mean squared error over all positions, padding too; the target is read from the window one step later."""
    chosen = network(batch.observation).gather(2, batch.action.unsqueeze(2)).squeeze(2)  # (B, T)
    with torch.no_grad():
        best = network(batch.next_observation).argmax(2, keepdim=True)  # (B, T, 1)
        value = target(batch.next_observation).gather(2, best).squeeze(2)
        goal = batch.reward + gamma * (1 - batch.done.float()) * value
    return F.mse_loss(chosen, goal)


def baseline_optimizer(network: nn.Module) -> torch.optim.Adam:
    """Adam, one parameter and one operation at a time."""
    return torch.optim.Adam(network.parameters(), lr=3e-4, foreach=False, fused=False)


def baseline_update(
    network: BaselineNetwork,
    target: BaselineNetwork,
    optimizer: torch.optim.Optimizer,
    batch: BaselineBatch,
) -> Tensor:
    """One gradient step; returns the loss."""
    loss = baseline_loss(network, target, batch)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    return loss.detach()


def pairs(baseline: BaselineNetwork, ours: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """Parameters of the baseline beside those of a Q-network of the same sizes.

    Both are registered in the order in which data meets them, with one exception: a layer of ours keeps each
    LayerNorm beside its sublayer, so a layer is matched sublayer by sublayer.
    """
    theirs = _ordered(baseline)
    mine = list(ours.parameters())
    for left, right in zip(theirs, mine, strict=True):
        if left.numel() != right.numel():
            raise ValueError(f"baseline has {tuple(left.shape)} where the network has {tuple(right.shape)}")
        yield left, right


@torch.no_grad()
def copy_weights(ours: nn.Module, baseline: BaselineNetwork) -> None:
    """Give the baseline the weights of a Q-network of the same sizes."""
    for left, right in pairs(baseline, ours):
        left.copy_(right.view_as(left))


def _ordered(network: BaselineNetwork) -> list[nn.Parameter]:
    """List the baseline's parameters in the order of a Q-network's registration."""
    ordered = [*network.table.parameters(), *network.embed.parameters(), network.positions]
    for layer in network.layers:
        assert isinstance(layer, BaselineLayer)
        ordered += [*layer.attention.parameters(), *layer.norm_attention.parameters()]
        ordered += [*layer.memory.parameters(), *layer.norm_memory.parameters()]
    return [*ordered, *network.norm.parameters(), *network.head.parameters()]
