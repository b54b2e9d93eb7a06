"""Welch's test between two cells of a published table, each a mean and a standard error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dqn_memory.study.papers.claim import Figure
from dqn_memory.study.statistics import Moments, welch


@dataclass(frozen=True)
class Cell:
    """Mean and standard error as printed, and the number of seeds that the paper states."""

    mean: str
    error: str
    seeds: int

    @classmethod
    def of(cls, row: Mapping[str, str], seeds: int) -> Cell:
        """From a row with the columns `mean` and `error`."""
        return cls(row["mean"], row["error"], seeds)


def p_value(first: Cell, second: Cell, one_sided: bool = False) -> Figure:
    """P value, two-sided or against a larger first mean, over the range that the rounding of both cells leaves."""

    def p(mean: float, error: float, other_mean: float, other_error: float) -> float:
        # an error printed as 0.0 may be rounded down to below zero at a corner, which no error is
        left = Moments(mean, max(error, 0.0), first.seeds)
        test = welch(left, Moments(other_mean, max(other_error, 0.0), second.seeds))
        return test.one_sided if one_sided else test.p

    return Figure.of_cells(p, first.mean, first.error, second.mean, second.error)
