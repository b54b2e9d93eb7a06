"""Aggregates and intervals against rliable's recorded numbers, tests and correlations against scipy's."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dqn_memory.study import statistics
from dqn_memory.study.statistics import AGGREGATES, Estimate, Moments, estimate, interval, probability_of_improvement

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
    found = statistics.bootstrap(shares, scores, indices=[np.array(case["profile_indices"])])
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
    assert statistics.welch(*sides, "greater") == pytest.approx(case["greater"], rel=1e-9)


def test_what_does_not_vary_has_no_test_and_no_correlation():
    assert math.isnan(float(statistics.spearman(np.ones(5), np.arange(5))))
    for size in range(2, 12):  # where a mean is rounded it differs from the numbers that are all the same
        still = Moments.of([0.5] * size)
        assert all(math.isnan(statistics.welch(Moments.of([part / 100] * size), still)) for part in range(101))
    assert Moments.of([0.1] * 6) == Moments(0.1, 0.0, 6)


@pytest.mark.parametrize("case", SCIPY["spearman"], ids=lambda case: f"{len(case['x'])} pairs")
def test_rank_correlation_and_its_interval_are_scipys(case):
    found = statistics.rank_correlation(np.array(case["x"]), np.array(case["y"]), np.array(case["indices"]))
    assert tuple(found) == pytest.approx((case["rho"], case["low"], case["high"]), **EXACT)
