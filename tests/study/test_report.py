"""Reports of studies: what they say, section by section."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reported import EVERY, HALLWAY, HEADINGS, MEMORY, STEPS, TWO, make_study, read, report, table, text_of
from run_folders import error_of
from trained import CARDS, contents, trained

from dqn_memory.network import observation_spec
from dqn_memory.play import SUCCESS_TOLD
from dqn_memory.runs.metrics import METRICS, read_metrics
from dqn_memory.runs.modules import remember_modules
from dqn_memory.size import count
from dqn_memory.study import statistics
from dqn_memory.study.collect import FinishedRun, meaning, scale_of
from dqn_memory.study.definition import Planned, expand, parse_definition
from dqn_memory.study.plots import curves_figure, looks, mean_curve
from dqn_memory.study.report import archive_runs, main
from dqn_memory.study.run import main as study_run
from dqn_memory.study.sections import learned, mixtures, runs, scores
from dqn_memory.study.statistics import Scale
from dqn_memory.study.store import Study
from envs import baselines
from envs.cli import load_plugins
from world_models.glam.config import CatchConfig

GYM = "Acrobot-v1"  # no world of ours: it has no lines, and its runs a return of 0
LINES = f'\n[lines."{GYM}"]\nrandom = -4\nbest = 1.0\n'
LABELLED = f"""
title = "Mine"
kind = "q_network"
[axes]
world = ["{GYM}", {{ name = "deep, dark", env = "CartPole-v1" }}]
architecture = ["dtqn4"]
seed = [1]
[smoke.axes]
world = ["CartPole-v1"]
"""


def test_a_report_has_all_its_sections_a_row_for_every_run_and_needs_nothing_else(finished: Path) -> None:
    pages = report(finished)
    text = (pages / "report.md").read_text()
    assert set(HEADINGS) <= set(re.findall(r"^## (.*)$", text, re.MULTILINE))
    pictures = {path.stem for path in (pages / "pictures").glob("*.png")}
    assert pictures == set(re.findall(r"\(pictures/(.+)\.png\)", text))
    assert len(pictures) == 4  # two environments' curves, profiles, parameters
    rows = [line for line in text.partition("## Every run")[2].splitlines() if MEMORY in line]
    assert len(rows) == 4
    assert rows[0].startswith(f"| {MEMORY} | dtqn4 | 1 | 600 | ") and rows[0].endswith("| 1.0 | 0.8 | 0123456789 |")


def test_the_table_holds_the_readings_between_the_lines(finished: Path) -> None:
    data = read(finished)
    rows = {(row["environment"], row["series"]): row for row in table(scores.table_section(data))}
    row = rows[MEMORY, "dgfqn"]
    runs, lines = data.of(MEMORY, "dgfqn"), baselines.reference_of(MEMORY)
    last = [float(np.mean(run.curve.success[-10:])) for run in runs]
    assert row["last average"].startswith(f"{np.mean(last):.3f} [{min(last):.3f}, {max(last):.3f}]")
    assert row["final"].startswith(f"{np.mean([run.curve.final for run in runs]):.3f}")
    assert (row["random"], row["best"]) == (f"{lines.random.success.mean:.3f}", f"{lines.lower.success.mean:.3f}")
    reached = [next(s for s, v in zip(r.curve.steps, r.curve.success, strict=True) if v >= 0.5) for r in runs]
    assert row["steps to 0.5"] == f"{int(np.median(reached)):,}"
    vector = runs[0].config.eval_setup("cpu").vector(1, 0)[0]
    network = runs[0].config.network.build(observation_spec(vector.observation_space), vector.num_actions)
    assert (row["seeds"], row["parameters"]) == ("2", f"{count(network).trainable:,}")


def test_aggregates_are_of_the_normalised_scores_that_all_share(finished: Path) -> None:
    data = read(finished)
    found, shared, remarks = scores.matrices(data)
    assert (shared, remarks) == ([MEMORY, HALLWAY], [])
    scale = data.scale(HALLWAY)
    assert scale is not None and found["dgfqn"][1, 1] == scale(data.scores(HALLWAY, "dgfqn")[2])
    row = next(row for row in table(scores.aggregate_section(data)) if row["series"] == "dgfqn")
    iqm = statistics.estimate(statistics.iqm, found["dgfqn"], repetitions=statistics.REPETITIONS)
    assert row["IQM"] == str(iqm)


def test_worlds_and_seeds_that_not_all_have_are_left_out_of_aggregates(finished: Path) -> None:
    study = Study.open(finished)
    study.mark("POMDP-Hallway-v0__dgfqn__seed-2", "failed", error="no memory\nlast words")
    found, _, remarks = scores.matrices(read(finished))
    assert (found["dgfqn"].shape, found["dtqn4"].shape) == ((1, 2), (2, 2))
    assert "Only seeds count that a series has in all of these environments: 1 of dgfqn" in remarks
    study.mark("Gridverse-Memory-5x5-v0__dgfqn__seed-1", "failed", error="lost")
    remark = "dgfqn is left out, as no seed of it has finished in all of these environments"
    assert remark in scores.matrices(read(finished))[2]
    study.mark("POMDP-Hallway-v0__dgfqn__seed-1", "running")
    assert scores.matrices(read(finished))[1] == [MEMORY]


def test_learned_priors_and_spans_are_shown_by_head_and_over_time(tmp_path: Path) -> None:
    values = {"gaussian": {"mu": 6.0, "sigma": 6.0}, "adaptive": {"span": 4.0}}

    def log(run: Planned, step: int) -> dict[str, float]:
        moved, starts = int(run.axes["seed"]) * step / 600, values.get(str(run.axes["architecture"]), {})
        return {f"memory/0.{head}.{name}": start + head + moved for head in (0, 1) for name, start in starts.items()}

    form = '{{ name = "{0}", architecture = "dtqn4", prior = "{0}", mu = 6.0, span = 4.0 }}, '
    make_study(tmp_path / "priors", [MEMORY], f'[{"".join(map(form.format, values))}"dtqn4"]', [1, 2, 3], more=log)
    text = text_of(read(tmp_path / "priors"))
    assert f"| {MEMORY} | gaussian | 3 | 0 | 1 | mu | 6.000 | 9.000 | 1.000 |" in text
    assert {"learned-gaussian", "learning-gaussian"} <= set(re.findall(r"pictures/(\w+-gaussian)", text))
    (row,) = table(learned.spans_section(read(tmp_path / "priors")))  # the other series have no span that learns
    shown = [row[name] for name in ("series", "spans", "start", "least", "median", "most")]
    assert shown == ["adaptive", "6", "4.000", "5.000", "6.500", "8.000"]


@pytest.mark.long
def test_attention_maps_come_from_checkpoints_and_from_the_archive(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", [CARDS], '["dtqn4"]', [1, 2])
    folder = study.runs()[0].folder
    shutil.rmtree(folder)
    trained(folder, "--architecture", "dtqn4", "--evaluate-every", "120")
    main([str(tmp_path / "study"), "--archive", str(tmp_path / "kept")])
    data = read(tmp_path / "study")
    played, kept = (learned.maps_of(each, each.of(CARDS, "dtqn4")[0]) for each in (data, read(tmp_path / "kept")))
    assert played.layers[0].shape == kept.layers[0].shape == (2, 24, 24)
    np.testing.assert_array_equal(played.layers[0], kept.layers[0])
    np.testing.assert_allclose(kept.layers[0].sum(-1), 1, atol=0.02)  # thousandths, rounded
    assert not np.triu(kept.layers[0], 1).any()
    assert "attention-pomdp-memorycards-v0" in (tmp_path / "kept/report.md").read_text()


def test_steps_to_a_level_say_how_many_runs_reached_it_and_scores_what_they_lose_without_memory(tmp_path: Path) -> None:
    """A median alone hides those that did not, and those that did where it is beyond the budget."""
    best = {1: 1.0, 2: 0.6, 3: 0.2, 4: 0.2}

    without = {f"{scores.ABLATION}success_rate": 0.25, f"{scores.ABLATION}episodic_return": -1.0, scores.RECALLED: 3.0}

    def ablated(run: Planned, step: int) -> dict[str, float]:
        return without if step == STEPS and run.axes["architecture"] == "dgfqn" else {}

    make_study(tmp_path / "study", [MEMORY], TWO, [1, 2, 3, 4], lambda run, step: best[int(run.axes["seed"])], ablated)
    data = read(tmp_path / "study")
    for row in table(scores.table_section(data)):
        assert (row["steps to 0.5"], row["steps to 0.9"]) == ("> 600 (2 of 4)", "> 600 (1 of 4)")
    (row,) = table(scores.memory_section(data))  # dtqn4's runs were not evaluated so
    assert (row["series"], row["seeds"]) == ("dgfqn", "4")
    shown = [row[name].split()[0] for name in ("with", "without", "lost", "recall distance")]
    assert shown == ["0.500", "0.250", "0.250", "3.000"]


def test_what_was_learned_at_the_end_is_each_runs_own() -> None:
    """Runs that stop early end at other steps."""
    names = {"step": 1, "memory/0.1.mu": 1.0}
    metrics = [[{name: x * step for name, x in names.items()} for step in steps] for steps in ((2, 4, 6), (2, 4, 5))]
    runs: Any = [SimpleNamespace(record=SimpleNamespace(metrics=lines)) for lines in metrics]
    steps, found = learned.values_over_training(runs)
    assert steps.tolist() == [2, 4, 6] and found["mu"][0, 1].tolist() == [[2, 4, 6], [2, 4, 5]]


def test_what_a_backward_recurrence_learned_is_shown_where_there_is_one(tmp_path: Path) -> None:
    def moved(run: Planned, step: int) -> dict[str, float]:
        found = {"moved/0.ahead": 0.5, "moved/0.behind": 0.0}
        return found if step == STEPS and run.axes["architecture"] == "dgfqn" else {}

    make_study(tmp_path / "study", [MEMORY], TWO, [1, 2], more=moved)
    (row,) = table(learned.moved_section(read(tmp_path / "study")))
    assert (row["series"], row["0.ahead"].split()[0], row["0.behind"].split()[0]) == ("dgfqn", "0.500", "0.000")


def test_solved_is_from_when_on_the_mean_of_the_seeds_stays_high(tmp_path: Path) -> None:
    """Both reach it, one loses it once; where one never does, or loses it at the end, there is no row."""

    def level(run: Planned, step: int) -> float:
        first = run.axes["seed"] == 1
        if run.axes["architecture"] == "dgfqn":
            return 0.0 if step == (3 * EVERY if first else EVERY) else 0.96
        if run.axes["architecture"] == "drqn":
            return float(step == STEPS)  # in one evaluation alone
        return 1.0 if first or step < STEPS else 0.5

    def by_return(run: FinishedRun) -> FinishedRun:
        lines = [
            {**line, "eval/episodic_return": best * line["eval/success_rate"]} if "eval/success_rate" in line else line
            for line in run.record.metrics
        ]
        return replace(run, success=False, record=replace(run.record, metrics=lines))

    best = baselines.reference_of(MEMORY).lower.returns.mean
    make_study(tmp_path / "study", [MEMORY, GYM], '["dtqn4", "dgfqn", "drqn"]', [1, 2], level)
    data = read(tmp_path / "study")
    for each in data, replace(data, entries=tuple(map(by_return, data.entries))):
        (row,) = table(scores.solved_section(each))  # of the other environment the best return is not known
        assert (row["environment"], row["series"], row["seeds"]) == (MEMORY, "dgfqn", "2")
        assert (row["steps"], row["processor seconds"]) == (f"{4 * EVERY}", f"{4 * EVERY / 100:.0f}")


def test_settings_that_the_seeds_of_a_series_do_not_share_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    make_study(folder, ["POMDP/CarFlag-v0"], '["drqn", "dgfqn"]', [1, 2, 3])
    assert runs.uneven_section(read(folder)) is None
    for path in folder.glob("runs/*seed-2/config.toml"):
        text = path.read_text()
        path.write_text(text.replace("gamma = 0.99\n", "gamma = 0.9\n").replace("log_every = 2000", "log_every = 7"))
    found = [tuple(row.values()) for row in table(runs.uneven_section(read(folder)))]
    assert found == [("learner.gamma", "0.99", "1, 3", "2"), ("learner.gamma", "0.9", "2", "2")]
    assert "## Runs that differ in more than their seed\n" in text_of(read(folder))


def test_losses_fluctuate_around_a_whole_moving_average_or_not_at_all() -> None:
    found = [runs.fluctuation(np.arange(count, dtype=float) ** 2) for count in range(1, 14)]
    assert np.isnan(found[:-2]).all() and found[-2:] == pytest.approx([0, 0], abs=1e-9)  # a parabola has but a trend


def test_phantoms_are_measured_against_their_control(tmp_path: Path) -> None:
    worlds = ["Gridverse/Memory-13x13-Hallucinated-v0", "Gridverse/Memory-Empty-13x13-v0"]
    make_study(tmp_path / "rq5", worlds, TWO, [1, 2, 3], lambda run, step: 0.8 if "Hallucinated" in run.name else 0.5)
    rows = table(scores.phantoms_section(read(tmp_path / "rq5")))
    where = [(row["environment"], row["without it"], row["series"]) for row in rows]
    assert where == [(*worlds, "dtqn4"), (*worlds, "dgfqn")]
    shown = [rows[0][name] for name in ("effect", "with beats without", "seeds")]
    assert shown == ["0.300 [0.300, 0.300]", "1.000 [1.000, 1.000]", "3"]


def test_a_reading_is_of_success_or_of_returns(tmp_path: Path, finished: Path) -> None:
    make_study(tmp_path / "study", ["CartPole-v1"], '["dtqn4"]', [1, 2])
    data = read(tmp_path / "study")
    assert [(entry.success, entry.score) for entry in data.entries] == [(False, 0.0)] * 2
    archive_runs(data, tmp_path / "kept")
    assert [entry.success for entry in read(tmp_path / "kept").entries] == [False, False]
    assert [meaning(each, "final").split()[0] for each in (read(finished), data)] == ["success", "return"]
    told = make_study(tmp_path / "told", ["CartPole-v1"], '["dtqn4"]', [1], more=lambda run, step: {SUCCESS_TOLD: 1.0})
    assert [entry.success for entry in read(told.folder).entries] == [True]


def test_what_a_runs_own_module_registers_is_known_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registering.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    own = '[{ name = "own", architecture = "dtqn4", plugin = ["registering"] }]'
    load_plugins(["registering"])
    study = make_study(tmp_path / "study", [MEMORY], own, [1], more=lambda run, step: {SUCCESS_TOLD: 1.0})
    remember_modules(study.folder / "study.toml", ["registering"])  # as study.run does
    del sys.modules["registering"]  # another process has not read the study's definition
    assert read(study.folder).entries and "registering" in sys.modules


def test_agents_that_see_the_state_have_no_scale_of_those_that_do_not(tmp_path: Path) -> None:
    both = '[{ name = "sees", architecture = "dtqn4", observe = "state" }]'
    make_study(tmp_path / "study", [MEMORY], both, [1])
    assert read(tmp_path / "study").scale(MEMORY) is None


def test_the_scale_of_a_game_with_other_options_is_not_known() -> None:
    def scale(catch: CatchConfig) -> Scale | None:
        environment = SimpleNamespace(ids=("Pixel/BlinkingCatch-v0",), path=None, observe="observation")
        config = SimpleNamespace(environment=environment, catch=catch)
        entry: Any = SimpleNamespace(success=False, config=config)
        return scale_of(entry)

    assert scale(CatchConfig(grid=5)) is None
    default = scale(CatchConfig())
    assert default is not None and default.zero < -7 and default.one == 10


def give(study: Path, lines: str) -> None:
    """As when study.run is given the file again."""
    with (study / "study.toml").open("a") as file:
        file.write(lines)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A finished study of a world that has no lines."""
    return make_study(tmp_path / "study", [GYM], TWO, [1, 2]).folder


