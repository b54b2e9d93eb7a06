"""Attention over a trunk of tokens and the branches after it, none of which sees another.

A search evaluates all actions of a node at once. What lies before the action is the same for all, so it is read once:
the trunk's S tokens stand left-aligned in columns 0 .. S-1, and each round of K branches adds K columns, one token a
branch, all at the same position. Masks say which token sees which, so that one pass serves trunk and branches (like
tree attention in speculative decoding). The prior must be causal.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dqn_memory.blocks import Attention
from dqn_memory.blocks.attention import KeysValues
from dqn_memory.blocks.positions import rotate

TRUNK, PADDING = -1, -2


class Columns(NamedTuple):
    """Where the tokens of each row stand: T columns, S of the trunk and K of each round so far."""

    position: Tensor  # (B, T) int64: in the sequence; padding has the positions that follow
    branch: Tensor  # (B, T) int64: 0 .. K-1, TRUNK or PADDING
    length: int  # of the longest sequence: all positions lie below

    @classmethod
    def trunk(cls, length: int, real: Tensor) -> Columns:
        """Place S tokens at 0 .. S-1, of which the first `real` (B,) are no padding."""
        position = torch.arange(length, device=real.device).expand(len(real), -1)
        return cls(position, torch.where(position < real[:, None], TRUNK, PADDING), length)

    def grow(self, index: Tensor, branches: int) -> Columns:
        """Add a token to each branch, at position `index` (B,)."""
        new = torch.arange(branches, device=index.device).expand(len(index), -1)
        position = torch.cat((self.position, index[:, None].expand_as(new)), 1)
        return Columns(position, torch.cat((self.branch, new), 1), self.length + 1)

    def reach(self, queries: int) -> Reach:
        """Tell what the newest Q columns see: the trunk before them, and their own branch up to themselves."""
        branch, position = self.branch[:, -queries:], self.position[:, -queries:]
        back = position[:, :, None] - self.position[:, None]  # (B, Q, T)
        related = (self.branch[:, None] == TRUNK) | (self.branch[:, None] == branch[:, :, None])
        return Reach(position, back.clamp(min=0), ~((back >= 0) & related), self.length)


class Reach(NamedTuple):
    """What the Q newest of T columns see."""

    position: Tensor  # (B, Q) int64: where they stand
    distance: Tensor  # (B, Q, T) int64: tokens back, 0 where that is ahead
    hidden: Tensor  # (B, Q, T)
    length: int  # all distances lie below

    def last(self, queries: int) -> Reach:
        """Keep the newest `queries` of them."""
        position, distance, hidden = (value[:, -queries:] for value in self[:3])
        return Reach(position, distance, hidden, self.length)


def attend(
    attention: Attention, x: Tensor, memory: KeysValues | None, reach: Reach, queries: int
) -> tuple[Tensor, KeysValues]:
    """Compute the outputs (B, Q, D) of the last Q of the new columns x (B, N, D), and keys and values of all T columns.

    `memory` holds those of the columns before x (None: there are none); `reach` says what the new ones see.
    """
    packed = attention.project_in(x).unflatten(-1, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = packed.unbind()  # (B, H, N, hd)
    if attention.rotary:
        query, key = (rotate(part, reach.position[:, None]) for part in (query, key))
    if memory is not None:
        key, value = torch.cat((memory[0], key), 2), torch.cat((memory[1], value), 2)
    with torch.autocast(x.device.type, enabled=False):
        kind = torch.promote_types(x.dtype, torch.float32)
        scores = query[:, :, -queries:].to(kind) @ key.to(kind).transpose(-1, -2)  # (B, H, Q, T)
        weights = _shaped(attention, scores / math.sqrt(query.shape[-1]), reach.last(queries)).softmax(-1)
        mixed = F.dropout(weights, attention.dropout, attention.training) @ value.to(kind)
    return attention.project_out(mixed.transpose(1, 2).flatten(2).to(packed.dtype)), (key, value)


def _shaped(attention: Attention, scores: Tensor, reach: Reach) -> Tensor:
    scale, bias = attention.prior.tables(reach.length)  # by distance, (H, T)
    if scale is not None:
        scores = scores * scale.to(scores.dtype)[:, reach.distance].transpose(0, 1)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)[:, reach.distance].transpose(0, 1)
    return scores.masked_fill(reach.hidden[:, None], -math.inf)
