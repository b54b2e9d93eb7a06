"""Progress: a bar on a terminal, plain lines elsewhere; what is due, and what a line of the log says."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from run_folders import error_of

from dqn_memory.runs.metrics import RunStats
from dqn_memory.runs.progress import Progress, due


def test_plain_lines_where_there_is_no_terminal():
    out, clock = io.StringIO(), SimpleNamespace(now=0.0)
    with Progress(1000, start=100, console=Console(file=out, width=40), clock=lambda: clock.now) as progress:
        for step in range(110, 1000, 10):
            clock.now += 1.0
            progress.update(step, loss=0.5 / step, success=step / 1000)
        clock.now += 0.5
        progress.update(1000)
    lines = out.getvalue().splitlines()
    assert lines[0] == "training 150/1,000 (15%) 10 steps/s success 0.15 loss 0.00333 left 0:01:25"
    assert len(lines) == 18  # 89 seconds, one line every 5, and the last state
    assert lines[-1].startswith("training 1,000/1,000 (100%)") and lines[-1].endswith("left 0:00:00")


def test_each_phase_has_its_own_speed_and_only_training_says_what_is_left():
    out, clock = io.StringIO(), SimpleNamespace(now=0.0)
    with Progress(1000, title="Env", console=Console(file=out, width=40), clock=lambda: clock.now) as progress:
        for step, phase in ((500, "prefill"), (510, "training")):
            clock.now += 5.0
            progress.update(step, phase)
            clock.now += 5.0
            progress.update(step + 10, phase)
    assert out.getvalue().splitlines() == [
        "Env prefill 500/1,000 (50%) 100 steps/s",
        "Env prefill 510/1,000 (51%) 51 steps/s",
        "Env training 510/1,000 (51%) 0 steps/s",
        "Env training 520/1,000 (52%) 2 steps/s left 0:04:00",
    ]


def test_a_bar_on_a_terminal():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Progress(1000, console=console, title="demo") as progress:
        progress.update(500, success=0.75)
    shown = out.getvalue()
    assert "demo" in shown and "50%" in shown and "success 0.75" in shown and "steps/s" in shown


@pytest.mark.parametrize(("every", "steps"), [(10, [12, 20, 32]), (3, list(range(4, 36, 4))), (0, [])])
def test_what_is_due_is_due_in_the_iteration_that_passes_a_multiple(every, steps):
    assert [step for step in range(4, 36, 4) if due(step, every, 4)] == steps


def test_a_line_holds_means_since_the_last_one_and_the_first_broken_update_is_named():
    stats, one = RunStats(torch.device("cpu")), torch.ones(())
    for step, loss in ((4, 1.0), (8, 3.0)):
        stats.count_update({"losses/td_loss": one * loss, "grad/norm": one}, step)
    assert stats.scalars() == {"losses/td_loss": 2.0, "grad/norm": 1.0} and stats.scalars() == {}
    for step in (12, 16):
        stats.count_update({"losses/td_loss": one * torch.nan, "grad/norm": one}, step)
    assert "not finite at step 12" in error_of(stats.scalars)


def lines(steps, total=1000):
    """What is printed after each (seconds, step, phase, end)."""
    out, clock = io.StringIO(), SimpleNamespace(now=0.0)
    with Progress(total, console=Console(file=out, width=40), clock=lambda: clock.now) as progress:
        for seconds, *told in steps:
            clock.now += seconds
            progress.update(*told)
        clock.now += 100.0  # of saving, after the last step
    return out.getvalue().splitlines()


def test_the_first_step_of_training_is_timed_with_its_updates_and_left_out_afterwards():
    """What takes a minute is what compiles or makes up for updates; it says nothing about the steps to come."""
    prefill = [(1.0, step, "prefill", 500) for step in range(100, 501, 100)]
    assert lines([*prefill, (60.0, 504, "training"), (1.0, 508, "training"), (5.0, 528, "training")])[:3] == [
        "prefill 500/500 (100%) 100 steps/s",
        "training 504/1,000 (50%) 0.067 steps/s",
        "training 528/1,000 (53%) 4 steps/s left 0:01:58",
    ]


def test_time_left_follows_the_recent_pace_and_holds_evaluations():
    slow = [(10.0, step) for step in range(10, 110, 10)]  # 1 step/s
    fast = [(10.0, step) for step in range(200, 2200, 100)]  # 10 steps/s
    assert lines(slow + fast, 10_000)[-1] == "training 2,100/10,000 (21%) 10 steps/s left 0:13:10"
    evaluated = [(100.0 if step % 500 == 0 else 1.0, step) for step in range(10, 4010, 10)]
    hours, minutes, seconds = map(int, lines(evaluated, 10_000)[-2].rpartition("left ")[2].split(":"))
    assert 1500 < hours * 3600 + minutes * 60 + seconds < 2100  # in truth 1,800


def test_a_run_that_stops_before_its_end_says_no_time_left():
    assert "left" in lines([(1.0, step) for step in (10, 20, 30, 40, 50)])[0]
    assert lines([(1.0, step) for step in (10, 20)]) == ["training 20/1,000 (2%) 10 steps/s"]
