"""Aggregates of scores over runs and tasks with stratified bootstrap intervals (Agarwal et al. 2021).

Scores are a matrix: R runs (seeds) by M tasks (worlds, games), one number each. A resample draws the R runs of every
task anew, with replacement and independently of the other tasks, so the tasks themselves are taken as given.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dqn_memory.runs.errors import UserError, near_names
from envs import baselines
from envs.baselines.known import Lines

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
    """Average over runs and tasks. Scores (..., R, M)."""
    return scores.mean((-2, -1))


def median(scores: Floats) -> Floats:
    """Take the median over tasks of the mean over runs. Scores (..., R, M)."""
    return np.asarray(np.median(scores.mean(-2), axis=-1))


def iqm(scores: Floats) -> Floats:
    """Average the middle half of the scores of all runs and tasks: the interquartile mean. Scores (..., R, M)."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # (..., R M)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def optimality_gap(scores: Floats, target: float = 1.0) -> Floats:
    """Average how far scores fall short of `target`; what is above it counts as `target`. Scores (..., R, M)."""
    return target - np.minimum(scores, target).mean((-2, -1))


def score_distribution(scores: Floats, thresholds: Floats) -> Floats:
    """Compute the share of runs and tasks whose score is above each threshold: (..., R, M) and (S,) -> (..., S)."""
    return (scores[..., None] > thresholds).mean((-3, -2))


def probability_of_improvement(scores: Floats, others: Floats) -> Floats:
    """Compute the chance that a run of the first beats a run of the second on a task, ties half, averaged over tasks.

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


def checked(scores: Floats) -> Floats:
    """Give the matrix as float64; a UserError where it is not R runs by M tasks of finite numbers."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise UserError(f"scores must be a matrix of runs by tasks, not an array of shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise UserError("scores must be finite numbers: leave out, and name, the runs that have none")
    return scores


def resample_indices(runs: int, tasks: int, repetitions: int = REPETITIONS, seed: int = 0) -> Indices:
    """Draw which run stands where in every resample: (repetitions, R, M), each entry uniform in 0..R-1."""
    return np.random.default_rng(seed).integers(0, runs, (repetitions, runs, tasks))


def _drawn(scores: Floats, repetitions: int, seed: int) -> Indices:
    runs, tasks = scores.shape
    return resample_indices(runs, tasks, repetitions, seed)


