"""The encoder layer: attention and memory sublayers, each with an activation, a gate and a LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.attention import Attention
from dqn_memory.blocks.block import Block, Device, State, lookup, select
from dqn_memory.blocks.contract import build_memory
from dqn_memory.blocks.gates import GATES
from dqn_memory.blocks.priors import PriorConfig


@dataclass(frozen=True)
class LayerConfig:
    """One encoder layer as data.

    `memory` names an entry of MEMORY, or "none" for attention alone; `attention=False` leaves memory alone.
    `activation="relu"` applies a ReLU to each sublayer's output before the gate (DBGFQN Algorithm 1; its
    equations have none). `projection` adds Linear(D, D) after a recurrence (Eq. 20; Algorithm 1 has none).
    `order` is "post" (LayerNorm after the gate) or "identity" (LayerNorm on the sublayer's input, as GTrXL).
    """

    memory: str = "feedforward_x4"
    attention: bool = True
    heads: int = 8
    prior: PriorConfig = field(default_factory=PriorConfig)
    gate: str = "residual"
    order: Literal["post", "identity"] = "post"
    activation: Literal["relu", "none"] = "relu"
    projection: bool = False
    dropout: float = 0.0

    def build(self, width: int, max_length: int) -> EncoderLayer:
        """Build a layer of `width` for windows of at most `max_length`; ValueError says what cannot work."""
        if self.order not in ("post", "identity"):
            raise ValueError(f"layer order is {self.order!r}; it must be post or identity")
        if self.activation not in ("relu", "none"):
            raise ValueError(f"layer activation is {self.activation!r}; it must be relu or none")
        if not self.attention and self.memory == "none":
            raise ValueError("a layer without attention and with memory 'none' is empty; give it one of them")
        return EncoderLayer(self, self._sublayers(width, max_length))

    def _sublayers(self, width: int, max_length: int) -> list[Sublayer]:
        blocks: list[Block] = []
        if self.attention:
            prior = self.prior.build(self.heads, max_length)
            blocks.append(Attention(width, self.heads, prior, self.dropout))
        if self.memory != "none":
            blocks.append(build_memory(self.memory, width, self.dropout, self.projection))
        gate = lookup(GATES, self.gate, "gate")
        return [Sublayer(block, gate(width), width, self) for block in blocks]


class Sublayer(nn.Module):
    """A block in its frame: post LN(gate(x, act(block(x)))), identity gate(x, act(block(LN(x))))."""

    def __init__(self, block: Block, gate: nn.Module, width: int, config: LayerConfig) -> None:
        super().__init__()
        self.block = block
        self.gate = gate
        self.norm = nn.LayerNorm(width)
        self.post = config.order == "post"
        self.rectify = config.activation == "relu"

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Apply to x (B, T, D)."""
        return self.leave(x, self.block(self.enter(x), lengths))

    def enter(self, x: Tensor) -> Tensor:
        """Compute what the block reads of the stream x (..., D)."""
        return x if self.post else self.norm(x)

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """Join the stream x and what the block gave, both (..., D)."""
        joined = self.gate(x, F.relu(y) if self.rectify else y)
        return self.norm(joined) if self.post else joined


class EncoderLayer(Block):
    """The sublayers in order: stateful without attention if the memory is, causal if every block is."""

    def __init__(self, config: LayerConfig, sublayers: list[Sublayer]) -> None:
        super().__init__()
        self.config = config
        self.sublayers = nn.ModuleList(sublayers)
        blocks = [part.block for part in sublayers]
        self.stateful = all(block.stateful for block in blocks)
        self.causal = all(block.causal for block in blocks)
        self.last_mixing = max((index for index, block in enumerate(blocks) if not block.pointwise), default=0)

    @property
    def attention(self) -> Attention | None:
        """The attention block, for drawing and for its learned prior; None without one."""
        first = self._parts()[0].block
        return first if isinstance(first, Attention) else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D)."""
        for part in self._parts():
            x = part(x, lengths)
        return x

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Position `index` (B,) alone, (B, D): sublayers that mix no positions run on that one only."""
        parts, last = self._parts(), self.last_mixing
        for part in parts[:last]:
            x = part(x, lengths)
        mixing = parts[last]
        x = mixing.leave(select(x, index), mixing.block.at(mixing.enter(x), lengths, index))
        for part in parts[last + 1 :]:
            x = part(x[:, None])[:, 0]
        return x

    @property
    def supports_prefixes(self) -> bool:
        """True when one block at most reads ahead, knows its ends, and mixes its positions last."""
        blocks = [part.block for part in self._parts()]
        first = next((index for index, block in enumerate(blocks) if not block.causal), len(blocks) - 1)
        return blocks[first].supports_prefixes and all(block.pointwise for block in blocks[first + 1 :])

    def at_every_prefix(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """As `Block`; what comes before the sublayer that reads ahead is the same in every sequence."""
        if not self.supports_prefixes:
            raise TypeError("positions are mixed after a sublayer that reads ahead; encode each sequence by itself")
        for part in self._parts():
            x = part.leave(x, part.block.at_every_prefix(part.enter(x), lengths))
        return x

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make the state of the memory sublayer."""
        return self._only().block.initial_state(batch, device, dtype)

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        """One position x (B, D)."""
        part = self._only()
        y, state = part.block.step(part.enter(x), state, reset)
        return part.leave(x, y), state

    def _parts(self) -> list[Sublayer]:
        return cast(list[Sublayer], list(self.sublayers))

    def _only(self) -> Sublayer:
        if not self.stateful:
            raise TypeError("a layer with attention or stateless memory keeps no state; use forward instead")
        return self._parts()[0]
