"""Aggregates and intervals against rliable's recorded numbers, tests and correlations against scipy's."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dqn_memory.runs.errors import UserError
from dqn_memory.study import statistics
from dqn_memory.study.statistics import (
    AGGREGATES,
    Estimate,
    Moments,
    pair_indices,
    rank_correlation,
    spearman,
    welch,
)

DATA = Path(__file__).parents[1] / "data" / "study"
RLIABLE = json.loads((DATA / "rliable.json").read_text())
SCIPY = json.loads((DATA / "scipy.json").read_text())
EXACT = {"rel": 1e-9, "abs": 1e-9}

cases = pytest.mark.parametrize("case", RLIABLE["cases"], ids=lambda case: str(np.shape(case["scores"])))


@cases
@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_and_their_intervals_are_rliables(case, name):
    scores, indices = np.array(case["scores"]), np.array(case["indices"])
    found = statistics.estimate(scores, AGGREGATES[name], indices)
    assert tuple(found) == pytest.approx(case["aggregates"][name], **EXACT)


@cases
def test_probability_of_improvement_is_rliables(case):
    first, second = (np.array(part) for part in case["improvement_indices"])
    found = statistics.improvement(np.array(case["scores"]), np.array(case["others"]), (first, second))
    assert tuple(found) == pytest.approx(case["improvement"], **EXACT)


@cases
def test_performance_profiles_are_rliables(case):
    thresholds, indices = np.array(case["thresholds"]), np.array(case["profile_indices"])
    found = statistics.performance_profile(np.array(case["scores"]), thresholds, indices)
    for part, expected in case["profile"].items():
        assert getattr(found, part) == pytest.approx(np.array(expected), **EXACT)


def test_rliable_itself_where_it_can_be_imported():
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed; its recorded numbers are tested")
    scores, others = np.random.default_rng(3).gamma(1.5, 0.5, (2, 6, 9))
    theirs = {
        "IQM": metrics.aggregate_iqm,
        "median": metrics.aggregate_median,
        "mean": metrics.aggregate_mean,
        "optimality gap": metrics.aggregate_optimality_gap,
    }
    for name, statistic in AGGREGATES.items():
        assert float(statistic(scores)) == pytest.approx(theirs[name](scores), **EXACT)
    expected = metrics.probability_of_improvement(scores, others)
    assert float(statistics.probability_of_improvement(scores, others)) == pytest.approx(expected, **EXACT)


def test_drawn_resamples_are_seeded_stratified_and_cover_all_runs():
    indices = statistics.resample_indices(4, 3, 2_000, seed=5)
    assert indices.shape == (2_000, 4, 3)
    assert np.array_equal(indices, statistics.resample_indices(4, 3, 2_000, seed=5))
    assert not np.array_equal(indices, statistics.resample_indices(4, 3, 2_000, seed=6))
    assert np.bincount(indices.ravel()) == pytest.approx(np.full(4, 6_000), rel=0.05)
    assert not np.array_equal(indices[..., 0], indices[..., 1])  # each task is resampled on its own


def test_a_resample_never_mixes_tasks():
    scores = np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0]])
    lowest = statistics.estimate(scores, lambda part: part[..., 0].max(-1), repetitions=200)
    assert lowest.high <= 2.0


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    scores = np.random.default_rng(0).normal(size=(400, 1))
    found = statistics.estimate(scores, statistics.mean, repetitions=5_000)
    half = 1.96 * float(scores.std()) / 20
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.05)
    narrower = statistics.estimate(scores, statistics.mean, repetitions=5_000, level=0.5)
    assert found.low < narrower.low < found.point < narrower.high < found.high


@pytest.mark.parametrize(("runs", "share"), statistics.COVERAGE.items())
def test_intervals_of_few_runs_hold_the_mean_as_often_as_pages_say(runs, share):
    samples = np.random.default_rng(runs).normal(size=(1500, runs, 1))
    found = [statistics.estimate(sample, statistics.mean, repetitions=400) for sample in samples]
    assert np.mean([low <= 0 <= high for _, low, high in found]) == pytest.approx(share, abs=0.04)


def test_aggregates_share_their_resamples_and_are_reproducible():
    scores = np.random.default_rng(1).random((5, 4))
    found = statistics.aggregates(scores, repetitions=300, seed=2)
    assert list(found) == ["IQM", "median", "mean", "optimality gap"]
    assert found == statistics.aggregates(scores, repetitions=300, seed=2)
    assert found["mean"].low == pytest.approx(1 - found["optimality gap"].high)


def test_two_sides_of_an_improvement_are_resampled_apart_and_add_to_one():
    scores = np.random.default_rng(2).random((5, 3))
    found = statistics.improvement(scores, scores, repetitions=200)
    assert found.point == 0.5
    assert found.low < 0.5 < found.high  # with the same resamples on both sides the interval would be a point
    other = np.random.default_rng(4).random((4, 3))
    forth, back = statistics.improvement(scores, other), statistics.improvement(other, scores)
    assert forth.point + back.point == pytest.approx(1)


def test_one_run_has_no_interval():
    one = np.array([[0.2, 0.7]])
    for found in (statistics.estimate(one, statistics.iqm), statistics.improvement(one, one)):
        assert math.isnan(found.low) and math.isnan(found.high)
    assert str(statistics.estimate(one, statistics.mean)) == "0.450"
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"
    assert np.isnan(statistics.performance_profile(one, np.array([0.5])).low).all()


def test_scores_that_are_no_matrix_of_numbers_are_one_sentence():
    with pytest.raises(UserError, match="finite"):
        statistics.estimate(np.array([[0.1, math.nan]]), statistics.mean)
    with pytest.raises(UserError, match=r"shape \(3,\)"):
        statistics.estimate(np.zeros(3), statistics.mean)
    with pytest.raises(UserError, match="same tasks, not 2 and 3"):
        statistics.improvement(np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(UserError, match="resample indices must have shape"):
        statistics.estimate(np.zeros((2, 2)), statistics.mean, np.zeros((5, 3, 2), int))


def test_games_won_counts_means_strictly_above():
    ours = np.array([[1.0, 2.0, 0.5], [1.0, 0.0, 1.5]])
    assert statistics.games_won(ours + 0.1) == 3
    assert statistics.games_won(ours) == 0


@pytest.mark.parametrize("case", SCIPY["welch"])
def test_welch_is_scipys_from_samples_and_from_moments(case):
    found = welch(case["first"], case["second"])
    assert tuple(found) == pytest.approx((case["t"], case["p"]), rel=1e-9)
    assert found.one_sided == pytest.approx(case["greater"], rel=1e-9)
    assert welch(Moments.of(case["first"]), Moments.of(case["second"])) == found


def test_welch_without_variance_is_undefined_and_needs_two_runs():
    assert math.isnan(welch([0.0, 0.0], [1.0, 1.0]).p)
    for size in range(2, 12):  # where a mean is rounded it differs from the numbers that are all the same
        assert all(math.isnan(welch([part / 100] * size, [0.5] * size).p) for part in range(101))
    assert Moments.of([0.1] * 6) == Moments(0.1, 0.0, 6)
    with pytest.raises(UserError, match="at least two runs on each side, not 1"):
        welch([0.5], [0.1, 0.2])


@pytest.mark.parametrize("case", SCIPY["spearman"], ids=lambda case: f"{len(case['x'])} pairs")
def test_rank_correlation_and_its_interval_are_scipys(case):
    found = rank_correlation(np.array(case["x"]), np.array(case["y"]), np.array(case["indices"]))
    assert tuple(found) == pytest.approx((case["rho"], case["low"], case["high"]), **EXACT)


def test_a_constant_side_has_no_correlation_and_pairs_are_seeded():
    assert math.isnan(float(spearman(np.ones(5), np.arange(5))))
    drawn = rank_correlation(np.arange(6.0), np.array([0.0, 2, 1, 4, 3, 5]), repetitions=500, seed=1)
    given = rank_correlation(np.arange(6.0), np.array([0.0, 2, 1, 4, 3, 5]), pair_indices(6, 500, 1))
    assert drawn == given
    with pytest.raises(UserError, match="at least 4"):
        rank_correlation(np.arange(3.0), np.arange(3.0))
