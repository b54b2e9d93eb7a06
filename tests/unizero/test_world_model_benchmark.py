"""The benchmark of world models times what training does; its tables add up; the script writes its page."""

import json
from dataclasses import replace

import pytest
import torch
from glam_runs import trained
from run_folders import metrics, refused
from torch import nn

from dqn_memory.analysis.timing import BenchmarkConfig
from dqn_memory.runs.errors import UserError
from world_models import benchmark
from world_models.benchmark import main, speed_row
from world_models.glam import timing as glam
from world_models.unizero import compiled_tree, timing, tree
from world_models.unizero.timing import FULL, TINY, Acting, Mixing, smaller

TIMER = BenchmarkConfig(2, warm_up=0).compare
SMALL = smaller(TINY)


def test_presets_are_those_of_the_bars():
    assert (FULL.num_envs, FULL.simulations, FULL.batch, FULL.model.width, FULL.model.horizon) == (8, 50, 64, 768, 10)
    model = TINY.model
    assert (TINY.num_envs, TINY.simulations, model.width, model.encoder.channels, model.layers) == (2, 8, 64, 16, 2)
    tiny = TINY.network()
    assert tiny.config == model and sum(p.numel() for p in tiny.parameters()) > 200_000
    config = glam.Case("paper", "cuda").config()
    assert (config.model.width, config.learner.batch_size, config.imagination.num_rollouts) == (256, 32, 1024)
    assert glam.Case("paper", "cuda").horizons == [16, 24, 32] and glam.Case("smoke").horizons == [4]
    assert replace(glam.Case("paper"), horizon=24).config().horizon.at(90_000) == 24
    bfloat16 = glam.Case("fast", precision="bfloat16").config()
    assert bfloat16.learner.bfloat16 and bfloat16.agent.bfloat16 and bfloat16.model.imagination_memory == "carried"
    assert not glam.Case("fast").config().learner.bfloat16


def test_engines_choose_the_cases():
    assert [(case.engine, case.query_per) for case in timing.cases("cpu")] == [("eager", "auto"), ("eager", "action")]
    assert [case.engine for case in timing.cases("cpu", ("compile",))] == ["compile"]
    accelerated = timing.cases("cuda")
    assert {case.engine for case in accelerated} == {"eager", "compile", "cudagraph"}
    assert all(case.at_full_size_on_cuda for case in accelerated)
    assert {case.engine for case in glam.cases("cuda")} == {"eager", "cudagraph"}
    assert [case.preset for case in glam.cases("cpu")] == ["smoke"]


def test_acting_searches_behind_full_histories():
    acting = Acting(SMALL)
    assert acting.planner.window.count.tolist() == [TINY.model.pairs] * 2
    asked, expand = [], acting.planner.model.expand
    acting.planner.model.expand = lambda *args: asked.append(args[2].shape) or expand(*args)
    parts = acting.parts()
    assert set(parts) == {"step", "draw", "encode", "root", "expand", "walk"}
    for name in ("step", "expand"):
        asked.clear()
        parts[name]()
        assert 0 < len(asked) < SMALL.simulations or len(asked) == 1
        assert set(asked) == {(2, 6)}  # all actions of both environments
    asked.clear()
    for name in ("draw", "encode", "root", "walk"):
        parts[name]()
    assert not asked


@pytest.mark.parametrize("trees", ["compiled", "torch"])
def test_walking_is_all_of_a_search_but_the_network(trees, monkeypatch):
    module, steps = {"compiled": compiled_tree, "torch": tree}[trees], []
    for name in ("select", "expand"):
        inner = getattr(module.Walker, name)
        monkeypatch.setattr(
            module.Walker, name, lambda self, *args, inner=inner, name=name: steps.append(name) or inner(self, *args)
        )
    acting = Acting(replace(SMALL, trees=trees))
    steps.clear()
    acting.walk()
    assert steps == ["select", "expand"] * SMALL.simulations


def test_learning_moves_the_model_and_draws_full_batches():
    parts = timing.learning_parts(SMALL)
    sequences = parts["gather"]()
    assert sequences.mask.all() and len(sequences.mask) == SMALL.batch
    losses = [float(parts["update"]()["losses/total"]) for _ in range(3)]
    assert losses[0] != losses[1] and torch.isfinite(torch.tensor(losses)).all()


