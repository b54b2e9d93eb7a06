"""Reports of studies: what they say, section by section."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from reported import HALLWAY, HEADINGS, MEMORY, STEPS, hashes, make_study, read, report, success, table, text_of
from trained import CARDS, trained

from dqn_memory.analysis.attention import Maps
from dqn_memory.study import statistics
from dqn_memory.study.definition import Planned
from dqn_memory.study.plots import LOOKS, looks
from dqn_memory.study.report import main
from dqn_memory.study.sections.attention import maps_of
from dqn_memory.study.sections.priors import spans_section
from dqn_memory.study.sections.runs import UNEVEN, fluctuation, uneven_section
from dqn_memory.study.sections.scores import ABLATION, aggregate_section, matrices, memory_section, table_section
from dqn_memory.study.store import Study
from envs import baselines


def test_a_report_has_all_its_sections_and_needs_nothing_else(finished: Path) -> None:
    pages = report(finished, "--published")
    text, page = (pages / "report.md").read_text(), (pages / "report.html").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    for heading in (*HEADINGS, "Beside the published scores"):
        assert f"## {heading}\n" in text
    assert not re.search(r"(src|href)=.(?!data:|#)", page)
    pictures = {path.stem for path in (pages / "pictures").glob("*.png")}
    assert pictures == set(re.findall(r"\(pictures/(.+)\.png\)", text))
    assert page.count("<img ") == len(pictures) == 5  # two environments' curves, profiles, parameters, gains


@pytest.mark.long
def test_the_same_runs_give_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    first = hashes(report(finished))
    for run in Study.open(finished).runs():
        Study.open(finished).mark(run.name, "finished", seconds=1.0, begun=True)  # other times, more starts
    main([str(finished), "--no-attention", "--folder", str(tmp_path / "again")])
    again = hashes(tmp_path / "again")
    assert {name for name in first if first[name] != again[name]} == {"report.md", "report.html"}
    before, after = ((folder / "report.md").read_text() for folder in (finished / "report", tmp_path / "again"))
    assert before.partition("## Every run")[0] == after.partition("## Every run")[0]


def test_the_table_holds_the_readings_between_the_lines(finished: Path) -> None:
    data = read(finished)
    row = next(row for row in table(table_section(data)) if (row["environment"], row["series"]) == (MEMORY, "dgfqn"))
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


def test_parameters_are_those_of_the_network(finished: Path) -> None:
    from dqn_memory.analysis.size import count

    run = read(finished).of(MEMORY, "dgfqn")[0]
    world_of = run.config.eval_setup("cpu").fleet(1, 0)[0]
    from dqn_memory.network import observation_spec

    network = run.config.network.build(observation_spec(world_of.observation_space), world_of.num_actions)
    assert run.parameters == count(network).trainable


def test_aggregates_are_of_the_normalised_scores_that_all_share(finished: Path) -> None:
    data = read(finished)
    found, shared, remarks = matrices(data)
    assert (shared, remarks) == ([MEMORY, HALLWAY], [])
    scale = data.scale(HALLWAY)
    assert scale is not None
    assert found["dgfqn"][1, 1] == scale(data.scores(HALLWAY, "dgfqn")[2])
    row = next(row for row in table(aggregate_section(data)) if row["series"] == "dgfqn")
    assert row["IQM"] == str(statistics.estimate(found["dgfqn"], statistics.iqm))


def test_worlds_and_seeds_that_not_all_have_are_left_out_of_aggregates(finished: Path) -> None:
    study = Study.open(finished)
    study.mark("POMDP-Hallway-v0__dgfqn__seed-2", "failed", error="no memory\nlast words")
    data = read(finished)
    found, _, remarks = matrices(data)
    assert found["dgfqn"].shape == (1, 2)
    assert found["dtqn4"].shape == (2, 2)
    assert "of dgfqn only the seeds that it has in all of these environments: 1" in remarks
    study.mark("POMDP-Hallway-v0__dgfqn__seed-1", "running")
    assert matrices(read(finished))[1] == [MEMORY]


def test_an_architecture_looks_the_same_in_every_study() -> None:
    both = looks(["gaussian", "dgfqn", "dtqn4"]), looks(["dbgfqn", "dgfqn", "dgfqn, positions all"])
    assert both[0]["dgfqn"] == both[1]["dgfqn"]
    for found in (*both, looks([f"variant {number}" for number in range(len(LOOKS))])):
        assert len(set(found.values())) == len(found)
    paper = looks(["dtqn4", "drfqn", "dlfqn", "dgfqn", "dbrfqn", "dblfqn", "dbgfqn"])
    assert len({look.colour for look in paper.values()}) == 7


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
def test_attention_maps_come_from_checkpoints_and_from_the_archive(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", [CARDS], '["dtqn4"]', [1, 2])
    folder = study.runs()[0].folder
    shutil.rmtree(folder)
    trained(folder, "--architecture", "dtqn4", "--evaluate-every", "120")
    main([str(tmp_path / "study"), "--archive", str(tmp_path / "kept")])
    data = read(tmp_path / "study")
    played, kept = (maps_of(each, each.of(CARDS, "dtqn4")[0]) for each in (data, read(tmp_path / "kept")))
    assert played is not None
    assert kept is not None
    assert played.layers[0].shape == kept.layers[0].shape == (2, 24, 24)
    np.testing.assert_array_equal(played.layers[0], kept.layers[0])
    np.testing.assert_allclose(kept.layers[0].sum(-1), 1, atol=0.02)  # thousandths, rounded
    assert not np.triu(kept.layers[0], 1).any()
    pages = []
    for name in ("study", "kept"):
        main([str(tmp_path / name)])
        pages.append((tmp_path / name / "report/report.html").read_text())
    assert pages[0] == pages[1]
    assert "attention-pomdp-memorycards-v0" in (tmp_path / "kept/report.md").read_text()


def test_maps_survive_their_text() -> None:
    maps = np.tril(np.random.default_rng(0).random((2, 5, 5))).round(3)
    again = Maps.parse(json.loads(json.dumps(Maps({3: maps}, 9, True).plain())))
    np.testing.assert_allclose(again.layers[3], maps, atol=1e-12)
    assert (again.length, again.success, again.ended) == (9, True, "success")
    whole = np.random.default_rng(0).random((2, 5, 5)).round(3)  # a form that reads its future, over tokens
    again = Maps.parse(json.loads(json.dumps(Maps({0: whole}, 9, total=-1.5, first=4).plain())))
    np.testing.assert_allclose(again.layers[0], whole, atol=1e-12)
    assert (again.first, again.ended) == (4, "a return of -1.50")


def test_steps_to_a_level_say_how_many_runs_reached_it(tmp_path: Path) -> None:
    """A median alone hides those that did not, and those that did where it is beyond the budget."""
    best = {1: 1.0, 2: 0.6, 3: 0.2, 4: 0.2}
    make_study(tmp_path / "study", [MEMORY], '["dtqn4"]', [1, 2, 3, 4], lambda run, step: best[int(run.axes["seed"])])
    (row,) = table(table_section(read(tmp_path / "study")))
    assert (row["steps to 0.5"], row["steps to 0.9"]) == ("> 600 (2 of 4)", "> 600 (1 of 4)")


def test_what_the_memory_ablation_costs_stands_beside_the_score(tmp_path: Path) -> None:
    def ablated(run: Planned, step: int) -> dict[str, float]:
        without = {f"{ABLATION}success_rate": 0.25, f"{ABLATION}episodic_return": -1.0}
        return without if step == STEPS and run.axes["architecture"] == "dgfqn" else {}

    make_study(tmp_path / "study", [MEMORY], '["dtqn4", "dgfqn"]', [1, 2], lambda run, step: 0.75, ablated)
    section = memory_section(read(tmp_path / "study"))
    assert section is not None
    (row,) = table(section)  # dtqn4's runs were not evaluated so
    assert (row["series"], row["seeds"]) == ("dgfqn", "2")
    assert [row[name].split()[0] for name in ("with", "without", "lost")] == ["0.750", "0.250", "0.500"]
    assert "## Without the memory" in text_of(read(tmp_path / "study"))


def test_settings_that_the_seeds_of_a_series_do_not_share_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    make_study(folder, ["POMDP/CarFlag-v0"], '["drqn", "dgfqn"]', [1, 2, 3])
    data = read(folder)
    assert uneven_section(data) is None and memory_section(data) is None
    for path in folder.glob("runs/*seed-2/config.toml"):
        text = path.read_text()
        path.write_text(text.replace("gamma = 0.99\n", "gamma = 0.9\n").replace("log_every = 2000", "log_every = 7"))
    section = uneven_section(read(folder))
    assert section is not None
    found = [tuple(row.values()) for row in table(section)]
    assert found == [("learner.gamma", "0.99", "1, 3", "2"), ("learner.gamma", "0.9", "2", "2")]
    assert f"## {UNEVEN}\n" in text_of(read(folder))


def test_every_run_of_a_small_study_has_a_row(finished: Path) -> None:
    rows = [line for line in text_of(read(finished)).partition("## Every run")[2].splitlines() if MEMORY in line]
    assert len(rows) == 4
    assert rows[0].startswith(f"| {MEMORY} | dtqn4 | 1 | 600 | ") and rows[0].endswith("| 1.0 | 0.8 | 0123456789 |")


@pytest.mark.parametrize("count", [1, 2, 4, 9, 10, 11, 12])
def test_losses_fluctuate_around_a_whole_moving_average_or_not_at_all(count):
    found = fluctuation(np.arange(count, dtype=float) ** 2)
    assert np.isnan(found) if count < 12 else found >= 0
