"""The baseline computes what ours computes; counted operations are the formula's; the script writes its page."""

import copy
import json
import sys
import types

import pytest
import torch
from run_folders import refused

from dqn_memory import benchmark
from dqn_memory.analysis import reference
from dqn_memory.analysis.reference import MIXERS, SCANS, Shape, mixer_work, scan_work
from dqn_memory.analysis.size import forward_operations, gigaflop
from dqn_memory.analysis.timing import Timer, Timing, full_replay
from dqn_memory.benchmark import CASES, FORMS, NO_BASELINE, BenchmarkCase, baseline_work, update_work
from dqn_memory.blocks.kernels.select import choose
from dqn_memory.blocks.mamba import Mamba
from dqn_memory.train import sample, td_loss

SMALL = [BenchmarkCase(world, architecture, context=12, batch_size=3) for world, architecture in CASES]
TORCH = choose("torch", torch.device("cpu"))


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
    baseline, their_target = reference.BaselineNetwork(network).double(), reference.BaselineNetwork(target).double()
    learner = case.learner("published")
    draws = torch.Generator().manual_seed(1)
    replay = full_replay(network.spec, network.num_actions, case.context, draws)
    if episode is not None:
        time = torch.arange(replay.num_columns)[:, None].expand_as(replay.cells["time"]) % episode
        ends = time == episode - 1
        replay.restore(0, {**copy.deepcopy(replay.cells), "time": time.int(), "done": ends, "terminated": ends})
    batch = sample(replay, learner, case.context, None, draws, trim=False)
    assert bool((batch.lengths == case.context).all()) == (episode is None)
    windows = reference.shifted_windows(batch, network.spec.padding)
    windows = [each.double() if each.is_floating_point() else each for each in windows]
    loss, _ = td_loss(network, target, batch, learner)
    loss.backward()
    expected = reference.baseline_loss(baseline, their_target, *windows, batch)
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


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_counted_operations_are_those_of_the_formula(case):
    """Three forwards and a backward of two: five forwards, but for gradients of the observations, which nobody asks."""
    formula = 5 * case.batch_size * forward_operations(case.network()) / 1e9
    assert gigaflop(baseline_work(case)) == pytest.approx(formula, rel=0.03)
    assert gigaflop(update_work(case, "published")) == pytest.approx(formula, rel=0.03)


@pytest.mark.parametrize("case", SMALL, ids=names)
def test_acting_alternatives_agree(case):
    works = benchmark.acting_works(case, 5)
    torch.testing.assert_close(works["ours"](), works["baseline"](), atol=1e-4, rtol=1e-4)


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
def test_training_rate_comes_from_a_real_run():
    """The number that an accelerator's bar is read from, here made on the CPU."""
    assert benchmark.training_rate("POMDP/CarFlag-v0", "dtqn4", 96, "cpu", "eager") > 0


@pytest.mark.long
def test_the_script_writes_its_pages(tmp_path, capsys):
    asked = [word for name in ("update", "acting", "mamba") for word in ("--only", name)]
    benchmark.main(["--quick", *asked, "--write", str(tmp_path)])
    page, mamba = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("core", "mamba"))
    assert [table["title"] for table in page["tables"]] == ["Update", "Acting"]
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
    assert [table["title"] for table in mamba["tables"]] == ["Mamba mixer", "Selective scan"]
    there = reference.mambapy_version() is not None
    assert all((row["speed_up"] is not None) == there for table in mamba["tables"] for row in table["rows"])
    assert there or "mambapy is not installed" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "mamba.md").read_text().startswith("# Speed of Mamba\n")


@pytest.mark.parametrize(("flags", "sentence"), [
    (["--repetitions", "1"], "at least 2"),
    (["--threads", "0"], "from 1 to 1,024"),
    (["--only", "updat"], "update"),
    (["--only", "graphs"], "need a CUDA device that torch sees"),
])  # fmt: skip
def test_wrong_input_is_one_sentence(flags, sentence, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sentence in refused(capsys, flags, benchmark.main)


# ---- Mamba beside mambapy --------------------------------------------------------------------------------------------
class Block(Mamba):
    """Stands in for mambapy's block: its constructor, its names, its scan."""

    def __init__(self, config):
        super().__init__(config.d_model, states=config.d_state)

    def selective_scan(self, x, delta, decay, enter, leave, skip):
        state, outputs = x.new_zeros(len(x), *decay.shape), []
        for t in range(x.shape[1]):
            state = torch.exp(delta[:, t, :, None] * decay) * state + (delta * x)[:, t, :, None] * enter[:, t, None]
            outputs.append((state * leave[:, t, None]).sum(2))
        return torch.stack(outputs, 1) + skip * x


@pytest.fixture
def installed(monkeypatch):
    package = types.ModuleType("mambapy.mamba")
    package.MambaBlock = Block
    package.MambaConfig = lambda **keywords: types.SimpleNamespace(**keywords)
    monkeypatch.setitem(sys.modules, "mambapy", types.ModuleType("mambapy"))
    monkeypatch.setitem(sys.modules, "mambapy.mamba", package)
    monkeypatch.setattr(reference, "mambapy_version", lambda: "1.2.0")


@pytest.mark.parametrize("work", [scan_work, mixer_work])
@pytest.mark.parametrize("backward", [True, False])
def test_both_compute_the_same(installed, work, backward):
    shape = Shape(2, 5, backward)
    ours, theirs = (work(shape, choice, "cpu")() for choice in (TORCH, None))
    ours, theirs = (found if backward else (found,) for found in (ours, theirs))
    parameters = 6 if work is scan_work else 1 + len(list(Mamba(8).parameters()))
    assert len(ours) == (parameters if backward else 1) and not ours[0].requires_grad
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_the_bar_stands_at_the_shape_it_speaks_of(installed):
    mixers, scans = reference.mamba_tables(Timer(2, warm_up=1), 2)
    for backend in ("torch", "simd"):
        whole, alone = ([row for row in table.records() if row["backend"] == backend] for table in (mixers, scans))
        assert [(row["length"], row["bar"]) for row in whole] == [(64, 3.5), (4, None), (1, None)]
        assert [(row["length"], row["pass"]) for row in alone] == [
            (64, "forward+backward"), (4, "forward+backward"), (4, "forward+backward"), (16, "forward+backward"),
            (16, "forward"), (4, "forward"),
        ]  # fmt: skip
    rows = [*mixers.records(), *scans.records()]
    assert len(rows) == 2 * (len(MIXERS) + len(SCANS))
    assert all(row["ms"] > 0 and row["mambapy_ms"] > 0 and row["speed_up"] > 0 and row["batch"] == 2 for row in rows)
    assert "triton is not measured: its kernels run on CUDA alone" in mixers.note
    assert "mambapy is 1.2.0; the bar speaks of version 1.2.0." in mixers.note
