"""Reports of studies: what they say, that they are made again from a record, and that damage is noticed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reported import MACHINE, make_study, noisy, success
from trained import CARDS, trained

from dqn_memory.errors import UserError
from dqn_memory.study import statistics
from dqn_memory.study.correlation import rank_correlation
from dqn_memory.study.definition import read_definition
from dqn_memory.study.expansion import Planned
from dqn_memory.study.finished import vouch
from dqn_memory.study.published import scores
from dqn_memory.study.report import main, unsound
from dqn_memory.study.report_attention import Maps, maps_of
from dqn_memory.study.report_data import Data, collect, meaning
from dqn_memory.study.report_page import Grid, Section, markdown
from dqn_memory.study.report_published import TABLES, matching
from dqn_memory.study.report_record import record
from dqn_memory.study.report_scores import aggregate_section, matrices, table_section
from dqn_memory.study.report_sections import lead, left_out_rows, sections
from dqn_memory.study.report_source import open_source
from dqn_memory.study.report_spans import spans_section
from dqn_memory.study.report_style import LOOKS, looks
from dqn_memory.study.report_worlds import (
    BOTH,
    RECURRENCE,
    difference,
    gains,
    hallucination_section,
    properties_section,
)
from dqn_memory.study.state import Study
from dqn_memory.study.worlds import properties
from envs import baselines

MEMORY, HALLWAY = "Gridverse/Memory-5x5-v0", "POMDP/Hallway-v0"
TWO = '["dtqn4", "dgfqn"]'
HEADINGS = (
    "Over all worlds", "Scores by world", "Learning curves", "Performance profiles", "Probability of improvement",
    "Parameters beside scores", "Learned priors", "Learned spans", "Attention maps", "Hallucinated structure (RQ5)",
    "Which worlds reward recurrence (RQ3, RQ4)", "Time and cost",
)  # fmt: skip


def report(folder: Path, *flags: str) -> Path:
    """Make a report without attention maps (these runs have no checkpoints); returns its folder."""
    main([str(folder), "--no-attention", *flags])
    return folder / "report"


def read(folder: Path) -> Data:
    return collect(open_source(folder))


def table(section: Section, place: int = 0) -> list[dict[str, str]]:
    """One of a section's tables, rows by the names of its columns."""
    grid = [part for part in section.parts if isinstance(part, Grid)][place]
    return [dict(zip(grid.header, row, strict=True)) for row in grid.rows]


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def text_of(data: Data) -> str:
    """The page as Markdown, without drawing its pictures."""
    return markdown(data.source.title, lead(data), sections(data, False, False))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "small"
    make_study(folder, [MEMORY, HALLWAY], TWO, [1, 2], noisy({"dgfqn": 0.1}))
    return folder


