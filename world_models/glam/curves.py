"""Losses over a run, each part by itself, and how much they fluctuate around their trend (the paper's Figure 6).

The paper draws the fluctuation and does not say how it is measured. Here it is the standard deviation of what is left
of a logged loss when its centred moving average is taken away; a logged loss is itself the mean over all updates since
the line before, so runs are comparable where they log equally often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dqn_memory.runs.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
PARTS = ("reconstruction", "reward", "termination", "dynamics", "representation", "variation", "total")
WINDOW = 11  # log lines of the moving average


@dataclass(frozen=True)
class Curve:
    """One loss at N log lines, oldest first."""

    steps: Array  # (N,) environment steps
    values: Array  # (N,)

    def trend(self, window: int = WINDOW) -> Array:
        """Centred moving average (N,), of fewer lines where the run begins and ends."""
        half = min(window, len(self.values)) // 2
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        place = np.arange(len(self.values))
        reach = np.minimum(half, np.minimum(place, place[::-1]))  # as far to both sides, or the mean is no trend
        return (sums[place + reach + 1] - sums[place - reach]) / (2 * reach + 1)

    def fluctuation(self, window: int = WINDOW) -> float:
        """Standard deviation around the trend, without the lines whose window is cut short; nan where none is left."""
        half = min(window, len(self.values)) // 2
        inner = slice(half, len(self.values) - half)
        left = (self.values - self.trend(window))[inner]
        return float(left.std()) if len(left) > 1 else float("nan")


def curves(lines: Sequence[Mapping[str, Any]], source: str) -> dict[str, Curve]:
    """Every part of the world model's loss in the lines of a metrics.jsonl; a UserError where there is none."""
    found = {part: _curve(lines, f"losses/{part}") for part in PARTS}
    known = {part: curve for part, curve in found.items() if len(curve.steps)}
    if not known:
        raise UserError(f"{source} has logged no loss of a world model yet: nothing can be drawn")
    return known


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> Curve:
    pairs = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    steps, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return Curve(steps, values)