def estimate(
    scores: Floats,
    statistic: Statistic,
    indices: Indices | None = None,
    repetitions: int = REPETITIONS,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """Compute a statistic of scores (R, M) with its percentile bootstrap interval, which one run does not have.

    Args:
        scores: R runs of M tasks.
        statistic: (..., R, M) -> (...).
        indices: the resamples (repetitions, R, M); without them they are drawn from `seed`.
        repetitions: of resamples that are drawn.
        seed: of the draw.
        level: share of the resamples within the interval.
    """
    scores = checked(scores)
    chosen = _drawn(scores, repetitions, seed) if indices is None else indices
    return Estimate(*map(float, _bootstrap(statistic, (scores,), (chosen,), level)))


def aggregates(scores: Floats, repetitions: int = REPETITIONS, seed: int = 0) -> dict[str, Estimate]:
    """Compute all of AGGREGATES of scores (R, M), each from the same resamples."""
    scores = checked(scores)
    indices = _drawn(scores, repetitions, seed)
    return {name: estimate(scores, statistic, indices) for name, statistic in AGGREGATES.items()}


def improvement(
    scores: Floats,
    others: Floats,
    indices: tuple[Indices, Indices] | None = None,
    repetitions: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """Estimate the probability that the first improves on the second, (R, M) and (Q, M) resampled independently."""
    scores, others = checked(scores), checked(others)
    if scores.shape[1] != others.shape[1]:
        raise UserError(f"both sides need the same tasks, not {scores.shape[1]} and {others.shape[1]} of them")
    if indices is None:
        first, second = (int(state) for state in np.random.SeedSequence(seed).generate_state(2))
        indices = _drawn(scores, repetitions, first), _drawn(others, repetitions, second)
    return Estimate(*map(float, _bootstrap(probability_of_improvement, (scores, others), indices)))


def performance_profile(
    scores: Floats, thresholds: Floats, indices: Indices | None = None, repetitions: int = 2_000, seed: int = 0
) -> Profile:
    """Compute the score distribution of scores (R, M) at `thresholds` (S,) with pointwise bootstrap intervals."""
    scores, thresholds = checked(scores), np.asarray(thresholds, np.float64)
    chosen = _drawn(scores, repetitions, seed) if indices is None else indices
    found = _bootstrap(lambda part: score_distribution(part, thresholds), (scores,), (chosen,), chunk=100)
    return Profile(thresholds, *found)


def _bootstrap(
    statistic: Callable[..., Floats], samples: Sequence[Floats], indices: Sequence[Indices],
    level: float = LEVEL, chunk: int = _CHUNK,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """Compute a statistic of samples, and both ends of its interval; NaN where a sample is one run."""
    point = np.asarray(statistic(*samples))
    if min(map(len, samples)) < 2:
        nothing = np.full_like(point, math.nan)
        return point, nothing, nothing
    parts = zip(*(_resamples(one, chosen, chunk) for one, chosen in zip(samples, indices, strict=True)), strict=True)
    low, high = percentiles(np.concatenate([statistic(*part) for part in parts]), level)
    return point, low, high


def _resamples(scores: Floats, indices: Indices, chunk: int) -> Iterator[Floats]:
    """Yield resampled scores, some at a time: (up to chunk, R, M)."""
    if indices.ndim != 3 or indices.shape[1:] != scores.shape:
        raise UserError(f"resample indices must have shape (repetitions, {scores.shape}), not {indices.shape}")
    for start in range(0, len(indices), chunk):
        yield np.take_along_axis(scores[None], indices[start : start + chunk], axis=1)


def percentiles(draws: Floats, level: float = LEVEL) -> Floats:
    """Give both ends of the central interval of draws (repetitions, ...): (2, ...). Undefined draws are left out."""
    tail = 50 * (1 - level)
    return np.asarray(np.nanpercentile(draws, [tail, 100 - tail], axis=0))


def games_won(scores: Floats, rival: float = 1.0) -> int:
    """Count the tasks whose mean over runs is above a number (1.0: better than a human)."""
    return int((checked(scores).mean(0) > rival).sum())


class Moments(NamedTuple):
    """A sample by its mean, the standard error of that mean, and its size."""

    mean: float
    error: float
    size: int

    @classmethod
    def of(cls, sample: Sequence[float]) -> Moments:
        """Give the moments of at least two numbers."""
        size = len(sample)
        if size < 2:
            raise UserError(f"Welch's test needs at least two runs on each side, not {size}")
        if min(sample) == max(sample):
            return cls(float(sample[0]), 0.0, size)  # a rounded mean would differ from it and look like variance
        return cls(float(np.mean(sample)), float(np.std(sample, ddof=1)) / math.sqrt(size), size)


class Welch(NamedTuple):
    """Outcome of Welch's t-test: `p` is two-sided. Both are NaN where neither sample varies."""

    t: float
    p: float

    @property
    def one_sided(self) -> float:
        """P value against the alternative that the first mean is larger."""
        return self.p / 2 if self.t > 0 else 1 - self.p / 2


def welch(first: Sequence[float] | Moments, second: Sequence[float] | Moments) -> Welch:
    """Test whether two samples with unequal variances have the same mean.

    A UserError where a sample has one entry.
    """
    a, b = (side if isinstance(side, Moments) else Moments.of(side) for side in (first, second))
    if a.error == b.error == 0:
        return Welch(math.nan, math.nan)
    spread = [side.error * math.sqrt(side.size) for side in (a, b)]
    t, p = stats.ttest_ind_from_stats(a.mean, spread[0], a.size, b.mean, spread[1], b.size, equal_var=False)
    return Welch(float(t), float(p))


FEWEST = 4  # pairs below which an interval says nothing


def spearman(x: Floats, y: Floats) -> Floats:
    """Correlate the ranks along the last axis, ties sharing theirs: (..., N) -> (...); NaN where a side is constant."""
    left, right = (stats.rankdata(np.asarray(side, np.float64), axis=-1) for side in (x, y))
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
    """Compute Spearman's correlation of N pairs, and the percentile interval over resampled pairs.

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
    """Draw which pair stands where in every resample: (repetitions, N)."""
    return np.random.default_rng(seed).integers(0, pairs, (repetitions, pairs))


class Scale(NamedTuple):
    """The scores that count as 0 and as 1."""

    zero: float
    one: float

    def __call__(self, score: float) -> float:
        """Put a score on this scale; below 0 and above 1 are kept."""
        return (score - self.zero) / (self.one - self.zero)


# Random play and a human tester's mean score (Mnih et al. 2015; Wang et al. 2016) in the games of the Atari 100k
# benchmark, under ale-py's names.
with (Path(__file__).parent / "human.csv").open(encoding="utf-8") as _file:
    HUMAN: Mapping[str, Scale] = {
        row["game"]: Scale(float(row["random"]), float(row["human"])) for row in csv.DictReader(_file)
    }
# Of Gymnasium's own worlds: random play (10,000 episodes with seed 0), and what an episode can give at most.
OTHERS: Mapping[str, Scale] = {"CartPole-v1": Scale(22.2, 500.0)}


def known_lines(world: str) -> Lines:
    """Find what random actions and the best player known reach in an environment with default options.

    A UserError names an environment for which `envs/baselines/lines.json` has no lines.
    """
    lines = baselines.lines(world)
    if lines is None:
        known = baselines.known.shipped()
        raise UserError(f"{near_names('world', world, known)}; `python -m envs.baselines` measures others")
    return lines


def world_scale(world: str) -> Scale:
    """Give the success of random actions and of the best player known as `known_lines` does.

    Where the optimum is only bounded the best known player stands at the lower bound, so that a score may exceed 1.
    """
    lines = known_lines(world)
    return Scale(lines.random.success.mean, lines.lower.success.mean)


def game(name: str) -> str:
    """Give ale-py's name of a game, from any spelling: "Ms Pacman", "MsPacman", "ALE/MsPacman-v5"."""
    plain = {candidate.replace("_", ""): candidate for candidate in HUMAN}
    wanted = re.sub(r"[^a-z]", "", re.sub(r"^ALE/|-v\d+$", "", name).lower())
    if wanted not in plain:
        raise UserError(near_names("game with a human score", name, HUMAN))
    return plain[wanted]
