"""Pages filled from archives: every field, its numbers by another path, what a wrong one says; results/ is the same."""

import csv
import itertools
import math
import re
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reported import MEMORY, make_study, read
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


def raw(folder: Path, number: str = "final") -> dict[tuple[str, str], list[float]]:
    """Read a number of every run from an archive's table."""
    found = defaultdict(list)
    with (folder / "runs.csv").open() as file:
        for row in csv.DictReader(file):
            if row[f"summary.{number}"]:
                found[row["axes.world"], row["axes.architecture"]].append(float(row[f"summary.{number}"]))
    return found


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


def tables(path: Path) -> list[list[dict[str, str]]]:
    """Read the tables of a page, each row by its header."""
    found: list[list[dict[str, str]]] = []
    header: list[str] = []
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not header and cells:
            found.append([])
        elif cells and not cells[0].startswith("---"):
            found[-1].append(dict(zip(header, cells, strict=True)))
        header = header if header and cells else cells
    return found


def logged(folder: Path) -> dict[tuple[str, str], list[list[dict[str, str]]]]:
    """Read the lines of every finished run's log from an archive, by environment and series."""
    lines, found = defaultdict(list), defaultdict(list)
    with (folder / "runs.csv").open() as runs, (folder / "metrics.csv").open() as metrics:
        for line in csv.DictReader(metrics):
            lines[line["run"]].append(line)
        for row in csv.DictReader(runs):
            if row["state"] == "finished":
                found[row["axes.world"].split("/")[-1], row["axes.architecture"]].append(lines[row["run"]])
    return found


@pytest.mark.results
def test_printed_numbers_are_those_of_the_logs() -> None:
    """The page's scores, times, bytes and losses, by another path than it was made, from the lines that runs logged."""

    def last(run: list[dict[str, str]], *names: str) -> float:
        return float(next(line[name] for name in names for line in reversed(run) if line[name]))

    found, near = logged(RESULTS / "studies" / "memories"), {"abs": 0.0051}
    names = {name.removesuffix("-v0").replace("-", " "): name for name, _ in found}
    chosen, reached, _, costs, *_ = tables(RESULTS / "README.md")
    (used,) = (table for table in tables(RESULTS / "details.md") if "→" in table[0].get("gated_deltanet", ""))
    checked = 0
    for row in chosen:
        world, series = names[row["environment"]], re.findall(r"\w+", row["take"])[-1]
        final = {name: [last(run, "sampled/success_rate", "final/success_rate") for run in found[world, name]]
                 for name in (series, "mlp")}  # fmt: skip
        assert float(row["score"].split()[0]) == pytest.approx(np.mean(final[series]), **near)
        assert float(row["mlp"]) == pytest.approx(np.mean(final["mlp"]), **near)
        assert {len(scores) for scores in final.values()} == {10}
        runs = [[line for line in run if line["eval/success_rate"]] for run in found[world, series]]
        low = [place for place, lines in enumerate(zip(*runs, strict=True))
               if np.mean([float(line["eval/success_rate"]) for line in lines]) < 0.95]  # fmt: skip
        pace = min(float(run[-1]["time/processor"]) / int(run[-1]["step"]) for run in runs)
        if row["solved after"]:
            start = int(runs[0][low[-1] + 1 if low else 0]["step"])
            assert float(row["solved after"].split()[0]) == pytest.approx(start * pace, abs=0.51)
        else:
            assert low[-1] >= len(runs[0]) - 2
        checked += 3
    for row in reached:
        for series in row.keys() - {"a task with", "environment"}:
            runs = found[names[row["environment"]], series]
            won = sum(last(run, "sampled/success_rate", "final/success_rate") >= 0.95 for run in runs)
            assert row[series] == f"{won} of {len(runs)}"
            checked += 1
    for row in costs:
        least = [min(last(run, "final/remembered_bytes") for run in found[world, row[""]]) for world in names.values()]
        assert float(row["bytes remembered"].replace(",", "")) == pytest.approx(np.median(least), abs=0.51)
        checked += 1
    for row in used:
        for series in row.keys() - {""}:
            numbers = re.findall(r"\d\.\d\d", row[series])
            for name, number in zip(("final", "memory_ablation"), numbers, strict=True):
                runs = found[names[row[""]], series]
                assert float(number) == pytest.approx(np.mean([last(r, f"{name}/success_rate") for r in runs]), **near)
                checked += 1
    assert checked == 3 * 7 + 7 * 8 + 8 + 2 * 7 * 8


