"""The published tables in results/published, and the page of Atari 100k that is made from raw scores beside them."""

import csv
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from run_folders import error_of

from dqn_memory.parameters import read_table3
from dqn_memory.study.statistics import HUMAN, game
from envs.baselines import reference as shipped

RESULTS = Path(__file__).parents[2] / "results"
FOLDER = RESULTS / "published"
SCRIPT = FOLDER / "atari100k.py"
SIZES = {
    "dbgfqn_table1": 23, "dbgfqn_table2": 11, "dbgfqn_table3": 8, "focus_table1": 28, "focus_table2": 32,
    "focus_table3": 4, "focus_table4": 49, "thesis_table1": 12, "thesis_table2": 46, "thesis_table3": 30,
    "glam_table1": 28, "glam_table2": 6, "glam_table3": 22, "atari100k_scores": 1118,
}  # fmt: skip
COMMITTED = (RESULTS / "atari100k.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in COMMITTED.splitlines() if line[:1] == "|"]
CELLS = {row[0]: dict(zip(ROWS[0], row, strict=True)) for row in ROWS[2:]}


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a published table by column."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_table_is_in_the_index_and_a_plain_rectangle_of_text() -> None:
    assert {path.stem: len(rows_of(path.stem)) for path in FOLDER.glob("*.csv")} == SIZES
    index = (FOLDER / "README.md").read_text()
    for name in SIZES:
        assert f"`{name}.csv`" in index
        for row in rows_of(name):
            assert all(cell is not None and cell == cell.strip() for cell in row.values())


def test_the_published_tables_agree_with_the_copies_that_the_suite_ships() -> None:
    for row in rows_of("dbgfqn_table1"):
        theirs = shipped.published()[row["id"]]
        assert {model: float(row[model]) if row[model] else None for model in theirs} == dict(theirs)
    rows = rows_of("dbgfqn_table3")
    found = {(row["id"], name): int(row[name.upper()].replace(",", "")) for row in rows for _, name in read_table3()}
    assert found == read_table3()


def test_both_atari_tables_have_the_benchmarks_games_and_the_usual_scales() -> None:
    for name in ("focus_table1", "glam_table1"):
        assert [game(row["game"]) for row in rows_of(name) if game(row["game"])] == list(HUMAN)
    rows = [row for row in rows_of("focus_table1") if game(row["game"])]
    both = ("Random", "Human")
    printed = {row["game"]: tuple(float(row[column].replace(",", "")) for column in both) for row in rows}
    different = [name for name, scale in printed.items() if tuple(HUMAN[game(name)]) != scale]
    assert different == ["Asterix"]  # 8503.7 for 8503.3, as UniZero's paper prints it


@pytest.mark.results
def test_the_page_of_atari_100k_is_made_again_and_the_same(tmp_path: Path) -> None:
    runpy.run_path(str(SCRIPT))["main"](tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == COMMITTED


@pytest.mark.parametrize(
    ("method", "mean", "median", "iqm"),
    [("Simulus", 1.645, 0.982, 0.990), ("DIAMOND", 1.459, 0.373, 0.641), ("STORM", 1.222, 0.425, 0.561)],
)
def test_aggregates_are_those_that_are_known(method: str, mean: float, median: float, iqm: float) -> None:
    for name, value in {"mean": mean, "median": median, "IQM": iqm}.items():
        assert float(CELLS[method][name].split()[0]) == pytest.approx(value, abs=0.0005)


def test_a_row_by_hand() -> None:
    rows = rows_of("atari100k_scores")
    scores = {
        method: np.array([[float(row["score"]) for row in rows if (row["method"], row["game"]) == (method, name)]
                          for name in sorted({row["game"] for row in rows})])
        for method in ("IRIS", "Simulus", "random", "human")
    }  # fmt: skip
    iris, best = (
        (scores[name] - scores["random"]) / (scores["human"] - scores["random"]) for name in ("IRIS", "Simulus")
    )
    middle = np.sort(iris, axis=None)[32:98]  # of 26 x 5 = 130 scores a quarter, 32, is left out on each side
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


def test_only_methods_with_runs_have_intervals_and_every_game_counts() -> None:
    scores = runpy.run_path(str(SCRIPT))["normalised_scores"]()
    assert {each.shape[1] for each in scores.values()} == {26}
    for method, row in CELLS.items():
        several = len(scores[method]) > 1
        assert row["runs"] == (str(len(scores[method])) if several else "means only")
        assert [("[" in row[name]) for name in ("IQM", "median", "mean", "optimality gap")] == [several] * 4
        assert bool(row["over Simulus"]) == (several and method != "Simulus")
    assert CELLS["GLAM"]["printed mean, median"] == "130.6%, 61.8%"
    assert CELLS["UniZero, Gaussian"]["printed mean, median"] == "0.23, 0.10"


@pytest.mark.parametrize(
    ("line", "replacement", "words"),
    [
        ("STORM,Pong,3,", "", "STORM does not have all runs of all games"),
        ("human,Pong,1,", "human,Pong,1,3,nobody", "'random' and 'human' are not the scores of study/human.csv"),
    ],
)
def test_scores_that_are_missing_or_of_another_scale_are_refused(
    tmp_path: Path, line: str, replacement: str, words: str
) -> None:
    for path in FOLDER.iterdir():
        shutil.copy(path, tmp_path)
    lines = (tmp_path / "atari100k_scores.csv").read_text().splitlines()
    kept = [replacement if each.startswith(line) else each for each in lines]
    assert kept != lines
    (tmp_path / "atari100k_scores.csv").write_text("\n".join(filter(None, kept)) + "\n")
    assert words in error_of(runpy.run_path(str(tmp_path / SCRIPT.name))["normalised_scores"])
