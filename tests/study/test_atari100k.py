"""Atari 100k from public raw scores: known aggregates, one by hand, and files that cannot be right."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from run_folders import told

from dqn_memory.study.papers import atari100k
from dqn_memory.study.papers.tables import FOLDER, Tables
from dqn_memory.study.statistics import HUMAN

FILE = FOLDER / f"{atari100k.SCORES}.csv"
COMMITTED = (FOLDER.parent / "atari100k.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in COMMITTED.splitlines() if line[:1] == "|"]
CELLS = {row[0]: dict(zip(ROWS[0], row, strict=True)) for row in ROWS[2:]}


@pytest.fixture
def copied(tmp_path):
    """A copy of the tables that may be changed."""
    return Path(shutil.copytree(FOLDER, tmp_path / "published"))


@pytest.mark.parametrize(
    ("method", "mean", "median", "iqm"),
    [("Simulus", 1.645, 0.982, 0.990), ("DIAMOND", 1.459, 0.373, 0.641), ("STORM", 1.222, 0.425, 0.561)],
)
def test_aggregates_are_those_that_are_known(method, mean, median, iqm):
    for name, value in {"mean": mean, "median": median, "IQM": iqm}.items():
        assert float(CELLS[method][name].split()[0]) == pytest.approx(value, abs=0.0005)


def test_a_row_by_hand():
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores = {
        method: np.array([[float(row["score"]) for row in rows if (row["method"], row["game"]) == (method, name)]
                          for name in sorted({row["game"] for row in rows})])
        for method in ("IRIS", "Simulus", "random", "human")
    }  # fmt: skip
    iris, best = (
        (scores[name] - scores["random"]) / (scores["human"] - scores["random"]) for name in ("IRIS", "Simulus")
    )
    middle = np.sort(iris, axis=None)[32:98]  # of 26 x 5 = 130 scores a quarter, 32, is left out on each side
    assert atari100k._iqm_of_means(atari100k.normalised(Tables())["IRIS"]) == pytest.approx(
        sum(sorted(iris.mean(1))[6:20]) / 14
    )
    wins = [
        np.mean([(a > b) + (a == b) / 2 for a in mine for b in theirs]) for mine, theirs in zip(iris, best, strict=True)
    ]
    means = sorted(iris.sum(1) / 5)
    by_hand = {
        "IQM": middle.sum() / 66,
        "IQM of means": sum(means[6:20]) / 14,
        "median": (means[12] + means[13]) / 2,
        "mean": sum(means) / 26,
        "optimality gap": np.where(iris < 1, 1 - iris, 0).sum() / 130,
        "over Simulus": np.mean(wins),
    }
    assert {name: CELLS["IRIS"][name].split()[0] for name in by_hand} == {k: f"{v:.3f}" for k, v in by_hand.items()}
    assert CELLS["IRIS"]["above human"] == str(sum(mean > 1 for mean in means))


def test_only_methods_with_runs_have_intervals_and_every_game_counts():
    scores = atari100k.normalised(Tables())
    assert {each.shape[1] for each in scores.values()} == {26}
    for method, row in CELLS.items():
        several = len(scores[method]) > 1
        assert row["runs"] == (str(len(scores[method])) if several else "means only")
        assert [("[" in row[name]) for name in ("IQM", "median", "mean", "optimality gap")] == [several] * 4
        assert bool(row["over Simulus"]) == (several and method != "Simulus")
    assert CELLS["GLAM"]["printed mean, median"] == "130.6%, 61.8%"
    assert CELLS["UniZero, Gaussian"]["printed mean, median"] == "0.23, 0.10"


def test_random_play_and_the_human_are_those_of_the_suite():
    scores = atari100k.raw_scores(Tables())
    assert [tuple(pair) for pair in np.concatenate([scores["random"], scores["human"]]).T] == list(HUMAN.values())


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        (r"^STORM,Pong,.*\n", "", "STORM has no score of run 1 in pong"),
        (r"^STORM,Pong,3,.*\n", "", "STORM has no score of run 3 in pong"),
        (r"^STORM,Pong,3,", "STORM,Pong,2,", "STORM has two scores of run 2 in Pong"),
        (r"^STORM,Pong,3,[^,]*", "STORM,Pong,3,nan", "STORM has no score of run 3 in pong"),
        (r"^STORM,Pong,3,[^,]*", "STORM,Pong,3,", "'' in a published table is not a number"),
        (r"^STORM,Pong,", "STORM,Tetris,", "'Tetris' is no game of Atari 100k"),
        (r"^human,.*\n", "", "there are no scores of 'human'"),
        (r"^(?!human|random|method).*\n", "", "no method has several runs"),
        (r"\Amethod,game,run,score", "method,game,run,points", "its columns must be method, game, run, score"),
        (r"^.*\n", "", "atari100k_scores.csv is empty"),
    ],
)
def test_wrong_files_are_one_sentence(copied, pattern, replacement, words):
    path = copied / FILE.name
    path.write_text(re.sub(pattern, replacement, path.read_text(), flags=re.M))
    assert words in told(atari100k.atari_table, Tables(copied))


def test_a_paper_that_lacks_a_game_is_refused(copied):
    path = copied / "glam_table1.csv"
    path.write_text(re.sub(r"^Pong,.*\n", "", path.read_text(), flags=re.M))
    assert "GLAM has scores in 25 of 26 games" in told(atari100k.normalised, Tables(copied))
