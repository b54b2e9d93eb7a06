"""What a whole run measured: `python -m world_models.unizero.benchmark_run RUN`.

Puts the seconds of each phase, the steps and updates a second that they come to, and the curve of the evaluations of a
finished or a running run into the benchmark's page, as a section of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tyro

from dqn_memory.benchmark_tables import Table, Value
from dqn_memory.runs.errors import UserError, one_line_errors
from world_models.speed_run import CURVE_NOTE, Lines, RunArgs, curve_rows, progress, put_run
from world_models.unizero.config import TrainConfig
from world_models.unizero.phases import EVALUATION, LEARNING, PHASES

PHASE_NOTE = (
    "Seconds by the run's own stopwatch, from its log lines. search: drawing numbers, encoding, trees, choosing; "
    "acting: stepping the worlds and storing; learning: drawing sequences, searching some anew, updates; evaluation: "
    "all episodes of evaluations up to the last log line. `steps_s`: environment steps of training a second of that "
    "phase alone. On CUDA a phase ends when the device has done what it asked for. `rest`: logging, saving, compiling, "
    "evaluations behind the last log line."
)


def tables(config: TrainConfig, lines: Lines) -> list[Table]:
    """Phases and evaluations of a run's log."""
    phases = Table("Phases", progress(config, lines) + PHASE_NOTE, phase_rows(lines))
    return [phases, Table("Evaluations", CURVE_NOTE, curve_rows(lines))]


def settings(config: TrainConfig) -> Mapping[str, object]:
    """What the speed depends on."""
    return {
        "engine": config.compute.engine, "precision": config.learner.precision, "tf32": config.compute.tf32,
    }  # fmt: skip


def phase_rows(lines: Lines) -> list[dict[str, Value]]:
    """A row a phase, one of what none of them is, and one of the whole."""
    timed = [line for line in lines if f"time/{LEARNING}" in line]
    if not timed:
        raise UserError("the run has logged no phases yet: wait for its first log line")
    steps, whole = int(timed[-1]["step"]), max(float(line.get("time/elapsed", 0.0)) for line in lines)
    seconds = {phase: sum(float(line[f"time/{phase}"]) for line in timed) for phase in PHASES}
    updates = float(timed[-1]["charts/updates"])
    seconds |= {"rest": max(whole - sum(seconds.values()), 0.0), "whole run": whole}
    return [
        {
            "part": phase, "seconds": spent, "share": spent / whole if whole else None,
            "steps_s": steps / spent if spent and phase != EVALUATION else None,
            "updates_s": updates / spent if spent and phase == LEARNING else None,
        }
        for phase, spent in seconds.items()
    ]  # fmt: skip


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read, write, say where."""
    args = tyro.cli(RunArgs, args=argv, prog="python -m world_models.unizero.benchmark_run")
    put_run(args, "unizero", "Speed of UniZero", TrainConfig, tables, settings)


if __name__ == "__main__":
    main()
