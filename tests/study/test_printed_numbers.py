"""Numbers that the pages print are those of the rows of results/, by another path than the pages were made."""

import csv
import itertools
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from reported import raw
from scipy import stats

from dqn_memory.study.statistics import holm
from envs.baselines.reference import read_references
from envs.registry import WORLDS

README = Path(__file__).resolve().parents[2] / "README.md"
RESULTS = README.parent / "results"
ARCHIVES = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("archive.json"))
pytestmark = pytest.mark.results


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


def test_printed_numbers_are_those_of_the_logs() -> None:
    """The page's scores, times, bytes and losses, by another path than it was made, from the lines that runs logged."""

    def last(run: list[dict[str, str]], *names: str) -> float:
        return float(next(line[name] for name in names for line in reversed(run) if line[name]))

    found, near = logged(RESULTS / "studies" / "memories"), {"abs": 0.0051}
    names = {name.removesuffix("-v0").replace("-", " "): name for name, _ in found}
    scores, reached, _, costs, *_ = tables(RESULTS / "README.md")
    details = tables(RESULTS / "details.md")
    (used,) = (table for table in details if "→" in table[0].get("gated_deltanet", ""))
    (solving,) = (table for table in details if table[0].get("gated_deltanet", "").isdigit())
    checked = 0
    for row in scores:
        world = names[row["environment"]]
        final = {name: [last(run, "sampled/success_rate", "final/success_rate") for run in found[world, name]]
                 for name in row if (world, name) in found}  # fmt: skip
        assert len(final) == 8 and {len(values) for values in final.values()} == {10}
        best = max(final, key=lambda name: np.mean(final[name]))
        rivals = [name for name in final if name != best]
        p = [stats.ttest_ind(final[best], final[name], equal_var=False).pvalue for name in rivals]
        lower = {name for name, p in zip(rivals, holm(np.nan_to_num(p, nan=1).tolist()), strict=True) if p < 0.05}
        assert {name for name in final if "↓" in row[name]} == lower
        for name, values in final.items():
            assert float(row[name].split()[0]) == pytest.approx(np.mean(values), **near)
            checked += 1
    for row in solving:
        for series in row.keys() - {""}:
            runs = [[line for line in run if line["eval/success_rate"]] for run in found[names[row[""]], series]]
            low = [place for place, lines in enumerate(zip(*runs, strict=True))
                   if np.mean([float(line["eval/success_rate"]) for line in lines]) < 0.95]  # fmt: skip
            pace = min(float(run[-1]["time/processor"]) / int(run[-1]["step"]) for run in runs)
            if row[series]:
                start = int(runs[0][low[-1] + 1 if low else 0]["step"])
                assert float(row[series].replace(",", "")) == pytest.approx(start * pace, abs=0.51)
            else:
                assert low[-1] >= len(runs[0]) - 2
            checked += 1
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
    assert checked == 3 * 7 * 8 + 8 + 2 * 7 * 8


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


def test_the_answer_holds_in_the_raw_rows_and_the_readme_tells_the_same() -> None:
    def above(archive: str, world: str, first: str, second: str) -> bool:
        """Whether the first ends significantly higher."""
        ours, theirs = (found[archive][world, name] for name in (first, second))
        return np.mean(ours) > np.mean(theirs) and stats.ttest_ind(ours, theirs, equal_var=False).pvalue < 0.05

    found = {name: raw(RESULTS / "studies" / name) for name in ("memories", "popgym")}
    assert len(found["memories"]) == 56
    assert not any(above("memories", world, name, "gru") for world, name in found["memories"])
    repeat, first = (f"popgym-{name}-v0" for name in ("RepeatPreviousMedium", "RepeatFirstEasy"))
    assert above("popgym", repeat, "attention", "gru") and above("popgym", first, "gru", "attention")
    assert all(above("popgym", "popgym-RepeatPreviousEasy-v0", name, "gru") for name in ("lru", "attention"))
    answer = README.read_text().partition("**Try a ")[2].partition("\n\n")[0]
    page = (RESULTS / "README.md").read_text()
    numbers, known = (set(re.findall(r"\d+ of \d+|0\.\d\d", text)) for text in (answer, page))
    assert len(numbers) >= 3 and numbers <= known


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


def test_a_clock_scores_what_the_pages_say_and_more_than_any_run() -> None:
    found = raw(RESULTS / "studies" / "popgym")
    for level, decks, kinds in ("Easy", 1, 2), ("Medium", 2, 4):
        score = clock(decks, kinds)
        ours = [scores for (world, _), scores in found.items() if world == f"popgym-CountRecall{level}-v0"]
        assert len(ours) == 3 and max(itertools.chain(*ours)) < score
        for name in "README.md", "details.md":
            assert f"{score:.3f}" in (RESULTS / name).read_text()


def test_no_memory_beats_guessing_in_memory_cards_as_the_pages_say() -> None:
    known = read_references(RESULTS / "baselines.json")["POMDP/MemoryCards-v0"]
    guessing, perfect = known.lines["observation"], known.lower
    found = logged(RESULTS / "studies" / "memories")
    last = {series: [run[-1] for run in runs] for (world, series), runs in found.items() if "MemoryCards" in world}
    ends, wins = (
        {series: np.mean([float(line[name]) for line in lines]) for series, lines in last.items()}
        for name in ("sampled/episodic_return", "sampled/success_rate")
    )
    assert len(last) == 8
    mlp = ends.pop("mlp"), wins.pop("mlp")
    assert max(ends.values()) < guessing.returns.mean and max(wins.values()) < guessing.success.mean
    for page in (README, RESULTS / "README.md"):
        text = " ".join(page.read_text().split())
        assert f"wins {guessing.success.mean:.2f} of its episodes and returns {guessing.returns.mean:.1f}" in text
        assert f"a perfect memory returns {perfect.returns.mean:.1f}" in text
    assert "win 0.94 or 0.95 and return -21 or -22 (`mlp`: 0.90 and -24)" in " ".join(README.read_text().split())
    assert {f"{value:.2f}" for value in wins.values()} == {"0.94", "0.95"}
    assert {f"{value:.0f}" for value in ends.values()} == {"-21", "-22"}
    assert (f"{mlp[0]:.0f}", f"{mlp[1]:.2f}") == ("-24", "0.90")


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


