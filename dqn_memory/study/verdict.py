"""Judge from the scores of several runs whether a task needs a memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dqn_memory.study.statistics import LEVEL, Estimate, Floats, Moments, difference, welch

CONTROLS = {  # networks without a memory, the poorest first, and the verdict if one does as well as any
    "mlp": "no memory needed",
    "clock": "a clock is enough",
    "frame_stack": "the last few observations are enough",
}
POOREST = "mlp"
NEEDED, UNKNOWN, NOTHING = "needs a memory", "cannot tell yet", "nothing was learned"
VERDICTS = (*CONTROLS.values(), NEEDED, UNKNOWN, NOTHING)
MARGIN = 0.1  # share of the way from random play to the best mean within which two means count as equal
SOLVED = 0.9  # share of the way from random play to the best possible score
LEARNED = 4.0  # standard errors of a run above random play
PERMUTATIONS = 20_000  # max permutations of a test
ROUNDING = 1e-9  # max difference between equal sums


@dataclass(frozen=True)
class Judgement:
    """The verdict on a task.

    Attributes:
        verdict: one of VERDICTS.
        best: the series with the highest mean.
        control: the best network without a memory.
        memory: the best network with one.
        lead: mean of `memory` less that of `control`, with its interval.
        solved: whether the best mean is close to the best possible score; None if that is unknown.
    """

    verdict: str
    best: str
    control: str
    memory: str
    lead: Estimate
    solved: bool | None


def judge(scores: Mapping[str, Sequence[float]], random: Floats, episodes: int, ceiling: float | None) -> Judgement:
    """Judge a task.

    Args:
        scores: score of each run by series: those of CONTROLS, and at least one memory.
        random: scores of single episodes of random play.
        episodes: number of episodes behind each score of a run.
        ceiling: the best possible score (None: unknown).
    """
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    best = max(means, key=means.__getitem__)
    control, memory = (
        max((name for name in means if (name in CONTROLS) == is_control), key=means.__getitem__)
        for is_control in (True, False)
    )
    start, reach = float(random.mean()), means[best] - float(random.mean())
    solved = None if ceiling is None else reach >= SOLVED * (ceiling - start)
    lead = difference([(scores[memory], scores[control])])
    enough = next((name for name in CONTROLS if name in means and means[best] - means[name] <= MARGIN * reach), None)
    if not has_learned(scores, random, episodes):
        verdict = NOTHING
    elif enough is not None:
        explains = solved in (True, None) or (enough != POOREST and means_differ(scores[enough], scores[POOREST]))
        verdict = CONTROLS[enough] if explains else UNKNOWN
    else:
        verdict = NEEDED if all(leads(scores, name) for name in CONTROLS if name in means) else UNKNOWN
    return Judgement(verdict, best, control, memory, lead, solved)


def has_learned(scores: Mapping[str, Sequence[float]], random: Floats, episodes: int) -> bool:
    """Tell whether at least two runs are above random play by more than the chance of their episodes allows."""
    error = math.sqrt(float(random.var()) * (1 / episodes + 1 / len(random)))
    above = [score - float(random.mean()) > LEARNED * error for values in scores.values() for score in values]
    return sum(above) >= min(2, len(above))


def means_differ(first: Sequence[float], second: Sequence[float]) -> bool:
    """Tell whether the means of two samples differ by more than chance, by Welch's test."""
    return min(len(first), len(second)) > 1 and welch(Moments.of(first), Moments.of(second)) < 1 - LEVEL


def leads(scores: Mapping[str, Sequence[float]], control: str) -> bool:
    """Tell whether memories beat a control: all of them together, or the best one alone.

    The first is a permutation test of means, the second Welch's test, corrected for the number of memories.
    """
    memories = {name: values for name, values in scores.items() if name not in CONTROLS}
    best = max(memories.values(), key=lambda values: float(np.mean(values)))
    if float(np.mean(best)) <= float(np.mean(scores[control])):
        return False
    together = np.concatenate([np.asarray(values, np.float64) for values in memories.values()])
    alone = 1.0
    if min(len(best), len(scores[control])) > 1:
        alone = welch(Moments.of(best), Moments.of(scores[control])) * len(memories)
    return permuted(together, np.asarray(scores[control], np.float64)) < 1 - LEVEL or alone < 1 - LEVEL


def permuted(first: Floats, second: Floats) -> float:
    """Give the one-sided p value of a permutation test: that the mean of `first` is above that of `second`."""
    both, size = np.concatenate((first, second)), len(second)
    if math.comb(len(both), size) <= PERMUTATIONS:
        chosen = np.array(list(combinations(range(len(both)), size)))
    else:
        chosen = np.random.default_rng(0).random((PERMUTATIONS, len(both))).argsort(1)[:, :size]
    return float((both[chosen].sum(1) <= second.sum() + ROUNDING).mean())
