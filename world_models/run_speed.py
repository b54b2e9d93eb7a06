"""What a world model's run logged about its own speed, as tables for `python -m world_models.benchmark MODEL RUN`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.settings import from_record
from envs.tables import Table, Value
from world_models.glam.config import TrainConfig as GlamConfig
from world_models.unizero.config import TrainConfig as UniZeroConfig
from world_models.unizero.phases import EVALUATION, LEARNING, PHASES

FACTS = ("command", "device", "cpu", "torch", "python", "threads", "revision", "dirty", "platform")
PHASE_NOTE = (
    "Seconds by the run's own stopwatch, from its log lines. search: drawing numbers, encoding, trees, choosing; "
    "acting: stepping the environments and storing; learning: drawing sequences, searching some anew, updates; "
    "evaluation: all episodes of evaluations up to the last log line. `steps_s`: environment steps of training a "
    "second of that phase alone. On CUDA a phase ends when the device has done what it asked for. `rest`: logging, "
    "saving, compiling, evaluations after the last log line."
)
SPEED_NOTE = (
    "From the run's log: environment steps with everything that belongs to them, updates of world model and agent, "
    "saving, and the evaluations so far. `updates`: of the world model. `step_ms`: milliseconds a step in the median "
    "stretch between two log lines that saw updates, evaluations left out."
)
TRAINING_NOTE = "Mean return of the episodes that ended since the log line before, with the noise of exploration."
CURVE_NOTE = (
    "Mean return without noise of every evaluation so far, undiscounted and unclipped. `minutes`: wall clock from the "
    "run's start, without pauses between a stop and a resume. An unfinished run shows what it has reached."
)
Lines = Sequence[Mapping[str, Any]]


def run_section(model: str, path: Path, name: str = "") -> tuple[str, dict[str, Value], list[Table]]:
    """Read a run's log: the name of its section, what its speed depends on, its tables."""
    run = Run.open(path, tensorboard=False)
    kind: Any = UniZeroConfig if model == "unizero" else GlamConfig
    read: Any = of_unizero_run if model == "unizero" else of_glam_run
    config = from_record(kind, run.config_toml, str(path / "config.toml"))
    settings, tables = read(config, run.metrics())
    facts: dict[str, Value] = {fact: run.environment.get(fact) for fact in FACTS}
    name = name or f"{config.environment.env} on {facts['device']}"
    return f"run {name}", facts | settings, tables


def of_unizero_run(config: UniZeroConfig, lines: Lines) -> tuple[dict[str, Value], list[Table]]:
    """Read what a UniZero run's speed depends on; seconds of its phases, and its evaluations."""
    settings: dict[str, Value] = {
        "engine": config.compute.engine, "precision": config.learner.precision, "tf32": config.compute.tf32
    }  # fmt: skip
    phases = Table.from_records(phase_rows(lines), "Phases", progress(config, lines) + PHASE_NOTE)
    return settings, [phases, Table.from_records(curve_rows(lines), "Evaluations", CURVE_NOTE)]


def of_glam_run(config: GlamConfig, lines: Lines) -> tuple[dict[str, Value], list[Table]]:
    """Read what a GLAM run's speed depends on; its speed, returns of training, and its evaluations."""
    settings: dict[str, Value] = {
        "engine": config.compute.engine, "backend": config.compute.backend, "tf32": config.compute.tf32,
        "bfloat16": config.learner.bfloat16, "imagination": config.model.imagination_memory,
    }  # fmt: skip
    training = [
        {"step": int(line["step"]), "return": float(line["charts/episodic_return"]),
         "length": float(line["charts/episodic_length"]), "minutes": float(line["time/elapsed"]) / 60}
        for line in lines if "charts/episodic_return" in line
    ]  # fmt: skip
    return settings, [
        Table.from_records([speed_row(lines)], "Speed", progress(config, lines) + SPEED_NOTE),
        Table.from_records(training, "Training", TRAINING_NOTE),
        Table.from_records(curve_rows(lines, greedy="greedy_episodic_return"), "Evaluations", CURVE_NOTE),
    ]


def progress(config: Any, lines: Lines) -> str:
    """Say in a sentence how far the run is."""
    final = any("final/episodic_return" in line for line in lines)
    reached = max((int(line["step"]) for line in lines), default=0)
    return f"{reached:,} of {config.total_steps:,} environment steps; {'finished' if final else 'not finished'}. "


def phase_rows(lines: Lines) -> list[dict[str, Value]]:
    """Make a row for each phase of UniZero's algorithm, one for the rest, one for the whole run."""
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


def speed_row(lines: Lines) -> dict[str, Value]:
    """Give the steps, updates and minutes of a GLAM run so far, and the milliseconds of a step."""
    logs = [line for line in lines if "charts/updates" in line]
    if len(logs) < 2:
        raise UserError("the run has logged too little yet: wait for its second log line")
    evaluated = [line["step"] for line in lines if "eval/episodic_return" in line]  # each after its step's log line
    stretches = [
        1_000 * (after["time/elapsed"] - before["time/elapsed"]) / (after["step"] - before["step"])
        for before, after in pairwise(logs)
        if after["charts/updates"] > before["charts/updates"]
        and not any(before["step"] <= step < after["step"] for step in evaluated)
    ]
    minutes = max(float(line["time/elapsed"]) for line in lines) / 60
    return {
        "steps": int(logs[-1]["step"]), "updates": int(logs[-1]["charts/updates"]), "minutes": minutes,
        "step_ms": median(stretches) if stretches else None,
    }  # fmt: skip


def curve_rows(lines: Lines, **others: str) -> list[dict[str, Value]]:
    """Make a row for each evaluation, the last one included; `others` are more columns and their names in the log."""
    rows: list[dict[str, Value]] = []
    for line in lines:
        for part in ("eval", "final"):
            if f"{part}/episodic_return" in line:
                more = {column: float(line[f"{part}/{name}"]) for column, name in others.items()}
                rows.append({
                    "step": int(line["step"]), "return": float(line[f"{part}/episodic_return"]), **more,
                    "success": float(line[f"{part}/success_rate"]), "length": float(line[f"{part}/episodic_length"]),
                    "episodes": int(line[f"{part}/episodes"]), "minutes": float(line["time/elapsed"]) / 60,
                })  # fmt: skip
    return rows
