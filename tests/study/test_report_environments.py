"""What a report says about worlds: published scores, gains, phantoms, properties, readings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reported import MEMORY, TWO, make_study, read, report, success, table, text_of

from dqn_memory.study.collect import meaning
from dqn_memory.study.definition import Planned, read_definition
from dqn_memory.study.papers.tables import scores
from dqn_memory.study.report import archive
from dqn_memory.study.sections.environments import (
    BOTH,
    RECURRENCE,
    difference,
    gains,
    hallucination_section,
    properties_section,
)
from dqn_memory.study.sections.published import TABLES, matching
from dqn_memory.study.statistics import rank_correlation
from dqn_memory.study.store import Study
from dqn_memory.study.world_properties import properties


def test_published_scores_stand_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = '["dgfqn", { name = "dbgfqn as published", architecture = "dbgfqn", positions = "all" }, "gtrxl"]'
    make_study(tmp_path / "study", [MEMORY, "Gridverse/Memory-Empty-13x13-v0"], two, [1, 2], success)
    report(tmp_path / "study", "--published")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| dbgfqn_table1")]
    theirs = scores("dbgfqn_table1")[MEMORY]
    assert len(rows) == 2  # the paper has neither the empty world nor GTrXL
    assert [f"| {theirs[name]:g} |" in row for name, row in zip(("DGFQN", "DBGFQN"), rows, strict=True)] == [True, True]


def test_names_match_by_letters_and_digits() -> None:
    theirs = {"UniZero": 1.0, "Gaussian Adaptive": 2.0}
    assert matching("gaussian_adaptive", {}, theirs) == ["Gaussian Adaptive"]
    assert matching("causal", {"causal": ("UniZero",)}, theirs) == ["UniZero"]
    assert matching("gaussian", {}, theirs) == []
    assert matching("mu 6", {"mu 6": ("mu 6", "sigma 1")}, {"mu 6": 1.0, "sigma 1": 1.0}) == ["mu 6", "sigma 1"]


@pytest.mark.parametrize("name", ["thesis_table1", "thesis_table3", "learning_to_focus_table2", "atari100k_priors"])
def test_every_series_of_a_study_of_a_table_has_its_published_row(name: str) -> None:
    study, names = read_definition(name, False), TABLES["unizero"]
    labels = [value.label for value in study.axes["architecture"]]
    table = {"learning_to_focus_table2": "focus_table2", "atari100k_priors": "focus_table1"}.get(name, name)
    theirs = {model: 0.0 for models in scores(table).values() for model in models}
    unmatched = [label for label in labels if not matching(str(label), names[table], theirs)]
    assert not unmatched


def test_table_1_calls_the_feed_forward_network_by_its_paper_name(tmp_path: Path) -> None:
    named = '[{ name = "dtqn", architecture = "dtqn4" }, "dgfqn"]'
    make_study(tmp_path / "study", [MEMORY], named, [1, 2], lambda run, step: 0.7 if "dgfqn" in run.name else 0.4)
    gain = gains(read(tmp_path / "study"), MEMORY)[RECURRENCE]
    assert gain is not None and gain.point == pytest.approx(0.3)


def test_a_reading_is_of_success_or_of_returns(finished: Path) -> None:
    data = read(finished)
    assert meaning(data, "final").startswith("success of the final")
    returns = replace(data, entries=tuple(replace(entry, success=False) for entry in data.entries))
    assert meaning(returns, "final").startswith("return of the final")


def test_phantoms_are_measured_against_their_control(tmp_path: Path) -> None:
    worlds = ["Gridverse/Memory-13x13-Hallucinated-v0", "Gridverse/Memory-Empty-13x13-v0"]
    make_study(tmp_path / "rq5", worlds, TWO, [1, 2, 3], lambda run, step: 0.8 if "Hallucinated" in run.name else 0.5)
    rows = table(hallucination_section(read(tmp_path / "rq5")))
    assert [(row["environment"], row["without it"], row["series"]) for row in rows] == [
        (*worlds, "dtqn4"),
        (*worlds, "dgfqn"),
    ]
    assert rows[0]["effect"] == "0.300 [0.300, 0.300]"
    assert rows[0]["with beats without"] == "1.000 [1.000, 1.000]"
    assert rows[0]["seeds"] == "3"


def test_differences_resample_every_side() -> None:
    found = difference([([0.8, 0.8], [0.1, 0.2]), ([0.5, 0.5], [0.5, 0.5])])
    assert found.point == pytest.approx((0.8 - 0.15) / 2)
    assert found.low == pytest.approx((0.8 - 0.2) / 2)  # a quarter of the resamples has the second side's best twice
    assert found.high == pytest.approx((0.8 - 0.1) / 2)
    assert np.isnan(difference([([0.8], [0.1, 0.2])]).low)


def test_a_rival_of_several_cells_is_resampled_once_for_all() -> None:
    rival = [0.2, 0.5, 0.9, 0.4, 0.6]
    cells = [[level] * 5 for level in (0.7, 0.8, 0.9)]  # they do not vary: all noise is the rival's
    alone, found = difference([(cells[1], rival)]), difference([(cell, rival) for cell in cells])
    assert found.point == pytest.approx(alone.point)
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high), abs=0.01)


def test_gains_have_the_interval_of_their_one_rival(tmp_path: Path) -> None:
    rival = {1: 0.2, 2: 0.6, 3: 0.4}

    def score(run: Planned, step: int) -> float:
        return rival[int(run.axes["seed"])] if run.axes["architecture"] == "dtqn4" else 0.8

    make_study(tmp_path / "rq2", [MEMORY], '["dtqn4", "drfqn", "dlfqn", "dgfqn"]', [1, 2, 3], score)
    gain = gains(read(tmp_path / "rq2"), MEMORY)[RECURRENCE]
    assert gain is not None and (gain.low, gain.high) == pytest.approx((0.2, 0.6))


def test_gains_are_correlated_with_properties(tmp_path: Path) -> None:
    worlds = [f"Gridverse/Memory-{size}x{size}-v0" for size in (5, 7, 9, 11)]
    level = {world: place * 0.1 for place, world in enumerate(worlds)}
    bonus = {"dtqn4": 0.0, "dgfqn": 1.0, "dbgfqn": 3.0}
    make_study(
        tmp_path / "rq4", worlds, '["dtqn4", "dgfqn", "dbgfqn"]', [1, 2],
        lambda run, step: 0.05 + level[str(run.axes["world"])] * bonus[run.axes["architecture"]],  # type: ignore[index]
    )  # fmt: skip
    data = read(tmp_path / "rq4")
    found = gains(data, worlds[2])
    assert found[RECURRENCE].point == pytest.approx(0.2)  # type: ignore[union-attr]
    assert found[BOTH].point == pytest.approx(0.4)  # type: ignore[union-attr]
    rows = {row["property"]: row for row in table(properties_section(data), 2)}
    delays = np.array([properties(world).delay for world in worlds], np.float64)
    wanted = rank_correlation(delays, np.array([0.0, 0.1, 0.2, 0.3]))
    assert rows["delay"][RECURRENCE] == f"{wanted} (of 4)"
    assert wanted.point == pytest.approx(1.0)
    assert rows["rooms"][BOTH] == "- (of 4)"  # all corridors


def test_worlds_that_tell_no_success_are_read_by_their_returns(tmp_path: Path) -> None:
    make_study(tmp_path / "study", ["CartPole-v1"], '["dtqn4"]', [1, 2])
    data = read(tmp_path / "study")
    assert [entry.success for entry in data.entries] == [False, False] and {e.score for e in data.entries} == {0.0}
    archive(data, tmp_path / "kept")
    assert [entry.success for entry in read(tmp_path / "kept").entries] == [False, False]


def test_agents_that_see_the_state_have_no_scale_of_those_that_do_not(tmp_path: Path) -> None:
    both = '[{ name = "sees", architecture = "dtqn4", observe = "state" }]'
    make_study(tmp_path / "study", [MEMORY], both, [1])
    assert read(tmp_path / "study").scale(MEMORY) is None


def test_a_series_without_a_common_seed_is_named(finished: Path) -> None:
    for name in ("POMDP-Hallway-v0__dgfqn__seed-1", "Gridverse-Memory-5x5-v0__dgfqn__seed-2"):
        Study.open(finished).mark(name, "failed", error="lost")
    assert "dgfqn is left out, as no seed of it has finished in all of these environments" in text_of(read(finished))
