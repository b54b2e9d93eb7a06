"""Progress: a bar on a terminal, plain lines elsewhere; what is due, and what a line of the log says."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from run_folders import told

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
    assert "not finite at step 12" in told(stats.scalars)