def test_a_step_takes_at_least_its_network(monkeypatch):
    """The columns come from the works they are named for."""
    slow = nn.Module.__call__

    def sleepy(self, *args, **kwargs):
        import time

        if type(self).__name__ == "ImageEncoder":
            time.sleep(0.02)
        return slow(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", sleepy)
    row = timing.acting_row(SMALL, TIMER)
    assert row["encode_ms"] > 20 and row["step_ms"] > 20 > row["draw_ms"]
    assert row["steps_s"] == pytest.approx(2000 / row["step_ms"]) and row["steps_s_bar"] == 30


def test_the_projection_adds_up():
    place = {"preset": "full", "device": "cuda", "engine": "cudagraph", "precision": "float32"}
    acting = [{**place, "trees": "compiled", "query_per": "auto", "num_envs": 8, "step_ms": 15.0}]
    learning = [{**place, "update_ms": 19.0, "gather_ms": 1.0, "reanalysis_ms": 60.0}]
    (row,) = timing.projection_rows(acting, learning, 1.0)
    minutes = {"acting_min": 12_500 * 15, "learning_min": 25_000 * 20, "reanalysis_min": 500 * 60,
               "evaluation_min": 11 * 2_000 * 15, "envs_min": 12_500 + 22_000}  # fmt: skip
    assert {name: row[name] for name in minutes} == pytest.approx({k: v / 60_000 for k, v in minutes.items()})
    assert row["run_min"] == pytest.approx(sum(minutes.values()) / 60_000) and row["run_bar"] == 20


def test_priors_are_compared_at_every_context_and_local_ones_twice():
    table = timing.prior_table(TIMER, Mixing(heads=2, width=4, batch=1, device="cpu"), (64, 128))
    rows = {(row["prior"], row["tokens"]): row for row in table.records()}
    assert len(rows) == len(table.rows) == 24
    assert rows["causal", 128]["of_causal"] == 1 and rows["gaussian", 64]["of_causal"] > 0
    assert rows["local", 64]["growth"] is None and rows["local, masked", 128]["growth"] > 0


@pytest.mark.parametrize("kind", ["local", "gaussian", "adaptive_gate"])
def test_mixing_computes_what_it_says(kind):
    mixing = Mixing(heads=2, width=4, batch=1, device="cpu")
    plain, both = (mixing.work(kind, 160, gradient)() for gradient in (False, True))
    torch.testing.assert_close(plain, both)
    torch.testing.assert_close(plain, mixing.work(kind, 160, False, masked=True)())
    assert not plain.requires_grad and both.requires_grad


def test_phases_of_glam_do_what_training_does(monkeypatch):
    phases, lengths = glam.Phases(glam.Case("smoke")), []
    draw = phases.replay.draw
    monkeypatch.setattr(phases.replay, "draw", lambda *args: lengths.append(args[:2]) or draw(*args))
    parts = phases.parts()
    assert list(parts) == ["act", "model", "dream", "agent"]
    before = [p.clone() for p in phases.model.parameters()]
    assert parts["act"]().shape == (1,) and not lengths
    assert parts["dream"]().action.shape == (4, 16) and lengths == [(16, 5)]
    parts["agent"]()
    assert all((a == b).all() for a, b in zip(before, phases.model.parameters(), strict=True))
    parts["model"]()
    assert lengths[1:] == [(4, 12)] and float(phases.replay.cells["first"].float().mean()) > 0
    assert not all((a == b).all() for a, b in zip(before, phases.model.parameters(), strict=True))


def test_both_forms_dream_of_the_same_contexts_and_phases_add_up():
    row = glam.imagination_row(glam.Case("smoke"), TIMER)
    assert row["window_ms"] > 0 and row["carried_ms"] > 0 and row["horizon"] == 4 and row["rows"] == 16
    window, carried = (glam.Phases(glam.Case("smoke", form=form)) for form in ("window", "carried"))
    assert (window.rollouts.sample[0] == carried.rollouts.sample[0]).all()
    assert not (window.rollouts.h[-1] == carried.rollouts.h[-1]).all()
    row = glam.phase_row(glam.Case("smoke"), TIMER)
    assert row["step_ms"] == pytest.approx(sum(row[f"{name}_ms"] for name in ("act", "model", "dream", "agent")))
    assert row["bar"] is None and row["backend"] == "simd"


def test_a_run_of_glam_is_projected_over_its_own_horizons():
    place = {"preset": "paper", "device": "cuda", "engine": "eager", "precision": "float32", "form": "window"}
    rows = [
        {**place, "horizon": horizon, "act_ms": 1.0, "model_ms": 10.0, "dream_ms": float(horizon), "agent_ms": 2.0}
        for horizon in (16, 24, 32)
    ]
    row = glam.projected(rows, glam.Case("paper", "cuda"), 0.5, evaluated_ms=4.0)
    updates, evaluated = 100_000 - 1024, 2 * 9 * 2_000  # evaluated: sampled and greedy, rounds, steps
    minutes = {"model_min": updates * 10, "dream_min": (25_000 - 1024) * 16 + 25_000 * 24 + 50_000 * 32,
               "envs_min": 100_000 * 0.5 + evaluated * 4, "acting_min": updates + evaluated,
               "agent_min": updates * 2}  # fmt: skip
    assert {name: row[name] for name in minutes} == pytest.approx({k: v / 60_000 for k, v in minutes.items()})
    assert row["run_min"] == pytest.approx(sum(minutes.values()) / 60_000) and row["bar"] == 35


@pytest.mark.parametrize(
    ("model", "flags", "titles", "cell"),
    [
        ("unizero", [], ["Acting", "Learning", "Projected run", "Priors"], "| tiny | cpu | eager | float32 | compiled"),
        ("glam", ["--only", "phases"], ["Phases"], "model_ms"),
    ],
)
def test_the_script_writes_its_page(model, flags, titles, cell, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(glam, "EPISODE_IN_REPLAY", 5)
    before = torch.get_num_threads()
    main([model, "--device", "cpu", "--quick", "--folder", str(tmp_path), *flags])
    torch.set_num_threads(before)
    page = json.loads((tmp_path / f"{model}.json").read_text())["sections"]["cpu"]
    assert [table["title"] for table in page["tables"]] == titles
    facts = page["machine"]
    assert facts["command"].startswith(f"python -m world_models.benchmark {model} --device cpu --quick")
    assert {"revision", "cpu", "torch", "threads"} <= set(facts)
    assert cell in (tmp_path / f"{model}.md").read_text() and titles[0] in capsys.readouterr().out


def test_a_table_that_grows_takes_its_own_place_and_one_that_fails_loses_none(tmp_path, monkeypatch):
    def measured(args):
        yield benchmark.Table(["row"], [[1]], "First")
        yield benchmark.Table(["row"], [[1]], "Second")
        yield benchmark.Table(["row"], [[1], [2]], "Second")
        raise UserError("no more time")

    monkeypatch.setattr(benchmark, "measured", measured)
    with pytest.raises(SystemExit):
        main(["unizero", "--folder", str(tmp_path), "--device", "cpu"])
    tables = json.loads((tmp_path / "unizero.json").read_text())["sections"]["cpu"]["tables"]
    assert [(table["title"], len(table["rows"])) for table in tables] == [("First", 1), ("Second", 2)]


@pytest.mark.parametrize(
    ("model", "flags", "words"),
    [
        ("unizero", ["--repetitions", "1"], "--repetitions 1 must be at least 2"),
        ("unizero", ["--threads", "0"], "at least 1"),
        ("unizero", ["--only", "prior"], "priors"),
        ("unizero", ["--device", "cpu", "--engine", "cudagraph"], "compile"),
        ("glam", ["--only", "imaginatio"], "imagination"),
        ("glam", ["--device", "cpu", "--engine", "cudagraph"], "cudagraph"),
    ],
)
def test_wrong_input_is_one_sentence(model, flags, words, capsys):
    assert words in refused(capsys, [model, *flags], main)


def test_a_whole_run_of_glam_becomes_a_section(tmp_path, capsys):
    run = trained(tmp_path / "run", "--evaluate-every", "40", steps=80)
    capsys.readouterr()
    main(["glam", str(run), "--name", "Catch", "--folder", str(tmp_path)])
    assert "'run Catch'" in capsys.readouterr().out
    section = json.loads((tmp_path / "glam.json").read_text())["sections"]["run Catch"]
    speed, training, curve = section["tables"]
    assert "80 of 80 environment steps; finished" in speed["note"] and section["machine"]["engine"] == "eager"
    lines = metrics(run)
    assert speed["rows"][0]["steps"] == 80 and speed["rows"][0]["updates"] == lines[-3]["charts/updates"]
    assert [row["step"] for row in curve["rows"]] == [40, 80, 80]
    assert curve["rows"][-1]["greedy"] == lines[-1]["final/greedy_episodic_return"]
    assert len(training["rows"]) == sum("charts/episodic_return" in line for line in lines) > 0


def test_a_runs_speed_leaves_evaluations_and_idle_stretches_out():
    def line(step, updates, elapsed):
        return {"step": step, "charts/updates": updates, "time/elapsed": elapsed}

    logged = [line(10, 0, 1.0), line(20, 0, 1.1), line(30, 5, 2.1), line(40, 10, 3.3), line(50, 15, 9.0)]
    evaluated = {"step": 40, "eval/episodic_return": 1.0, "time/elapsed": 7.0}
    row = speed_row([*logged[:4], evaluated, logged[4]])
    assert row["step_ms"] == pytest.approx(110) and row["minutes"] == pytest.approx(0.15)
    assert (row["steps"], row["updates"]) == (50, 15)
    with pytest.raises(UserError, match="too little yet"):
        speed_row(logged[:1])
