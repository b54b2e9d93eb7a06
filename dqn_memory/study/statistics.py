"""Aggregates of scores over runs and tasks with stratified bootstrap intervals (Agarwal et al. 2021).

Scores are a matrix: R runs (seeds) by M tasks (worlds, games), one number each. A resample draws the R runs of every
task anew, with replacement and independently of the other tasks, so the tasks themselves are taken as given.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import optimize, stats

from envs import baselines

Floats = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
Statistic = Callable[..., Floats]  # (..., R, M) -> (...) or (..., S)
REPETITIONS = 50_000  # of aggregates
PAIRS = 10_000  # of single means and differences
FEW = 2_000  # of what is drawn or compared pair by pair
LEVEL = 0.95
POWER = 0.8  # of a test, for the smallest effect that it would show
CHUNK = 1_000  # resamples held in memory at a time
# Share of the 95 % intervals of a mean that hold the true one, by the number of normally distributed runs.
COVERAGE = {2: 0.50, 3: 0.75, 4: 0.80, 5: 0.84, 10: 0.90}


class Estimate(NamedTuple):
    """A number with its interval, whose ends are NaN where the data give none."""

    point: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Show the number, and its interval in brackets where it has one, by the format of a number."""
        point, low, high = (format(number, form or ".3f") for number in self)
        return point if math.isnan(self.low) else f"{point} [{low}, {high}]"

    def __str__(self) -> str:
        return format(self)


def iqm(scores: Floats) -> Floats:
    """Average the middle half of the scores of all runs and tasks: the interquartile mean. Scores (..., R, M)."""
    return np.asarray(stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1))


def probability_of_improvement(scores: Floats, others: Floats) -> Floats:
    """Compute the chance that a run of the first beats a run of the second on a task, ties half, averaged over tasks.

    Scores (..., R, M) and (..., Q, M). It is the mean over tasks of the Mann-Whitney U divided by R Q.
    """
    left, right = scores[..., :, None, :], others[..., None, :, :]  # (..., R, 1, M), (..., 1, Q, M)
    wins = (left > right) + 0.5 * (left == right)
    return wins.mean((-3, -2, -1))


AGGREGATES: dict[str, Statistic] = {  # in the order in which tables show them
    "IQM": iqm,
    "median": lambda scores: np.asarray(np.median(scores.mean(-2), axis=-1)),  # over tasks, of the means over runs
    "mean": lambda scores: scores.mean((-2, -1)),
    "optimality gap": lambda scores: 1.0 - np.minimum(scores, 1.0).mean((-2, -1)),  # how far they fall short of 1
}


def share_above(thresholds: Floats) -> Statistic:
    """Give the statistic that is the share of scores above each threshold: (..., R, M) -> (..., S)."""
    return lambda scores: np.stack([(scores > threshold).mean((-2, -1)) for threshold in thresholds], -1)


def resample_indices(shape: tuple[int, ...], repetitions: int = REPETITIONS, seed: int = 0) -> Indices:
    """Draw which run stands where in every resample of (R, ...): (repetitions, R, ...), uniform in 0..R-1."""
    return np.random.default_rng(seed).integers(0, shape[0], (repetitions, *shape))


def bootstrap(
    statistic: Statistic, *samples: Floats, repetitions: int = FEW, indices: Sequence[Indices] | None = None
) -> tuple[Floats, Floats, Floats]:
    """Compute a statistic of samples, and both ends of its percentile interval; NaN where a sample is one run.

    Samples are scores (R, M), resampled independently of each other. `indices` are the resamples (repetitions, R, M)
    of each; without them they are drawn.
    """
    point = np.asarray(statistic(*samples))
    if min(map(len, samples)) < 2:
        return point, point * math.nan, point * math.nan
    if indices is None:
        seeds = [0] if len(samples) == 1 else map(int, np.random.SeedSequence(0).generate_state(len(samples)))
        indices = [resample_indices(one.shape, repetitions, seed) for one, seed in zip(samples, seeds, strict=True)]
    draws = []
    for start in range(0, len(indices[0]), CHUNK):
        chosen = [each[start : start + CHUNK] for each in indices]
        drawn = [np.take_along_axis(one[None], some, axis=1) for one, some in zip(samples, chosen, strict=True)]
        draws.append(statistic(*drawn))
    low, high = percentiles(np.concatenate(draws))
    return point, low, high


