"""Stacks that read a window of tokens and then one token more: attention under a prior, or a recurrence.

    y, memory = stack.read(x[B, S, D], lengths)     # y (B, D): output at the last real token of each row
    y = stack.extend(memory, new[B, D], lengths)    # y (B, D): output at `new`, placed behind it

Both equal the direct forward pass of the same token list. Nothing is kept between calls: memory is what the
first call computed for the second.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import GATES, Attention, Block
from dqn_memory.blocks.attention import Memory
from dqn_memory.blocks.block import select
from dqn_memory.blocks.feed_forward import FeedForward
from dqn_memory.blocks.lane_gelu import Gelu
from dqn_memory.blocks.recurrence import Recurrence
from world_models.unizero.config import ModelConfig


class AttentionLayer(nn.Module):
    """Pre-LN transformer layer: x = gate(x, Attention(LN x)), then x = gate(x, FeedForward(LN x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, dropout = config.width, config.dropout
        prior = config.prior.build(config.heads, 2 * config.horizon)
        self.attention = Attention(width, config.heads, prior, dropout, config.rotary)
        self.feed_forward = FeedForward(width, 4, dropout, Gelu())
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.gates = nn.ModuleList(GATES[config.gate](width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)  # of the attention's output; the feed-forward block has its own

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, S, D)."""
        return self._leave(x, self.attention(self.norms[0](x), lengths))

    def read(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Memory]:
        """Encode x (B, S, D) and keep its keys and values."""
        y, memory = self.attention.read(self.norms[0](x), lengths)
        return self._leave(x, y), memory

    def read_last(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Memory]:
        """The last real position alone, (B, D), and all keys and values."""
        normed, index = self.norms[0](x), lengths - 1
        memory = self.attention.remember(normed)
        y = self.attention.look(select(normed, index), memory, lengths, index)
        return self._leave(select(x, index)[:, None], y[:, None])[:, 0], memory

    def extend(self, x: Tensor, memory: Memory, index: Tensor) -> Tensor:
        """One more position x (B, D) at `index` (B,) against keys and values of S positions, one of them free."""
        y = self.attention.append(self.norms[0](x), memory, index)
        return self._leave(x[:, None], y[:, None])[:, 0]

    def _leave(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.gates[0](x, self.dropout(y))
        return self.gates[1](x, self.feed_forward(self.norms[1](x)))


class AttentionStack(nn.Module):
    """Transformer layers and a last LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AttentionLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    @property
    def causal(self) -> bool:
        """As the prior says."""
        return all(layer.attention.causal for layer in self.attention_layers())

    def attention_layers(self) -> list[AttentionLayer]:
        """The layers, typed."""
        return cast(list[AttentionLayer], list(self.layers))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, S, D)."""
        for layer in self.layers:
            x = layer(x, lengths)
        return self.norm(x)

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Output at the last real token, (B, D)."""
        return self.read(x, lengths)[0]

    def read(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Any]:
        """See the module."""
        tokens, memories = x, []
        for layer in self.attention_layers()[:-1]:
            x, memory = layer.read(x, lengths)
            memories.append(memory)
        y, memory = self.attention_layers()[-1].read_last(x, lengths)
        return self.norm(y), [*memories, memory] if self.causal else tokens

    def extend(self, memory: Any, new: Tensor, lengths: Tensor) -> Tensor:
        """See the module. Where tokens see later ones, the new token changes the old ones' encodings too."""
        if not self.causal:
            return self.last(place(F.pad(memory, (0, 0, 0, 1)), new, lengths), lengths + 1)
        for layer, (key, value) in zip(self.attention_layers(), memory, strict=True):
            room = (F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1)))  # (B, H, S+1, hd)
            new = layer.extend(new, room, lengths)
        return self.norm(new)


class RecurrentLayer(nn.Module):
    """x = x + GRU(LN x), then x = x + FeedForward(LN x)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.memory = Recurrence("gru", config.width, config.dropout)
        self.feed_forward = FeedForward(config.width, 4, config.dropout, Gelu())
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.gates = nn.ModuleList(GATES[config.gate](config.width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Encode x (B, S, D)."""
        return self._leave(x, self.memory(self.norms[0](x)))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position x (B, D) from state (B, D)."""
        never = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        y, (state,) = self.memory.step(self.norms[0](x), (state,), never)
        return self._leave(x[:, None], y[:, None])[:, 0], state

    def _leave(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.gates[0](x, y)
        return self.gates[1](x, self.feed_forward(self.norms[1](x)))


class RecurrentStack(nn.Module):
    """Recurrent layers and a last LayerNorm, in the place of the transformer."""

    causal = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RecurrentLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, S, D)."""
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Output at the last real token, (B, D)."""
        return select(self(x), lengths - 1)

    def read(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Any]:
        """See the module; the loop over tokens is the recurrence itself."""
        states = [torch.zeros_like(x[:, 0]) for _ in self.layers]
        y = torch.zeros_like(x[:, 0])
        for place_now, token in enumerate(x.unbind(1)):
            now, after = self._step(token, states)
            real = (place_now < lengths)[:, None]
            states = [torch.where(real, new, old) for new, old in zip(after, states, strict=True)]
            y = torch.where(real, now, y)
        return y, states

    def extend(self, memory: Any, new: Tensor, lengths: Tensor) -> Tensor:
        """See the module."""
        return self._step(new, memory)[0]

    def _step(self, x: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        after = []
        for layer, state in zip(cast(list[RecurrentLayer], list(self.layers)), states, strict=True):
            x, state = layer.step(x, state)
            after.append(state)
        return self.norm(x), after


class FeedForwardStack(nn.Module):
    """Residual position-wise layers and a last LayerNorm: MuZero's dynamics, which have no memory."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        blocks: list[Block] = [FeedForward(config.width, 4, config.dropout, Gelu()) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in blocks)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (B, D)."""
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + block(norm(x)[:, None])[:, 0]
        return self.norm(x)


def place(x: Tensor, new: Tensor, index: Tensor) -> Tensor:
    """Tokens x (B, S, D) with position `index` (B,) of each row replaced by new (B, D)."""
    here = torch.arange(x.shape[1], device=x.device) == index[:, None]  # (B, S)
    return torch.where(here[..., None], new[:, None], x)
