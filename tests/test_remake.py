"""Every table and picture in results/ is made again from the raw files beside it, and is the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dqn_memory.runs.errors import UserError
from dqn_memory.study.record import main as record
from dqn_memory.study.remake import main
from dqn_memory.study.remaking import MADE, NOT_MADE, Unit, units, unmade

RESULTS = Path(__file__).resolve().parents[1] / "results"
UNITS = units(RESULTS)
NEAR = 0.5  # of 255, mean difference of two pictures' pixels


@pytest.mark.results
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_it_is_made_again_and_the_same(unit: Unit, tmp_path: Path) -> None:
    unit.make(RESULTS, tmp_path)
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in made if name.endswith(MADE)} == {name for name in unit.files if name.endswith(MADE)}
    for name in unit.files:
        compare(RESULTS / name, tmp_path / name)


def compare(committed: Path, made: Path) -> None:
    if committed.suffix == ".png":
        before, after = (np.asarray(Image.open(path).convert("RGB"), np.float64) for path in (committed, made))
        assert before.shape == after.shape, committed
        assert np.abs(before - after).mean() < NEAR, committed
    else:
        assert committed.read_text() == made.read_text(), committed


def test_all_else_that_is_to_be_read_says_why_it_is_not() -> None:
    assert unmade(RESULTS) == NOT_MADE
    names = [name for unit in UNITS for name in unit.files]
    assert len(set(names)) == len(names)
    kinds = {name.partition("/")[0] for name in names}
    assert {"studies", "learning", "benchmarks", "claims.md", "baselines.csv", "parameters.md"} <= kinds


def test_one_command_makes_a_step_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("published", "learning/demo", "benchmarks"):
        shutil.copytree(RESULTS / name, tmp_path / name)
    (tmp_path / "learning/demo/curves.png").unlink()
    (tmp_path / "benchmarks/stray.md").write_text("nobody knows")
    main(["--results", str(tmp_path), "--only", "learning/demo", "--only", "benchmarks/core"])
    said = capsys.readouterr().out
    compare(RESULTS / "learning/demo/README.md", tmp_path / "learning/demo/README.md")
    compare(RESULTS / "learning/demo/curves.png", tmp_path / "learning/demo/curves.png")
    assert "learning/demo/episode.gif: needs the agent itself" in said
    assert "benchmarks/stray.md: no step makes it" in said


def test_a_table_of_runs_that_stand_beside_another_is_made_again(tmp_path: Path) -> None:
    learning, place = tmp_path / "learning", "learning/second/README.md"
    shutil.copytree(RESULTS / "published", tmp_path / "published")
    shutil.copytree(RESULTS / "learning/demo", learning / "demo")
    runs = sorted(path.parent for path in (learning / "demo").glob("*/metrics.jsonl"))
    record([*map(str, runs), "--folder", str(learning / "second"), "--title", "The same"])
    unit = next(unit for unit in units(tmp_path) if unit.name == "learning/second")
    unit.make(tmp_path, tmp_path / "made")
    compare(tmp_path / place, tmp_path / "made" / place)
    (runs[0] / "environment.json").unlink()
    with pytest.raises(UserError, match=r"environment\.json is missing, though a table has that run"):
        unit.make(tmp_path, tmp_path / "made")


def test_what_cannot_be_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--results", str(RESULTS), "--only", "learning/dmo"])
    assert "learning/demo" in capsys.readouterr().err
    with pytest.raises(UserError, match="is no folder of results"):
        units(tmp_path)
