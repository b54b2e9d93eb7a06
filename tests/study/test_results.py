"""The reports in results/ are made again from the tables beside them, and are the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dqn_memory.study.report import main

RESULTS = Path(__file__).resolve().parents[2] / "results"
ARCHIVES = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("archive.json"))
NEAR = 0.5  # of 255, mean difference of two pictures' pixels


@pytest.mark.results
@pytest.mark.parametrize("name", ARCHIVES)
def test_a_report_is_made_again_and_the_same(name: str, tmp_path: Path) -> None:
    shutil.copytree(RESULTS / name, tmp_path / name)
    (tmp_path / name / "report.md").unlink()
    shutil.rmtree(tmp_path / name / "pictures")
    main(["--all", str(tmp_path)])
    assert (RESULTS / name / "report.md").read_text() == (tmp_path / name / "report.md").read_text()
    pictures = {path.name for path in (tmp_path / name / "pictures").iterdir()}
    assert pictures <= {path.name for path in (RESULTS / name / "pictures").iterdir()}
    for picture in pictures:
        places = [folder / name / "pictures" / picture for folder in (RESULTS, tmp_path)]
        before, after = (np.asarray(Image.open(path).convert("RGB"), np.float64) for path in places)
        assert before.shape == after.shape, picture
        assert np.abs(before - after).mean() < NEAR, picture


@pytest.mark.results
def test_the_other_pages_are_made_again_and_the_same(tmp_path: Path) -> None:
    copied = Path(
        shutil.copytree(
            RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("studies", "learning", "*.template.md")
        )
    )
    by_hand = {"README.md", "details.md", "notes.md", "table3.md"}
    made = [path.relative_to(copied) for path in copied.rglob("*.md") if path.name not in by_hand]
    made.remove(Path("parameters.md"))  # which `dqn_memory.parameters` makes
    for path in made:
        (copied / path).unlink()
    main(["--all", str(copied)])
    for path in made:
        assert (RESULTS / path).read_text() == (copied / path).read_text(), path
