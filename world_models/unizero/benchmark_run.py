"""What a whole run measured: `python -m world_models.unizero.benchmark_run RUN`.

Puts the seconds of each phase, the steps and updates a second that they come to, and the curve of the evaluations of a
finished or a running run into the benchmark's page, as a section of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dqn_memory.agent import run_folder
from dqn_memory.benchmark_tables import Table, Value
from dqn_memory.configuration import from_record
from dqn_memory.errors import UserError, one_line_errors
from dqn_memory.experiment import Run
from world_models.speed_pages import put_section
from world_models.unizero.phases import EVALUATION, LEARNING, PHASES
from world_models.unizero.train_config import TrainConfig

FACTS = ("command", "device", "cpu", "torch", "python", "threads", "revision", "dirty", "platform")
Lines = Sequence[Mapping[str, Any]]

PHASE_NOTE = (
    "Seconds by the run's own stopwatch, from its log lines. search: drawing numbers, encoding, trees, choosing; "
    "acting: stepping the worlds and storing; learning: drawing sequences, searching some anew, updates; evaluation: "
    "all episodes of evaluations up to the last log line. `steps_s`: environment steps of training a second of that "
    "phase alone. On CUDA a phase ends when the device has done what it asked for. `rest`: logging, saving, compiling, "
    "evaluations behind the last log line."
)
CURVE_NOTE = (
    "Mean return without noise of every evaluation so far, undiscounted and unclipped. `minutes`: on the wall, from "
    "the run's start, without the time it stood still. A run that has not reached its end shows what it has reached."
)


@dataclass(frozen=True)
class Args:
    """Put what a finished or running run measured into the benchmark's page."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    name: str = ""
    """Name of the section behind "run" (empty: the run's world and device)."""
    page: str = "results/benchmarks"
    """Folder of unizero.md and unizero.json, whose other sections are kept."""


def tables(config: TrainConfig, lines: Lines) -> list[Table]:
    """Phases and evaluations of a run's log."""
    final = any("final/episodic_return" in line for line in lines)
    reached = max((int(line["step"]) for line in lines), default=0)
    note = f"{reached:,} of {config.total_steps:,} environment steps; {'finished' if final else 'not finished'}. "
    return [Table("Phases", note + PHASE_NOTE, phase_rows(lines)), Table("Evaluations", CURVE_NOTE, curve_rows(lines))]


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


def curve_rows(lines: Lines) -> list[dict[str, Value]]:
    """A row an evaluation, the last one among them."""
    rows: list[dict[str, Value]] = []
    for line in lines:
        for part in ("eval", "final"):
            if f"{part}/episodic_return" in line:
                rows.append({
                    "step": int(line["step"]), "return": float(line[f"{part}/episodic_return"]),
                    "success": float(line[f"{part}/success_rate"]), "length": float(line[f"{part}/episodic_length"]),
                    "episodes": int(line[f"{part}/episodes"]), "minutes": float(line["time/elapsed"]) / 60,
                })  # fmt: skip
    return rows


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Read, write, say where."""
    args = tyro.cli(Args, args=argv, prog="python -m world_models.unizero.benchmark_run")
    path = run_folder(args.folder, args.run)
    run = Run.open(path, tensorboard=False)
    config = from_record(TrainConfig, run.config_toml, str(path / "config.toml"))
    facts = {name: run.environment.get(name) for name in FACTS}
    facts |= {"engine": config.compute.engine, "precision": config.learner.precision, "tf32": config.compute.tf32}
    section = f"run {args.name or config.world.env + ' on ' + str(facts['device'])}"
    put_section(Path(args.page), "unizero", "Speed of UniZero", section, facts, tables(config, run.metrics()))
    print(f"wrote the section {section!r} of {args.page}/unizero.md and {args.page}/unizero.json")


if __name__ == "__main__":
    main()
