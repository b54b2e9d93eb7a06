"""The baseline computes what ours computes; counted operations are the formula's; the script writes its page."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch

from dqn_memory.analysis.reference import baseline_batch, baseline_loss, pairs
from dqn_memory.analysis.size import forward_operations, gigaflop
from dqn_memory.analysis.timing import Timing, interleaved, random_replay
from dqn_memory.benchmark import (
    CASES,
    FORMS,
    NO_BASELINE,
    BenchmarkCase,
    acting_works,
    baseline_work,
    steady_rate,
    training_row,
    update_work,
)
from dqn_memory.runs.errors import UserError
from dqn_memory.train import sample, td_loss
from envs.tables import Table

SMALL = [BenchmarkCase(world, architecture, context=12, batch_size=3) for world, architecture in CASES]


def names(case):
    return f"{case.env}-{case.architecture}"


@pytest.mark.parametrize("case", SMALL, ids=names)
@pytest.mark.parametrize("source", ["endless", "random"])
def test_baseline_equals_the_published_form(case, source):
    """On full windows, and on windows of real episodes with their padding."""
    network, baseline = case.network()[0].double(), case.baseline().double()
    target, their_target = copy.deepcopy(network), copy.deepcopy(baseline)
    with torch.no_grad():  # so that choosing and valuing differ
        for left, right in pairs(their_target, target):
            right += 0.05 * torch.randn(right.shape, generator=torch.Generator().manual_seed(right.numel())).double()
            left.copy_(right.view_as(left))
    learner = case.learner("published")
    replay = case.replay() if source == "endless" else random_replay(case.env, 8, 14)
    batch = sample(replay, learner, case.context, None, torch.Generator().manual_seed(1))
    assert bool((batch.lengths == case.context).all()) == (source == "endless")
    theirs = baseline_batch(batch, network.spec.padding)
    if theirs.observation.is_floating_point():
        theirs.observation, theirs.next_observation = theirs.observation.double(), theirs.next_observation.double()
    loss, _ = td_loss(network, target, batch, learner)
    loss.backward()
    expected = baseline_loss(baseline, their_target, theirs)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for left, right in pairs(baseline, network):
        if right.grad is None:
            assert left.grad is None or not left.grad.any()
        else:
            torch.testing.assert_close(left.grad.view_as(right), right.grad, atol=1e-5, rtol=1e-5)


def test_one_update_moves_both_alike():
    case = SMALL[0]
    ours, theirs = update_work(case, "published"), baseline_work(case)
    for _ in range(3):
        metrics, loss = ours(), theirs()
        assert float(metrics["losses/td_loss"]) == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_counted_operations_are_those_of_the_formula(case):
    """Three forwards and a backward of two: five forwards, but for gradients of the observations, which nobody asks."""
    formula = 5 * case.batch_size * forward_operations(case.network()[0]) / 1e9
    assert gigaflop(baseline_work(case)) == pytest.approx(formula, rel=0.03)
    assert gigaflop(update_work(case, "published")) == pytest.approx(formula, rel=0.03)


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_acting_alternatives_agree(case):
    works = acting_works(case, 5)
    torch.testing.assert_close(works["ours"](), works["baseline"](), atol=1e-4, rtol=1e-4)


def test_every_form_updates():
    for form in FORMS:
        metrics = update_work(SMALL[2], form)()
        assert metrics["losses/td_loss"].isfinite()


def test_speed_up_is_the_median_over_neighbours():
    assert Timing((1.0, 2.0, 10.0)).speed_up(Timing((3.0, 4.0, 10.0))) == 2.0
    assert Timing((1.0, 2.0, 10.0)).median == 2.0 and Timing((1.0, 2.0, 10.0)).fastest == 1.0


def test_alternatives_take_turns():
    order = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2, warm_up=1)
    assert order == ["a", "b"] * 3
    assert all(len(timing.milliseconds) == 2 for timing in times.values())


def test_steady_rate_leaves_the_start_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    # 100 steps after 10 s, 300 steps after 11 s
    rows = [{"step": 100, "charts/SPS": 10.0}, {"step": 300, "charts/SPS": 300 / 11}, {"step": 300, "final/x": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert steady_rate(path) == pytest.approx(200)


def test_steady_rate_needs_two_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 100, "charts/SPS": 10.0}\n')
    with pytest.raises(UserError, match="two log lines"):
        steady_rate(tmp_path / "metrics.jsonl")


@pytest.mark.long
def test_training_rate_comes_from_a_real_run():
    """The row that an accelerator's bar is read from, here made on the CPU."""
    row = training_row("POMDP/CarFlag-v0", "dtqn4", 96, "cpu", "eager", 16)
    assert row["steps_s"] > 0 and row["bar"] == 1000


@pytest.mark.long
def test_the_script_writes_its_page(tmp_path):
    asked = [word for name in ("update", "windows", "acting") for word in ("--only", name)]
    command = [sys.executable, "-m", "dqn_memory.benchmark", "--quick", *asked, "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    page = json.loads((tmp_path / "core.json").read_text())
    assert [table["title"] for table in page["tables"]] == ["Update", "Masked and trimmed windows", "Acting"]
    update = page["tables"][0]["rows"]
    assert [(row["world"], row["architecture"]) for row in update[:: len(FORMS)]] == [*CASES, *NO_BASELINE]
    for form in ("published", "shared"):
        assert [row["bar"] for row in update if row["form"] == form] == [2.5, 1.3, 1.6, 1.6, None, None]
    assert all(row["ms"] > 0 and row["floor_ms"] > 0 for row in update)
    assert all((row["speed_up"] is None) == (row["architecture"] == "dtqn_mamba") for row in update)
    assert all(row["backend"] == ("simd" if row["architecture"] == "dtqn_mamba" else None) for row in update)
    assert page["machine"]["threads"] == 1 and "--quick" in page["machine"]["command"]
    markdown = (tmp_path / "core.md").read_text()
    assert "| Gridverse/Memory-7x7-v0 | dbgfqn |" in markdown and "speed_up" in markdown


def test_a_table_that_fails_loses_none_before_it(tmp_path, monkeypatch):
    from dqn_memory import benchmark

    def fails(*_):
        raise UserError("no more time")

    monkeypatch.setitem(benchmark.TABLES, "update", lambda *_: [Table(["ms"], [[1.5]], "Update")])
    monkeypatch.setitem(benchmark.TABLES, "windows", fails)
    with pytest.raises(SystemExit):
        benchmark.main(["--only", "update", "--only", "windows", "--folder", str(tmp_path)])
    page = json.loads((tmp_path / "core.json").read_text())
    assert [(table["title"], table["rows"]) for table in page["tables"]] == [("Update", [{"ms": 1.5}])]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [(["--repetitions", "1"], "at least 2"), (["--threads", "0"], "at least 1"), (["--only", "updat"], "update")],
)
def test_wrong_input_is_one_sentence(flags, sentence, capsys):
    from dqn_memory.benchmark import main

    with pytest.raises(SystemExit):
        main(flags)
    assert sentence in capsys.readouterr().err
