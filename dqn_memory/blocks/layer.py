"""The encoder layer: attention and memory sublayers, each with an activation, a gate and a LayerNorm."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.attention import Attention, StreamedAttention
from dqn_memory.blocks.block import Block, Device, State, by_position, last, lookup, select
from dqn_memory.blocks.finite import clear_padding, contained, contained_at, contained_window
from dqn_memory.blocks.gates import GATES
from dqn_memory.blocks.priors import PriorConfig
from dqn_memory.blocks.registry import build


@dataclass(frozen=True)
class LayerConfig:
    """One encoder layer as data.

    `memory` is an entry of MEMORY, or "none" for attention alone; `attention=False` leaves the memory alone. `streamed`
    attention keeps the last inputs of its layer in a state.
    `activation="relu"` applies a ReLU to each sublayer's output before the gate (DBGFQN Algorithm 1; its
    equations have none). `projection` adds Linear(D, D) after a recurrence (Eq. 20; Algorithm 1 has none).
    `order` is "post" (LayerNorm after the gate) or "identity" (LayerNorm on the sublayer's input, as GTrXL).
    """

    memory: str = "feedforward_x4"
    attention: bool = True
    streamed: bool = False
    heads: int = 8
    prior: PriorConfig = field(default_factory=PriorConfig)
    gate: str = "residual"
    order: Literal["post", "identity"] = "post"
    activation: Literal["relu", "none"] = "relu"
    projection: bool = False
    dropout: float = 0.0

    def build(self, width: int, max_length: int) -> EncoderLayer:
        """Build a layer of `width` for windows of at most `max_length`; ValueError if the parts do not fit."""
        if self.order not in ("post", "identity"):
            raise ValueError(f"layer order is {self.order!r}; it must be post or identity")
        if self.activation not in ("relu", "none"):
            raise ValueError(f"layer activation is {self.activation!r}; it must be relu or none")
        if not self.attention and self.memory == "none":
            raise ValueError("a layer without attention and with memory 'none' is empty; give it one of them")
        blocks: list[Block] = []
        if self.attention and self.streamed:
            attention = StreamedAttention(width, self.dropout, heads=self.heads, context=max_length, prior=self.prior)
            blocks.append(attention)
        elif self.attention:
            prior = self.prior.build(self.heads, max_length)
            blocks.append(Attention(width, self.heads, prior, self.dropout))
        if self.memory != "none":
            blocks.append(build(self.memory, width, self.dropout, self.projection))
        gate = lookup(GATES, self.gate, "gate")
        return EncoderLayer([Sublayer(block, gate(width), width, self) for block in blocks])


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
        return self.join(x, self.block(self.block_input(x), lengths))

    def block_input(self, x: Tensor) -> Tensor:
        """Compute the block's input from the stream x (..., D)."""
        return x if self.post else by_position(self.norm, x)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        """Join the stream x and the block's output y, both (..., D)."""
        return by_position(self._join, x, y)

    def _join(self, x: Tensor, y: Tensor) -> Tensor:
        joined = self.gate(x, F.relu(y) if self.rectify else y)
        return self.norm(joined) if self.post else joined


class EncoderLayer(Block):
    """The sublayers in order. The layer is stateful if all blocks are, and causal if all blocks are.

    Its state is the states of the blocks, one after the other.
    """

    def __init__(self, sublayers: list[Sublayer]) -> None:
        super().__init__()
        self.sublayers = nn.ModuleList(sublayers)
        blocks = [part.block for part in sublayers]
        self.stateful = all(block.stateful for block in blocks)
        self.causal = all(block.causal for block in blocks)
        self.degree = max(2, *(block.degree for block in blocks))  # LayerNorm squares its input
        self.parts = [len(block.initial_state(1, "meta")) if block.stateful else 0 for block in blocks]
        self.last_mixing = max((index for index, block in enumerate(blocks) if not block.pointwise), default=0)

    @property
    def attention(self) -> Attention | None:
        """The attention block, for drawing and for its learned prior; None without one."""
        first = self._parts()[0].block
        first = first.attention if isinstance(first, StreamedAttention) else first
        return first if isinstance(first, Attention) else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D)."""
        return contained_window(self._encode, x, lengths, self.causal, self.degree)

    def _encode(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        for part in self._parts():
            x = part(x, lengths)
        return x

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Position `index` (B,) alone, (B, D): sublayers that mix no positions run on that one only."""
        return contained_at(self._encode_at, x, lengths, index, self.causal, self.degree)

    def newest(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """As `Block`."""
        run, index = partial(self._encode_at, newest=True), last(x, lengths)
        return contained_at(run, x, lengths, index, self.causal, self.degree)

    def _encode_at(self, x: Tensor, lengths: Tensor | None, index: Tensor, newest: bool = False) -> Tensor:
        parts, mixing = self._parts(), self._parts()[self.last_mixing]
        for part in parts[: self.last_mixing]:
            x = part(x, lengths)
        given = mixing.block_input(x)
        mixed = mixing.block.newest(given, lengths) if newest else mixing.block.at(given, lengths, index)
        x = mixing.join(select(x, index), mixed)
        for part in parts[self.last_mixing + 1 :]:
            x = part(x[:, None])[:, 0]
        return x

    @property
    def supports_prefixes(self) -> bool:
        """True if at most one block reads ahead, it supports prefixes, and only pointwise blocks follow it."""
        blocks = [part.block for part in self._parts()]
        first = next((index for index, block in enumerate(blocks) if not block.causal), len(blocks) - 1)
        return blocks[first].supports_prefixes and all(block.pointwise for block in blocks[first + 1 :])

    def at_every_prefix(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """As `Block`; sublayers before the one that reads ahead give all prefixes the same values."""
        if not self.supports_prefixes:
            raise TypeError("positions are mixed after a sublayer that reads ahead; encode each sequence by itself")
        x = clear_padding(x, lengths, self.degree)
        for part in self._parts():
            x = part.join(x, part.block.at_every_prefix(part.block_input(x), lengths))
        return x

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make the states of all sublayers, one after the other."""
        states = [part.block.initial_state(batch, device, dtype) for part in self._stateful()]
        return tuple(each for state in states for each in state)

    def sequence(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """As `Block`."""
        return self._contained("sequence", x, state, reset)

    def step(self, x: Tensor, state: State | None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """As `Block`."""
        if not torch.is_grad_enabled():
            return self._go_on("step", x, state, reset)
        return self._contained("step", x, state, reset)

    def _contained(
        self, form: Literal["sequence", "step"], x: Tensor, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        def run(x: Tensor, before: State, reset: Tensor | None) -> tuple[Tensor, State]:
            return self._go_on(form, x, None if state is None else before, reset)

        return contained(run, x, () if state is None else tuple(state), reset, state is not None, self.degree)

    def _go_on(
        self, form: Literal["sequence", "step"], x: Tensor, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        after: list[Tensor] = []
        for part, before in zip(self._stateful(), self._split(state), strict=True):
            y, own = getattr(part.block, form)(part.block_input(x), before, reset)
            x = part.join(x, y)
            after.extend(own)
        return x, tuple(after)

    def _split(self, state: State | None) -> list[State | None]:
        """Cut a state into those of the sublayers."""
        if state is None:
            return [None] * len(self.parts)
        if len(state) != sum(self.parts):
            raise ValueError(f"the state has {len(state)} parts; this layer's has {sum(self.parts)}")
        ends = itertools.accumulate(self.parts)
        return [state[end - count : end] for count, end in zip(self.parts, ends, strict=True)]

    def _parts(self) -> list[Sublayer]:
        return cast(list[Sublayer], list(self.sublayers))

    def _stateful(self) -> list[Sublayer]:
        if not self.stateful:
            raise TypeError("a layer that attends to a window, or reads ahead, keeps no state; use forward instead")
        return self._parts()
