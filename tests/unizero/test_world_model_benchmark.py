"""The scripts of both world models: they time what training does, and count what papers and closed forms say."""

import json
from pathlib import Path

import pytest
import torch
from glam_models import PRESETS
from glam_models import model as glam_model
from run_folders import refused

from envs.timing import Timer, Timing
from world_models import benchmark, parameters
from world_models.benchmark import all_cases, main, parsed
from world_models.glam.config import FORMS
from world_models.parameters import glam_parts, part_sizes, table3
from world_models.unizero.config import UniZeroModelConfig as UniZeroModel

TIMER = Timer(2, warm_up=0)
RESULTS = Path(__file__).parents[2] / "results"
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
    assert trainer.planner.history.count.tolist() == [trainer.config.model.pairs] * 2
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
    wrong = ["unizero", "--actions", "0"]
    assert "--actions 0 must be at least 1" in refused(capsys, wrong, parameters.main)


@pytest.mark.long
def test_sizes_are_printed_and_written_nowhere(here, capsys):
    parameters.main(["unizero"])
    printed = capsys.readouterr().out
    assert "Parameters: 20,762,090 + 1,537 A" in printed and "454.619" in printed and not list(here.iterdir())


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """What the script writes of both models."""
    folder = tmp_path_factory.mktemp("results")
    for name in ("unizero", "glam"):
        parameters.main([name, "--write", str(folder / name)])
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", ["unizero", "glam"])
def test_the_published_sizes_are_computed_anew(computed, name):
    published, found = (folder / name / "parameters" for folder in (RESULTS, computed))
    ours, theirs = (json.loads(each.with_suffix(".json").read_text()) for each in (found, published))
    assert ours["tables"] == theirs["tables"] and (ours["title"], ours["machine"]["actions"]) == (
        theirs["title"], theirs["machine"]["actions"])  # fmt: skip
    without_facts = (each.with_suffix(".md").read_text().partition("\n## ")[2] for each in (found, published))
    assert next(without_facts) == next(without_facts)


def tables(computed, name):
    """Rows by title."""
    read = json.loads((computed / name / "parameters.json").read_text())["tables"]
    return {table["title"]: table["rows"] for table in read}


@pytest.mark.long
def test_parts_and_priors_of_unizero_add_up(computed):
    found = tables(computed, "unizero")
    assert found["Parameters: 20,762,090 + 1,537 A"] == [{f"A = {n}": 20_762_090 + 1537 * n for n in (3, 6, 8, 9, 18)}]
    rows = {row["prior"] or row["dynamics"]: row for row in found["Every form of the model"]}
    for prior, row in rows.items():
        assert row["total"] == sum(row[part] for part in ("encoder", "actions", "positions", "stack", "heads"))
        learned = ("gaussian" in prior) * 32 + ("adaptive" in prior) * 16  # mu and sigma, span; of 2 layers, 8 heads
        assert row["learned_prior"] == learned and (
            not row["prior"] or row["total"] == rows["causal"]["total"] + learned)  # fmt: skip


# Counted on the released classes; the stem has 256 more for each action.
RELEASED = {
    "encoder": 690_624, "posterior head": 4_195_328, "prior head": 263_168, "stem": 328_192, "GMamba": 438_272,
    "GMamba projection": 66_048, "LMamba": 438_272, "LMamba projection": 65_536, "reward head": 197_631,
    "termination head": 132_353, "decoder": 4_884_931, "variation head": 263_168, "variation projection": 4_195_328,
}  # fmt: skip


@pytest.mark.long
def test_every_part_of_the_released_model(computed):
    rows = {row["part"]: row for row in tables(computed, "glam")["Preset code: 16,158,851 + 256 A"]}
    known = RELEASED | {"stem": RELEASED["stem"] + 256 * 18}
    assert {name: row["parameters"] for name, row in rows.items() if name != "total"} == known
    assert rows["variation projection"]["frozen"] == rows["total"]["frozen"] == 4_195_328
    assert rows["total"]["trained"] == 11_963_523 + 256 * 18
    assert RELEASED["posterior head"] + RELEASED["prior head"] == 4_458_496


@pytest.mark.long
def test_trained_frozen_and_unreached_are_told_apart(computed):
    found = tables(computed, "glam")
    for rows in (rows for title, rows in found.items() if title.startswith("Preset ") and "under" not in title):
        assert rows[-1]["part"] == "total" and rows[-1]["unreached"] == 0
        assert rows[-1]["parameters"] == sum(row["parameters"] for row in rows[:-1])
    agent = {row["part"]: row for row in found["Agent: 3,020,286 + 513 A"]}
    assert agent["critic"]["trained"] == agent["slow critic"]["frozen"] == 1_050_367
    dead = part_sizes(glam_model("code", global_layers=2).float())
    assert dead["total"]["unreached"] == dead["GMamba"]["unreached"] == dead["GMamba"]["trained"] > 0


@pytest.mark.parametrize("name", FORMS)
def test_parts_hold_every_parameter_once(name):
    net = glam_model(sequence=name)
    held = [id(p) for part in glam_parts(net).values() for p in part.parameters()]
    assert len(held) == len(set(held)) and set(held) == {id(p) for p in net.parameters()}


def test_the_operations_of_learning_to_focus_are_counted_as_it_prints_them():
    rows = table3(UniZeroModel())
    assert [row["counted"] for row in rows] == ["454.611", "454.615", "454.619", "454.619"]
    assert [row["printed"] for row in rows] == [row["counted"] for row in rows]
