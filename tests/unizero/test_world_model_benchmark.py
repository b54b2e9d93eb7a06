"""The scripts of both world models: they time what training does."""

import json

import pytest
import torch
from glam_models import PRESETS
from run_folders import refused

from envs.timing import Timer, Timing
from world_models import benchmark
from world_models.benchmark import all_cases, main, parsed
from world_models.unizero.config import UniZeroModelConfig as UniZeroModel

TIMER = Timer(2, warm_up=0)
CASE = {"preset": "quick", "device": "cpu", "engine": "eager", "precision": "float32"}
SMOKE = CASE | {"preset": "smoke"}


@pytest.mark.long
def test_every_way_is_a_run_of_its_engine_and_precision_and_those_with_bars_are_of_full_size():
    for model, engines in (("unizero", {"eager", "compile", "cudagraph"}), ("glam", {"eager", "cudagraph"})):
        cuda, bar = all_cases(model, "cuda"), {"unizero": "update", "glam": "phases"}[model]
        assert {case["engine"] for case in cuda} == engines and all(benchmark.bar(bar, case) for case in cuda)
        for case in (*cuda, *all_cases(model, "cpu")):
            config = parsed(model, case)
            assert (config.compute.engine, config.compute.device) == (case["engine"], case["device"])
            assert config.compute.tf32 == (case["precision"] != "float32")
            if case["preset"] == "full":
                assert config.environment.num_envs == 8 and config.model == UniZeroModel()
                assert (config.search.simulations, config.learner.batch_size) == (50, 64)
            elif case["preset"] in ("paper", "fast"):
                assert config.model == PRESETS[case["preset"]] and config.imagination.num_rollouts == 1024
                assert config.learner.bfloat16 == config.agent.bfloat16 == (case["precision"] == "bfloat16")


def test_unizero_is_timed_with_full_histories_and_before_its_first_update(monkeypatch):
    trainer = benchmark.make_trainer("unizero", CASE)
    assert trainer.planner.window.count.tolist() == [trainer.config.model.pairs] * 2
    assert trainer.updates == 0 and trainer.sequences(reanalyse=False).mask.all()
    asked, expand = [], trainer.model.expand
    trainer.model.expand = lambda *args: asked.append(args[2].shape) or expand(*args)
    trainer.plan()
    assert asked and set(asked) == {(2, 6)}  # all actions of both environments
    # the columns come from the works they are named for: in place of time, how often each of them encodes images
    encoded = []
    trainer.model.encoder.register_forward_hook(lambda *_: encoded.append(1))

    def counted(works):
        taken = {}
        for name, work in works.items():
            encoded.clear()
            work()
            taken[name] = Timing((1.0 + len(encoded),) * 2)
        return taken

    monkeypatch.setattr(benchmark, "make_trainer", lambda *_: trainer)
    rows = benchmark.unizero_rows(CASE | {"preset": "tiny"}, ("acting", "learning"), counted)
    (_, acting), (_, learning) = rows
    assert acting["step_ms"] > 1
    assert acting["steps_s"] == pytest.approx(2000 / acting["step_ms"]) and acting["steps_s_bar"] == 30
    assert learning["gather_ms"] == 1 < min(learning["update_ms"], learning["reanalysis_ms"])


@pytest.mark.long
def test_phases_add_up():
    ((_, phases),) = benchmark.glam_rows(SMOKE, ("phases",), TIMER)
    assert phases["horizon"] == 4 and phases["form"] == "window"
    assert phases["step_ms"] == pytest.approx(sum(phases[f"{name}_ms"] for name in ("act", "model", "dream", "agent")))
    assert phases["bar"] is None and phases["backend"] == "simd"


@pytest.mark.parametrize(
    ("model", "flags", "titles", "cell"),
    [
        ("unizero", [], ["Acting", "Learning"], "| quick | cpu | eager | float32"),
        pytest.param("glam", ["--only", "phases"], ["Phases"], "model_ms", marks=pytest.mark.long),
    ],
)
def test_the_script_writes_its_page(model, flags, titles, cell, tmp_path, capsys):
    before = torch.get_num_threads()
    main([model, "--device", "cpu", "--quick", "--write", str(tmp_path), *flags])
    torch.set_num_threads(before)
    page = json.loads((tmp_path / f"{model}.json").read_text())["sections"]["cpu"]
    assert [table["title"] for table in page["tables"]] == titles
    facts = page["machine"]
    assert facts["command"].startswith(f"python -m world_models.benchmark {model} --device cpu --quick")
    assert {"revision", "cpu", "torch", "threads"} <= set(facts)
    assert cell in (tmp_path / f"{model}.md").read_text() and titles[0] in capsys.readouterr().out


def test_wrong_input_is_one_sentence(capsys):
    for arguments, words in {
        "unizero --repetitions 1": "--repetitions 1 must be at least 2",
        "unizero --only actin": "acting",
        "unizero --device cpu --engine cudagraph": "compile",
        "glam --only phase": "phases",
        "glam --device cpu --engine cudagraph": "cudagraph",
    }.items():
        assert words in refused(capsys, arguments.split(), main)
