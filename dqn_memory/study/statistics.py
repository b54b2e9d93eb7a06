"""Aggregates of scores over runs and tasks with stratified bootstrap intervals (Agarwal et al. 2021).

Scores are a matrix: R runs (seeds) by M tasks (worlds, games), one number each. A resample draws the R runs of every
task anew, with replacement and independently of the other tasks, so the tasks themselves are taken as given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dqn_memory.runs.errors import UserError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
Statistic = Callable[[Floats], Floats]  # (..., R, M) -> (...) or (..., S)

REPETITIONS = 50_000
LEVEL = 0.95
_CHUNK = 1_000  # resamples held in memory at a time
# Share of the 95 % intervals of a mean that hold the true one, by the number of normally distributed runs.
COVERAGE = {2: 0.50, 3: 0.75, 4: 0.80, 5: 0.84, 10: 0.90}


class Estimate(NamedTuple):
    """A number with its interval, whose ends are NaN where the data give none."""

    point: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.point:.3f}"
        return f"{self.point:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Profile(NamedTuple):
    """Share of scores above each threshold, with pointwise intervals; all of shape (S,)."""

    thresholds: Floats
    share: Floats
    low: Floats
    high: Floats


def mean(scores: Floats) -> Floats:
    """Mean over runs and tasks. Scores (..., R, M)."""
    return scores.mean((-2, -1))


def median(scores: Floats) -> Floats:
    """Median over tasks of the mean over runs. Scores (..., R, M)."""
    return np.asarray(np.median(scores.mean(-2), axis=-1))


def iqm(scores: Floats) -> Floats:
    """Interquartile mean: of the scores of all runs and tasks, the mean of the middle half. Scores (..., R, M)."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # (..., R M)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def optimality_gap(scores: Floats, target: float = 1.0) -> Floats:
    """How far scores fall short of `target` on average; what is above it counts as `target`. Scores (..., R, M)."""
    return target - np.minimum(scores, target).mean((-2, -1))


def score_distribution(scores: Floats, thresholds: Floats) -> Floats:
    """Share of runs and tasks whose score is above each threshold: (..., R, M) and (S,) -> (..., S)."""
    return (scores[..., None] > thresholds).mean((-3, -2))


def probability_of_improvement(scores: Floats, others: Floats) -> Floats:
    """Chance that a run of the first beats a run of the second on a task, ties half, averaged over tasks.

    Scores (..., R, M) and (..., Q, M). It is the mean over tasks of the Mann-Whitney U divided by R Q.
    """
    left, right = scores[..., :, None, :], others[..., None, :, :]  # (..., R, 1, M), (..., 1, Q, M)
    wins = (left > right) + 0.5 * (left == right)
    return wins.mean((-3, -2, -1))


AGGREGATES: dict[str, Statistic] = {
    "IQM": iqm,
    "median": median,
    "mean": mean,
    "optimality gap": optimality_gap,
}  # the order in which tables show them


def score_matrix(by_task: Mapping[str, Mapping[int, float]]) -> Floats:
    """Scores by task and seed as a matrix (R, M), seeds ascending. A UserError names a task that lacks a seed."""
    seeds = sorted(set().union(*by_task.values()))
    for task, runs in by_task.items():
        missing = [str(seed) for seed in seeds if seed not in runs]
        if missing:
            raise UserError(f"{task} has no run with seed {', '.join(missing)}, which other tasks have")
    return checked(np.array([[runs[seed] for runs in by_task.values()] for seed in seeds], np.float64))


