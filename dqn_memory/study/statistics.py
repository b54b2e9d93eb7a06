"""Aggregate scores over runs and tasks, with stratified bootstrap intervals (Agarwal et al. 2021).

Scores are a matrix of R runs (seeds) by M tasks (environments, games). A resample draws the R runs of every task anew,
with replacement and independently of the other tasks. The tasks are fixed.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from envs import baselines
from envs.extras import extra

with extra("plots"):
    from scipy import optimize, stats

Floats = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
Statistic = Callable[..., Floats]  # (..., R, M) -> (...) or (..., S)
REPETITIONS = 50_000  # resamples of aggregates
PAIRS = 10_000  # resamples of single means and differences
FEW = 2_000  # resamples of statistics that compare runs pair by pair, and of curves
LEVEL = 0.95
POWER = 0.8  # power of a test at the smallest detectable effect
CHUNK = 1_000  # max resamples in memory at once
# Share of the 95 % intervals of a mean that contain the true mean, by the number of normally distributed runs.
COVERAGE = {2: 0.50, 3: 0.75, 4: 0.80, 5: 0.84, 10: 0.90}


class Estimate(NamedTuple):
    """A number with its interval; the ends are NaN if the data give no interval."""

    point: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Show the number, and its interval in brackets if it has one; `form` is the format of a number."""
        point, low, high = (format(number, form or ".3f") for number in self)
        return point if math.isnan(self.low) else f"{point} [{low}, {high}]"

    def __str__(self) -> str:
        return format(self)


def iqm(scores: Floats) -> Floats:
    """Compute the interquartile mean of scores (..., R, M): the mean of their middle half."""
    return np.asarray(stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1))


def probability_of_improvement(scores: Floats, others: Floats) -> Floats:
    """Compute the probability that a run of `scores` beats a run of `others` on a task, averaged over tasks.

    The shapes are (..., R, M) and (..., Q, M); a tie counts half. The result is the mean over tasks of the Mann-Whitney
    U divided by R Q.
    """
    left, right = scores[..., :, None, :], others[..., None, :, :]  # (..., R, 1, M), (..., 1, Q, M)
    wins = (left > right) + 0.5 * (left == right)
    return wins.mean((-3, -2, -1))


AGGREGATES: dict[str, Statistic] = {  # in the order in which tables show them
    "IQM": iqm,
    "median": lambda scores: np.asarray(np.median(scores.mean(-2), axis=-1)),  # median over tasks of means over runs
    "mean": lambda scores: scores.mean((-2, -1)),
    "optimality gap": lambda scores: 1.0 - np.minimum(scores, 1.0).mean((-2, -1)),  # mean shortfall from 1
}


def share_above(thresholds: Floats) -> Statistic:
    """Make the statistic "share of scores above each threshold": (..., R, M) -> (..., S)."""
    return lambda scores: np.stack([(scores > threshold).mean((-2, -1)) for threshold in thresholds], -1)


def resample_indices(shape: tuple[int, ...], repetitions: int = REPETITIONS, seed: int = 0) -> Indices:
    """Draw the runs of every resample of (R, ...): (repetitions, R, ...), uniform in 0..R-1."""
    return np.random.default_rng(seed).integers(0, shape[0], (repetitions, *shape))


