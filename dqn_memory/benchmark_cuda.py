"""The benchmark's tables on an accelerator: captured updates, and whole training runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from dqn_memory.analysis.size import world_row
from dqn_memory.benchmark_cases import Case, update_work
from dqn_memory.benchmark_tables import CASES, Effort, Table, Value
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.metrics import read_metrics

GRAPH_BAR = 5.0  # times faster than eager
STEPS_BAR = 1000.0  # environment steps a second with one update a step
WORLDS = 16


def graph_table(effort: Effort, device: str = "cuda") -> Table:
    """One update eager and as a captured graph, in both forms."""
    note = "One update on the accelerator, full windows of 50, batch 32; `speed_up`: eager over captured."
    rows = [
        _graph_row(Case(world, architecture, batch=effort.batch), form, effort, device)
        for world, architecture in CASES
        for form in ("published", "corrected")
    ]
    return Table("Captured updates", note, rows)


def _graph_row(case: Case, form: str, effort: Effort, device: str) -> dict[str, Value]:
    eager, captured = (update_work(case, form, engine, device) for engine in ("eager", "cudagraph"))
    times = effort.turns({"eager": eager, "captured": captured})
    return {
        "world": case.world, "architecture": case.architecture, "form": form,
        "ms": times["captured"].median, "fastest_ms": times["captured"].fastest,
        "spread": times["captured"].spread, "eager_ms": times["eager"].median,
        "speed_up": times["captured"].speed_up(times["eager"]), "bar": GRAPH_BAR,
    }  # fmt: skip


def training_table(quick: bool = False, device: str = "cuda", engine: str = "cudagraph") -> Table:
    """Environment steps per second of `dqn_memory.train` with one update for every step."""
    note = (
        f"`python -m dqn_memory.train` with {WORLDS} worlds and {WORLDS} updates an iteration: acting, replay, one "
        "update for every environment step. Steps per second after the first log line, so without start and capture."
    )
    steps = 320 if quick else 8_000
    rows = [_training_row(world, architecture, steps, device, engine) for world, architecture in CASES]
    return Table("Training", note, rows)


def _training_row(world: str, architecture: str, steps: int, device: str, engine: str) -> dict[str, Value]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flags = {
            "env": world, "architecture": architecture, "width": world_row(world).width, "device": device,
            "engine": engine, "worlds": WORLDS, "updates": WORLDS, "learning-starts": WORLDS,
            "total-steps": steps, "log-every": steps // 4, "evaluate-every": 0, "final-episodes": 1,
            "checkpoint-replay": "none", "run": run,
        }  # fmt: skip
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        done = subprocess.run(
            [sys.executable, "-m", "dqn_memory.train", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UserError(f"training {architecture} in {world} failed: {done.stderr.strip()[-300:]}")
        rate = steady_rate(run / "metrics.jsonl")
    return {"world": world, "architecture": architecture, "steps_s": rate, "bar": STEPS_BAR}


def steady_rate(metrics: Path) -> float:
    """Steps per second between the first and the last log line; `charts/SPS` counts from the start of the run."""
    lines = [line for line in read_metrics(metrics) if line.get("charts/SPS")]
    if len(lines) < 2:
        raise UserError(f"{metrics} has fewer than two log lines, so no rate between them; train longer")
    first, last = lines[0], lines[-1]
    seconds = last["step"] / last["charts/SPS"] - first["step"] / first["charts/SPS"]
    return float((last["step"] - first["step"]) / seconds)
