"""Attention to the last w positions and the query itself, with O(T w) work: blocks of queries against two of keys.

A masked softmax over all T keys computes T x T scores and throws most of them away. Here the sequence is cut into
blocks of at least w positions, so that what a query may see lies in its own block and the one before it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

LANES = 8  # blocks are a multiple of it: sums over other lengths cost as much as over the next multiple
BLOCKS = 8  # below so many blocks the copies cost more than the scores that are saved


def block_size(window: int) -> int:
    """Positions of a block: at least w, so that no query sees past the block before its own."""
    return max(-window // LANES * -LANES, LANES)


def is_local_faster(length: int, window: int) -> bool:
    """Whether a sequence is so much longer than the window that blocks are faster than masked scores."""
    return length >= BLOCKS * block_size(window)


def local_attention(query: Tensor, key: Tensor, value: Tensor, window: int, dropout: float = 0.0) -> Tensor:
    """Values mixed by softmax(q k^T / sqrt(hd)) over the keys 0 .. w positions back; all (B, H, T, hd).

    Equal to the form that masks T x T scores. `dropout` acts on the weights; give 0 outside training.
    """
    batch, _, time, width = query.shape
    size = block_size(window)
    rest = -time % size
    blocks = F.pad(query, (0, 0, 0, rest)).flatten(0, 1).unflatten(1, (-1, size))  # (B H, n, c, hd)
    scores = (blocks / math.sqrt(width)) @ _pairs(key, size, rest).mT  # (B H, n, c, 2c)
    scores = scores + _band(blocks.shape[1], size, window, scores)
    weights = F.dropout(scores.softmax(-1), dropout)
    mixed = weights @ _pairs(value, size, rest)  # (B H, n, c, hd)
    return mixed.flatten(1, 2)[:, :time].unflatten(0, (batch, -1))


def _pairs(x: Tensor, size: int, rest: int) -> Tensor:
    """Every block of x (B, H, T, hd) behind the one before it, the first behind zeros: (B H, n, 2c, hd)."""
    blocks = F.pad(x, (0, 0, size, rest)).flatten(0, 1).unflatten(1, (-1, size))  # (B H, n+1, c, hd)
    return torch.cat((blocks[:, :-1], blocks[:, 1:]), 2)


def _band(blocks: int, size: int, window: int, like: Tensor) -> Tensor:
    """0 for keys 0 .. w back and -inf for others, the zeros before the first position among them: (n, c, 2c)."""
    place = torch.arange(2 * size, device=like.device)
    distance = place[size:, None] - place  # (c, 2c)
    seen = (distance >= 0) & (distance <= window)
    real = (torch.arange(blocks, device=like.device) > 0)[:, None] | (place >= size)  # (n, 2c)
    return like.new_zeros(()).masked_fill(~(seen & real[:, None]), -math.inf)
