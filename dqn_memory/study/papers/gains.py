"""How much better one column is than another, read in three ways that can disagree wildly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dqn_memory.study.statistics import Floats


@dataclass(frozen=True)
class Gains:
    """Relative gains over the rows that both columns have; a row where the other is 0 has none."""

    median: float
    ratio: float  # of the means over rows, minus 1
    mean: float  # the reading that one row can carry: never the first one shown
    largest: float
    largest_row: int
    rows: int
    undefined: int

    def text(self) -> str:
        """The three readings, the robust ones first."""
        return (
            f"median {100 * self.median:+.1f} %; ratio of mean scores {100 * self.ratio:+.1f} %; "
            f"mean of relative gains {100 * self.mean:+.1f} %"
        )


def gains(scores: Floats, others: Floats) -> Gains:
    """Relative gains of scores (M,) over others (M,), NaN where nothing was printed."""
    both = np.flatnonzero(~np.isnan(scores) & ~np.isnan(others))
    defined = both[others[both] > 0]
    relative = scores[defined] / others[defined] - 1
    return Gains(
        median=float(np.median(relative)),
        ratio=float(scores[both].mean() / others[both].mean() - 1),
        mean=float(relative.mean()),
        largest=float(relative.max()),
        largest_row=int(defined[relative.argmax()]),
        rows=len(both),
        undefined=len(both) - len(defined),
    )