def test_lines_of_the_definition_normalise_its_worlds_also_in_an_archive(own: Path, tmp_path: Path) -> None:
    text = text_of(read(own))
    way = f'a table `[lines."{GYM}"]` with `random = ...` and `best = ...`'
    assert "nothing can be normalised. " in text and way in text and "goes to `study.run` again" in text
    give(own, LINES)
    data = read(own)
    rows = {row["series"]: row for row in table(scores.aggregate_section(data))}
    assert rows["dgfqn"]["mean"].startswith("0.800")  # a return of 0 is four fifths of the way from -4 to 1
    archive_runs(data, tmp_path / "kept")
    places = {own: (), tmp_path / "kept": ("--write", str(tmp_path / "kept" / "report"))}
    ours, again = ((report(folder, *flags) / "report.md").read_text() for folder, flags in places.items())
    assert ours.partition("## Over all environments")[2] == again.partition("## Over all environments")[2] != ""
    assert f"The study's definition gives random and best play of {GYM}. " in ours and "| -4.000 | 1.000 |" in ours
    curves = {name: mean_curve(data.of(GYM, name)) for name in data.series}
    figure = curves_figure(curves, looks(data.series), GYM, data.scale(GYM), data.of(GYM)[0].success)
    assert "best known" in {text.get_text() for text in figure.axes[0].texts}
    shutil.rmtree(own)
    assert read(tmp_path / "kept").scale(GYM) == Scale(-4.0, 1.0)


