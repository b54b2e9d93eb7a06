"""What the world models' benchmarks still take from here until they use analysis.timing and envs.tables themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from dqn_memory.analysis.timing import Clock, Timing, Work, interleaved
from envs.tables import Value as Value


@dataclass(frozen=True)
class Effort:
    """How much is measured, and on what."""

    repetitions: int = 15
    warm_up: int = 2
    batch: int = 32
    columns: int = 1500
    rows: int = 2048
    matrix: int = 1024
    clock: Clock = "wall"

    def turns(self, alternatives: dict[str, Work]) -> dict[str, Timing]:
        """Time alternatives by turns."""
        return interleaved(alternatives, self.repetitions, self.clock, self.warm_up)


@dataclass(frozen=True)
class Table:
    """Rows of named values under one title, with a note that defines the columns."""

    title: str
    note: str
    rows: list[dict[str, Value]] = field(default_factory=list)