@pytest.mark.results
def test_hours_and_returns_of_the_other_library_are_those_of_the_tables() -> None:
    page = " ".join((RESULTS / "details.md").read_text().split())
    said = page.partition("Processor hours of the finished runs: ")[2].partition(", where 45 were planned")[0]
    every = re.search(r"All archives of `results/` together hold ([\d.]+)\.", page)
    eight = [RESULTS / "studies" / name for name in set(re.findall(r"`(\w+)`", said))]
    assert every and len(eight) == 8
    for folders, hours in (eight, said.split()[-1]), ([RESULTS / name for name in ARCHIVES], every[1]):
        runs = [run for folder in folders for runs in logged(folder).values() for run in runs]
        spent = {max(float(line["time/processor"] or 0) for line in run) for run in runs}
        assert float(hours) == pytest.approx(sum(spent) / 3600, abs=0.051)
    theirs = [f"{float(row['return']):.2f}" for row in tables(RESULTS / "learning" / "beside_sb3.md")[1]]
    assert f"are {', '.join(theirs[:-1])} and {theirs[-1]}, below" in page


@pytest.mark.results
def test_the_answer_holds_in_the_raw_rows_and_the_readme_tells_the_same() -> None:
    def above(archive: str, world: str, first: str, second: str) -> bool:
        """Whether the first ends higher beyond chance."""
        ours, theirs = (found[archive][world, name] for name in (first, second))
        return np.mean(ours) > np.mean(theirs) and stats.ttest_ind(ours, theirs, equal_var=False).pvalue < 0.05

    found = {name: raw(RESULTS / "studies" / name) for name in ("memories", "popgym")}
    assert len(found["memories"]) == 56
    assert not any(above("memories", world, name, "gru") for world, name in found["memories"])
    repeat, first = (f"popgym-{name}-v0" for name in ("RepeatPreviousMedium", "RepeatFirstEasy"))
    assert above("popgym", repeat, "attention", "gru") and above("popgym", first, "gru", "attention")
    assert all(above("popgym", "popgym-RepeatPreviousEasy-v0", name, "gru") for name in ("lru", "attention"))
    answers = [
        path.read_text().partition("**Take a ")[2].partition("\n\n")[0] for path in (README, RESULTS / "README.md")
    ]
    numbers, known = (set(re.findall(r"\d+ of \d+|0\.\d\d", answer)) for answer in answers)
    assert len(numbers) >= 3 and numbers <= known


@pytest.mark.results
def test_five_memories_are_not_told_apart_from_the_best_of_any_environment() -> None:
    found, five = raw(RESULTS / "studies" / "memories"), ("gru", "lstm", "mingru", "attention", "gated_deltanet")
    page = (RESULTS / "README.md").read_text()
    assert "cannot be told apart: GRU, LSTM, minGRU, attention and the gated delta" in page
    for world in {world for world, _ in found}:
        best = max((name for place, name in found if place == world), key=lambda name: np.mean(found[world, name]))
        rivals = [found[world, name] for name in five if name != best]
        p = [stats.ttest_ind(found[world, best], rival, equal_var=False).pvalue for rival in rivals]
        assert min(holm([1 if np.isnan(value) else value for value in p])) >= 0.05


def clock(decks: int, kinds: int) -> float:
    """Return in CountRecall of the likeliest number of cards of a kind among as many cards as were dealt."""
    cards, each = 52 * decks, 52 * decks // kinds
    likeliest = [stats.hypergeom(cards, each, dealt).pmf(np.arange(each + 1)).max() for dealt in range(1, cards)]
    return float(np.mean([2 * chance - 1 for chance in likeliest]))


@pytest.mark.results
def test_a_clock_scores_what_the_pages_say_and_more_than_any_run() -> None:
    found = raw(RESULTS / "studies" / "popgym")
    for level, decks, kinds in ("Easy", 1, 2), ("Medium", 2, 4):
        score = clock(decks, kinds)
        ours = [scores for (world, _), scores in found.items() if world == f"popgym-CountRecall{level}-v0"]
        assert len(ours) == 3 and max(itertools.chain(*ours)) < score
        for name in "README.md", "details.md":
            assert f"{score:.3f}" in (RESULTS / name).read_text()


