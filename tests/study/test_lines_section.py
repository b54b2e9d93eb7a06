"""Scores beside players with less of a memory: the numbers of the table, and what is printed in bold."""

from types import SimpleNamespace

import numpy as np
import pytest

from dqn_memory.study.sections.lines import lines_section


def data(*runs):
    """What the section reads of a study: the environment, final scores and curves of its runs."""
    groups = []
    for env, series, each in runs:
        curves = [(score, SimpleNamespace(success=np.array(curve))) for score, curve in each]
        groups.append((env, series, [SimpleNamespace(env=env, score=score, curve=curve) for score, curve in curves]))
    return SimpleNamespace(groups=lambda: iter(groups))


def rows(section):
    return section.parts[1].records()


def test_means_highest_evaluations_and_published_scores():
    found = lines_section(
        data(("POPGym/CountRecall-Medium-v0", "gru", [(-0.5, [-0.9, -0.2, -0.5]), (-0.3, [-0.9, -0.4, -0.3])]))
    )
    (row,) = rows(found)
    assert (row["final"], row["MMER"], row["seeds"]) == (
        "-0.400",
        "-0.250",
        "2",
    )  # means of -0.5, -0.3 and of -0.2, -0.3
    assert (row["random"], row["clock"], row["perfect"]) == ("-0.926", "-0.492", "1.000")
    assert (row["published GRU"], row["published best of 13"]) == ("-0.528", "-0.519")
    assert row["0 random, 1 perfect"] == f"{(-0.4 + 0.926) / 1.926:.2f}"


@pytest.mark.parametrize(("score", "bold"), [(-0.5, True), (-0.48, False)])
def test_what_is_below_the_clock_is_bold(score, bold):
    (row,) = rows(lines_section(data(("POPGym/CountRecall-Medium-v0", "gru", [(score, [score])]))))
    assert (row["final"] == f"**{score:.3f}**") is bold is (row["MMER"] == f"**{score:.3f}**")


def test_environments_that_report_success_have_no_row():
    assert lines_section(data(("Gridverse/Memory-5x5-v0", "gru", [(0.5, [0.5])]))) is None
