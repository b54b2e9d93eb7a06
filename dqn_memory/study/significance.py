"""Welch's t-test (Welch 1947), from samples or from published means and standard errors, in float64.

The tail of Student's distribution is a regularised incomplete beta function, which is computed by its continued
fraction with the modified Lentz algorithm (Abramowitz and Stegun 26.5.8 and 26.7.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dqn_memory.runs.errors import UserError

_MOST_TERMS = 10_000
_TINY = 1e-300  # stands in for a zero denominator
_CLOSE = 4e-16  # two units in the last place


@dataclass(frozen=True)
class Moments:
    """A sample by its mean, the standard error of that mean, and its size."""

    mean: float
    error: float
    size: int

    @classmethod
    def of(cls, sample: Sequence[float]) -> Moments:
        """Moments of at least two numbers."""
        size = len(sample)
        if size < 2:
            raise UserError(f"Welch's test needs at least two runs on each side, not {size}")
        if min(sample) == max(sample):
            return cls(float(sample[0]), 0.0, size)  # a rounded mean would differ from it and look like variance
        mean = math.fsum(sample) / size
        variance = math.fsum((value - mean) ** 2 for value in sample) / (size - 1)
        return cls(mean, math.sqrt(variance / size), size)


@dataclass(frozen=True)
class Welch:
    """Outcome of the test: `p` is two-sided. All are NaN where neither sample varies."""

    t: float
    degrees: float
    p: float

    @property
    def one_sided(self) -> float:
        """P value against the alternative that the first mean is larger."""
        return self.p / 2 if self.t > 0 else 1 - self.p / 2


def welch(first: Sequence[float] | Moments, second: Sequence[float] | Moments) -> Welch:
    """Do two samples with unequal variances have the same mean? A UserError where a sample has one entry."""
    a, b = (side if isinstance(side, Moments) else Moments.of(side) for side in (first, second))
    variance = a.error**2 + b.error**2
    if variance == 0:
        return Welch(math.nan, math.nan, math.nan)
    t = (a.mean - b.mean) / math.sqrt(variance)
    degrees = variance**2 / (a.error**4 / (a.size - 1) + b.error**4 / (b.size - 1))
    return Welch(t, degrees, student_two_sided(t, degrees))


def student_two_sided(t: float, degrees: float) -> float:
    """P(|T| >= |t|) for Student's T with `degrees` > 0 of freedom, which need not be whole."""
    square = t * t
    return regularised_beta(degrees / 2, 0.5, degrees / (degrees + square), square / (degrees + square))


def regularised_beta(a: float, b: float, x: float, complement: float | None = None) -> float:
    """I_x(a, b) for a, b > 0; `complement` is 1 - x where the caller knows it more exactly."""
    rest = 1 - x if complement is None else complement
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - regularised_beta(b, a, rest, x)
    log_front = a * math.log(x) + b * math.log(rest) - _log_beta(a, b)
    return math.exp(log_front) * _fraction(a, b, x) / a


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), by modified Lentz."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for term in range(1, _MOST_TERMS):
        change = 1.0
        for numerator in _numerators(a, b, x, term):
            d = 1 / _away_from_zero(1 + numerator * d)
            c = _away_from_zero(1 + numerator / c)
            value *= c * d
            change = c * d
        if abs(change - 1) < _CLOSE:
            return value
    raise ArithmeticError(f"I_{x}({a}, {b}) has not converged in {_MOST_TERMS} terms")


def _numerators(a: float, b: float, x: float, term: int) -> tuple[float, float]:
    even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
    odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
    return even, odd


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
