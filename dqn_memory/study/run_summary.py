"""Summarise one run by its evaluation curve.

The DBGFQN paper does not define the number in its success column. Its metric is the running average of the last ten
evaluations. The column may hold the last value of that average, or its mean over training. The summary has both, and
the success of the final evaluation, the steps to a level of success, and the area under the curve.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dqn_memory.runs.errors import UserError, require
from dqn_memory.study.statistics import Floats
from envs.extras import extra

with extra("plots"):
    from scipy.integrate import trapezoid

WINDOW = 10  # evaluations in the running average
LEVELS = (0.5, 0.9)
FINALS = ("sampled", "final")  # groups of metrics; the first logged group counts (PPO may log both)

MEANINGS = {
    "last_average": f"mean success of the last {WINDOW} evaluations, or of all if there are fewer",
    "mean_average": f"running average over {WINDOW} evaluations (fewer at the start), averaged over training",
    "final": "success of the final evaluation, which has more and new episodes; of PPO by sampled actions",
    "steps_to": "steps at the first evaluation that reached the level; > N if none did within the run's N steps",
    "area": "area under the curve of evaluations (trapezoidal rule), divided by the steps that it spans",
}


@dataclass(frozen=True)
class Curve:
    """Success (or return) over training: E evaluations at ascending environment steps, and the final one."""

    steps: np.ndarray[Any, np.dtype[np.int64]]  # (E,)
    success: Floats  # (E,)
    trained: int  # environment steps of the run
    final: float | None = None


def read_curve(lines: Sequence[Mapping[str, Any]], success: bool, source: str) -> Curve:
    """Read the evaluation curve from a run's log lines: of success rates, or of returns.

    A UserError that begins with `source` says that an evaluation is missing, or is not a valid number.
    """
    name = "success_rate" if success else "episodic_return"
    names = [f"{kind}/{name}" for kind in FINALS]
    final = next((line[name] for name in names for line in reversed(lines) if name in line), None)
    points = [(line["step"], line[f"eval/{name}"]) for line in lines if f"eval/{name}" in line]
    if not points and final is not None:
        points = [(lines[-1]["step"], final)]
    require(points, f"{source} has no evaluation (eval/{name}): the run has not come to one")
    steps, values = zip(*points, strict=True)
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise UserError(f"{source} is damaged: the steps of its evaluations do not ascend")
    for value in (*values, *([] if final is None else [final])):
        if value is None or not math.isfinite(value) or (success and not 0 <= value <= 1):
            words = "success rate is not a number from 0 to 1" if success else "return is not a number"
            raise UserError(f"{source} is damaged: a {words}")
    trained = max(line["step"] for line in lines)
    return Curve(np.array(steps), np.array(values, np.float64), trained, final)


def summarise(curve: Curve) -> dict[str, Any]:
    """Compute the numbers of MEANINGS from a curve; `steps_to` has one for each of LEVELS (None: not reached).

    The area spans the steps from the first evaluation to the last; for a single evaluation it is the value.
    """
    ends = range(1, len(curve.success) + 1)
    average = np.array([curve.success[max(0, end - WINDOW) : end].mean() for end in ends])  # (E,)
    span = float(curve.steps[-1] - curve.steps[0])
    area = trapezoid(curve.success, curve.steps) / span if span else curve.success[0]
    reached = [curve.steps[curve.success >= level] for level in LEVELS]
    return {
        "last_average": float(average[-1]),
        "mean_average": float(average.mean()),
        "final": curve.final,
        "steps_to": [int(steps[0]) if len(steps) else None for steps in reached],
        "area": float(area),
    }


def median_steps(reached: Sequence[int | None]) -> int | None:
    """Compute the median over runs of one budget; runs that did not reach the level (None) count as the latest."""
    middle = float(np.median([math.inf if steps is None else steps for steps in reached]))
    return None if math.isinf(middle) else round(middle)


def in_steps(reached: int | None, budget: int) -> str:
    """Show the steps to a level: 1,200, or > 2,000 if the budget was too short."""
    return f"> {budget:,}" if reached is None else f"{reached:,}"