@pytest.mark.results
def test_the_other_library_is_ahead_at_equal_steps_where_the_page_says_so() -> None:
    page, ahead = " ".join((RESULTS / "details.md").read_text().split()), []
    with (RESULTS / "studies" / "popgym" / "metrics.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["eval/episodic_return"]]
    with (RESULTS / "studies" / "popgym" / "runs.csv").open() as file:
        names = {row["run"]: (row["axes.world"], row["axes.architecture"]) for row in csv.DictReader(file)}
    for row in tables(RESULTS / "learning" / "beside_sb3.md")[1]:
        curves: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for line in lines:
            if names[line["run"]] == (row["environment"], "gru"):
                curves[line["run"]].append((float(line["step"]), float(line["eval/episodic_return"])))
        step = float(row["steps"].replace(",", ""))
        ours = np.mean([np.interp(step, *zip(*curve, strict=True)) for curve in curves.values()])
        assert float(row["gru"]) == pytest.approx(ours, abs=0.00051)
        if float(row["return"]) > ours + 0.01:
            ahead.append(row["environment"])
            assert f"{float(row['return']):.2f} against {ours:.2f}" in page
    assert ahead == ["popgym-RepeatPreviousEasy-v0", "popgym-CountRecallEasy-v0"]


@pytest.mark.results
def test_the_networks_of_every_environment_are_as_small_and_run_as_long_as_is_said() -> None:
    found = {}
    for name in "every_environment", "memories":
        with (RESULTS / "studies" / name / "runs.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if "HeavenHell-v0__gru__" in row["name"]]
        (found[name],) = {(round(int(row["summary.parameters"]), -3), int(row["config.total_steps"])) for row in rows}
    (small, long), (large, short) = found["every_environment"], found["memories"]
    said = f"{small:,} parameters against {large:,} and {long / short:.1f} times the steps"
    assert said in " ".join((RESULTS / "details.md").read_text().split())


def paces(name: str, begin: int) -> dict[str, list[float]]:
    """Steps a processor second of every run of a study from a step on, evaluations included, by series."""
    found = defaultdict(list)
    for (_, series), runs in logged(RESULTS / "studies" / name).items():
        for run in runs:
            marks = [(int(line["step"]), float(line["time/processor"])) for line in run if line["time/processor"]]
            (first, early), (last, late) = min(mark for mark in marks if mark[0] >= begin), max(marks)
            found[series].append((last - first) / (late - early) if begin else last / late)
    return found


@pytest.mark.results
def test_the_speeds_that_the_pages_give_are_those_of_the_runs() -> None:
    def told(pattern: str, page: Path = README.parent / "docs" / "tuning.md") -> list[int]:
        numbers = re.search(pattern, " ".join(page.read_text().split()))
        assert numbers, pattern
        return [int(number.replace(",", "")) for number in numbers.groups()]

    def close(said: list[int], runs: list[float]) -> bool:
        """Whether a range holds the runs and is hardly wider."""
        low, high = said
        return low <= min(runs) <= low * 1.05 and high / 1.05 <= max(runs) <= high

    ppo = paces("memories", 0)
    memories = [pace for name, runs in ppo.items() if name != "mlp" for pace in runs]
    assert close(told(r"([\d,]+) to ([\d,]+), by memory"), memories)
    assert close(told(r"a GRU makes ([\d,]+) to ([\d,]+) steps"), ppo["gru"])
    at_most = told(r"the gated delta rule at most ([\d,]+), Mamba ([\d,]+) and attention ([\d,]+)")
    for most, name in zip(at_most, ("gated_deltanet", "mamba_layer", "attention"), strict=True):
        assert close([int(min(ppo[name])), most], ppo[name])
    front = told(r"([\d,]+) to ([\d,]+) steps a second with a GRU and ([\d,]+) to ([\d,]+) with attention", README)
    assert close(front[:2], ppo["gru"]) and close(front[2:], ppo["attention"])
    single, others = [], []
    two_layers = ("architectures", "windows")
    for study in (*two_layers, "first_evidence", "rq1_feedforward_expansion", "rq2_recurrent_sublayers", "priors"):
        for name, runs in paces(study, 60_000).items():
            alone = name.endswith("at ends") or (study in two_layers and re.fullmatch("db[rlg]fqn", name))
            (single if alone else others).extend(runs)
    assert close(told(r"([\d,]+) to ([\d,]+) while it learns"), others)
    assert close(told(r"; ([\d,]+) to ([\d,]+) on single contexts"), single)


@pytest.mark.results
def test_the_comparison_counts_environments_whose_best_success_is_known() -> None:
    with (RESULTS / "baselines.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    ends = [(float(row["lower_success"]), float(row["upper_success"])) for row in rows]
    known = [low for low, high in ends if low == pytest.approx(high, abs=1e-6)]
    widest = min(low for low, high in ends if low not in known)
    said = f"best success known in {len(known)}, between bounds in {len(ends) - len(known)} (widest: {widest:.2f} to 1)"
    assert f"**{len(ends)}**: {said}" in README.read_text()


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
