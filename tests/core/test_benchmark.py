"""The baseline computes what ours computes; counted operations are the formula's; the script writes its page."""

import copy
import json
from subprocess import CompletedProcess

import pytest
import torch
from run_folders import refused
from torch import nn

from dqn_memory import benchmark
from dqn_memory.analysis import published_update
from dqn_memory.benchmark import CASES, FORMS, BenchmarkCase, baseline_work, full_replay, update_work
from dqn_memory.blocks import Attention
from dqn_memory.blocks.positions import Positions
from dqn_memory.size import gigaflop
from dqn_memory.train import sample, td_loss
from envs.timing import Timer, Timing

SMALL = [BenchmarkCase(world, architecture, context=12, batch_size=3) for world, architecture in CASES]


def names(case):
    return f"{case.env}-{case.architecture}"


@pytest.mark.parametrize("case", SMALL, ids=names)
@pytest.mark.parametrize("episode", [None, 9])
def test_baseline_equals_the_published_form(case, episode):
    """On full windows, and on windows of episodes of nine steps with their padding."""
    network, target = case.network().double(), case.network().double()
    with torch.no_grad():  # so that choosing and valuing differ
        for value in target.parameters():
            value += 0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())).double()
    baseline, their_target = (
        published_update.BaselineNetwork(network).double(),
        published_update.BaselineNetwork(target).double(),
    )
    learner = case.learner("published")
    draws = torch.Generator().manual_seed(1)
    replay = full_replay(network.spec, network.num_actions, case.context, draws)
    if episode is not None:
        time = torch.arange(replay.num_columns)[:, None].expand_as(replay.cells["time"]) % episode
        ends = time == episode - 1
        replay.restore(0, {**copy.deepcopy(replay.cells), "time": time.int(), "done": ends, "terminated": ends})
    batch = sample(replay, learner, case.context, None, draws, trim=False)
    assert bool((batch.lengths == case.context).all()) == (episode is None)
    windows = published_update.shifted_windows(batch, network.spec.padding)
    windows = [each.double() if each.is_floating_point() else each for each in windows]
    loss, _ = td_loss(network, target, batch, learner)
    loss.backward()
    expected = published_update.baseline_loss(baseline, their_target, *windows, batch)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for left, right in zip(baseline.parameters(), network.parameters(), strict=True):
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


def forward_operations(network):
    """Every weight matrix meets each of the K positions; attention forms K x K scores and mixes K values by them."""
    context, modules = network.config.context, list(network.modules())
    tables = [
        each for module in modules if isinstance(module, (nn.Embedding, Positions)) for each in module.parameters()
    ]
    matrices = sum(each.numel() for each in network.parameters() if each.dim() >= 2) - sum(t.numel() for t in tables)
    attentions = sum(isinstance(module, Attention) for module in modules)
    return 2 * context * matrices + 4 * context**2 * network.config.width * attentions


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_counted_operations_are_those_of_the_formula(case):
    """Three forwards and a backward of two: five forwards, but for gradients of the observations, which nobody asks."""
    formula = 5 * case.batch_size * forward_operations(case.network()) / 1e9
    assert gigaflop(baseline_work(case)) == pytest.approx(formula, rel=0.03)
    assert gigaflop(update_work(case, "published")) == pytest.approx(formula, rel=0.03)


def test_alternatives_take_turns_and_a_speed_up_is_the_median_over_neighbours():
    order = []
    times = Timer(2, warm_up=1)({name: lambda name=name: order.append(name) for name in "ab"})
    assert order == ["a", "b"] * 3
    assert all(len(timing.milliseconds) == 2 for timing in times.values())
    assert Timer(2, clock="cpu")({"sum": lambda: sum(range(10**6))})["sum"].median > 0
    fast, slow = Timing((1.0, 2.0, 10.0)), Timing((3.0, 4.0, 10.0))
    row = fast.against(slow)
    assert (row["ms"], row["fastest_ms"], row["baseline_ms"], row["speed_up"]) == (2.0, 1.0, 4.0, 2.0)


