"""Pages filled from archives: every field, its numbers by another path, what a wrong one says; results/ is the same."""

import csv
import itertools
import math
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reported import MEMORY, make_study, raw, read
from run_folders import told
from scipy import stats

from dqn_memory.study import answers
from dqn_memory.study.answers import filled_pages
from dqn_memory.study.archive import open_source
from dqn_memory.study.definition import Planned
from dqn_memory.study.report import archive, main
from dqn_memory.study.sections import scores
from dqn_memory.study.statistics import Contrast, contrast, holm
from dqn_memory.study.store import Study

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
    archive(read(finished), tmp_path / "studies" / "kept")
    (tmp_path / "questions.toml").write_text(QUESTION)
    return tmp_path


def fill(folder: Path, text: str) -> str:
    """Fill a page of this text; give what follows its first line."""
    (folder / "PAGE.template.md").write_text(text)
    return filled_pages(folder)[folder / "PAGE.md"].decode().split("\n", 1)[1]


def test_archives_of_one_name_are_told_apart_by_their_paths(kept: Path) -> None:
    shutil.copytree(kept / "studies" / "kept", kept / "others" / "kept")
    rows = (kept / "others" / "kept" / "runs.csv").read_text().splitlines(keepends=True)
    (kept / "others" / "kept" / "runs.csv").write_text("".join(rows[:-1]))  # one run less
    assert fill(kept, "{{runs studies/kept}}, {{runs others/kept}}") == "8 of 8, 7 of 7"
    said = told(fill, kept, "{{runs kept}}")
    assert "studies/kept" in said and "others/kept" in said


def evaluated(folder: Path, step: int) -> dict[tuple[str, str], list[float]]:
    """Read the success of every run's evaluation at a step from an archive's tables."""
    found = defaultdict(list)
    with (folder / "runs.csv").open() as runs, (folder / "metrics.csv").open() as lines:
        of = {row["run"]: (row["axes.world"], row["axes.architecture"]) for row in csv.DictReader(runs)}
        for row in csv.DictReader(lines):
            if int(row["step"]) == step and row["eval/success_rate"]:
                found[of[row["run"]]].append(float(row["eval/success_rate"]))
    return found


def test_fields_are_numbers_of_the_archive(kept: Path) -> None:
    found = raw(kept / "studies" / "kept")
    ours, theirs = (found["Gridverse/Memory-5x5-v0", name] for name in ("dgfqn", "dtqn4"))
    assert fill(kept, "a {{mean kept Memory-5x5 dgfqn}} b") == f"a {np.mean(ours):.2f} b"
    assert fill(kept, "{{each kept Memory-5x5 dgfqn}}") == ", ".join(f"{score:.2f}" for score in ours)
    assert fill(kept, "{{interval kept Memory-5x5 dgfqn}}").startswith(f"{np.mean(ours):.2f} [")
    assert (fill(kept, "{{runs kept}}"), fill(kept, "{{seeds kept}}")) == ("8 of 8", "2 of 2")
    area = raw(kept / "studies" / "kept", "area")["POMDP/Hallway-v0", "dtqn4"]
    assert fill(kept, "{{mean kept Hallway dtqn4 area}}") == f"{np.mean(area):.2f}"
    rows = fill(kept, "{{table kept Memory-5x5;Hallway *}}").splitlines()
    assert rows[2] == f"| Memory 5x5 | {np.mean(theirs):.2f} | {np.mean(ours):.2f} |"
    both, level = [*ours, *found["POMDP/Hallway-v0", "dgfqn"]], max(ours)
    reached = f"{sum(score >= level for score in both)} of {len(both)}"
    assert fill(kept, f"{{{{won kept Memory-5x5;Hallway dgfqn {level}}}}}") == reached
    early = np.mean(evaluated(kept / "studies" / "kept", step=300)["Gridverse/Memory-5x5-v0", "dgfqn"])
    for seconds, shown in (3.5, f"{early:.2f}"), (0.5, "-"):
        assert fill(kept, f"{{{{within kept Memory-5x5 dgfqn {seconds}}}}}").endswith(f"| Memory 5x5 | {shown} |")
    solved = fill(kept, "{{solved kept Hallway=60}}").splitlines()
    assert [row.split(" | ")[-1] for row in solved[2:]] == [" |", " |", "60 |", "60 |"]
    marks = [row.split(" | ")[-3] for row in solved[2:]]  # processor seconds, environments and then series
    assert [row.split(" | ")[1:] for row in fill(kept, "{{solving kept}}").splitlines()[2:]] == [
        [marks[0], f"{marks[1]} |"], [marks[2], f"{marks[3]} |"]
    ]  # fmt: skip
    costs = fill(kept, "{{costs kept}}").splitlines()[2].split(" | ")
    assert costs[0] == "| dtqn4" and costs[2:] == ["10,000", "-", "- |"]  # nothing of acting there
    pages = filled_pages(kept) if fill(kept, "{{figure kept}} {{curve kept Memory-5x5}}") else {}
    assert all(pages[kept / name].startswith(b"\x89PNG") for name in ("kept.png", "kept-memory-5x5.png"))


