"""A causal Transformer over sequences that hold several episodes, one position at a time or many."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import State
from dqn_memory.blocks.feed_forward import FeedForward
from dqn_memory.blocks.positions import rotate
from world_models.glam.mamba_layers import EPSILON


class EpisodeAttention(nn.Module):
    """Attention to at most `memory` positions of the same episode, the current one included.

    Rotary positions: only distances count, so that the keys and values that are carried need no first row (STORM adds
    learned positions, which end with its training sequence).
    """

    def __init__(self, width: int, heads: int, memory: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.memory, self.dropout = heads, memory, dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Keys and values, (B, H, memory - 1, hd) each."""
        shape = batch, self.heads, self.memory - 1, self.project_out.in_features // self.heads
        return like.new_zeros(shape), like.new_zeros(shape)

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Outputs (B, T, D) of x (B, T, D) behind `state`; a position sees no more than `age` (B, T) before it."""
        query, key, value = self.project_in(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keys = torch.cat([state[0].to(key.dtype), key], 2)  # (B, H, S, hd), not yet turned
        values = torch.cat([state[1].to(value.dtype), value], 2)
        place = torch.arange(keys.shape[2], device=x.device)  # (S,)
        here = place[self.memory - 1 :]  # (T,)
        distance = here[:, None] - place  # (T, S)
        seen = (distance >= 0) & (distance <= age.clamp(max=self.memory - 1)[..., None])  # (B, T, S)
        mixed = F.scaled_dot_product_attention(
            rotate(query, here), rotate(keys, place), values, attn_mask=seen[:, None],
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip
        first = keys.shape[2] - self.memory + 1
        return self.project_out(mixed.transpose(1, 2).flatten(2)), (keys[:, :, first:], values[:, :, first:])


class TransformerLayer(nn.Module):
    """LayerNorm behind each of two residual sums: attention, then a feed-forward of twice the width."""

    def __init__(self, width: int, heads: int, memory: int, dropout: float) -> None:
        super().__init__()
        self.attention = EpisodeAttention(width, heads, memory, dropout)
        self.feed_forward = FeedForward(width, 2, dropout)
        self.dropout = nn.Dropout(dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=EPSILON) for _ in range(2))

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """As EpisodeAttention."""
        mixed, state = self.attention(x, age, state)
        x = self.norms[0](x + self.dropout(mixed))
        return self.norms[1](x + self.feed_forward(x)), state