def bootstrap_interval(
    statistic: Statistic, *samples: Floats, repetitions: int = FEW, indices: Sequence[Indices] | None = None
) -> tuple[Floats, Floats, Floats]:
    """Compute a statistic of samples and both ends of its percentile interval (NaN if a sample has only one run).

    Samples are scores (R, M), resampled independently of each other. `indices` are the resamples (repetitions, R, M) of
    each sample; None draws them.
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
    """Compute both ends (2, ...) of the central interval of draws (repetitions, ...), without NaN draws."""
    tail = 50 * (1 - LEVEL)
    return np.asarray(np.nanpercentile(draws, [tail, 100 - tail], axis=0))


def estimate(
    statistic: Statistic, *samples: Floats, repetitions: int = FEW, indices: Sequence[Indices] | None = None
) -> Estimate:
    """Compute a scalar statistic of samples with its interval; see `bootstrap`."""
    return Estimate(*map(float, bootstrap_interval(statistic, *samples, repetitions=repetitions, indices=indices)))


def aggregates(scores: Floats) -> dict[str, Estimate]:
    """Compute all of AGGREGATES of scores (R, M) from the same resamples."""
    indices = [resample_indices(scores.shape)]
    return {name: estimate(statistic, scores, indices=indices) for name, statistic in AGGREGATES.items()}


def resampled_means(values: Floats | Sequence[float], repetitions: int, generator: np.random.Generator) -> Floats:
    """Resample values (R, ...) and average each resample over runs: (repetitions, ...)."""
    chosen = generator.integers(0, len(values), (repetitions, len(values)))
    return np.asarray(np.asarray(values, np.float64)[chosen].mean(1))


def games_won(scores: Floats) -> int:
    """Count the tasks whose mean over runs is above 1, the score of a human."""
    return int((scores.mean(0) > 1).sum())


def interval(values: Sequence[float], repetitions: int = PAIRS) -> Estimate:
    """Average over runs, with a bootstrap interval; a single run has no interval."""
    return estimate(AGGREGATES["mean"], np.array(values, np.float64)[:, None], repetitions=repetitions)


def difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Estimate:
    """Average the difference of means over pairs, with an interval by resampling the runs of every side.

    A sample (the same object) in several pairs is resampled once for all of them: independent resampling would
    understate the variance.
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
    """Average the means of samples, which may differ in size, with an interval by resampling each sample."""
    nothing = [0.0, 0.0]
    return difference([(sample, nothing) for sample in samples])


class Moments(NamedTuple):
    """Mean, standard error of the mean, and size of a sample."""

    mean: float
    error: float
    size: int

    @classmethod
    def of(cls, sample: Sequence[float]) -> Self:
        """Compute the moments of at least two numbers."""
        if min(sample) == max(sample):
            return cls(float(sample[0]), 0.0, len(sample))  # rounding of the mean would look like variance
        return cls(float(np.mean(sample)), float(stats.sem(sample)), len(sample))


def welch(first: Moments, second: Moments) -> float:
    """Compute the two-sided p value of Welch's t-test for equal means.

    It is NaN if neither sample varies, or if one is a single number.
    """
    if first.error == second.error == 0 or min(first.size, second.size) < 2:
        return math.nan
    sides = [(side.mean, side.error * math.sqrt(side.size), side.size) for side in (first, second)]
    return float(stats.ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False).pvalue)


class Contrast(NamedTuple):
    """Difference of the means of two samples, averaged over environments, with Welch's standard error.

    Without any variance there is no t value. `certain` is then the p value of a permutation test. `fewest` is the
    number of permutations of the smallest pair of samples.
    """

    effect: float
    error: float
    freedom: float
    certain: float = 1.0
    fewest: int = 2

    def margin(self, claims: int = 1) -> float:
        """Compute half of the 95 % interval, corrected for the number of claims (Bonferroni).

        Without any variance it is 0 if the samples are large enough to show a difference, else infinite.
        """
        if not self.error:
            return 0.0 if 2 / self.fewest < 1 - LEVEL else math.inf
        return float(stats.t.ppf(1 - (1 - LEVEL) / (2 * claims), self.freedom)) * self.error

    @property
    def p(self) -> float:
        """Compute the two-sided p value of no difference."""
        if not self.error:
            return self.certain
        return float(2 * stats.t.sf(abs(self.effect) / self.error, self.freedom))

    def detectable(self, claims: int = 1) -> float:
        """Compute the smallest true lead that a study with this number of claims detects with probability `POWER`."""
        if not self.error:
            return 0.0
        critical = self.margin(claims) / self.error

        def missing_power(lead: float) -> float:  # of a true lead in units of the error (noncentral t)
            return POWER - float(stats.nct.sf(critical, self.freedom, lead))

        return float(optimize.brentq(missing_power, 0, 10 * critical)) * self.error

    def verdict(self, p: float, least: float, claims: int = 1) -> str:
        """Judge the claim of a lead by its corrected p value, and by the smallest lead that would matter (`least`)."""
        if p < 1 - LEVEL:
            return "supported" if self.effect > 0 else "refuted"
        return "no such lead" if self.effect + self.margin(claims) < least else "undecided"


