"""DTQN's persistent bag (Esslinger et al. 2022): a few steps from before the window, which each of its positions reads.

A network with a bag of N reads [output, attended] in its head, (B, T, 2D). Beyond the network without one it has
4 D^2 + 4 D parameters here, and D for each output of the head's first matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import wide
from dqn_memory.blocks.kernels.operator import without_autocast


@dataclass(frozen=True)
class Bag:
    """Up to N steps of each of B episodes, in no order; what stands at `count` or behind is not read."""

    observation: Tensor  # (B, N, ...)
    previous_action: Tensor  # (B, N), the action that led to each; A where there is none
    count: Tensor  # (B,)

    @property
    def held(self) -> Tensor:
        """Where there is an entry, (B, N)."""
        return torch.arange(self.previous_action.shape[1], device=self.count.device) < self.count.unsqueeze(1)

    def joined(self, observation: Tensor, previous_action: Tensor, leaves: Tensor) -> Bag:
        """Add one step (B, ...), (B,) to the rows where it `leaves` the window: bags of N + 1."""
        rows = torch.arange(len(self.count), device=self.count.device)
        observations = torch.cat([self.observation, self.observation[:, -1:]], 1)
        actions = torch.cat([self.previous_action, self.previous_action[:, -1:]], 1)
        observations[rows, self.count], actions[rows, self.count] = observation, previous_action
        return Bag(observations, actions, self.count + leaves)

    def first(self, rows: int) -> Bag:
        """Give the bags of the first rows."""
        return Bag(self.observation[:rows], self.previous_action[:rows], self.count[:rows])


class BagAttention(nn.Module):
    """Multi-head attention of positions to entries without an order."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_query = nn.Linear(width, width)
        self.project_entries = nn.Linear(width, 2 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor, entries: Tensor, seen: Tensor) -> Tensor:
        """Mix entries (B, N, D) for each of x, (B, T, D) or (B, D); 0 where none is `seen`, (B, N) or (B, T, N)."""
        seen = seen if seen.dim() == 3 else seen.unsqueeze(1)  # (B, 1 or T, N)
        some = seen.any(-1, keepdim=True)
        query = self.project_query(x.reshape(len(x), -1, x.shape[-1])).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.project_entries(entries).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        with without_autocast(x):
            asked, key, value = wide(query, key, value)
            mixed = F.scaled_dot_product_attention(
                asked, key, value,
                attn_mask=(seen | ~some).unsqueeze(1),  # a row that sees none would be not a number
                dropout_p=self.dropout if self.training else 0.0,
            )  # fmt: skip
        attended = self.project_out(mixed.to(query.dtype).transpose(1, 2).flatten(2))
        return (attended * some).reshape(x.shape)
