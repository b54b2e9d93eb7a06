"""The benchmark of the worlds: its bars, its tables and what it writes."""

import json
import sys

import pytest
from run_folders import refused

from envs.benchmark import ORIGINALS, bars, main
from envs.registry import FROM_FILES, WORLDS

IDS_OF_TWO_KINDS = ["POMDP/MemoryCards-v0", "Gridverse/Memory-5x5-v0"]


@pytest.mark.parametrize(("id", "single", "vector"), [
    ("Gridverse/Memory-11x11-v0", 1e6 / 466, 300e6 / 466),
    ("Gridverse/Memory-13x13-v0", 3e6 / 636, 300e6 / 636),
    ("Gridverse/Memory-FourRooms-7x7-v0", 1e6 / 269, 300e6 / 269),
    ("POMDP/CarFlag-v0", 1e6 / 2.6, 5e6),
    ("Gridverse/Memory-Empty-13x13-v0", None, None),
])  # fmt: skip
def test_bars(id, single, vector):
    assert bars(id) == pytest.approx({"single": single, "vector": vector})


def test_every_original_is_a_world_of_ours():
    assert set(ORIGINALS) <= set(WORLDS)
    assert len(ORIGINALS) == 24
    without = set(WORLDS) - set(ORIGINALS) - set(FROM_FILES)
    others = {id for id in WORLDS if id.startswith(("Control/", "POPGym/"))}
    assert without == others | {"Gridverse/Memory-Empty-13x13-v0", "Pixel/BlinkingCatch-v0"}


def test_the_script_prints_a_table_and_writes_two_files(tmp_path, capsys):
    asked = [f"--env={id}" for id in IDS_OF_TWO_KINDS]
    main(["--quick", "--write", str(tmp_path), *asked, "--threads", "1"])
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "environments.json").read_text())
    page = (tmp_path / "environments.md").read_text()
    rows = report["tables"][0]["rows"]
    assert [row["env"] for row in rows] == IDS_OF_TWO_KINDS
    assert all(f"| {id} |" in page and id in printed for id in IDS_OF_TWO_KINDS)
    for row in rows:
        assert row["single"] > 0 and row["single_ratio"] == pytest.approx(row["single"] / row["original"])
        assert row["vector_holds"] == (row["vector"] >= row["vector_bar"])
    assert report["machine"]["command"].startswith("python -m envs.benchmark --quick")
    assert {"cpu", "cores", "torch", "revision", "dirty", "threads"} <= set(report["machine"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environments.json", "environments.md"]


def test_only_measures_the_named_rate(tmp_path):
    main(["--quick", "--only", "vector", "--env", "POMDP/CarFlag-v0", "--write", str(tmp_path)])
    (row,) = json.loads((tmp_path / "environments.json").read_text())["tables"][0]["rows"]
    assert row["vector"] > 0 and "single" not in row


@pytest.mark.parametrize("installed", [True, False])
def test_popgym_is_measured_beside_where_it_is_installed(installed, tmp_path, monkeypatch):
    if not installed:
        monkeypatch.setitem(sys.modules, "popgym.envs", None)
    ids = ["POPGym/RepeatFirst-Easy-v0", "POPGym/NoisyPositionOnlyCartPole-Hard-v0", "Ladder/hold-64-v0"]
    main(["--quick", "--write", str(tmp_path), *(f"--env={id}" for id in ids)])
    rows = json.loads((tmp_path / "environments.json").read_text())["tables"][0]["rows"]
    assert [row["original"] is not None for row in rows] == [installed, installed, False]
    assert [row["vector_bar"] for row in rows] == [1e7, 3e6, None]
    for row in rows[: 2 * installed]:
        assert row["single_ratio"] == pytest.approx(row["single"] / row["original"])
        assert row["vector_ratio"] == pytest.approx(row["vector"] / row["original"])


@pytest.mark.parametrize(("words", "sentence"), [
    (["--env", "POMDP/CarFlg-v0"], "POMDP/CarFlag-v0"),
    (["--env", "Gridverse/Yaml-v0"], "--env Gridverse/Yaml-v0 reads its rules from a file"),
    (["--threads", "0"], "--threads 0 must be from 1 to 1,024"),
    (["--repetitions", "1"], "--repetitions 1 must be at least 2"),
    (["--only", "singel"], "'single'"),
    (["--write", __file__], "cannot write"),
])  # fmt: skip
def test_misuse_is_one_line(words, sentence, capsys):
    assert sentence in refused(capsys, words, main)