def percentiles(draws: Floats) -> Floats:
    """Give both ends of the central interval of draws (repetitions, ...): (2, ...). Undefined draws are left out."""
    tail = 50 * (1 - LEVEL)
    return np.asarray(np.nanpercentile(draws, [tail, 100 - tail], axis=0))


def estimate(
    statistic: Statistic, *samples: Floats, repetitions: int = FEW, indices: Sequence[Indices] | None = None
) -> Estimate:
    """Compute a number of samples with its interval, as `bootstrap` does."""
    return Estimate(*map(float, bootstrap(statistic, *samples, repetitions=repetitions, indices=indices)))


def aggregates(scores: Floats) -> dict[str, Estimate]:
    """Compute all of AGGREGATES of scores (R, M), each from the same resamples."""
    indices = [resample_indices(scores.shape)]
    return {name: estimate(statistic, scores, indices=indices) for name, statistic in AGGREGATES.items()}


def resampled_means(values: Floats | Sequence[float], repetitions: int, generator: np.random.Generator) -> Floats:
    """Draw the mean over runs of values (R, ...) so many times: (repetitions, ...)."""
    chosen = generator.integers(0, len(values), (repetitions, len(values)))
    return np.asarray(np.asarray(values, np.float64)[chosen].mean(1))


def games_won(scores: Floats) -> int:
    """Count the tasks whose mean over runs is above 1: better than a human."""
    return int((scores.mean(0) > 1).sum())


def interval(values: Sequence[float], repetitions: int = PAIRS) -> Estimate:
    """Average over runs, with the bootstrap interval, which one run does not have."""
    return estimate(AGGREGATES["mean"], np.array(values, np.float64)[:, None], repetitions=repetitions)


def difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Estimate:
    """Average the first's mean less the second's over pairs, with an interval by resampling the runs of every side.

    A sample that is a side of several pairs (the same object) is drawn once for all of them: its noise is shared, and
    drawn for each pair apart it would be averaged away.
    """
    point = float(np.mean([np.mean(first) - np.mean(second) for first, second in pairs]))
    if min(len(side) for pair in pairs for side in pair) < 2:
        return Estimate(point, math.nan, math.nan)
    generator = np.random.default_rng(0)
    samples = {id(side): side for pair in pairs for side in pair}
    drawn = {name: resampled_means(side, PAIRS, generator) for name, side in samples.items()}
    low, high = percentiles(np.mean([drawn[id(first)] - drawn[id(second)] for first, second in pairs], 0))
    return Estimate(point, float(low), float(high))


def mean_over(samples: Sequence[Sequence[float]]) -> Estimate:
    """Average the means of samples of any sizes, with an interval by resampling the runs of each."""
    nothing = [0.0, 0.0]
    return difference([(sample, nothing) for sample in samples])


class Moments(NamedTuple):
    """A sample by its mean, the standard error of that mean, and its size."""

    mean: float
    error: float
    size: int

    @classmethod
    def of(cls, sample: Sequence[float]) -> Self:
        """Give the moments of at least two numbers."""
        if min(sample) == max(sample):
            return cls(float(sample[0]), 0.0, len(sample))  # a rounded mean would differ and look like variance
        return cls(float(np.mean(sample)), float(stats.sem(sample)), len(sample))


def welch(first: Moments, second: Moments) -> float:
    """Give the two-sided p value of Welch's t-test that two samples have the same mean.

    It is NaN where neither varies, or one is a single number.
    """
    if first.error == second.error == 0 or min(first.size, second.size) < 2:
        return math.nan
    sides = [(side.mean, side.error * math.sqrt(side.size), side.size) for side in (first, second)]
    return float(stats.ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False).pvalue)