def contrast(pairs: Sequence[Sequence[Sequence[float]]]) -> Contrast:
    """Compare two samples of at least two numbers in each of several environments by Welch's test."""
    moments = [[Moments.of(side) for side in pair] for pair in pairs]
    parts = [(side.error / len(pairs), side.size) for pair in moments for side in pair]
    variance = sum(error**2 for error, _ in parts)
    fourth = sum(error**4 / (size - 1) for error, size in parts)  # Welch and Satterthwaite's degrees of freedom
    leads = [first.mean - second.mean for first, second in moments]
    permutations = [math.comb(first.size + second.size, first.size) for first, second in moments]
    differ = [count for count, lead in zip(permutations, leads, strict=True) if lead]  # equal numbers permute to equal
    one_way = min(leads) >= 0 or max(leads) <= 0  # else p would need the sums of all permutations, and 1 is safe
    certain = min(1.0, 2 / math.prod(differ)) if one_way and differ else 1.0
    freedom = variance**2 / fourth if fourth else math.inf
    return Contrast(float(np.mean(leads)), math.sqrt(variance), freedom, certain, min(permutations))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm 1979); none may be NaN."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    corrected, largest = list(values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * values[place]))
        corrected[place] = largest
    return corrected


def below_best(samples: Mapping[str, Sequence[float]]) -> list[str]:
    """Name the samples whose mean is significantly below the best mean, by Welch's tests with Holm's correction.

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
    """The reference scores that count as 0 and 1."""

    zero: float
    one: float

    def __call__(self, score: float) -> float:
        """Normalise a score; the result may lie below 0 or above 1."""
        return (score - self.zero) / (self.one - self.zero)


# Random play and a human tester's mean score (Mnih et al. 2015; Wang et al. 2016) in the games of the Atari 100k
# benchmark, under ale-py's names.
with (Path(__file__).parent / "human.csv").open(encoding="utf-8") as _file:
    HUMAN: Mapping[str, Scale] = {
        row["game"]: Scale(float(row["random"]), float(row["human"])) for row in csv.DictReader(_file)
    }
# Gymnasium's own environments: random play (10,000 episodes with seed 0), and the max return of an episode.
OTHERS: Mapping[str, Scale] = {"CartPole-v1": Scale(22.2, 500.0)}


def world_scale(id: str, success: bool = True) -> Scale | None:
    """Give the success (or return) of random actions and of the best known player, with default options.

    In POPGym's tasks, which have returns alone, the best known player has a perfect memory.

    If only bounds of the optimum are known, the lower bound counts as the best known player, so that scores may exceed
    1. The result is None if `envs/baselines/reference.json` lacks this environment.
    """
    lines = baselines.reference_of(id)
    if lines is None:
        return None
    zero, one = (level.success if success else level.returns for level in (lines.random, lines.lower))
    return Scale(zero.mean, one.mean)


def game(name: str) -> str:
    """Give ale-py's name of a game with a human score from any spelling ("Ms Pacman", "ALE/MsPacman-v5"), else ""."""
    plain = {candidate.replace("_", ""): candidate for candidate in HUMAN}
    return plain.get(re.sub(r"[^a-z]", "", re.sub(r"^ALE/|-v\d+$", "", name).lower()), "")


def short_name(label: str) -> str:
    """Remove family and version from an environment's label."""
    return label.split("/")[-1].removesuffix("-v0")


def plain_name(label: str) -> str:
    """Name an environment for running text."""
    return short_name(label).replace("-", " ")
