"""Judge from the scores of several runs whether a task needs a memory."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dqn_memory.study.statistics import LEVEL, Estimate, Floats, Moments, contrast, welch

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
LUCKY = 2  # episodes of a run that chance may win where random play won none
PERMUTATIONS = 20_000  # max permutations of a test
FEWEST = 3  # runs of Welch's test: two runs of networks that win or fail vary too little
ROUNDING = 1e-9  # max difference between equal sums of shares
SINGLE = 1e-6  # share of a return that is rounding of single precision


class Judgement(NamedTuple):
    """The verdict on a task."""

    verdict: str  # one of VERDICTS
    best: str  # the series with the highest mean
    control: str  # the best network without a memory
    memory: str  # the best network with one
    lead: Estimate  # mean of `memory` less that of `control`, with Welch's interval
    doubt: str  # a sentence that says why the verdict is UNKNOWN, if it is


def judge(
    scores: Mapping[str, Sequence[float]], random: Floats, episodes: int, ceiling: float | None, win: float = 1.0
) -> Judgement:
    """Judge a task.

    Args:
        scores: score of each run by series: those of CONTROLS, and at least one memory.
        random: scores of single episodes of random play.
        episodes: number of episodes behind each score of a run.
        ceiling: the best possible score (None: unknown).
        win: score of an episode that goes well.
    """
    means, tops = ({name: float(of(values)) for name, values in scores.items()} for of in (np.mean, max))
    best, controls = max(means, key=means.__getitem__), [name for name in CONTROLS if name in means]
    control = max(controls, key=means.__getitem__)
    memory = max((name for name in means if name not in CONTROLS), key=means.__getitem__)
    start, highest = float(random.mean()), max(tops.values())
    near_mean, near_top = (top - MARGIN * (top - start) for top in (means[best], highest))
    solved = None if ceiling is None else means[best] - start >= SOLVED * (ceiling - start)
    enough = next((name for name in controls if means[name] >= near_mean and tops[name] >= near_top), None)
    as_far = next((name for name in controls if tops[name] >= near_mean), None)
    doubt = "These runs are too few, or differ too much, to tell."
    if not has_learned(scores, random, episodes, win):
        verdict = NOTHING
    elif enough is not None:
        explains = solved in (True, None) or (enough != POOREST and means_differ(scores[enough], scores[POOREST]))
        verdict, doubt = CONTROLS[enough] if explains else UNKNOWN, "No network comes near the best known score."
    elif as_far is not None:
        verdict, doubt = UNKNOWN, f"One run of {as_far} comes as far: a memory may only make learning surer."
    else:
        verdict = NEEDED if all(leads(scores, name) for name in controls) else UNKNOWN
    return Judgement(verdict, best, control, memory, lead(scores[memory], scores[control]), doubt)


def has_learned(scores: Mapping[str, Sequence[float]], random: Floats, episodes: int, win: float = 1.0) -> bool:
    """Tell whether at least two runs are above random play by more than the chance of episodes and LUCKY wins."""
    start = float(random.mean(dtype=np.float64))
    error = math.sqrt(float(random.var(dtype=np.float64)) * (1 / episodes + 1 / len(random)))
    least = LEARNED * error + LUCKY * max(win - start, 0.0) / episodes + SINGLE * abs(start)
    above = [score - start > least for values in scores.values() for score in values]
    return sum(above) >= min(2, len(above))


def lead(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Give the difference of two means with Welch's interval; single runs and runs without any variance have none."""
    point = float(np.mean(first) - np.mean(second))
    margin = contrast([(first, second)]).margin() if min(len(first), len(second)) > 1 else math.nan
    return Estimate(point, *(point + side * margin if math.isfinite(margin) else math.nan for side in (-1, 1)))


def means_differ(first: Sequence[float], second: Sequence[float]) -> bool:
    """Tell whether the means of two samples differ by more than chance, by Welch's test."""
    return min(len(first), len(second)) > 1 and welch(Moments.of(first), Moments.of(second)) < 1 - LEVEL


def leads(scores: Mapping[str, Sequence[float]], control: str) -> bool:
    """Tell whether memories beat a control: all of them together, or the best one alone.

    The first is a permutation test of means, the second Welch's test of at least FEWEST runs, corrected for the number
    of memories.
    """
    memories = {name: values for name, values in scores.items() if name not in CONTROLS}
    best = max(memories.values(), key=lambda values: float(np.mean(values)))
    if float(np.mean(best)) <= float(np.mean(scores[control])):
        return False
    together = np.concatenate([np.asarray(values, np.float64) for values in memories.values()])
    tested = min(len(best), len(scores[control])) >= FEWEST
    alone = welch(Moments.of(best), Moments.of(scores[control])) * len(memories) if tested else 1.0
    return permuted(together, np.asarray(scores[control], np.float64)) < 1 - LEVEL or alone < 1 - LEVEL


def permuted(first: Floats, second: Floats) -> float:
    """Give the one-sided p value of a permutation test: that the mean of `first` is above that of `second`."""
    both, size = np.concatenate((first, second)), len(second)
    both = both / (np.abs(both).max() or 1.0)
    second = both[-size:]
    if math.comb(len(both), size) <= PERMUTATIONS:
        chosen = np.array(list(combinations(range(len(both)), size)))
    else:
        chosen = np.random.default_rng(0).random((PERMUTATIONS, len(both))).argsort(1)[:, :size]
    return float((both[chosen].sum(1) <= second.sum() + ROUNDING).mean())
