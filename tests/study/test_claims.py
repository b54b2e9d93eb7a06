"""The papers' tables and claims: every figure of results/claims.md comes from the CSVs, and follows them."""

import csv
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from run_folders import printed, refused, told

from dqn_memory.parameters import read_table3
from dqn_memory.study import claims as script
from dqn_memory.study.papers import verdicts
from dqn_memory.study.papers.measures import operand, relative_gains
from dqn_memory.study.papers.tables import FOLDER, Figure, Tables, games, half_unit, human_normalised, number, scores
from dqn_memory.study.statistics import HUMAN, game
from envs.baselines import known as shipped

RESULTS = Path(__file__).parents[2] / "results"
SIZES = {
    "dbgfqn_table1": 23, "dbgfqn_table2": 11, "dbgfqn_table3": 8, "focus_table1": 28, "focus_table2": 32,
    "focus_table3": 4, "focus_table4": 49, "thesis_table1": 12, "thesis_table2": 46, "thesis_table3": 30,
    "glam_table1": 28, "glam_table2": 6, "glam_table3": 22, "atari100k_scores": 1118,
}  # fmt: skip
TABLES = Tables()


@pytest.fixture
def copied(tmp_path):
    """A copy of the tables that may be changed."""
    shutil.copytree(RESULTS / "published", tmp_path / "published")
    shutil.copy(RESULTS / "parameters.csv", tmp_path)
    return tmp_path / "published"


@cache
def published(folder=FOLDER):
    return [claim for several in verdicts.claims(folder).values() for claim in several]


def change(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_every_table_is_there_in_the_index_and_a_plain_rectangle_of_text():
    assert {path.stem: len(TABLES[path.stem]) for path in FOLDER.glob("*.csv")} == SIZES
    index = (FOLDER / "README.md").read_text()
    for name in SIZES:
        assert f"`{name}.csv`" in index
        with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            assert all(cell == cell.strip() for row in csv.reader(file) for cell in row)


@pytest.mark.results
def test_the_committed_page_regenerates_from_the_tables(tmp_path):
    script.main(["--write", str(tmp_path)])
    pages = {name: (RESULTS / name).read_text() for name in ("claims.md", "atari100k.md")}
    assert {name: (tmp_path / name).read_text().replace(str(tmp_path), "results") for name in pages} == pages
    committed = pages["claims.md"]
    for found in published():
        assert f"| {found.where} | {found.statement} | {found.published} | {found.recomputed} |" in committed


def test_claims_are_printed_and_written_nowhere_unasked(here, monkeypatch, capsys):
    monkeypatch.setattr(script, "atari_page", lambda command, tables: "\n# Atari 100k, recomputed\n")
    said = printed(capsys, script.main, "--tables", FOLDER)
    assert all(found.statement in said for found in published()) and "figures disagree with the tables\n" in said
    assert "\n# Atari 100k, recomputed\n" in said
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("table", "old", "new", "words"),
    [
        ("dbgfqn_table1", "0.0231,0.1082,0.5722,0.7993", "0.0231,0.4082,0.5722,0.7993", "DBGFQN over DTQN"),
        ("focus_table2", "sigma,3,Jamesbond,196.7,24.4", "sigma,3,Jamesbond,196.7,94.4", "differ significantly"),
        ("thesis_table1", "MsPacman,Gaussian,928.12,128.43", "MsPacman,Gaussian,928.12,28.43", "MsPacman, Gaussian ag"),
        ("glam_table1", "Krull,1598,2666,2204,6349,6616,7782,8130,8413,12649",
         "Krull,1598,2666,2204,6349,6616,7782,8130,8413,8649", "one game gives"),
        ("glam_table3", "n_max,32", "n_max,48", "imagination horizon"),
    ],
)  # fmt: skip
def test_a_changed_cell_changes_the_claim_that_rests_on_it(copied, table, old, new, words):
    change(copied / f"{table}.csv", old, new)
    before, after = ([each for each in all if words in each.statement] for all in (published(), published(copied)))
    assert before and all(b.recomputed != a.recomputed for b, a in zip(before, after, strict=True))


def test_the_published_tables_agree_with_the_copies_that_the_suite_ships():
    for row in TABLES["dbgfqn_table1"]:
        theirs = shipped.published()[row["id"]]
        assert {model: number(row[model]) if row[model] else None for model in theirs} == dict(theirs)
    rows = TABLES["dbgfqn_table3"]
    assert {(row["id"], name): int(row[name.upper()]) for row in rows for _, name in read_table3()} == read_table3()


