"""Uniform choices among cells, from uniforms that the caller passes in; no sort, static shapes."""

import torch
from torch import Tensor


def pick(allowed: Tensor, u: Tensor) -> Tensor:
    """One of the True entries of every row of allowed (N, C) bool, index (N,) int64, from uniforms u (N,).

    A row without any gives C - 1: mask it.
    """
    ranks = allowed.cumsum(1)  # (N, C)
    chosen = (u * ranks[:, -1]).long().clamp(max=(ranks[:, -1] - 1).clamp(min=0))
    return (ranks <= chosen[:, None]).sum(1).clamp(max=allowed.shape[1] - 1)


def pick_distinct(allowed: Tensor, u: Tensor) -> Tensor:
    """As many different True entries of each row of allowed (N, C) as u (N, M) has columns: (N, M) int64."""
    chosen = []
    for draw in u.unbind(1):
        index = pick(allowed, draw)
        allowed = allowed.scatter(1, index[:, None], False)
        chosen.append(index)
    return torch.stack(chosen, 1) if chosen else torch.zeros(len(u), 0, dtype=torch.int64, device=u.device)


def shuffled(u: Tensor) -> Tensor:
    """A uniform permutation (N, K) int64 of 0 .. K-1 per row of uniforms u (N, K)."""
    return u.argsort(1)
