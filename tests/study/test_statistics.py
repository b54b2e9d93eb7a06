"""Aggregates and intervals against rliable's recorded numbers, tests against scipy's."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dqn_memory.study import statistics
from dqn_memory.study.statistics import (
    AGGREGATES,
    Contrast,
    Estimate,
    Moments,
    below_best,
    contrast,
    estimate,
    holm,
    interval,
    probability_of_improvement,
    runs_reaching,
)

DATA = Path(__file__).parents[1] / "data" / "study"
RLIABLE = json.loads((DATA / "rliable.json").read_text())
SCIPY = json.loads((DATA / "scipy.json").read_text())
EXACT = {"rel": 1e-9, "abs": 1e-9}


@pytest.mark.parametrize("case", RLIABLE["cases"], ids=lambda case: str(np.shape(case["scores"])))
def test_statistics_and_their_intervals_are_rliables(case):
    scores, others = np.array(case["scores"]), np.array(case["others"])
    for name, statistic in AGGREGATES.items():
        found = estimate(statistic, scores, indices=[np.array(case["indices"])])
        assert tuple(found) == pytest.approx(case["aggregates"][name], **EXACT)
    both = [np.array(part) for part in case["improvement_indices"]]
    found = estimate(probability_of_improvement, scores, others, indices=both)
    assert tuple(found) == pytest.approx(case["improvement"], **EXACT)
    shares = statistics.share_above(np.array(case["thresholds"]))
    found = statistics.bootstrap_interval(shares, scores, indices=[np.array(case["profile_indices"])])
    for part, name in zip(found, ("share", "low", "high"), strict=True):
        assert part == pytest.approx(np.array(case["profile"][name]), **EXACT)


def test_drawn_resamples_are_seeded_stratified_and_cover_all_runs():
    indices = statistics.resample_indices((4, 3), 2_000, seed=5)
    assert indices.shape == (2_000, 4, 3)
    assert np.array_equal(indices, statistics.resample_indices((4, 3), 2_000, seed=5))
    assert not np.array_equal(indices, statistics.resample_indices((4, 3), 2_000, seed=6))
    assert np.bincount(indices.ravel()) == pytest.approx(np.full(4, 6_000), rel=0.05)
    assert not np.array_equal(indices[..., 0], indices[..., 1])  # each task is resampled on its own


@pytest.mark.parametrize(("runs", "share"), statistics.COVERAGE.items())
def test_intervals_of_few_runs_hold_the_mean_as_often_as_pages_say(runs, share):
    samples = np.random.default_rng(runs).normal(size=(1500, runs))
    found = [interval(sample, repetitions=400) for sample in samples]
    assert np.mean([low <= 0 <= high for _, low, high in found]) == pytest.approx(share, abs=0.04)


def test_two_sides_of_an_improvement_are_resampled_apart_and_add_to_one():
    scores, other = np.random.default_rng(2).random((5, 3)), np.random.default_rng(4).random((4, 3))
    found = estimate(probability_of_improvement, scores, scores, repetitions=200)
    assert found.point == 0.5
    assert found.low < 0.5 < found.high  # with the same resamples on both sides the interval would be a point
    forth, back = (estimate(probability_of_improvement, *pair) for pair in ((scores, other), (other, scores)))
    assert forth.point + back.point == pytest.approx(1)


def test_one_run_has_no_interval():
    one = np.array([[0.2, 0.7]])
    for found in (estimate(statistics.iqm, one), estimate(probability_of_improvement, one, one), interval([0.2])):
        assert math.isnan(found.low) and math.isnan(found.high)
    assert str(estimate(AGGREGATES["mean"], one)) == "0.450"
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"


def test_differences_resample_every_side():
    found = statistics.difference([([0.8, 0.8], [0.1, 0.2]), ([0.5, 0.5], [0.5, 0.5])])
    assert found.point == pytest.approx((0.8 - 0.15) / 2)
    assert found.low == pytest.approx((0.8 - 0.2) / 2)  # a quarter of the resamples has the second side's best twice
    assert found.high == pytest.approx((0.8 - 0.1) / 2)
    assert np.isnan(statistics.difference([([0.8], [0.1, 0.2])]).low)


def test_a_rival_of_several_cells_is_resampled_once_for_all():
    rival = [0.2, 0.5, 0.9, 0.4, 0.6]
    cells = [[level] * 5 for level in (0.7, 0.8, 0.9)]  # they do not vary: all noise is the rival's
    alone, found = statistics.difference([(cells[1], rival)]), statistics.difference([(cell, rival) for cell in cells])
    assert tuple(found) == pytest.approx(tuple(alone), abs=0.01)


def test_games_won_counts_means_strictly_above():
    ours = np.array([[1.0, 2.0, 0.5], [1.0, 0.0, 1.5]])
    assert [statistics.games_won(scores) for scores in (ours + 0.1, ours)] == [3, 0]


@pytest.mark.parametrize("case", SCIPY["welch"])
def test_welch_is_scipys(case):
    sides = Moments.of(case["first"]), Moments.of(case["second"])
    assert statistics.welch(*sides) == pytest.approx(case["p"], rel=1e-9)


def test_what_does_not_vary_has_no_test():
    for size in range(2, 12):  # where a mean is rounded it differs from the numbers that are all the same
        still = Moments.of([0.5] * size)
        assert all(math.isnan(statistics.welch(Moments.of([part / 100] * size), still)) for part in range(101))
    assert Moments.of([0.1] * 6) == Moments(0.1, 0.0, 6)


def test_a_contrast_of_one_environment_is_welchs_test() -> None:
    first, second = [0.9, 0.7, 1.0, 0.8], [0.2, 0.5, 0.4]
    found, theirs = contrast([(first, second)]), stats.ttest_ind(first, second, equal_var=False)
    low, high = theirs.confidence_interval()
    assert found.p == pytest.approx(theirs.pvalue) and found.freedom == pytest.approx(theirs.df)
    assert (found.effect - found.margin(), found.effect + found.margin()) == pytest.approx((low, high))
    same = contrast([(first, second), (first, second)])
    assert same.effect == pytest.approx(found.effect) and same.error == pytest.approx(found.error / math.sqrt(2))


@pytest.mark.parametrize("claims", [1, 3])
@pytest.mark.parametrize("seeds", [3, 10])
def test_what_is_detectable_is_found_in_four_of_five_studies(seeds: int, claims: int) -> None:
    generator = np.random.default_rng(0)
    lead = Contrast(0.0, math.sqrt(2 / seeds), 2 * seeds - 2, 1.0).detectable(claims)
    first, second = generator.normal(lead, 1, (4000, seeds)), generator.normal(0, 1, (4000, seeds))
    found = stats.ttest_ind(first, second, axis=1).pvalue < 0.05 / claims
    assert 0.75 < np.mean(found) < 0.85


def test_holm_corrects_in_order_and_up_to_one() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([0.9, 1.0, 0.95], [0.1, 0.2, 0.15], "supported"),
        ([0.1, 0.2, 0.15], [0.9, 1.0, 0.95], "refuted"),
        ([0.98, 1.0, 0.99], [0.99, 1.0, 0.98], "no such lead"),
        ([0.5, 1.0, 0.2], [0.9, 0.4, 0.6], "undecided"),
        ([1.0] * 10, [0.0] * 10, "supported"),
        ([0.0] * 10, [1.0] * 10, "refuted"),
        ([1.0] * 3, [0.0] * 3, "undecided"),  # so fare one in ten of all orders of six numbers
        ([1.0] * 3, [1.0] * 3, "undecided"),
        ([1.0] * 4, [1.0] * 4, "no such lead"),
    ],
)
def test_verdicts(first: list[float], second: list[float], words: str) -> None:
    found = contrast([(first, second)])
    assert found.verdict(found.p, 0.05) == words


def test_a_lead_is_ruled_out_for_all_claims_at_once() -> None:
    found = Contrast(0.0, 0.02, 20.0)  # margins of 0.042 for one claim and 0.053 for three
    assert [found.verdict(1.0, 0.05, claims) for claims in (1, 3)] == ["no such lead", "undecided"]


@pytest.mark.parametrize(
    "levels", [[(1, 0)], [(1, 0), (1, 1)], [(1, 0), (0.5, 0)], [(0, 1), (0.2, 0.2), (0, 1)], [(1, 1)]]
)
def test_where_nothing_varies_p_is_that_of_all_ways_to_deal_the_seeds(levels: list[tuple[float, float]]) -> None:
    pools = [(first, first, second, second) for first, second in levels]
    ways = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    leads = [
        sum(2 * pool[i] + 2 * pool[j] - sum(pool) for pool, (i, j) in zip(pools, dealt, strict=True))
        for dealt in itertools.product(ways, repeat=len(levels))
    ]
    exact = np.mean(np.abs(leads) > abs(leads[0]) - 1e-9)
    assert contrast([((first, first), (second, second)) for first, second in levels]).p == pytest.approx(exact)


def test_where_nothing_varies_leads_of_both_signs_decide_nothing() -> None:
    assert contrast([([1.0] * 5, [0.0] * 5), ([0.1] * 5, [0.9] * 5)]).p == 1


def test_samples_below_the_best_are_judged_for_all_rivals_at_once() -> None:
    found = {"best": [1.0, 0.98] * 2, "near": [0.93, 0.99] * 2, "far": [0.2, 0.21] * 2, "alone": [0.0]}
    corrected = holm([stats.ttest_ind(found["best"], found[name], equal_var=False).pvalue for name in ("near", "far")])
    assert [p < 0.05 for p in corrected] == [False, True]
    assert below_best(found) == ["far"]
    assert below_best({"alone": [0.0]}) == []


def test_runs_that_reach_a_level_are_counted() -> None:
    assert runs_reaching([0.95, 0.9, 1.0], 0.95) == "2 of 3"
