"""Stacks of layers that read training sequences, or, in a search, a trunk of tokens with branches after it.

    y = stack(x[B, S, D])                                            # y (B, S, D)
    y, memory = stack.read(trunk[B, S, D], new[B, K, D], index[B])   # y (B, K, D): outputs at `new`
    y = stack.extend(memory, next_token[B, K, D])                     # y (B, K, D): outputs one token further

A row's trunk is its first `index` tokens. Each of its K branches adds one token after it, then one more, and sees no
other branch. The outputs equal the forward pass of each branch's tokens alone. `memory` passes intermediate results
from `read` to `extend`; nothing is stored between expansions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import Attention, Block
from dqn_memory.blocks.attention import KeysValues
from dqn_memory.blocks.block import select
from dqn_memory.blocks.feed_forward import FeedForward, Gelu
from dqn_memory.blocks.recurrence import Recurrence
from world_models.unizero.config import UniZeroModelConfig

# ---- a trunk of tokens and the branches after it ---------------------------------------------------------------------
# A search evaluates all actions of a node at once and reads the tokens before them once. The trunk's S tokens are
# left-aligned in columns 0 .. S-1. Each round of K branches adds K columns: one token a branch, at the same position.
# Masks decide which tokens see each other, so that one pass serves trunk and branches (like tree attention in
# speculative decoding). The prior must be causal.
TRUNK, PADDING = -1, -2


class TokenColumns(NamedTuple):
    """Positions of the tokens of each row in T columns: S of the trunk and K of each round so far."""

    position: Tensor  # (B, T) int64: position in the sequence; padding has the positions after the trunk
    branch: Tensor  # (B, T) int64: 0 .. K-1, TRUNK or PADDING
    length: int  # max length of a sequence: all positions are below it

    @classmethod
    def trunk(cls, length: int, real: Tensor) -> TokenColumns:
        """Place S tokens at 0 .. S-1; those after the first `real` (B,) are padding."""
        position = torch.arange(length, device=real.device).expand(len(real), -1)
        return cls(position, torch.where(position < real[:, None], TRUNK, PADDING), length)

    def grow(self, index: Tensor, branches: int) -> TokenColumns:
        """Add one token at position `index` (B,) to each branch."""
        new = torch.arange(branches, device=index.device).expand(len(index), -1)
        position = torch.cat((self.position, index[:, None].expand_as(new)), 1)
        return TokenColumns(position, torch.cat((self.branch, new), 1), self.length + 1)

    def visibility(self, queries: int) -> Visibility:
        """Mask the newest Q columns: each sees the trunk before it, and its own branch up to itself."""
        branch, position = self.branch[:, -queries:], self.position[:, -queries:]
        back = position[:, :, None] - self.position[:, None]  # (B, Q, T)
        related = (self.branch[:, None] == TRUNK) | (self.branch[:, None] == branch[:, :, None])
        return Visibility(back.clamp(min=0), ~((back >= 0) & related), self.length)


class Visibility(NamedTuple):
    """The mask and distances between the newest Q of T columns and all T."""

    distance: Tensor  # (B, Q, T) int64: tokens back, 0 for later ones
    hidden: Tensor  # (B, Q, T) bool
    length: int  # all distances are below it

    def last(self, queries: int) -> Visibility:
        """Return the newest `queries` columns of the Q."""
        return Visibility(self.distance[:, -queries:], self.hidden[:, -queries:], self.length)


def attend_branches(
    attention: Attention, x: Tensor, memory: KeysValues | None, visible: Visibility, queries: int
) -> tuple[Tensor, KeysValues]:
    """Compute the outputs (B, Q, D) of the last Q of the new columns x (B, N, D), and keys and values of all T columns.

    `memory` has keys and values of the columns before x (None: there are none); `visible` is the mask of the new ones.
    """
    packed = attention.project_in(x).unflatten(-1, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = packed.unbind()  # (B, H, N, hd)
    if memory is not None:
        key, value = torch.cat((memory[0], key), 2), torch.cat((memory[1], value), 2)
    with torch.autocast(x.device.type, enabled=False):
        kind = torch.promote_types(x.dtype, torch.float32)
        scores = query[:, :, -queries:].to(kind) @ key.to(kind).transpose(-1, -2)  # (B, H, Q, T)
        scores, visible = scores / math.sqrt(query.shape[-1]), visible.last(queries)
        scale, bias = attention.prior.tables(visible.length)  # by distance, (H, T)
        if scale is not None:
            scores = scores * scale.to(scores.dtype)[:, visible.distance].transpose(0, 1)
        if bias is not None:
            scores = scores + bias.to(scores.dtype)[:, visible.distance].transpose(0, 1)
        weights = scores.masked_fill(visible.hidden[:, None], -math.inf).softmax(-1)
        mixed = F.dropout(weights, attention.dropout, attention.training) @ value.to(kind)
    return attention.project_out(mixed.transpose(1, 2).flatten(2).to(packed.dtype)), (key, value)


# ---- layers and stacks -----------------------------------------------------------------------------------------------
class Layer(nn.Module):
    """Pre-LN layer: x = x + Mix(LN x), then x = x + FeedForward(LN x).

    `mixer` is the block that mixes tokens; its keyword is its name in a checkpoint.
    """

    def __init__(self, config: UniZeroModelConfig, **mixer: Block) -> None:
        super().__init__()
        for name, block in mixer.items():
            self.add_module(name, block)
        self.feed_forward = FeedForward(config.width, 4, config.dropout, Gelu())
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))

    def _leave(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + y
        return x + self.feed_forward(self.norms[1](x))


class AttentionLayer(Layer):
    """A layer of a transformer."""

    attention: Attention

    def __init__(self, config: UniZeroModelConfig) -> None:
        prior = config.prior.build(config.heads, 2 * config.horizon)
        super().__init__(config, attention=Attention(config.width, config.heads, prior, config.dropout))
        self.dropout = nn.Dropout(config.dropout)  # of the attention's output; the feed-forward block has its own

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self._leave(x, self.dropout(self.attention(self.norms[0](x), lengths)))

    def last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Compute the output at the last position that is no padding, (B, D)."""
        y, index = self.attention(self.norms[0](x), lengths), lengths - 1
        return self._leave(select(x, index)[:, None], self.dropout(select(y, index)[:, None]))[:, 0]

    def branch(
        self, x: Tensor, memory: KeysValues | None, visible: Visibility, queries: int
    ) -> tuple[Tensor, KeysValues]:
        """Compute outputs (B, Q, D) of the last Q of the new columns x (B, N, D); see `attend_branches`."""
        y, memory = attend_branches(self.attention, self.norms[0](x), memory, visible, queries)
        return self._leave(x[:, -queries:], self.dropout(y)), memory


