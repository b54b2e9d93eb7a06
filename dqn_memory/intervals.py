"""95 % intervals of an evaluation: Wilson's for the success rate, the normal one for means of return and length.

Intervals over the runs of a study are in `study/statistics.py`.
"""

import math
from collections.abc import Sequence

import numpy as np

Measure = tuple[float, float | None, float | None]  # mean, low, high


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """Compute Wilson's 95 % score interval of a proportion (Wilson 1927)."""
    rate, z = successes / trials, 1.959964
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # rounding must not exclude a rate of 0 or 1 from its own interval
    return (max(0.0, centre - half) if successes else 0.0), (min(1.0, centre + half) if successes < trials else 1.0)


def mean_interval(values: np.ndarray, exhaustive: bool) -> Measure:
    """Compute the mean with the normal 95 % interval; None if the values are exhaustive or fewer than two."""
    mean = float(values.mean())
    if exhaustive or len(values) < 2:
        return mean, None, None
    half = 1.959964 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def mean_of_measures(measures: Sequence[Measure]) -> Measure:
    """Average independent means; an interval is absent if all are exact, and a mean without one counts as exact."""
    mean = sum(each[0] for each in measures) / len(measures)
    halves = [(high - low) / 2 for _, low, high in measures if low is not None and high is not None]
    if not halves:
        return mean, None, None
    half = math.sqrt(sum(each * each for each in halves)) / len(measures)
    return mean, mean - half, mean + half
