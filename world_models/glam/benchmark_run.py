"""What a whole run measured: `python -m world_models.glam.benchmark_run RUN`.

Puts the speed of a finished or a running run, the returns of its training and the curve of its evaluations into the
benchmark's page, as a section of its own. `python -m world_models.glam.benchmark` measures the time of each phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

import tyro

from dqn_memory.benchmark_tables import Table, Value
from dqn_memory.runs.errors import UserError, one_line_errors
from world_models.glam.train_config import TrainConfig
from world_models.speed_run import CURVE_NOTE, Lines, RunArgs, curve_rows, progress, put_run

SPEED_NOTE = (
    "From the run's log: environment steps with everything that belongs to them, updates of world model and agent, "
    "saving, and the evaluations so far. `updates`: of the world model. `step_ms`: milliseconds a step in the median "
    "stretch between two log lines that saw updates, evaluations left out."
)
TRAINING_NOTE = "Mean return of the episodes that ended since the log line before, with the noise of exploration."


def tables(config: TrainConfig, lines: Lines) -> list[Table]:
    """Speed, returns of training, and evaluations of a run's log."""
    return [
        Table("Speed", progress(config, lines) + SPEED_NOTE, [speed_row(lines)]),
        Table("Training", TRAINING_NOTE, training_rows(lines)),
        Table("Evaluations", CURVE_NOTE, curve_rows(lines, greedy="greedy_episodic_return")),
    ]


def speed_row(lines: Lines) -> dict[str, Value]:
    """Steps, updates and minutes of the whole run so far, and what a step takes."""
    logged = [line for line in lines if "charts/updates" in line]
    if len(logged) < 2:
        raise UserError("the run has logged too little yet: wait for its second log line")
    evaluated = [line["step"] for line in lines if "eval/episodic_return" in line]  # each after its step's log line
    stretches = [
        1_000 * (after["time/elapsed"] - before["time/elapsed"]) / (after["step"] - before["step"])
        for before, after in pairwise(logged)
        if after["charts/updates"] > before["charts/updates"]
        and not any(before["step"] <= step < after["step"] for step in evaluated)
    ]
    minutes = max(float(line["time/elapsed"]) for line in lines) / 60
    return {
        "steps": int(logged[-1]["step"]), "updates": int(logged[-1]["charts/updates"]), "minutes": minutes,
        "step_ms": median(stretches) if stretches else None,
    }  # fmt: skip


def training_rows(lines: Lines) -> list[dict[str, Value]]:
    """A row a log line in which episodes ended."""
    return [
        {"step": int(line["step"]), "return": float(line["charts/episodic_return"]),
         "length": float(line["charts/episodic_length"]), "minutes": float(line["time/elapsed"]) / 60}
        for line in lines if "charts/episodic_return" in line
    ]  # fmt: skip


def settings(config: TrainConfig) -> Mapping[str, object]:
    """What the speed depends on."""
    return {
        "engine": config.compute.engine, "backend": config.compute.backend, "tf32": config.compute.tf32,
        "bfloat16": config.learner.bfloat16, "imagination": config.model.imagination,
    }  # fmt: skip


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read, write, say where."""
    args = tyro.cli(RunArgs, args=argv, prog="python -m world_models.glam.benchmark_run")
    put_run(args, "glam", "Speed of GLAM", TrainConfig, tables, settings)


if __name__ == "__main__":
    main()
