"""Stacks of layers: they read training sequences, and in a search a trunk of tokens with branches after it.

    y = stack(x[B, S, D])                                            # y (B, S, D)
    y, memory = stack.read(trunk[B, S, D], new[B, K, D], index[B])   # y (B, K, D): outputs at `new`
    y = stack.extend(memory, following[B, K, D])                     # y (B, K, D): outputs one token further

A row's trunk is its first `index` tokens; each of its K branches places one token after it, then one more, and sees
no other branch. Both equal the direct forward pass of each branch's token list. Nothing is kept between expansions:
memory is what `read` computed for `extend`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import GATES, Attention, Block
from dqn_memory.blocks.attention import KeysValues
from dqn_memory.blocks.block import select
from dqn_memory.blocks.feed_forward import FeedForward, Gelu
from dqn_memory.blocks.recurrence import Recurrence
from world_models.unizero.branches import Columns, Reach, attend
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

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Compute the last real position alone, (B, D)."""
        y, index = self.attention(self.norms[0](x), lengths), lengths - 1
        return self._leave(select(x, index)[:, None], select(y, index)[:, None])[:, 0]

    def branch(self, x: Tensor, memory: KeysValues | None, reach: Reach, queries: int) -> tuple[Tensor, KeysValues]:
        """Compute the last Q of the new columns x (B, N, D), (B, Q, D), and keys and values: see `branches`."""
        y, memory = attend(self.attention, self.norms[0](x), memory, reach, queries)
        return self._leave(x[:, -queries:], y), memory

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
        """Tell whether no token sees a later one, which depends on the prior."""
        return all(layer.attention.causal for layer in self.attention_layers())

    def attention_layers(self) -> list[AttentionLayer]:
        """List the layers, with their type."""
        return cast(list[AttentionLayer], list(self.layers))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, S, D)."""
        for layer in self.layers:
            x = layer(x, lengths)
        return self.norm(x)

    def read(self, trunk: Tensor, new: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Compute the outputs of K branches at one token after the trunk, and the memory for `extend`."""
        branches = new.shape[1]
        if not self.causal:
            tokens = trunk.repeat_interleave(branches, 0)  # (B K, S, D)
            return self._reread(tokens, new, index)
        columns = Columns.trunk(trunk.shape[1], index).grow(index, branches)
        x, reach, memories = torch.cat((trunk, new), 1), columns.reach(trunk.shape[1] + branches), []
        for layer in self.attention_layers():
            queries = branches if layer is self.layers[-1] else x.shape[1]
            x, memory = layer.branch(x, None, reach, queries)
            memories.append(memory)
        return self.norm(x), (columns, index, memories)

    def extend(self, memory: Any, following: Tensor) -> Tensor:
        """Compute the outputs one token further in each branch."""
        known, index, memories = memory
        branches = following.shape[1]
        if not self.causal:
            return self._reread(known, following, index + 1)[0]
        reach = known.grow(index + 1, branches).reach(branches)
        for layer, held in zip(self.attention_layers(), memories, strict=True):
            following, _ = layer.branch(following, held, reach, branches)
        return self.norm(following)

    def _reread(self, tokens: Tensor, new: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Encode each branch as a row of its own.

        Needed where tokens see later ones: there a new token changes the encodings of the old ones too.
        """
        branches = new.shape[1]
        end = index.repeat_interleave(branches)  # (B K,)
        x = tokens = place(F.pad(tokens, (0, 0, 0, 1)), new.flatten(0, 1), end)
        *first, last = self.attention_layers()
        for layer in first:
            x = layer(x, end + 1)
        return self.norm(last.last(x, end + 1)).view_as(new), (tokens, index, None)


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
        """Encode one position x (B, D) from state (B, D); returns the new state too."""
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

    def read(self, trunk: Tensor, new: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Compute the outputs of K branches at one token after the trunk, and their states; a loop over tokens."""
        states = [torch.zeros_like(trunk[:, 0]) for _ in self.layers]
        for position, token in enumerate(trunk.unbind(1)):
            real = (position < index)[:, None]
            after = self._step(token, states)[1]
            states = [torch.where(real, now, old) for now, old in zip(after, states, strict=True)]
        return self._branch(new, [state.repeat_interleave(new.shape[1], 0) for state in states])

    def extend(self, memory: Any, following: Tensor) -> Tensor:
        """Compute the outputs one token further in each branch."""
        return self._branch(following, memory)[0]

    def _branch(self, new: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Take a step in every branch: new (B, K, D) from states (B K, D)."""
        y, after = self._step(new.flatten(0, 1), states)
        return y.view_as(new), after

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
    """Replace position `index` (B,) in each row of tokens x (B, S, D) by new (B, D)."""
    here = torch.arange(x.shape[1], device=x.device) == index[:, None]  # (B, S)
    return torch.where(here[..., None], new[:, None], x)
