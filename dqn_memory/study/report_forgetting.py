"""The report's section on what the trained agents do without their memory."""

from __future__ import annotations

from dqn_memory.study.report_data import Data, Entry
from dqn_memory.study.report_page import Grid, Section, Words
from dqn_memory.study.report_scores import interval

SUCCESS, RETURNED = "memory_ablation/success_rate", "memory_ablation/episodic_return"
WORDS = (
    "The final agents play the final evaluation's episodes once more and forget everything before each step. Where "
    "that costs nothing, the score shows no memory: the newest observation is enough there, or all that is used. "
    "Mean over seeds with its 95 % bootstrap interval."
)


def forgetting_section(data: Data) -> Section | None:
    """Final scores with and without a memory, and what forgetting costs; None where no run was judged so."""
    rows = tuple(
        row for world in data.worlds for name in data.series if (row := _row(world, name, data.of(world, name)))
    )
    header = ("world", "series", "seeds", "with", "without", "lost")
    return Section("Without the memory", (Words(WORDS), Grid(header, rows))) if rows else None


def _row(world: str, series: str, runs: list[Entry]) -> tuple[str, ...] | None:
    """Of the runs that were judged so."""
    pairs = [(run.score, without) for run in runs if (without := _forgetful(run)) is not None]
    if not pairs:
        return None
    with_memory, without_memory = zip(*pairs, strict=True)
    lost = [before - after for before, after in pairs]
    estimates = (str(interval(scores)) for scores in (with_memory, without_memory, lost))
    return (world, series, str(len(pairs)), *estimates)


def _forgetful(run: Entry) -> float | None:
    """In the measure of the run's own final score."""
    key = SUCCESS if run.success else RETURNED
    return next((line[key] for line in reversed(run.lines) if key in line), None)
