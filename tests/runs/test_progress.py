"""Progress: a bar on a terminal, plain lines elsewhere."""

import io
from types import SimpleNamespace

from rich.console import Console

from dqn_memory.runs.progress import Progress


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
