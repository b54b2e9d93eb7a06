"""Spearman's rank correlation with a bootstrap interval over the pairs."""

from __future__ import annotations

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.statistics import LEVEL, Estimate, Floats, Indices, percentiles

FEWEST = 4  # pairs below which an interval says nothing


def ranks(values: Floats) -> Floats:
    """Ranks from 1 along the last axis, equal values sharing their mean rank: (..., N) -> (..., N)."""
    below = (values[..., None, :] < values[..., :, None]).sum(-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(-1)
    return below + (equal + 1) / 2


def spearman(x: Floats, y: Floats) -> Floats:
    """Correlation of the ranks along the last axis, (..., N) -> (...); NaN where one side is constant."""
    left, right = (ranks(np.asarray(side, np.float64)) for side in (x, y))
    left, right = (side - side.mean(-1, keepdims=True) for side in (left, right))
    scale = np.sqrt((left**2).sum(-1) * (right**2).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((left * right).sum(-1) / scale)


def rank_correlation(
    x: Floats,
    y: Floats,
    indices: Indices | None = None,
    repetitions: int = 10_000,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """Spearman's correlation of N pairs, and the percentile interval over resampled pairs.

    `indices` (repetitions, N) are the resamples; without them they are drawn from `seed`. Resamples in which one side
    is constant have no correlation and are left out. A UserError where the sides differ in length or are too few.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < FEWEST:
        raise UserError(f"a rank correlation needs two equally long lists of at least {FEWEST} numbers")
    chosen = pair_indices(len(x), repetitions, seed) if indices is None else indices
    draws = np.concatenate([spearman(x[part], y[part]) for part in np.array_split(chosen, len(chosen) // 1_000 + 1)])
    low, high = percentiles(draws, level)
    return Estimate(float(spearman(x, y)), float(low), float(high))


def pair_indices(pairs: int, repetitions: int, seed: int) -> Indices:
    """Which pair stands where in every resample: (repetitions, N)."""
    return np.random.default_rng(seed).integers(0, pairs, (repetitions, pairs))