def test_lines_that_do_not_fit_are_named(own: Path, tmp_path: Path) -> None:
    make_study(tmp_path / "success", [MEMORY], '["dtqn4"]', [1])
    give(tmp_path / "success", f'\n[lines."{MEMORY}"]\nrandom = -3.0\nbest = 0.5\n')
    said = error_of(read(tmp_path / "success").scale, MEMORY)
    assert re.search(r"study.toml: lines.*random -3.0 and best 0.5 must lie within 0 and 1", said)
    give(own, LINES)
    archive_runs(read(own), tmp_path / "kept")
    for folder in (own, tmp_path / "kept"):  # where they were spoilt later they are damage
        text = (folder / "study.toml").read_text()
        (folder / "study.toml").write_text(text.replace("random = -4", "random = 4"))
        assert any("best 1.0 must be above random 4.0" in why for _, why in read(folder).left_out)
        (folder / "study.toml").write_text("[[")
        assert any("study.toml:1: not valid TOML" in why for _, why in read(folder).left_out)


def test_lines_change_no_run_and_go_by_the_labels_of_the_study_and_of_its_cut() -> None:
    plain, scaled = (parse_definition(text, "my.toml", "my") for text in (LABELLED, LABELLED + LINES))
    assert expand(plain) == expand(scaled)
    both = '[lines."deep, dark"]\nrandom = 9\nbest = 50\n[lines.CartPole-v1]\nrandom = 9\nbest = 500\n'
    for smoke in (False, True):
        assert parse_definition(LABELLED + both, "my.toml", "my", smoke).source == "my.toml"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('[lines."Acrobat-v1"]\nrandom = 0\nbest = 1', "lines: unknown world 'Acrobat-v1'; did you mean 'Acrobot-v1'"),
        (f'[lines."{GYM}"]\nrandom = 0', f"lines.{GYM}: best nan must be above random 0.0"),
        (f'[lines."{GYM}"]\nrandom = 1\nbest = 1', f"lines.{GYM}: best 1.0 must be above random 1.0"),
        (f'[lines."{GYM}"]\nrandom = nan\nbest = 1', "both finite"),
        (f'[lines."{GYM}"]\nrandom = 0\nbst = 1', f"unknown key 'lines.{GYM}.bst'; did you mean 'lines.{GYM}.best'"),
    ],
)
def test_wrong_lines_are_one_sentence_before_anything_runs(lines: str, words: str) -> None:
    said = error_of(parse_definition, f"{LABELLED}{lines}\n", "my.toml", "my")
    assert said.startswith("my.toml: ") and words in said