def test_within_seconds_the_last_evaluation_counts(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {100: (0.9, 1.0), 200: (0.4, 2.0), 300: (0.6, 3.0)}  # score and seconds by step
    monkeypatch.setattr(answers, "scores_and_seconds", lambda run: marks)
    assert fill(kept, "{{within kept Memory-5x5 dgfqn 2}}").endswith("| 0.40 |")


def test_seeds_are_counted_where_environments_have_not_as_many(finished: Path, tmp_path: Path) -> None:
    archive(read(finished), tmp_path / "kept")
    assert "| seeds |" not in fill(tmp_path, "{{choices kept}}")
    Study.open(finished).mark("POMDP-Hallway-v0__dgfqn__seed-2", "failed", error="lost")
    archive(read(finished), tmp_path / "fewer")
    assert fill(tmp_path, "{{seeds fewer}}, {{runs fewer}}") == "1 to 2 of 2, 7 of 8"
    head, _, *rows = (
        [cell.strip() for cell in row.split("|")] for row in fill(tmp_path, "{{choices fewer}}").splitlines()
    )
    assert [row[head.index("seeds")] for row in rows] == ["2", "2"]


def test_a_run_that_was_killed_does_not_count_as_the_quickest(finished: Path, tmp_path: Path) -> None:
    quick = [f"{world}__dtqn4__seed-1" for world in ("POMDP-Hallway-v0", "Gridverse-Memory-5x5-v0")]
    for name in quick:
        Study.open(finished).mark(name, "finished", begun=True)
    archive(read(finished), tmp_path / "kept")
    seconds = [row.split(" | ")[2] for row in fill(tmp_path, "{{costs kept}}").splitlines()[2:]]
    assert seconds == ["11,111", "10,000"]
    assert fill(tmp_path, "{{times kept dtqn4 dgfqn}}") == "1.1"


@pytest.mark.parametrize(("share", "scatter", "sooner", "expected"), [
    (1, 0.02, {}, ["near", "0.85 [0.84, 0.86]", "0 of 4", "", "best", "", "far"]),
    (1, 0.1, {}, ["undecided (highest: best)", "0.78 [0.72, 0.83]", "0 of 4", "", "", "near", "far"]),
    (1, 0.2, {}, ["none yet (highest: best)", "0.65 [0.55, 0.75]", "0 of 4", "", "", "near", "far"]),  # random: 0.44
    (0.75, 0.02, {}, ["none yet (highest: best)", "0.65 [0.64, 0.66]", "0 of 4", "", "near", "", "far"]),  # all bad
    (1, 0.01, {"best": 200, "near": 200}, ["near", "1.00 [1.00, 1.00]", "4 of 4", "2 s", "best", "", "far"]),
    (1, 0.01, {"best": 200, "near": 400}, ["best", "1.00 [1.00, 1.00]", "4 of 4", "2 s", "near", "", "far"]),  # later
    (1, 0.01, {"best": 600, "near": 200}, ["near", "1.00 [1.00, 1.00]", "4 of 4", "2 s", "best", "", "far"]),  # falls
])  # fmt: skip
def test_the_choice_remembers_least_of_those_that_are_near_the_best_and_as_soon(
    tmp_path: Path, share: float, scatter: float, sooner: dict[str, int], expected: list[str]
) -> None:
    level = {"best": 0.9, "near": 0.88, "far": 0.45}
    size = {"best": 30.0, "near": 20.0, "far": 10.0}

    def success(run: Planned, step: int) -> float:
        series = str(run.axes["architecture"])
        if series in sooner:
            return 1 - 0.001 * int(run.axes["seed"]) if step >= sooner[series] else 0.1
        return share * level[series] - scatter * (5 - int(run.axes["seed"])) / 2

    def more(run: Planned, step: int) -> dict[str, float]:
        forgets = run.axes["seed"] == 4  # loses nothing without its memory, so that nothing is recalled either
        return {
            f"{scores.ABLATION}success_rate": success(run, step) if forgets else 0.4,
            scores.RECALLED: 99.0 if forgets else 3.0, "final/success_rate": success(run, step),
            "final/remembered_bytes": size[str(run.axes["architecture"])], "sampled/episodic_length": 12.0,
            "final/episodic_length": 50.0,
        }  # fmt: skip

    kinds = zip(level, ("dgfqn", "dtqn4", "drqn"), strict=True)
    named = ", ".join(f'{{ name = "{name}", architecture = "{kind}" }}' for name, kind in kinds)
    study = make_study(tmp_path / "study", [MEMORY], f"[{named}]", [1, 2, 3, 4], success, more)
    archive(read(study.folder), tmp_path / "kept")
    (row,) = fill(tmp_path, '{{choices kept "Memory-5x5=a cue" far}}').splitlines()[2:]
    _, task, _, steps, random, without, *cells = (cell.strip() for cell in row.split("|"))
    assert (task, steps, random, cells) == ("a cue", "12", "0.44", [*expected, ""])
    assert without == f"{share * 0.45 - scatter * 1.25:.2f}"
    counts = [sum(score >= 0.95 for score in raw(tmp_path / "kept")[MEMORY, name]) for name in level]
    told = " | ".join(f"{count} of 4" for count in counts)
    assert fill(tmp_path, '{{reached kept "Memory-5x5=a cue"}}').splitlines()[2] == f"| a cue | Memory 5x5 | {told} |"
    assert fill(tmp_path, "{{times kept best near}}") == "1.0"
    used = fill(tmp_path, "{{used kept}}").splitlines()[2].split(" | ")
    assert used[0] == "| Memory 5x5" and used[1].endswith(" (3)")
    assert used[3].startswith(f"{without} → 0.") and "(" not in used[3]


def test_nearness_is_judged_for_all_rivals_at_once() -> None:
    found = {"best": [1.0] * 4, "near": [0.93, 0.99] * 2, "far": [0.2, 0.21] * 2}
    assert answers._ranked(found) == (["best"], ["near"], ["far"])
    assert answers._ranked({name: found[name] for name in ("best", "near")}) == (["best", "near"], [], [])


def test_a_seed_that_never_solves_it_counts_with_all_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"lucky": [1.0, 1.1, None], "steady": [5.0, 5.1, 5.2]}
    curve = SimpleNamespace(trained=100)
    runs = {name: [SimpleNamespace(at=at, pace=1.0, curve=curve) for at in each] for name, each in seconds.items()}
    monkeypatch.setattr(answers, "solved", lambda _, __, of: of[0].at and SimpleNamespace(seconds=of[0].at))
    data: Any = SimpleNamespace(of=lambda _, name: runs[name])
    assert answers._soonest(data, "world", list(runs)) == ["steady", "lucky"]  # not beyond chance