class Contrast(NamedTuple):
    """The mean of one sample less that of another, averaged over environments, with Welch's standard error.

    Where nothing varies there is no t: `certain` is the p value by permutation, `fewest` in how many ways the numbers
    of the smallest pair of samples can be dealt to its two sides.
    """

    effect: float
    error: float
    freedom: float
    certain: float = 1.0
    fewest: int = 2

    def margin(self, claims: int = 1) -> float:
        """Half of the interval that holds 95 % of so many claims at once (Bonferroni).

        Equal numbers leave none, if there are enough of them to show a difference; of fewer nothing is known.
        """
        if not self.error:
            return 0.0 if 2 / self.fewest < 1 - LEVEL else math.inf
        return float(stats.t.ppf(1 - (1 - LEVEL) / (2 * claims), self.freedom)) * self.error

    @property
    def p(self) -> float:
        """Two-sided p value of no difference."""
        if not self.error:
            return self.certain
        return float(2 * stats.t.sf(abs(self.effect) / self.error, self.freedom))

    def detectable(self, claims: int = 1) -> float:
        """Compute the true lead that such samples would show in 80 of 100 studies of so many claims."""
        if not self.error:
            return 0.0
        critical = self.margin(claims) / self.error

        def lacking(lead: float) -> float:  # in power, of a true lead of so many errors (noncentral t)
            return POWER - float(stats.nct.sf(critical, self.freedom, lead))

        return float(optimize.brentq(lacking, 0, 10 * critical)) * self.error

    def verdict(self, p: float, least: float, claims: int = 1) -> str:
        """Judge the claim of a lead by a corrected p value, and by the smallest lead that would matter."""
        if p < 1 - LEVEL:
            return "supported" if self.effect > 0 else "refuted"
        return "no such lead" if self.effect + self.margin(claims) < least else "undecided"


def contrast(pairs: Sequence[Sequence[Sequence[float]]]) -> Contrast:
    """Compare two samples of at least two numbers in each of several environments, where their spreads may differ."""
    moments = [[Moments.of(side) for side in pair] for pair in pairs]
    parts = [(side.error / len(pairs), side.size) for pair in moments for side in pair]
    variance = sum(error**2 for error, _ in parts)
    fourth = sum(error**4 / (size - 1) for error, size in parts)  # Welch and Satterthwaite's degrees of freedom
    leads = [first.mean - second.mean for first, second in moments]
    dealt = [math.comb(first.size + second.size, first.size) for first, second in moments]
    differ = [ways for ways, lead in zip(dealt, leads, strict=True) if lead]  # dealing equal numbers changes nothing
    one_way = min(leads) >= 0 or max(leads) <= 0  # else p would take all their sums, and 1 is safe
    certain = min(1.0, 2 / math.prod(differ)) if one_way and differ else 1.0
    freedom = variance**2 / fourth if fourth else math.inf
    return Contrast(float(np.mean(leads)), math.sqrt(variance), freedom, certain, min(dealt))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p values, none of them NaN, for their number (Holm 1979)."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    corrected, highest = list(values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * values[place]))
        corrected[place] = highest
    return corrected


def below_best(samples: Mapping[str, Sequence[float]]) -> list[str]:
    """Name the samples whose mean is significantly below the highest one: Welch's test, corrected for all (Holm).

    Samples of one number are left out.
    """
    tested = {name: sample for name, sample in samples.items() if len(sample) > 1}
    best = max(tested, key=lambda name: float(np.mean(tested[name])), default="")
    rivals = [name for name in tested if name != best]
    corrected = holm([contrast([(tested[best], tested[name])]).p for name in rivals])
    return [name for name, p in zip(rivals, corrected, strict=True) if p < 1 - LEVEL]


def runs_reaching(scores: Sequence[float], level: float) -> str:
    """Count the runs whose score reaches a level: 8 of 10."""
    return f"{sum(score >= level for score in scores)} of {len(scores)}"


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


def world_scale(id: str, success: bool = True) -> Scale | None:
    """Give the success, or the return, of random actions and of the best player known with default options.

    Where the optimum is only bounded the best known player stands at the lower bound, so that a score may exceed 1.
    None: `envs/baselines/lines.json` has no lines of this environment.
    """
    lines = baselines.lines(id)
    if lines is None:
        return None
    zero, one = (level.success if success else level.returns for level in (lines.random, lines.lower))
    return Scale(zero.mean, one.mean)


def game(name: str) -> str:
    """Give ale-py's name of a game with a human score, from any spelling ("Ms Pacman", "ALE/MsPacman-v5"), or ""."""
    plain = {candidate.replace("_", ""): candidate for candidate in HUMAN}
    return plain.get(re.sub(r"[^a-z]", "", re.sub(r"^ALE/|-v\d+$", "", name).lower()), "")


def short_name(label: str) -> str:
    """Leave out an environment's family and version."""
    return label.split("/")[-1].removesuffix("-v0")


def plain_name(label: str) -> str:
    """Name an environment in running text."""
    return short_name(label).replace("-", " ")