class RecurrentLayer(Layer):
    """A layer with a GRU in place of attention."""

    memory: Recurrence

    def __init__(self, config: UniZeroModelConfig) -> None:
        super().__init__(config, memory=Recurrence("gru", config.width, config.dropout))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self._leave(x, self.memory(self.norms[0](x)))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Encode one position x (B, D) from state (B, D); return also the new state."""
        never = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        y, (state,) = self.memory.step(self.norms[0](x), (state,), never)
        return self._leave(x[:, None], y[:, None])[:, 0], state


class TokenStack(nn.Module, ABC):
    """Layers and a last LayerNorm."""

    causal = True
    """True if no token sees a later one."""

    def __init__(self, layers: Iterable[Layer], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, S, D)."""
        for layer in self.layers:
            x = layer(x, lengths)
        return self.norm(x)

    @abstractmethod
    def read(self, trunk: Tensor, new: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Compute the outputs of K branches at one token after the trunk; return also the memory for `extend`."""

    @abstractmethod
    def extend(self, memory: Any, next_token: Tensor) -> Tensor:
        """Compute the outputs one token further in each branch."""


class AttentionStack(TokenStack):
    """Transformer layers; the prior decides whether they are causal."""

    def __init__(self, config: UniZeroModelConfig) -> None:
        super().__init__((AttentionLayer(config) for _ in range(config.layers)), config.width)
        self.causal = all(layer.attention.causal for layer in self.attention_layers())

    def attention_layers(self) -> list[AttentionLayer]:
        return cast(list[AttentionLayer], list(self.layers))

    def read(self, trunk: Tensor, new: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Attend to the trunk once for all branches."""
        branches = new.shape[1]
        if not self.causal:
            return self._reread(trunk.repeat_interleave(branches, 0), new, index)  # (B K, S, D)
        columns = TokenColumns.trunk(trunk.shape[1], index).grow(index, branches)
        x, visible, memories = torch.cat((trunk, new), 1), columns.visibility(trunk.shape[1] + branches), []
        for layer in self.attention_layers():
            queries = branches if layer is self.layers[-1] else x.shape[1]
            x, memory = layer.branch(x, None, visible, queries)
            memories.append(memory)
        return self.norm(x), (columns, index, memories)

    def extend(self, memory: Any, next_token: Tensor) -> Tensor:
        """Attend to the keys and values of `read`."""
        columns, index, memories = memory
        branches = next_token.shape[1]
        if not self.causal:
            return self._reread(columns, next_token, index + 1)[0]
        visible = columns.grow(index + 1, branches).visibility(branches)
        for layer, cached in zip(self.attention_layers(), memories, strict=True):
            next_token, _ = layer.branch(next_token, cached, visible, branches)
        return self.norm(next_token)

    def _reread(self, tokens: Tensor, new: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Encode each branch as a row of its own.

        If tokens see later ones, a new token also changes the encodings of the old ones.
        """
        branches = new.shape[1]
        end = index.repeat_interleave(branches)  # (B K,)
        here = torch.arange(tokens.shape[1] + 1, device=end.device) == end[:, None]  # (B K, S+1)
        x = tokens = torch.where(here[..., None], new.flatten(0, 1)[:, None], F.pad(tokens, (0, 0, 0, 1)))
        *first, last = self.attention_layers()
        for layer in first:
            x = layer(x, end + 1)
        return self.norm(last.last(x, end + 1)).view_as(new), (tokens, index, None)


class RecurrentStack(TokenStack):
    """Recurrent layers in place of the transformer."""

    def __init__(self, config: UniZeroModelConfig) -> None:
        super().__init__((RecurrentLayer(config) for _ in range(config.layers)), config.width)

    def read(self, trunk: Tensor, new: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Step through the trunk; the memory has the states of all branches."""
        states = [torch.zeros_like(trunk[:, 0]) for _ in self.layers]
        for position, token in enumerate(trunk.split(1, 1)):
            real = (position < index)[:, None]
            after = self._branch(token, states)[1]
            states = [torch.where(real, new_state, old) for new_state, old in zip(after, states, strict=True)]
        return self._branch(new, [state.repeat_interleave(new.shape[1], 0) for state in states])

    def extend(self, memory: Any, next_token: Tensor) -> Tensor:
        """Take one more step in every branch."""
        return self._branch(next_token, memory)[0]

    def _branch(self, new: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Take a step in every branch: new (B, K, D) from states (B K, D)."""
        x, after = new.flatten(0, 1), []
        for layer, state in zip(cast(list[RecurrentLayer], list(self.layers)), states, strict=True):
            x, state = layer.step(x, state)
            after.append(state)
        return self.norm(x).view_as(new), after


class FeedForwardStack(nn.Module):
    """Residual position-wise layers and a last LayerNorm: MuZero's dynamics, which have no memory."""

    def __init__(self, config: UniZeroModelConfig) -> None:
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