@pytest.fixture
def small(made: Path, tmp_path: Path) -> Path:
    """A finished study that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "small"))


def test_a_report_has_all_its_sections_and_needs_nothing_else(small: Path) -> None:
    pages = report(small, "--published")
    text, page = (pages / "report.md").read_text(), (pages / "report.html").read_text()
    for heading in (*HEADINGS, "Beside the published scores"):
        assert f"## {heading}\n" in text
        assert f">{heading}</h2>" in page
    assert not re.search(r"(src|href)=.(?!data:|#)", page)
    pictures = {path.stem for path in (pages / "pictures").glob("*.svg")}
    assert (
        pictures
        == {path.stem for path in (pages / "pictures").glob("*.png")}
        == set(re.findall(r"\(pictures/(.+)\.png\)", text))
    )
    assert page.count("<img ") == len(pictures) == 5  # two worlds' curves, profiles, parameters, worlds


@pytest.mark.long
def test_the_same_runs_give_the_same_bytes(small: Path, tmp_path: Path) -> None:
    first = hashes(report(small))
    for run in Study.open(small).runs():
        Study.open(small).mark(run.name, "finished", seconds=1.0, begun=True)  # other times, more starts
    main([str(small), "--no-attention", "--folder", str(tmp_path / "again")])
    again = hashes(tmp_path / "again")
    changed = {name for name in first if first[name] != again[name]}
    assert changed == {"report.md", "report.html"}
    before, after = ((folder / "report.md").read_text() for folder in (small / "report", tmp_path / "again"))
    assert before.partition("## Time and cost")[0] == after.partition("## Time and cost")[0]


def test_the_table_holds_the_readings_between_the_lines(small: Path) -> None:
    data = read(small)
    row = next(row for row in table(table_section(data)) if (row["world"], row["series"]) == (MEMORY, "dgfqn"))
    runs = data.of(MEMORY, "dgfqn")
    last = [float(np.mean(run.curve.success[-10:])) for run in runs]
    assert row["last average"].startswith(f"{np.mean(last):.3f} [{min(last):.3f}, {max(last):.3f}]")
    assert row["final"].startswith(f"{np.mean([run.curve.final for run in runs]):.3f}")
    lines = baselines.lines(MEMORY)
    assert lines is not None
    assert (row["random"], row["best"]) == (f"{lines.random.success.mean:.3f}", f"{lines.lower.success.mean:.3f}")
    assert (row["seeds"], row["parameters"]) == ("2", f"{runs[0].parameters:,}")
    reached = [next(s for s, v in zip(r.curve.steps, r.curve.success, strict=True) if v >= 0.5) for r in runs]
    assert row["steps to 0.5"] == f"{int(np.median(reached)):,}"


def test_parameters_are_those_of_the_network(small: Path) -> None:
    from dqn_memory.counting import count

    run = read(small).of(MEMORY, "dgfqn")[0]
    world_of = run.config.arena("cpu").fleet(1, 0)[0]
    from dqn_memory.observations import observation_spec

    network = run.config.network.build(observation_spec(world_of.observation_space), world_of.num_actions)
    assert run.parameters == count(network).trainable


def test_aggregates_are_of_the_normalised_scores_that_all_share(small: Path) -> None:
    data = read(small)
    found, shared, remarks = matrices(data)
    assert (shared, remarks) == ([MEMORY, HALLWAY], [])
    scale = data.scale(HALLWAY)
    assert scale is not None
    assert found["dgfqn"][1, 1] == scale(data.scores(HALLWAY, "dgfqn")[2])
    row = next(row for row in table(aggregate_section(data)) if row["series"] == "dgfqn")
    assert row["IQM"] == str(statistics.estimate(found["dgfqn"], statistics.iqm))


def test_worlds_and_seeds_that_not_all_have_are_left_out_of_aggregates(small: Path) -> None:
    study = Study.open(small)
    study.mark("POMDP-Hallway-v0__dgfqn__seed-2", "failed", error="no memory\nlast words")
    data = read(small)
    found, _, remarks = matrices(data)
    assert found["dgfqn"].shape == (1, 2)
    assert found["dtqn4"].shape == (2, 2)
    assert "of dgfqn only the seeds that it has in all of these worlds: 1" in remarks
    study.mark("POMDP-Hallway-v0__dgfqn__seed-1", "running")
    assert matrices(read(small))[1] == [MEMORY]


def test_unfinished_runs_are_named_and_do_not_hinder(small: Path) -> None:
    study = Study.open(small)
    study.mark("POMDP-Hallway-v0__dgfqn__seed-1", "failed", error="Traceback\nout of memory")
    study.mark("POMDP-Hallway-v0__dgfqn__seed-2", "running")
    study.mark("POMDP-Hallway-v0__dtqn4__seed-1", "waiting")
    data = read(small)
    text = text_of(data)
    assert "| POMDP-Hallway-v0__dgfqn__seed-1 | failed: out of memory |" in text
    assert "| POMDP-Hallway-v0__dgfqn__seed-2 | stopped |" in text  # nobody is at work
    assert "| POMDP-Hallway-v0__dtqn4__seed-1 | waiting |" in text
    assert len(data.entries) == 5
    assert not unsound(data)


def test_a_study_without_a_finished_run_has_a_report(small: Path) -> None:
    for run in Study.open(small).runs():
        Study.open(small).mark(run.name, "waiting")
    text = (report(small, "--published") / "report.md").read_text()
    assert all(f"## {heading}\n" in text for heading in (*HEADINGS, "Beside the published scores"))
    assert "No run is finished yet." in text


def lose(file: Path) -> None:
    file.unlink()


def change_a_digit(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace("0.", "0.9", 1)
    file.write_text("".join(lines))


def garble(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = b"}" + lines[3]
    file.write_bytes(b"".join(lines))


DAMAGE = [(lose, "metrics.jsonl is missing"), (change_a_digit, "metrics.jsonl was changed"), (garble, "line 4")]


@pytest.mark.parametrize(("harm", "words"), DAMAGE)
@pytest.mark.parametrize("kept", [False, True])
def test_damage_is_noticed_and_named(
    small: Path, tmp_path: Path, kept: bool, harm: Callable[[Path], None], words: str
) -> None:
    folder, name = tmp_path / "kept" if kept else small, "POMDP-Hallway-v0__dtqn4__seed-2"
    for run in Study.open(small).runs():
        vouch(run.folder)  # as when they are finished
    record(read(small), tmp_path / "kept", attention=False)
    assert not read(folder).left_out
    harm(folder / "runs" / name / "metrics.jsonl")
    data = read(folder)
    ((where, why),) = data.left_out
    assert where == name
    assert words in why
    assert unsound(data) == [name]
    assert len(data.entries) == 7


@pytest.mark.parametrize("file", ["config.toml", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("known", [False, True])
def test_each_lost_file_of_a_study_is_named(small: Path, file: str, known: bool) -> None:
    folder = small / "runs/POMDP-Hallway-v0__dtqn4__seed-2"
    if known:
        vouch(folder)
    lose(folder / file)
    ((_, why),) = read(small).left_out
    assert f"{file} is missing" in why


def test_a_lost_definition_of_a_study_is_named(small: Path) -> None:
    lose(small / "study.toml")
    data = read(small)
    assert [name for name, _ in data.left_out] == unsound(data) == ["the study"]
    assert "| the study |" in text_of(data)


def test_damage_stands_at_the_top_and_in_the_exit_code(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garble(small / "runs/POMDP-Hallway-v0__dtqn4__seed-2/metrics.jsonl")
    with pytest.raises(SystemExit, match="1 of the study's runs"):
        report(small)
    said = capsys.readouterr().err
    assert "POMDP-Hallway-v0__dtqn4__seed-2" in said
    assert "line 4" in said
    assert "line 4" in (small / "report/report.md").read_text().partition("## Over all worlds")[0]


def test_a_lost_readings_file_and_definition_are_named(small: Path, tmp_path: Path) -> None:
    record(read(small), tmp_path / "kept", attention=False)
    (tmp_path / "kept/study.toml").unlink()
    (tmp_path / "kept/runs/POMDP-Hallway-v0__dtqn4__seed-2/readings.json").unlink()
    left_out = dict(read(tmp_path / "kept").left_out)
    assert "study.toml is missing" in left_out["the study"]
    assert "readings.json is missing" in left_out["POMDP-Hallway-v0__dtqn4__seed-2"]


@pytest.mark.long
def test_a_record_gives_the_same_report(small: Path, tmp_path: Path) -> None:
    Study.open(small).mark("POMDP-Hallway-v0__dgfqn__seed-1", "failed", error="Traceback\nout of memory")
    environment = small / "runs/POMDP-Hallway-v0__dtqn4__seed-2/environment.json"
    environment.write_text(json.dumps(MACHINE | {"command": f"train --run {small.resolve()}/runs/x"}))
    first = hashes(report(small, "--record", str(tmp_path / "kept"), "--published"))
    assert hashes(report(tmp_path / "kept", "--published")) == first
    kept = [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and "report" not in path.parts]
    assert not [path for path in kept if str(small).encode() in path.read_bytes()]
    raw = json.loads((tmp_path / "kept/runs/POMDP-Hallway-v0__dtqn4__seed-2/readings.json").read_text())
    entry = next(entry for entry in read(small).of(HALLWAY, "dtqn4") if entry.run.seed == 2)
    assert raw["last_average"] == entry.readings.last_average
    assert (raw["seed"], raw["steps_to"][1], raw["budget"]) == (2, entry.readings.steps_to[1].steps, 600)


def test_a_record_is_replaced_by_its_own_study_only(small: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    record(read(small), kept, attention=False)
    record(read(small), kept, attention=False)
    make_study(tmp_path / "other", [HALLWAY], '["dgfqn"]', [1])
    for folder, where, words in (
        (tmp_path / "other", kept, "holds the record of the study small"),
        (kept, tmp_path / "third", "is a record already"),
        (small, tmp_path / "other", "something else than a record"),
    ):
        with pytest.raises(UserError, match=words):
            record(read(folder), where, attention=False)


def test_no_study_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "is no study" in capsys.readouterr().err


def test_an_architecture_looks_the_same_in_every_study() -> None:
    both = looks(["gaussian", "dgfqn", "dtqn4"]), looks(["dbgfqn", "dgfqn", "dgfqn, positions all"])
    assert both[0]["dgfqn"] == both[1]["dgfqn"]
    for found in (*both, looks([f"variant {number}" for number in range(len(LOOKS))])):
        assert len(set(found.values())) == len(found)
    paper = looks(["dtqn4", "drfqn", "dlfqn", "dgfqn", "dbrfqn", "dblfqn", "dbgfqn"])
    assert len({look.colour for look in paper.values()}) == 7


def test_published_scores_stand_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = '["dgfqn", { name = "dbgfqn as published", architecture = "dbgfqn", positions = "all" }, "gtrxl"]'
    make_study(tmp_path / "study", [MEMORY, "Gridverse/Memory-Empty-13x13-v0"], two, [1, 2], success)
    report(tmp_path / "study", "--published")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| dbgfqn_table1")]
    theirs = scores("dbgfqn_table1")[MEMORY]
    assert len(rows) == 2  # the paper has neither the empty world nor GTrXL
    assert [f"| {theirs[name]:g} |" in row for name, row in zip(("DGFQN", "DBGFQN"), rows, strict=True)] == [True, True]


def test_names_match_by_letters_and_digits() -> None:
    theirs = {"UniZero": 1.0, "Gaussian Adaptive": 2.0}
    assert matching("gaussian_adaptive", {}, theirs) == ["Gaussian Adaptive"]
    assert matching("causal", {"causal": ("UniZero",)}, theirs) == ["UniZero"]
    assert matching("gaussian", {}, theirs) == []
    assert matching("mu 6", {"mu 6": ("mu 6", "sigma 1")}, {"mu 6": 1.0, "sigma 1": 1.0}) == ["mu 6", "sigma 1"]


@pytest.mark.parametrize("name", ["thesis_table1", "thesis_table3", "learning_to_focus_table2", "atari100k_priors"])
def test_every_series_of_a_study_of_a_table_has_its_published_row(name: str) -> None:
    study, names = read_definition(name, False), TABLES["world_models.unizero.train"]
    labels = [value.label for value in study.axes["architecture"]]
    table = {"learning_to_focus_table2": "focus_table2", "atari100k_priors": "focus_table1"}.get(name, name)
    theirs = {model: 0.0 for models in scores(table).values() for model in models}
    unmatched = [label for label in labels if not matching(str(label), names[table], theirs)]
    assert not unmatched


def test_table_1_calls_the_feed_forward_network_by_its_paper_name(tmp_path: Path) -> None:
    named = '[{ name = "dtqn", architecture = "dtqn4" }, "dgfqn"]'
    make_study(tmp_path / "study", [MEMORY], named, [1, 2], lambda run, step: 0.7 if "dgfqn" in run.name else 0.4)
    gain = gains(read(tmp_path / "study"), MEMORY)[RECURRENCE]
    assert gain is not None and gain.point == pytest.approx(0.3)


def test_a_reading_is_of_success_or_of_returns(small: Path) -> None:
    data = read(small)
    assert meaning(data, "final").startswith("success of the final")
    returns = replace(data, entries=tuple(replace(entry, success=False) for entry in data.entries))
    assert meaning(returns, "final").startswith("return of the final")


def test_phantoms_are_measured_against_their_control(tmp_path: Path) -> None:
    worlds = ["Gridverse/Memory-13x13-Hallucinated-v0", "Gridverse/Memory-Empty-13x13-v0"]
    make_study(tmp_path / "rq5", worlds, TWO, [1, 2, 3], lambda run, step: 0.8 if "Hallucinated" in run.name else 0.5)
    rows = table(hallucination_section(read(tmp_path / "rq5")))
    assert [(row["world"], row["without it"], row["series"]) for row in rows] == [
        (*worlds, "dtqn4"),
        (*worlds, "dgfqn"),
    ]
    assert rows[0]["effect"] == "0.300 [0.300, 0.300]"
    assert rows[0]["with beats without"] == "1.000 [1.000, 1.000]"
    assert rows[0]["seeds"] == "3"


def test_differences_resample_every_side() -> None:
    found = difference([([0.8, 0.8], [0.1, 0.2]), ([0.5, 0.5], [0.5, 0.5])])
    assert found.point == pytest.approx((0.8 - 0.15) / 2)
    assert found.low == pytest.approx((0.8 - 0.2) / 2)  # a quarter of the resamples has the second side's best twice
    assert found.high == pytest.approx((0.8 - 0.1) / 2)
    assert np.isnan(difference([([0.8], [0.1, 0.2])]).low)


def test_a_rival_of_several_cells_is_resampled_once_for_all() -> None:
    rival = [0.2, 0.5, 0.9, 0.4, 0.6]
    cells = [[level] * 5 for level in (0.7, 0.8, 0.9)]  # they do not vary: all noise is the rival's
    alone, found = difference([(cells[1], rival)]), difference([(cell, rival) for cell in cells])
    assert found.point == pytest.approx(alone.point)
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high), abs=0.01)


def test_gains_have_the_interval_of_their_one_rival(tmp_path: Path) -> None:
    rival = {1: 0.2, 2: 0.6, 3: 0.4}

    def score(run: Planned, step: int) -> float:
        return rival[int(run.axes["seed"])] if run.axes["architecture"] == "dtqn4" else 0.8

    make_study(tmp_path / "rq2", [MEMORY], '["dtqn4", "drfqn", "dlfqn", "dgfqn"]', [1, 2, 3], score)
    gain = gains(read(tmp_path / "rq2"), MEMORY)[RECURRENCE]
    assert gain is not None and (gain.low, gain.high) == pytest.approx((0.2, 0.6))


def test_gains_are_correlated_with_properties(tmp_path: Path) -> None:
    worlds = [f"Gridverse/Memory-{size}x{size}-v0" for size in (5, 7, 9, 11)]
    level = {world: place * 0.1 for place, world in enumerate(worlds)}
    bonus = {"dtqn4": 0.0, "dgfqn": 1.0, "dbgfqn": 3.0}
    make_study(
        tmp_path / "rq4", worlds, '["dtqn4", "dgfqn", "dbgfqn"]', [1, 2],
        lambda run, step: 0.05 + level[str(run.axes["world"])] * bonus[run.axes["architecture"]],  # type: ignore[index]
    )  # fmt: skip
    data = read(tmp_path / "rq4")
    found = gains(data, worlds[2])
    assert found[RECURRENCE].point == pytest.approx(0.2)  # type: ignore[union-attr]
    assert found[BOTH].point == pytest.approx(0.4)  # type: ignore[union-attr]
    rows = {row["property"]: row for row in table(properties_section(data), 2)}
    delays = np.array([properties(world).delay for world in worlds], np.float64)
    wanted = rank_correlation(delays, np.array([0.0, 0.1, 0.2, 0.3]))
    assert rows["delay"][RECURRENCE] == f"{wanted} (of 4)"
    assert wanted.point == pytest.approx(1.0)
    assert rows["rooms"][BOTH] == "- (of 4)"  # all corridors


def test_learned_priors_are_shown_by_head_and_over_time(tmp_path: Path) -> None:
    def learned(run: object, step: int) -> dict[str, float]:
        seed = int(run.axes["seed"])  # type: ignore[attr-defined]
        return {
            f"memory/0.{head}.{what}": 6.0 + head + seed * step / 600 for head in (0, 1) for what in ("mu", "sigma")
        }

    gaussian = '[{ name = "gaussian", architecture = "dtqn4", prior = "gaussian", mu = 6.0 }]'
    make_study(tmp_path / "priors", [MEMORY], gaussian, [1, 2, 3], success, learned)
    text = text_of(read(tmp_path / "priors"))
    assert f"| {MEMORY} | gaussian | 3 | 0 | 1 | mu | 6.000 | 9.000 | 1.000 |" in text
    assert {"learned-gaussian", "learning-gaussian"} <= set(re.findall(r"pictures/(\w+-gaussian)", text))


def test_learned_spans_are_shown_over_heads_layers_and_seeds(tmp_path: Path) -> None:
    def learned(run: object, step: int) -> dict[str, float]:
        seed = int(run.axes["seed"])  # type: ignore[attr-defined]
        return {f"memory/0.{head}.span": 4.0 + head + seed * step / 600 for head in (0, 1)}

    adaptive = '[{ name = "adaptive", architecture = "dtqn4", prior = "adaptive", span = 4.0 }, "dtqn4"]'
    make_study(tmp_path / "spans", [MEMORY], adaptive, [1, 2, 3], success, learned)
    rows = table(spans_section(read(tmp_path / "spans")))
    assert [row["series"] for row in rows] == ["adaptive"]  # the other has no span that learns
    assert (rows[0]["spans"], rows[0]["start"]) == ("6", "4.000")
    assert (rows[0]["least"], rows[0]["median"], rows[0]["most"]) == ("5.000", "6.500", "8.000")


@pytest.mark.long
def test_attention_maps_come_from_checkpoints_and_from_the_record(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", [CARDS], '["dtqn4"]', [1, 2])
    folder = study.runs()[0].folder
    shutil.rmtree(folder)
    trained(folder, "--architecture", "dtqn4", "--evaluate-every", "120")
    main([str(tmp_path / "study"), "--record", str(tmp_path / "kept")])
    data = read(tmp_path / "study")
    played, kept = (maps_of(each, each.of(CARDS, "dtqn4")[0]) for each in (data, read(tmp_path / "kept")))
    assert played is not None
    assert kept is not None
    assert played.layers[0].shape == kept.layers[0].shape == (2, 24, 24)
    np.testing.assert_array_equal(played.layers[0], kept.layers[0])
    np.testing.assert_allclose(kept.layers[0].sum(-1), 1, atol=0.02)  # thousandths, rounded
    assert not np.triu(kept.layers[0], 1).any()
    main([str(tmp_path / "kept")])
    pages = [(tmp_path / name / "report/report.html").read_text() for name in ("study", "kept")]
    assert pages[0] == pages[1]
    assert "attention-pomdp-memorycards-v0" in (tmp_path / "kept/report/report.md").read_text()


def test_maps_survive_their_text() -> None:
    maps = np.tril(np.random.default_rng(0).random((2, 5, 5))).round(3)
    again = Maps.parse(json.loads(json.dumps(Maps({3: maps}, 9, True).plain())))
    np.testing.assert_allclose(again.layers[3], maps, atol=1e-12)
    assert (again.length, again.success, again.ended) == (9, True, "success")
    whole = np.random.default_rng(0).random((2, 5, 5)).round(3)  # a form that reads its future, over tokens
    again = Maps.parse(json.loads(json.dumps(Maps({0: whole}, 9, total=-1.5, first=4).plain())))
    np.testing.assert_allclose(again.layers[0], whole, atol=1e-12)
    assert (again.first, again.ended) == (4, "a return of -1.50")


def test_a_damaged_record_is_one_sentence(small: Path, tmp_path: Path) -> None:
    record(read(small), tmp_path / "kept", attention=False)
    (tmp_path / "kept/record.json").write_text("{}")
    with pytest.raises(UserError, match=r"record\.json is damaged"):
        read(tmp_path / "kept")


def test_steps_to_a_level_say_how_many_runs_reached_it(tmp_path: Path) -> None:
    """A median alone hides those that did not, and those that did where it is beyond the budget."""
    best = {1: 1.0, 2: 0.6, 3: 0.2, 4: 0.2}
    make_study(tmp_path / "study", [MEMORY], '["dtqn4"]', [1, 2, 3, 4], lambda run, step: best[int(run.axes["seed"])])
    (row,) = table(table_section(read(tmp_path / "study")))
    assert (row["steps to 0.5"], row["steps to 0.9"]) == ("> 600 (2 of 4)", "> 600 (1 of 4)")


def test_worlds_that_tell_no_success_are_read_by_their_returns(tmp_path: Path) -> None:
    make_study(tmp_path / "study", ["CartPole-v1"], '["dtqn4"]', [1, 2])
    data = read(tmp_path / "study")
    assert [entry.success for entry in data.entries] == [False, False] and {e.score for e in data.entries} == {0.0}
    record(data, tmp_path / "kept", attention=False)
    assert [entry.success for entry in read(tmp_path / "kept").entries] == [False, False]


def test_agents_that_see_the_state_have_no_scale_of_those_that_do_not(tmp_path: Path) -> None:
    both = '[{ name = "sees", architecture = "dtqn4", observe = "state" }]'
    make_study(tmp_path / "study", [MEMORY], both, [1])
    assert read(tmp_path / "study").scale(MEMORY) is None


def test_a_series_without_a_common_seed_is_named(small: Path) -> None:
    for name in ("POMDP-Hallway-v0__dgfqn__seed-1", "Gridverse-Memory-5x5-v0__dgfqn__seed-2"):
        Study.open(small).mark(name, "failed", error="lost")
    assert "dgfqn is left out, as no seed of it has finished in all of these worlds" in text_of(read(small))


def test_left_out_runs_that_differ_in_their_seed_alone_are_one_row() -> None:
    waiting, failed = "waiting", "failed: see its log"
    found = left_out_rows([("w__a__seed-4", waiting), ("w__b__seed-4", waiting), ("w__a__seed-5", waiting),
                           ("w__a__seed-6", failed), ("the study", "no file")])  # fmt: skip
    assert found == (
        ("w__a__seed-4, 5", waiting), ("w__b__seed-4", waiting), ("w__a__seed-6", failed), ("the study", "no file")
    )  # fmt: skip
