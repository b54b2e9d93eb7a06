"""Rotary positions (Su et al. 2021): features turned in pairs by angles proportional to their position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BASE = 1e4


def rotate(x: Tensor, position: Tensor | None = None) -> Tensor:
    """Turn feature j of the first half with feature j of the second by position * BASE^(-2j / hd).

    x is (..., T, hd) with hd even; `position` broadcasts to (..., T) and is 0 .. T-1 where None. Products of
    turned queries and keys depend on the difference of their positions alone.
    """
    half = x.shape[-1] // 2
    if position is None:
        position = torch.arange(x.shape[-2], device=x.device)
    kind = torch.promote_types(x.dtype, torch.float32)
    frequency = torch.exp(torch.arange(half, device=x.device, dtype=kind) * (-math.log(BASE) / half))
    angle = position[..., None].to(kind) * frequency  # (..., T, hd/2)
    first, second = x.to(kind).split(half, -1)
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1).to(x.dtype)