def checked(scores: Floats) -> Floats:
    """The matrix as float64; a UserError where it is not R runs by M tasks of finite numbers."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise UserError(f"scores must be a matrix of runs by tasks, not an array of shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise UserError("scores must be finite numbers: leave out, and name, the runs that have none")
    return scores


def resample_indices(runs: int, tasks: int, repetitions: int = REPETITIONS, seed: int = 0) -> Indices:
    """Which run stands where in every resample: (repetitions, R, M), each entry uniform in 0..R-1."""
    return np.random.default_rng(seed).integers(0, runs, (repetitions, runs, tasks))


def estimate(
    scores: Floats,
    statistic: Statistic,
    indices: Indices | None = None,
    repetitions: int = REPETITIONS,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """A statistic of scores (R, M) with its percentile bootstrap interval.

    `indices` (repetitions, R, M) are the resamples; without them they are drawn from `seed`. One run has no interval.
    """
    scores = checked(scores)
    point = float(statistic(scores))
    if len(scores) < 2:
        return Estimate(point, math.nan, math.nan)
    chosen = _drawn(scores, repetitions, seed) if indices is None else indices
    low, high = percentiles(np.concatenate([statistic(part) for part in _resamples(scores, chosen)]), level)
    return Estimate(point, float(low), float(high))


def aggregates(scores: Floats, repetitions: int = REPETITIONS, seed: int = 0) -> dict[str, Estimate]:
    """All of AGGREGATES of scores (R, M), each from the same resamples."""
    scores = checked(scores)
    indices = _drawn(scores, repetitions, seed)
    return {name: estimate(scores, statistic, indices) for name, statistic in AGGREGATES.items()}


def improvement(
    scores: Floats,
    others: Floats,
    indices: tuple[Indices, Indices] | None = None,
    repetitions: int = 2_000,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """Probability that the first improves on the second, scores (R, M) and (Q, M) resampled independently."""
    scores, others = checked(scores), checked(others)
    if scores.shape[1] != others.shape[1]:
        raise UserError(f"both sides need the same tasks, not {scores.shape[1]} and {others.shape[1]} of them")
    point = float(probability_of_improvement(scores, others))
    if min(len(scores), len(others)) < 2:
        return Estimate(point, math.nan, math.nan)
    first, second = _drawn_apart(scores, others, repetitions, seed) if indices is None else indices
    pairs = zip(_resamples(scores, first), _resamples(others, second), strict=True)
    draws = np.concatenate([probability_of_improvement(left, right) for left, right in pairs])
    low, high = percentiles(draws, level)
    return Estimate(point, float(low), float(high))


def performance_profile(
    scores: Floats,
    thresholds: Floats,
    indices: Indices | None = None,
    repetitions: int = 2_000,
    seed: int = 0,
    level: float = LEVEL,
) -> Profile:
    """Score distribution of scores (R, M) at `thresholds` (S,) with pointwise bootstrap intervals."""
    scores, thresholds = checked(scores), np.asarray(thresholds, np.float64)
    share = score_distribution(scores, thresholds)
    if len(scores) < 2:
        nothing = np.full_like(share, math.nan)
        return Profile(thresholds, share, nothing, nothing)
    chosen = _drawn(scores, repetitions, seed) if indices is None else indices
    draws = [score_distribution(part, thresholds) for part in _resamples(scores, chosen, 100)]
    low, high = percentiles(np.concatenate(draws), level)
    return Profile(thresholds, share, low, high)


def percentiles(draws: Floats, level: float = LEVEL) -> Floats:
    """Both ends of the central interval of draws (repetitions, ...): (2, ...). Undefined draws (NaN) are left out."""
    tail = 50 * (1 - level)
    return np.asarray(np.nanpercentile(draws, [tail, 100 - tail], axis=0))


def games_won(scores: Floats, rival: Floats | float = 1.0) -> int:
    """Tasks whose mean over runs is above the rival's, or above a number (1.0: better than a human)."""
    ours = checked(scores).mean(0)  # (M,)
    theirs = rival if isinstance(rival, float | int) else checked(rival).mean(0)
    return int((ours > theirs).sum())


def _resamples(scores: Floats, indices: Indices, chunk: int = _CHUNK) -> Iterator[Floats]:
    """Resampled scores, some at a time: (up to chunk, R, M)."""
    if indices.ndim != 3 or indices.shape[1:] != scores.shape:
        raise UserError(f"resample indices must have shape (repetitions, {scores.shape}), not {indices.shape}")
    for start in range(0, len(indices), chunk):
        yield np.take_along_axis(scores[None], indices[start : start + chunk], axis=1)


def _drawn(scores: Floats, repetitions: int, seed: int) -> Indices:
    runs, tasks = scores.shape
    return resample_indices(runs, tasks, repetitions, seed)


def _drawn_apart(scores: Floats, others: Floats, repetitions: int, seed: int) -> tuple[Indices, Indices]:
    first, second = (int(state) for state in np.random.SeedSequence(seed).generate_state(2))
    return _drawn(scores, repetitions, first), _drawn(others, repetitions, second)
