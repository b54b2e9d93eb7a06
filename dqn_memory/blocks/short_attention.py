"""Causal attention for short windows of narrow heads on a CPU, forward and backward, from the packed projection.

A fused kernel is built for long sequences and wide heads. At T = 50 and 8 units a head, batched products and one
softmax over all scores take three quarters of its time forward and a third backward, if every product has time and
not the head's few units as its long side, if keys are padded to whole vector registers (a softmax over 50 numbers
costs more than one over 56), and if the packed gradient is written once instead of being joined from three.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

LANES = 8  # keys are padded to a multiple of it
WIDEST = {False: 8, True: 16}  # units a head above which the fused kernel is as fast, without and with gradient
LONGEST = 128  # positions above which the fused kernel is as fast
FEWEST = 64  # sequences x heads below which a dozen operator calls cost more than the work


def suits(packed: Tensor, heads: int) -> bool:
    """Whether packed queries, keys and values (B, T, 3D) are faster here than in the fused kernel."""
    batch, length, width = packed.shape
    return (
        packed.device.type == "cpu"
        and packed.dtype in (torch.float32, torch.float64)
        and length <= LONGEST
        and width <= 3 * WIDEST[packed.requires_grad] * heads
        and batch * heads >= FEWEST
    )


def short_attention(packed: Tensor, heads: int) -> Tensor:
    """Causal attention of packed queries, keys and values (B, T, 3D) -> (B, T, D)."""
    return _ShortAttention.apply(packed, heads)


class _ShortAttention(torch.autograd.Function):
    """N = B H sequences of one head each, h units a head, S keys after padding."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, heads: int) -> Tensor:
        time = packed.shape[1]
        query, key, value = _split(packed, heads)  # (N, T, h), (N, S, h), (N, S, h)
        future = packed.new_full((time, key.shape[1]), -math.inf).triu_(1)  # hides the padding too
        scores = torch.baddbmm(future, query, key.mT, alpha=_scale(query))  # (N, T, S)
        weights = torch.softmax(scores, -1, out=scores)
        ctx.save_for_backward(query, key, value, weights)
        ctx.heads = heads
        return _join(torch.bmm(value.mT, weights.mT), heads).flatten(2).contiguous()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        query, key, value, weights = ctx.saved_tensors
        batch, time, width = grad.shape
        out = grad.unflatten(-1, (ctx.heads, -1)).transpose(1, 2).flatten(0, 1)  # (N, T, h)
        change = torch.bmm(out, value.mT)  # (N, T, S)
        change = torch._softmax_backward_data(change, weights, -1, weights.dtype, grad_input=change)
        packed = grad.new_empty(batch, time, 3, ctx.heads, width // ctx.heads)
        packed[:, :, 0] = _join(torch.bmm(key.mT, change.mT).mul_(_scale(query)), ctx.heads)
        packed[:, :, 1] = _join(torch.bmm(query.mT, change).mul_(_scale(query)), ctx.heads)[:, :time]
        packed[:, :, 2] = _join(torch.bmm(out.mT, weights), ctx.heads)[:, :time]
        return packed.flatten(2), None


def _split(packed: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, T, h), and keys and values (N, S, h) that are zero behind the last position."""
    batch, time, width = packed.shape
    padded = -time // LANES * -LANES
    parts = packed.new_empty(3, batch, heads, padded, width // (3 * heads))
    parts[..., time:, :] = 0
    parts[..., :time, :] = packed.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = parts.flatten(1, 2)
    return query[:, :time], key, value


def _join(parts: Tensor, heads: int) -> Tensor:
    """(N, h, T) -> (B, T, H, h), a view."""
    return parts.unflatten(0, (-1, heads)).permute(0, 3, 1, 2)


def _scale(query: Tensor) -> float:
    return 1 / math.sqrt(query.shape[-1])