def test_leads_are_welchs_and_are_judged_after_holm(kept: Path) -> None:
    found = raw(kept / "studies" / "kept", "area")
    lead = np.mean(
        [np.mean(found[world, "dgfqn"]) - np.mean(found[world, "dtqn4"])
         for world in ("Gridverse/Memory-5x5-v0", "POMDP/Hallway-v0")]
    )  # fmt: skip
    rows, every = (fill(kept, text).splitlines() for text in ("{{questions}}", "{{questions kept}}"))
    assert "dgfqn above dtqn4" in rows[2] and f"{lead:+.2f} [" in rows[2]
    assert "dtqn4 above dtqn4@Hallway" in rows[3]
    assert rows == every[:-1] and "dgfqn above dtqn4" in every[-1]
    assert rows[2].split(" | ")[4] == fill(kept, "{{lead kept Memory-5x5;Hallway dgfqn dtqn4 area}}")


def test_a_contrast_of_one_environment_is_welchs_test() -> None:
    first, second = [0.9, 0.7, 1.0, 0.8], [0.2, 0.5, 0.4]
    found, theirs = contrast([(first, second)]), stats.ttest_ind(first, second, equal_var=False)
    low, high = theirs.confidence_interval()
    assert found.p == pytest.approx(theirs.pvalue) and found.freedom == pytest.approx(theirs.df)
    assert (found.effect - found.margin(), found.effect + found.margin()) == pytest.approx((low, high))
    same = contrast([(first, second), (first, second)])
    assert same.effect == pytest.approx(found.effect) and same.error == pytest.approx(found.error / math.sqrt(2))


