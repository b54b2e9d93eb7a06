"""What a study will cost: from its own finished runs where there are any, else from what its file says was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dqn_memory.study.definition import Resources
from dqn_memory.study.store import RunState, last_step

START = 5.0  # seconds, roughly, until a run's process takes its first step, on one core
Cost = tuple[float, float]  # seconds per step, megabytes


@dataclass(frozen=True)
class Estimate:
    """`seconds` of workers' time that is left, and the disk that all runs take; None: nothing is known."""

    seconds: float | None
    megabytes: float | None
    source: str


def estimate(runs: Sequence[RunState], resources: Resources) -> Estimate:
    """Cost of what is left to do; runs of one architecture in one world are taken to cost the same."""
    known = [run for run in runs if run.state == "finished" and run.seconds]
    pace, size = resources.steps_per_second, resources.megabytes
    everywhere: Cost | None = _mean(known) if known else None
    source = "from the finished runs" if known else resources.measured
    left = [run for run in runs if run.state != "finished"]
    alike = {key: _mean(group) for key, group in _groups(known).items()}
    if everywhere is None and pace is None:
        seconds = None
    else:
        stated = everywhere[0] if everywhere else 1 / (pace or 1)
        seconds = sum(_steps_left(run) * alike.get(_key(run), (stated, 0.0))[0] for run in left)
        seconds += 0.0 if everywhere else START * len(left)  # what was measured holds the start
    each = everywhere[1] if everywhere else size
    return Estimate(seconds, None if each is None else each * len(runs), source)


def _key(run: RunState) -> tuple[str, str]:
    return run.world, run.architecture


def _groups(runs: Sequence[RunState]) -> dict[tuple[str, str], list[RunState]]:
    groups: dict[tuple[str, str], list[RunState]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    return groups


def _mean(runs: Sequence[RunState]) -> Cost:
    seconds = sum((run.seconds or 0.0) / max(1, run.steps) for run in runs) / len(runs)
    return seconds, sum(megabytes_of(run.folder) for run in runs) / len(runs)


def _steps_left(run: RunState) -> int:
    return max(0, run.steps - last_step(run.folder))


def megabytes_of(folder: Path) -> float:
    """What a folder's files take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def in_words(seconds: float | None) -> str:
    """A time as people say it: 40 s, 12 min, 3.4 h, 2.1 days."""
    if seconds is None:
        return "unknown"
    for unit, size in (("days", 86_400 * 2), ("h", 5_400), ("min", 90)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.3g} {unit}"
    return f"{seconds:.0f} s"


def size_in_words(megabytes: float | None) -> str:
    """A size as people say it."""
    if megabytes is None:
        return "unknown"
    return f"{megabytes / 1000:.3g} GB" if megabytes >= 1000 else f"{megabytes:.3g} MB"