def test_both_atari_tables_have_the_benchmarks_games_and_the_usual_scales():
    for name in ("focus_table1", "glam_table1"):
        assert [game(row["game"]) for row in games(TABLES[name])] == list(HUMAN)
    different = [row["game"] for row in games(TABLES["focus_table1"]) if tuple(HUMAN[game(row["game"])]) != tuple(
        number(row[column]) for column in ("Random", "Human"))]  # fmt: skip
    assert different == ["Asterix"]  # 8503.7 for 8503.3, as UniZero's paper prints it


def test_scores_by_world_and_game():
    worlds = scores("dbgfqn_table1")
    assert worlds["Gridverse/Memory-7x7-v0"] == {"DRQN": 0.0566, "DTQN": 0.5737, "DGFQN": 0.1934, "DBGFQN": 0.6677}
    assert "DRQN" not in worlds["Gridverse/Memory-13x13-v0"]
    assert scores("glam_table1")["pong"]["GLAM"] == 18
    assert "Hieros" not in scores("glam_table1")["up_n_down"]
    assert scores("thesis_table1")["bank_heist"]["Local"] == 191.30
    assert scores("glam_table2")["kung_fu_master"]["Ours w/o G"] == 29475
    assert scores("focus_table2")["pong"]["mu 6"] == -7.9


def test_missing_torn_and_foreign_tables_are_one_sentence(copied, tmp_path, capsys):
    (copied / "glam_table1.csv").unlink()
    assert "glam_table1.csv: No such file" in told(verdicts.claims, copied)
    change(copied / "focus_table1.csv", "Alien,227.8,", "Alien,")
    assert "focus_table1.csv: line 2 has 7 cells, the header 8" in told(verdicts.claims, copied)
    change(copied / "focus_table1.csv", "Alien,7127.7", "Alien,227.8,x")
    assert "'x' in a published table" in told(human_normalised, Tables(copied)["focus_table1"], "Human")
    assert "has no row with Adaptiv" in told(operand, Tables(copied), ["focus_table3", "Adaptiv", "MFLOPs"])
    (copied.parent / "parameters.csv").unlink()
    assert "dqn_memory.parameters" in told(verdicts.claims, copied)
    (copied / "dbgfqn_table1.csv").unlink()
    said = refused(capsys, ["--tables", str(copied), "--write", str(tmp_path)], script.main)
    assert re.match(r"error: cannot read the published table .*dbgfqn_table1\.csv: ", said)
    shutil.copytree(FOLDER, copied, dirs_exist_ok=True)
    change(copied / "claims.toml", 'measure = "falls"', 'measure = "fals"')
    (copied.parent / "parameters.csv").write_bytes((RESULTS / "parameters.csv").read_bytes())
    words = "there is no measure 'fals' for a claim; there are shown, value, "
    assert words in told(verdicts.claims, copied)
    (copied / "claims.toml").write_text("[[")
    assert re.search(r"cannot read the claims in .*claims\.toml", told(verdicts.claims, copied))


def test_gains_leave_out_what_cannot_be_divided():
    printed = [("a", "2.0", "1.0"), ("b", "3.0", "2.0"), ("c", "", "1.0"), ("d", "1.0", "0.0")]
    rows = [dict(zip(("environment", "ours", "theirs"), row, strict=True)) for row in printed]
    assert relative_gains(rows, ["theirs", "ours"], "theirs", "ours") == {"a": 1.0, "b": 0.5}


def test_a_figure_agrees_within_the_rounding_of_both_sides():
    def exact(value):
        return Figure(value, value, value)

    assert exact(0.1277).agrees("0.13") and exact(0.1277).agrees("12.8%")
    assert not exact(0.0897).agrees("0.095")
    assert Figure(0.120, 0.116, 0.126).agrees("0.13")
    assert exact(0.125).agrees("0.13") and exact(0.125).agrees("0.12")  # half may go either way
    assert exact(0.261).agrees("over 26 %") and not exact(0.26).agrees("over 26 %")
    product = Figure.of(lambda a, b: a * b, Figure.of_cell("1.0"), Figure.of_cell("-2"))
    assert (product.value, product.low, product.high) == pytest.approx((-2, -2.625, -1.425))
    assert exact(0.847).like("+77%") == "+84.7 %"


def test_printed_numbers():
    texts = ("1,000", "+0.001%", "-6.86", "122.3%", "over 26 %", "-6.9 ± 1.8")
    assert [number(text) for text in texts] == [1000, 0.001, -6.86, 122.3, 26, -6.9]
    assert [half_unit(text) for text in ("24", "0.0047", "58.4%")] == pytest.approx([0.5, 0.00005, 0.05])