@pytest.mark.parametrize("claims", [1, 3])
@pytest.mark.parametrize("seeds", [3, 10])
def test_what_is_detectable_is_found_in_four_of_five_studies(seeds: int, claims: int) -> None:
    generator = np.random.default_rng(0)
    lead = Contrast(0.0, math.sqrt(2 / seeds), 2 * seeds - 2, 1.0).detectable(claims)
    first, second = generator.normal(lead, 1, (4000, seeds)), generator.normal(0, 1, (4000, seeds))
    found = stats.ttest_ind(first, second, axis=1).pvalue < 0.05 / claims
    assert 0.75 < np.mean(found) < 0.85


def test_holm_corrects_in_order_and_up_to_one() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([0.9, 1.0, 0.95], [0.1, 0.2, 0.15], "supported"),
        ([0.1, 0.2, 0.15], [0.9, 1.0, 0.95], "refuted"),
        ([0.98, 1.0, 0.99], [0.99, 1.0, 0.98], "no such lead"),
        ([0.5, 1.0, 0.2], [0.9, 0.4, 0.6], "undecided"),
        ([1.0] * 10, [0.0] * 10, "supported"),
        ([0.0] * 10, [1.0] * 10, "refuted"),
        ([1.0] * 3, [0.0] * 3, "undecided"),  # so fare one in ten of all orders of six numbers
        ([1.0] * 3, [1.0] * 3, "undecided"),
        ([1.0] * 4, [1.0] * 4, "no such lead"),
    ],
)
def test_verdicts(first: list[float], second: list[float], words: str) -> None:
    found = contrast([(first, second)])
    assert found.verdict(found.p, 0.05) == words


def test_a_lead_is_ruled_out_for_all_claims_at_once() -> None:
    found = Contrast(0.0, 0.02, 20.0)  # margins of 0.042 for one claim and 0.053 for three
    assert [found.verdict(1.0, 0.05, claims) for claims in (1, 3)] == ["no such lead", "undecided"]


@pytest.mark.parametrize(
    "levels", [[(1, 0)], [(1, 0), (1, 1)], [(1, 0), (0.5, 0)], [(0, 1), (0.2, 0.2), (0, 1)], [(1, 1)]]
)
def test_where_nothing_varies_p_is_that_of_all_ways_to_deal_the_seeds(levels: list[tuple[float, float]]) -> None:
    pools = [(first, first, second, second) for first, second in levels]
    ways = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    leads = [
        sum(2 * pool[i] + 2 * pool[j] - sum(pool) for pool, (i, j) in zip(pools, dealt, strict=True))
        for dealt in itertools.product(ways, repeat=len(levels))
    ]
    exact = np.mean(np.abs(leads) > abs(leads[0]) - 1e-9)
    assert contrast([((first, first), (second, second)) for first, second in levels]).p == pytest.approx(exact)


def test_where_nothing_varies_leads_of_both_signs_decide_nothing() -> None:
    assert contrast([([1.0] * 5, [0.0] * 5), ([0.1] * 5, [0.9] * 5)]).p == 1


@pytest.mark.parametrize(
    ("field", "words"),
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
def test_a_wrong_field_is_one_sentence(kept: Path, field: str, words: str) -> None:
    said = told(fill, kept, f"{{{{{field}}}}}")
    assert said.startswith(f"PAGE.template.md: {{{{{field}}}}}: ") and words in said


@pytest.mark.results
def test_the_pages_of_results_are_filled_from_its_archives() -> None:
    pages = filled_pages(RESULTS)
    assert {path.name for path in pages} >= {"README.md", "details.md"}
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
    made = [path.relative_to(copied) for path in copied.rglob("*.md") if path.name not in by_hand]
    made.remove(Path("parameters.md"))  # which `dqn_memory.parameters` makes
    for path in made:
        (copied / path).unlink()
    main(["--all", str(copied)])
    for path in made:
        assert (RESULTS / path).read_text() == (copied / path).read_text(), path