def test_the_report_of_an_archive_leaves_the_archive_alone(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive_runs(read(finished), Path("kept"))
    before = contents(Path("kept"))
    main(["kept", "--no-attention"])
    assert contents(Path("kept")) == before
    assert {path.name for path in Path("runs/reports/kept").iterdir()} == {"report.md", "pictures"}


@pytest.mark.long
def test_a_mixture_is_reported_in_each_of_its_environments(tmp_path: Path) -> None:
    """With the numbers of the run, also from an archive; an environment that was not trained in is marked."""
    study_run(["mazes", "--smoke", "--folder", str(tmp_path / "study"), "--workers", "1", "--backend", "processes"])
    metrics = read_metrics(next((tmp_path / "study" / "runs").glob("two-sizes*")) / METRICS)[-1]
    archive_runs(read(tmp_path / "study"), tmp_path / "archive")
    rows, archived = (table(mixtures.mixtures_section(read(tmp_path / name))) for name in ("study", "archive"))
    assert rows == archived
    ids = [f"Gridverse/Memory-{size}x{size}-v0" for size in (5, 7, 9)]
    assert [row["environment"] for row in rows] == ids
    assert [row["trained"] for row in rows] == ["yes", "yes", "no"]
    assert [row["final"] for row in rows] == [f"{metrics[f'final/success_rate/{id}']:.3f}" for id in ids]
