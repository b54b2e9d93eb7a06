"""GLAM's benchmark times what training does; its tables add up; the script writes its page."""

import json
from dataclasses import replace

import pytest
from glam_runs import trained
from run_folders import metrics, refused

from dqn_memory.benchmark_tables import Effort, Table
from dqn_memory.runs.errors import UserError
from world_models.glam import benchmark_cases
from world_models.glam.benchmark import Args, main
from world_models.glam.benchmark_cases import Case, Phases
from world_models.glam.benchmark_run import main as benchmark_run
from world_models.glam.benchmark_run import speed_row
from world_models.glam.benchmark_tables import (
    STEPS,
    WARM_UP,
    cases,
    form_table,
    horizons,
    phase_table,
    projection_table,
)

EFFORT = Effort(repetitions=2, warm_up=0)


def test_the_full_size_is_the_papers():
    config = Case("paper", "cuda").config()
    assert (config.model.width, config.learner.batch, config.imagination.rows) == (256, 32, 1024)
    assert horizons(Case("paper", "cuda")) == [16, 24, 32] and horizons(Case("smoke")) == [4]
    assert replace(Case("paper"), horizon=24).config().horizon.at(90_000) == 24
    assert {case.engine for case in cases("cuda")} == {"eager", "cudagraph"}
    assert [case.preset for case in cases("cpu")] == ["smoke"]
    bfloat16 = Case("fast", precision="bfloat16").config()
    assert bfloat16.learner.bfloat16 and bfloat16.agent.bfloat16 and bfloat16.model.imagination == "carried"
    assert not Case("fast").config().learner.bfloat16


def test_phases_do_what_training_does(monkeypatch):
    phases = Phases(Case("smoke"))
    lengths = []
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


def test_both_forms_dream_of_the_same_contexts():
    (row,) = form_table(EFFORT, [Case("smoke")]).rows
    assert row["window_ms"] > 0 and row["carried_ms"] > 0 and row["horizon"] == 4 and row["rows"] == 16
    window, carried = (Phases(Case("smoke", form=form)) for form in ("window", "carried"))
    assert (window.dreamt.sample[0] == carried.dreamt.sample[0]).all()
    assert not (window.dreamt.h[-1] == carried.dreamt.h[-1]).all()


def test_phases_add_up_to_a_step():
    (row,) = phase_table(EFFORT, [Case("smoke")]).rows
    assert row["step_ms"] == pytest.approx(sum(row[f"{name}_ms"] for name in ("act", "model", "dream", "agent")))
    assert row["bar"] is None and row["backend"] == "simd"


def test_a_run_is_projected_over_its_own_horizons():
    place = {"preset": "paper", "device": "cuda", "engine": "eager", "precision": "float32", "form": "window"}
    rows = [
        {**place, "horizon": horizon, "act_ms": 1.0, "model_ms": 10.0, "dream_ms": float(horizon), "agent_ms": 2.0}
        for horizon in (16, 24, 32)
    ]
    (row,) = projection_table(Table("Phases", "", rows), [Case("paper", "cuda")], 0.5, evaluated_ms=4.0).rows
    updates = STEPS - WARM_UP
    assert row["model_min"] == pytest.approx(updates * 10 / 60_000)
    dreamt = (25_000 - WARM_UP) * 16 + 25_000 * 24 + 50_000 * 32
    assert row["dream_min"] == pytest.approx(dreamt / 60_000)
    evaluated = 2 * 9 * 2_000  # sampled and greedy, rounds, steps
    assert row["worlds_min"] == pytest.approx((100_000 * 0.5 + evaluated * 4) / 60_000)
    assert row["acting_min"] == pytest.approx((updates + evaluated) / 60_000)
    assert row["run_min"] == pytest.approx(sum(value for name, value in row.items() if name in (
        "acting_min", "worlds_min", "model_min", "dream_min", "agent_min")))  # fmt: skip
    assert row["bar"] == 35


def test_the_script_writes_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_cases, "EPISODE", 5)
    main(["--quick", "--device", "cpu", "--only", "phases", "--folder", str(tmp_path)])
    page = json.loads((tmp_path / "glam.json").read_text())["sections"]["cpu"]
    assert [table["title"] for table in page["tables"]] == ["Phases"]
    assert page["machine"]["command"].startswith("python -m world_models.glam.benchmark")
    assert "model_ms" in (tmp_path / "glam.md").read_text() and "wrote" in capsys.readouterr().out


def test_what_cannot_be_measured_is_one_sentence(capsys):
    assert "imagination" in refused(capsys, ["--only", "imaginatio"], main)
    assert "--repetitions 1" in refused(capsys, ["--repetitions", "1"], main)
    assert "cudagraph" in refused(capsys, ["--device", "cpu", "--engine", "cudagraph"], main)
    assert Args(device="cpu", clock="cpu").check() is None


def test_a_whole_run_becomes_a_section(tmp_path, capsys):
    run = trained(tmp_path / "run", "--evaluate-every", "40", steps=80)
    capsys.readouterr()
    benchmark_run([str(run), "--name", "Catch", "--page", str(tmp_path)])
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