@pytest.mark.parametrize(("archive", "more"), [("every_environment_32", ""), ("every_environment", ", 128")])
def test_the_table_of_every_environment_is_that_of_its_runs(archive: str, more: str) -> None:
    def score(run: list[dict[str, str]], *names: str) -> float:
        return float(next(line[name] for name in names for line in reversed(run) if line.get(name)))

    found = {name.removesuffix("-v0").replace("-", " "): runs
             for (name, _), runs in logged(RESULTS / "studies" / archive).items()}  # fmt: skip
    (rows,) = (table for table in tables(RESULTS / "details.md") if "processor seconds, 128" in table[0])
    printed = {row["environment"]: row for row in rows if row[f"final{more}"]}
    assert printed.keys() == found.keys()
    best = {id.split("/")[-1].removesuffix("-v0").replace("-", " "): each.lower.success.mean
            for id, each in read_references(RESULTS / "baselines.json").items()}  # fmt: skip
    for name, row in printed.items():
        runs, level = found[name], 0.95 * best[name.partition(",")[0]]
        final = [score(run, "sampled/success_rate", "final/success_rate") for run in runs]
        assert float(row[f"final{more}"].split()[0]) == pytest.approx(np.mean(final), abs=0.0006)
        assert row[f"runs solved{more}"] == f"{sum(each >= level for each in final)} of {len(runs)}"
        curves = [[line for line in run if line["eval/success_rate"]] for run in runs]
        means = [np.mean([float(line["eval/success_rate"]) for line in lines]) for lines in zip(*curves, strict=True)]
        first = max((place + 1 for place, mean in enumerate(means) if mean < level), default=0)
        if first > len(means) - 2:
            assert row[f"steps{more}"] == row[f"processor seconds{more}"] == ""
            continue
        steps = int(curves[0][first]["step"])
        pace = min(float(curve[-1]["time/processor"]) / int(curve[-1]["step"]) for curve in curves)
        assert row[f"steps{more}"] == f"{steps:,}"
        assert float(row[f"processor seconds{more}"]) == pytest.approx(steps * pace, abs=0.51, rel=0.03)


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


def test_the_speeds_that_the_pages_give_are_those_of_the_runs() -> None:
    def numbers_in(pattern: str, page: Path = README.parent / "docs" / "tuning.md") -> list[int]:
        numbers = re.search(pattern, " ".join(page.read_text().split()))
        assert numbers, pattern
        return [int(number.replace(",", "")) for number in numbers.groups()]

    def close(said: list[int], runs: list[float]) -> bool:
        """Whether a range holds the runs and is hardly wider."""
        low, high = said
        return low <= min(runs) <= low * 1.05 and high / 1.05 <= max(runs) <= high

    ppo = paces("memories", 0)
    memories = [pace for name, runs in ppo.items() if name != "mlp" for pace in runs]
    assert close(numbers_in(r"([\d,]+) to ([\d,]+), by memory"), memories)
    assert close(numbers_in(r"a GRU makes ([\d,]+) to ([\d,]+) steps"), ppo["gru"])
    at_most = numbers_in(r"the gated delta rule up to ([\d,]+), Mamba up to ([\d,]+) and attention up to ([\d,]+)")
    for most, name in zip(at_most, ("gated_deltanet", "mamba_layer", "attention"), strict=True):
        assert close([int(min(ppo[name])), most], ppo[name])
    front = numbers_in(
        r"([\d,]+) to ([\d,]+) steps a second with a GRU and ([\d,]+) to ([\d,]+) with attention", README
    )
    assert close(front[:2], ppo["gru"]) and close(front[2:], ppo["attention"])
    single, others = [], []
    two_layers = ("architectures", "windows")
    for study in (*two_layers, "first_evidence", "rq1_feedforward_expansion", "rq2_recurrent_sublayers", "priors"):
        for name, runs in paces(study, 60_000).items():
            alone = name.endswith("at ends") or (study in two_layers and re.fullmatch("db[rlg]fqn", name))
            (single if alone else others).extend(runs)
    assert close(numbers_in(r"([\d,]+) to ([\d,]+) while it learns"), others)
    assert close(numbers_in(r"; ([\d,]+) to ([\d,]+) on single contexts"), single)


def test_the_comparison_counts_environments_whose_best_success_is_known() -> None:
    known = {id: row for id, row in read_references(RESULTS / "baselines.json").items() if id in WORLDS}
    rows = [row for id, row in known.items() if not id.startswith(("POPGym/", "Ladder/"))]
    rungs = sum(id.startswith("Ladder/") for id in known)
    page = (README.parent / "docs" / "comparison.md").read_text()
    assert f"POPGym's {len(known) - len(rows) - rungs} as tensors and {rungs} levels of ladders" in page
    ends = [(row.lower.success.mean, row.upper.success.mean) for row in rows]
    known = [low for low, high in ends if low >= high - 1e-6]  # the sampled upper bound may lie below
    widest = min(low for low, high in ends if low not in known)
    said = f"best success known in {len(known)}, between bounds in {len(ends) - len(known)} (widest: {widest:.2f} to 1)"
    assert f"**{len(ends)}**: {said}" in page
