"""Results are kept beside what made them, and only finished runs are."""

import json

import pytest
from test_train import flags

from dqn_memory.runs.metrics import shortened
from dqn_memory.study.record import main
from dqn_memory.train import main as train


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    paths = [folder / "dgfqn" / f"seed_{seed}" for seed in (1, 2)]
    for seed, path in enumerate(paths, 1):
        train(flags(path, "--seed", str(seed), steps=500))
    return paths


def test_raw_numbers_table_and_picture(runs, tmp_path):
    kept = tmp_path / "kept"
    main([*map(str, runs), "--folder", str(kept), "--title", "Two seeds"])
    for seed, run in enumerate(runs, 1):
        copy = kept / f"dgfqn-seed_{seed}"
        assert (copy / "metrics.jsonl").read_bytes() == shortened((run / "metrics.jsonl").read_bytes())
        assert json.loads((copy / "environment.json").read_text())["torch"]
    page = (kept / "README.md").read_text().splitlines()
    assert page[0] == "# Two seeds"
    assert sum(line.startswith("Success in Gridverse/Memory-5x5-v0: random 0.4") for line in page) == 1
    assert sum(line.startswith("| dgfqn | 2 | ") for line in page) == 1  # the seeds together
    rows = [line.split(" | ") for line in page if line.startswith("| dgfqn-seed_")]
    assert [row[1] for row in rows] == ["1", "2"]
    assert all(row[2] == "500" and row[6] == "every start tried" and row[7] == "24" for row in rows)
    assert (kept / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_table_grows_by_runs_that_were_kept_before(runs, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main([*map(str, runs), "--folder", str(whole)])
    main([str(runs[0]), "--folder", str(parts)])
    main([str(parts / "dgfqn-seed_1"), str(runs[1]), "--folder", str(parts)])
    files = {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
    assert files == {path.relative_to(parts) for path in parts.rglob("*") if path.is_file()}
    assert all((whole / name).read_bytes() == (parts / name).read_bytes() for name in files if name.suffix != ".png")


def test_what_stands_in_a_record_beside_is_named_and_not_copied(runs, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    main([str(runs[0]), "--folder", str(first)])
    main([str(first / "dgfqn-seed_1"), str(runs[1]), "--folder", str(second)])
    assert {path.name for path in second.iterdir()} == {"README.md", "curves.png", "dgfqn-seed_2"}
    page = (second / "README.md").read_text()
    assert "beside another table: [dgfqn-seed_1](../first/dgfqn-seed_1).\n" in page
    assert "| dgfqn-seed_1 | 1 | " in page and "| dgfqn-seed_2 | 2 | " in page


def test_unfinished_runs_are_refused(runs, tmp_path, capsys):
    broken = tmp_path / "dgfqn" / "seed_9"
    broken.mkdir(parents=True)
    for name in ("config.toml", "environment.json"):
        (broken / name).write_bytes((runs[0] / name).read_bytes())
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines()
    (broken / "metrics.jsonl").write_text("\n".join(line for line in lines if "final/" not in line) + "\n")
    with pytest.raises(SystemExit):
        main([str(broken), "--folder", str(tmp_path / "kept")])
    assert "is not finished" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()
