"""What a whole run measured, finished or not, as a section of a benchmark's page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dqn_memory.agent import run_folder
from dqn_memory.benchmark_tables import Table, Value
from dqn_memory.runs.folder import Run
from dqn_memory.runs.settings import from_record
from world_models.speed_pages import put_section

FACTS = ("command", "device", "cpu", "torch", "python", "threads", "revision", "dirty", "platform")
CURVE_NOTE = (
    "Mean return without noise of every evaluation so far, undiscounted and unclipped. `minutes`: on the wall, from "
    "the run's start, without the time it stood still. A run that has not reached its end shows what it has reached."
)
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RunArgs:
    """Put what a finished or running run measured into the benchmark's page."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")] = ""
    """Run folder."""
    run: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Run folder, as a flag instead."""
    name: str = ""
    """Name of the section behind "run" (empty: the run's world and device)."""
    page: str = "results/benchmarks"
    """Folder of the benchmark's page and its numbers, whose other sections are kept."""


def put_run(
    args: RunArgs, page: str, title: str, kind: type[Any], tables: Callable[[Any, Lines], list[Table]],
    settings: Callable[[Any], Mapping[str, object]],
) -> None:  # fmt: skip
    """Read a run whose config is of this kind, write its tables and its machine with some settings, say where."""
    path = run_folder(args.folder, args.run)
    run = Run.open(path, tensorboard=False)
    config = from_record(kind, run.config_toml, str(path / "config.toml"))
    facts = {name: run.environment.get(name) for name in FACTS} | dict(settings(config))
    section = f"run {args.name or config.environment.env + ' on ' + str(facts['device'])}"
    put_section(Path(args.page), page, title, section, facts, tables(config, run.metrics()))
    print(f"wrote the section {section!r} of {args.page}/{page}.md and {args.page}/{page}.json")


def progress(config: Any, lines: Lines) -> str:
    """How far the run is, in a sentence."""
    final = any("final/episodic_return" in line for line in lines)
    reached = max((int(line["step"]) for line in lines), default=0)
    return f"{reached:,} of {config.total_steps:,} environment steps; {'finished' if final else 'not finished'}. "


def curve_rows(lines: Lines, **others: str) -> list[dict[str, Value]]:
    """A row an evaluation, the last one among them; `others` are more columns, by what the log calls them."""
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