@pytest.mark.long
def test_the_script_writes_its_pages(tmp_path, capsys):
    asked = [word for name in ("update", "memories", "rollouts") for word in ("--only", name)]
    benchmark.main(["--quick", *asked, "--write", str(tmp_path)])
    page, memories, rollouts = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("core", "memories", "rollouts")
    )
    assert [table["title"] for table in page["tables"]] == ["Update"]
    update = page["tables"][0]["rows"]
    assert [(row["world"], row["architecture"]) for row in update[:: len(FORMS)]] == [*CASES]
    for form in ("published", "shared"):
        assert [row["bar"] for row in update if row["form"] == form] == [2.5, 1.3, 1.6, 1.6]
    assert all(row["ms"] > 0 and row["floor_ms"] > 0 for row in update)
    assert all(row["speed_up"] > 0 for row in update)
    assert page["machine"]["threads"] == 1 and "--quick" in page["machine"]["command"]
    markdown = (tmp_path / "core.md").read_text()
    assert "| Gridverse/Memory-7x7-v0 | dbgfqn |" in markdown and "speed_up" in markdown
    sequences, steps = (table["rows"] for table in memories["tables"])
    assert [row["memory"] for row in sequences] == [row["memory"] for row in steps]
    assert {row["memory"]: row["bar"] for row in sequences if row["bar"]} == benchmark.MEMORY_BARS
    assert all(row["ms"] > 0 and row["floor_ms"] > 0 for row in sequences) and all(row["us"] > 0 for row in steps)
    (iterations,) = (table["rows"] for table in rollouts["tables"])
    assert [row["learner"] for row in iterations] == ["pqn", "ppo"]
    assert all(row["steps_s"] > 0 and row["gflop"] > 0 for row in iterations)
    assert (tmp_path / "rollouts.md").read_text().startswith("# Speed of learners from rollouts\n")
    assert "Sequences" in capsys.readouterr().out


def rehearsed(tmp_path, *flags):
    benchmark.main(["--quick", "--write", str(tmp_path), *flags])
    return json.loads((tmp_path / "rollouts.json").read_text())["tables"][0]["rows"]


@pytest.mark.long
def test_what_cannot_be_captured_is_a_row_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(benchmark, "ROLLOUT_MEMORIES", ("mingru",))
    rows = rehearsed(tmp_path, "--only", "rollouts_cuda")
    assert [(row["learner"], row["engine"]) for row in rows] == [
        (kind, engine) for kind in ("pqn", "ppo") for engine in ("eager", "cudagraph")
    ]
    assert all(row["memory"] == "mingru" and row["envs"] == 8 for row in rows)
    assert all((row["engine"] == "eager") is (row["steps_s"] is not None) for row in rows)
    assert all(row["reason"] for row in rows[1::2]) and not any(row["reason"] for row in rows[::2])


def test_rows_beyond_the_time_limit_say_so(tmp_path):
    rows = rehearsed(tmp_path, "--only", "rollouts_cuda", "--seconds", "0")
    assert len(rows) == 12 and {row["reason"] for row in rows} == {"no time left"}


def test_a_run_that_fails_is_a_row_with_its_error(tmp_path, monkeypatch):
    failed = CompletedProcess((), 1, stdout="", stderr="a warning\nerror: no memory\n")
    monkeypatch.setattr(benchmark.subprocess, "run", lambda *_, **__: failed)
    rows = rehearsed(tmp_path, "--only", "runs_cuda")
    assert len(rows) == 4 and {row["reason"] for row in rows} == {"error: no memory"}


@pytest.mark.long
def test_whole_runs_have_scores(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "LEARNERS", benchmark.LEARNERS[:1])
    rows = rehearsed(tmp_path, "--only", "runs_cuda")
    assert [row["env"] for row in rows] == ["Gridverse/Memory-5x5-v0", "POMDP/CarFlag-v0"]
    assert all(row["seconds"] > 0 and 0 <= row["success"] <= 1 and "engine" in row["computed_on"] for row in rows)


@pytest.mark.parametrize(("flags", "sentence"), [
    (["--repetitions", "1"], "at least 2"),
    (["--threads", "0"], "from 1 to 1,024"),
    (["--only", "updat"], "update"),
    (["--only", "graphs"], "need a CUDA device that torch sees"),
    (["--only", "runs_cuda"], "need a CUDA device that torch sees"),
])  # fmt: skip
def test_wrong_input_is_one_sentence(flags, sentence, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sentence in refused(capsys, flags, benchmark.main)
