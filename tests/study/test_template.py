"""Pages filled from archives: every placeholder, its number by another path, a wrong one; results/ stays the same."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reported import MEMORY, make_study, raw, read
from run_folders import error_of

from dqn_memory.study.archive import open_source
from dqn_memory.study.collect import COSTS
from dqn_memory.study.definition import Planned
from dqn_memory.study.report import archive_runs, main
from dqn_memory.study.store import Study
from dqn_memory.study.template import filled_pages

README = Path(__file__).resolve().parents[2] / "README.md"
RESULTS = README.parent / "results"
ARCHIVES = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("archive.json"))
NEAR = 0.5  # of 255, mean difference of two pictures' pixels
QUESTION = """
[[question]]
asks = "Which?"
archive = "kept"
worlds = ["Memory-5x5", "Hallway"]
claims = [["dgfqn", "dtqn4"]]
number = "area"

[[question]]
asks = "Where?"
archive = "kept"
worlds = ["Memory-5x5"]
claims = [["dtqn4", "dtqn4@Hallway"], ["dgfqn", "dtqn4"]]
shown = 1
"""


@pytest.fixture
def kept(finished: Path, tmp_path: Path) -> Path:
    """A folder of results with one archive."""
    archive_runs(read(finished), tmp_path / "studies" / "kept")
    (tmp_path / "questions.toml").write_text(QUESTION)
    return tmp_path


def fill(folder: Path, text: str) -> str:
    """Fill a page of this text; give what follows its first line."""
    (folder / "PAGE.template.md").write_text(text)
    return filled_pages(folder)[folder / "PAGE.md"].decode().split("\n", 1)[1]


def test_placeholders_are_numbers_of_the_archive(kept: Path) -> None:
    found = raw(kept / "studies" / "kept")
    ours, theirs = (found["Gridverse/Memory-5x5-v0", name] for name in ("dgfqn", "dtqn4"))
    assert fill(kept, "a {{mean kept Memory-5x5 dgfqn}} b") == f"a {np.mean(ours):.2f} b"
    assert fill(kept, "{{interval kept Memory-5x5 dgfqn}}").startswith(f"{np.mean(ours):.2f} [")
    assert (fill(kept, "{{runs kept}}"), fill(kept, "{{seeds kept}}")) == ("8 of 8", "2 of 2")
    area = raw(kept / "studies" / "kept", "area")["POMDP/Hallway-v0", "dtqn4"]
    assert fill(kept, "{{mean kept Hallway dtqn4 area}}") == f"{np.mean(area):.2f}"
    rows = fill(kept, "{{scores kept}}").splitlines()
    assert rows[2] == f"| Memory 5x5 | 0.44 | 1.00 | {np.mean(theirs):.2f} | {np.mean(ours):.2f} |"
    both, level = [*ours, *found["POMDP/Hallway-v0", "dgfqn"]], max(ours)
    reached = f"{sum(score >= level for score in both)} of {len(both)}"
    assert fill(kept, f"{{{{won kept Memory-5x5;Hallway dgfqn {level}}}}}") == reached
    costs = fill(kept, "{{costs kept}}").splitlines()[2].split(" | ")
    assert costs[0] == "| dtqn4" and costs[2:] == ["10,000", "-", "- |"]  # nothing of acting there
    pages = filled_pages(kept) if fill(kept, "{{figure kept}}") else {}
    assert pages[kept / "kept.png"].startswith(b"\x89PNG")


def test_costs_are_of_the_runs_that_know_them() -> None:
    def run(world: str, acting: float | None, pace: float) -> Any:
        return SimpleNamespace(
            run=SimpleNamespace(world=world), last=lambda _: acting, pace=pace, curve=SimpleNamespace(trained=10)
        )

    old, new = run("a", None, math.nan), run("b", 7.0, 2e-5)
    assert [cost([old, new]) for cost in COSTS.values()] == pytest.approx([20.0, *[7.0] * (len(COSTS) - 1)])
    assert all(math.isnan(cost([old])) for cost in COSTS.values())


def test_seeds_are_counted_where_environments_have_not_as_many(finished: Path, tmp_path: Path) -> None:
    Study.open(finished).mark("POMDP-Hallway-v0__dgfqn__seed-2", "failed", error="lost")
    archive_runs(read(finished), tmp_path / "fewer")
    assert fill(tmp_path, "{{seeds fewer}}, {{runs fewer}}") == "1 to 2 of 2, 7 of 8"


def test_a_run_that_was_killed_does_not_count_as_the_quickest(finished: Path, tmp_path: Path) -> None:
    quick = [f"{world}__dtqn4__seed-1" for world in ("POMDP-Hallway-v0", "Gridverse-Memory-5x5-v0")]
    for name in quick:
        Study.open(finished).mark(name, "finished", begun=True)
    archive_runs(read(finished), tmp_path / "kept")
    seconds = [row.split(" | ")[2] for row in fill(tmp_path, "{{costs kept}}").splitlines()[2:]]
    assert seconds == ["11,111", "10,000"]
    assert fill(tmp_path, "{{times kept dtqn4 dgfqn}}") == "1.1"


def test_scores_and_solved_runs_stand_by_task_and_significantly_lower_means_are_marked(tmp_path: Path) -> None:
    level = {"best": 0.98, "near": 0.97, "far": 0.45}

    def success(run: Planned, step: int) -> float:
        return level[str(run.axes["architecture"])] - 0.02 * (int(run.axes["seed"]) - 1)

    kinds = zip(level, ("dgfqn", "dtqn4", "drqn"), strict=True)
    named = ", ".join(f'{{ name = "{name}", architecture = "{kind}" }}' for name, kind in kinds)
    study = make_study(tmp_path / "study", [MEMORY], f"[{named}]", [1, 2, 3, 4], success)
    archive_runs(read(study.folder), tmp_path / "kept")
    shown = fill(tmp_path, '{{scores kept "Memory-5x5=a cue"}}').splitlines()[2]
    assert shown == "| a cue | Memory 5x5 | 0.44 | 1.00 | 0.95 | 0.94 | 0.42 ↓ |"
    counts = [sum(score >= 0.95 for score in raw(tmp_path / "kept")[MEMORY, name]) for name in level]
    assert counts == [2, 2, 0]
    told = " | ".join(f"{count} of 4" for count in counts)
    assert fill(tmp_path, '{{reached kept "Memory-5x5=a cue"}}').splitlines()[2] == f"| a cue | Memory 5x5 | {told} |"
    assert fill(tmp_path, "{{times kept best near}}") == "1.0"


def test_leads_are_welchs_and_are_judged_after_holm(kept: Path) -> None:
    found = raw(kept / "studies" / "kept", "area")
    lead = np.mean(
        [np.mean(found[world, "dgfqn"]) - np.mean(found[world, "dtqn4"])
         for world in ("Gridverse/Memory-5x5-v0", "POMDP/Hallway-v0")]
    )  # fmt: skip
    rows = fill(kept, "{{questions}}").splitlines()
    assert "dgfqn above dtqn4" in rows[2] and f"{lead:+.2f} [" in rows[2]
    assert "dtqn4 above dtqn4@Hallway" in rows[3]
    assert len(rows) == 4  # of the second question the first claim alone is shown
    assert rows[2].split(" | ")[4] == fill(kept, "{{lead kept Memory-5x5;Hallway dgfqn dtqn4 area}}")


@pytest.mark.parametrize(
    ("placeholder", "words"),
    [
        ("meen kept Memory-5x5 dgfqn", "meen"),
        ("mean kep Memory-5x5 dgfqn", "did you mean 'kept'"),
        ("mean kept Memory-5x6 dgfqn", "Memory-5x5"),
        ("mean kept Memory-5x5 dgfq", "dgfqn"),
        ("mean kept Memory-5x5 dgfqn finl", "final"),
        ('mean kept "Memory-5x5', "No closing quotation"),
        ("mean kept", "mean takes archive, world, series, number"),
    ],
)
def test_a_wrong_placeholder_is_one_sentence(kept: Path, placeholder: str, words: str) -> None:
    said = error_of(fill, kept, f"{{{{{placeholder}}}}}")
    assert said.startswith(f"PAGE.template.md: {{{{{placeholder}}}}}: ") and words in said


@pytest.mark.results
def test_the_pages_of_results_are_filled_from_its_archives() -> None:
    pages = filled_pages(RESULTS)
    assert {path.name for path in pages} == {"README.md", "memories.png"}
    for path, content in pages.items():
        assert path.suffix == ".png" or path.read_bytes() == content, path
    assert len((RESULTS / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_archive_names_a_folder_of_the_machine_where_its_runs_were_made(name: str) -> None:
    records = (open_source(RESULTS / name).recorded or {}).values()
    places = [Path(record.config["output"].get("run", "")) for record in records]
    assert places and not any(place.is_absolute() for place in places)


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
    copied, others = tmp_path / "results", shutil.ignore_patterns("studies", "learning", "*.template.md")
    shutil.copytree(RESULTS, copied, ignore=others)
    by_hand = {"README.md", "details.md", "notes.md", "table3.md"}
    by_hand |= {"beside_random.md", "memory_bench.md"}  # finished: the programs that made them are gone
    made = [path.relative_to(copied) for path in copied.rglob("*.md") if path.name not in by_hand]
    for name in ("parameters.md", "claims.md", "atari100k.md"):  # other programs make these
        made.remove(Path(name))
    for path in made:
        (copied / path).unlink()
    main(["--all", str(copied)])
    for path in made:
        assert (RESULTS / path).read_text() == (copied / path).read_text(), path
