"""What the benchmark times is what training does; its tables add up; the script writes its page."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from dqn_memory.benchmark_tables import Effort, Table
from dqn_memory.runs.errors import UserError
from world_models.speed_pages import put_section, read_sections
from world_models.speed_script import publish
from world_models.unizero.benchmark import Args, main
from world_models.unizero.benchmark_cases import PRESETS, TINY, Acting, Case, Learning, Mixing
from world_models.unizero.benchmark_tables import acting_table, cases, prior_table, projection_table, smaller

TINY_CASE = smaller(Case("tiny"))
EFFORT = Effort(repetitions=2, warm_up=0)


def test_presets_are_those_of_the_bars():
    full, tiny = PRESETS["full"], PRESETS["tiny"]
    assert (full.worlds, full.simulations, full.batch, full.model.width, full.model.horizon) == (8, 50, 64, 768, 10)
    assert (tiny.worlds, tiny.simulations, TINY.width, TINY.encoder.channels, TINY.layers) == (2, 8, 64, 16, 2)
    tiny_model = replace(Case("tiny"), sizes=None).network()
    assert tiny_model.config == TINY and sum(p.numel() for p in tiny_model.parameters()) > 200_000


def test_acting_searches_behind_full_histories():
    acting = Acting(TINY_CASE)
    assert acting.planner.window.count.tolist() == [TINY.pairs] * 2
    asked, expand = [], acting.planner.model.expand
    acting.planner.model.expand = lambda *args: asked.append(args[2].shape) or expand(*args)
    parts = acting.parts()
    assert set(parts) == {"step", "draw", "encode", "root", "expand", "walk"}
    asked.clear()
    action = parts["step"]()
    assert action.shape == (2,) and 0 < len(asked) < TINY_CASE.size.simulations
    assert set(asked) == {(2, 6)}  # all actions of both worlds
    asked.clear()
    parts["expand"]()
    assert 0 < len(asked) < TINY_CASE.size.simulations
    asked.clear()
    for name in ("draw", "encode", "root", "walk"):
        parts[name]()
    assert not asked


@pytest.mark.parametrize("trees", ["compiled", "torch"])
def test_walking_is_all_of_a_search_but_the_network(trees, monkeypatch):
    from world_models.unizero import compiled_tree, tree

    module, steps = {"compiled": compiled_tree, "torch": tree}[trees], []
    for name in ("select", "expand"):
        inner = getattr(module.Walker, name)
        monkeypatch.setattr(
            module.Walker, name, lambda self, *args, inner=inner, name=name: steps.append(name) or inner(self, *args)
        )
    acting = Acting(replace(TINY_CASE, trees=trees))
    steps.clear()
    acting.walk()
    assert steps == ["select", "expand"] * TINY_CASE.size.simulations


def test_learning_moves_the_model_and_draws_full_batches():
    learning = Learning(TINY_CASE)
    assert learning.sequences.mask.all() and len(learning.sequences.mask) == TINY_CASE.size.batch
    metrics = [learning.parts()["update"]() for _ in range(3)]
    losses = [float(entry["losses/total"]) for entry in metrics]
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
    row = acting_table(EFFORT, [TINY_CASE]).rows[0]
    assert row["encode_ms"] > 20 and row["step_ms"] > 20 > row["draw_ms"]
    assert row["steps_s"] == pytest.approx(2000 / row["step_ms"]) and row["steps_s_bar"] == 30


def test_the_projection_adds_up():
    place = {"preset": "full", "device": "cuda", "engine": "cudagraph", "precision": "float32"}
    acting = Table("", "", [{**place, "trees": "compiled", "query_per": "auto", "worlds": 8, "step_ms": 15.0}])
    learning = Table("", "", [{**place, "update_ms": 19.0, "gather_ms": 1.0, "reanalysis_ms": 60.0}])
    row = projection_table(acting, learning, 1.0).rows[0]
    assert row["acting_min"] == pytest.approx(12_500 * 15 / 60_000)
    assert row["learning_min"] == pytest.approx(25_000 * 20 / 60_000)
    assert row["reanalysis_min"] == pytest.approx(500 * 60 / 60_000)
    assert row["evaluation_min"] == pytest.approx(11 * 2_000 * 15 / 60_000)
    assert row["worlds_min"] == pytest.approx((12_500 + 22_000) / 60_000)
    parts = ("acting_min", "learning_min", "reanalysis_min", "evaluation_min", "worlds_min")
    assert row["run_min"] == pytest.approx(sum(row[name] for name in parts)) and row["run_bar"] == 20


def test_engines_choose_the_cases():
    assert [(case.engine, case.query_per) for case in cases("cpu")] == [("eager", "auto"), ("eager", "action")]
    assert [case.engine for case in cases("cpu", ("compile",))] == ["compile"]
    accelerated = cases("cuda")
    assert {case.engine for case in accelerated} == {"eager", "compile", "cudagraph"}
    assert all(case.preset == "full" and case.device == "cuda" for case in accelerated)


def test_priors_are_compared_at_every_context_and_local_ones_twice():
    table = prior_table(EFFORT, "cpu", Mixing(heads=2, width=4, batch=1, device="cpu"), (64, 128))
    rows = {(row["prior"], row["tokens"]): row for row in table.rows}
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


def test_the_script_writes_its_page(tmp_path, capsys):
    before = torch.get_num_threads()
    main(["--device", "cpu", "--quick", "--folder", str(tmp_path)])
    torch.set_num_threads(before)
    page = json.loads((tmp_path / "unizero.json").read_text())["sections"]["cpu"]
    assert [table["title"] for table in page["tables"]] == ["Acting", "Learning", "Projected run", "Priors"]
    facts = page["machine"]
    assert facts["command"].startswith("python -m world_models.unizero.benchmark --device cpu --quick")
    assert {"revision", "cpu", "torch", "threads"} <= set(facts)
    markdown = (tmp_path / "unizero.md").read_text()
    assert markdown.startswith("# Speed of UniZero")
    assert "| tiny | cpu | eager | float32 | compiled | auto | 2 | 2 |" in markdown
    assert "Acting" in capsys.readouterr().out


def test_a_table_that_grows_takes_its_own_place(tmp_path):
    def measure(_, show):
        show(Table("First", "", [{"row": 1}]))
        show(Table("Second", "", [{"row": 1}]))
        show(Table("Second", "", [{"row": 1}, {"row": 2}]))

    publish(Args, "world_models.unizero.benchmark", ["--folder", str(tmp_path), "--device", "cpu"], "Speed", measure)
    tables = json.loads((tmp_path / "unizero.json").read_text())["sections"]["cpu"]["tables"]
    assert [(table["title"], len(table["rows"])) for table in tables] == [("First", 1), ("Second", 2)]


def test_a_table_that_fails_loses_none_before_it(tmp_path):
    def measure(args, show):
        show(Table("Acting", "", [{"step_ms": 1.5}]))
        raise UserError("no more time")

    flags = ["--device", "cpu", "--folder", str(tmp_path)]
    with pytest.raises(UserError):
        publish(Args, "world_models.unizero.benchmark", flags, "Speed", measure)
    tables = read_sections(tmp_path / "unizero.json")["cpu"]["tables"]
    assert [(table["title"], table["rows"]) for table in tables] == [("Acting", [{"step_ms": 1.5}])]


def test_a_section_is_refreshed_alone_and_an_old_page_is_one(tmp_path):
    table = Table("Acting", "", [{"preset": "tiny", "step_ms": 1.0}])
    old = {"machine": {"accelerator": None, "revision": "a"}, "tables": [asdict(table)]}
    (tmp_path / "unizero.json").write_text(json.dumps(old))
    for revision in "bc":
        put_section(tmp_path, "unizero", "Speed", "cuda", {"revision": revision}, [table])
    sections = read_sections(tmp_path / "unizero.json")
    assert {name: section["machine"]["revision"] for name, section in sections.items()} == {"cpu": "a", "cuda": "c"}
    assert sections["cpu"] == old
    page = (tmp_path / "unizero.md").read_text()
    assert page.index("# Speed: cpu") < page.index("# Speed: cuda") and page.count("| tiny | 1 |") == 2
    (tmp_path / "unizero.json").write_text("[]")
    with pytest.raises(UserError, match="is no benchmark's page"):
        read_sections(tmp_path / "unizero.json")


def test_only_what_is_asked_for_is_measured():
    args = Args(only=("priors",))
    assert args.wants("priors") and not args.wants("acting", "projection") and Args().wants("learning")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--repetitions", "1"], "at least 2"),
        (["--threads", "0"], "at least 1"),
        (["--only", "prior"], "priors"),
        (["--device", "cpu", "--engine", "cudagraph"], "compile"),
        (["--engine", "egaer"], "eager"),
    ],
)
def test_wrong_input_is_one_sentence(flags, sentence, capsys):
    with pytest.raises(SystemExit):
        main(flags)
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") <= 2
