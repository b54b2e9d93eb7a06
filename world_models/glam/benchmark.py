"""How fast GLAM is: `python -m world_models.glam.benchmark`.

The phases of an environment step, imagination on a sliding window against carried state, and what a whole run of
100,000 steps adds up to. On a CPU the smoke preset, on an accelerator the full size. Prints the tables and writes them,
with the machine, into results/benchmarks/glam.{md,json}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dqn_memory.benchmark_tables import Value
from dqn_memory.runs.backend import Backend
from dqn_memory.runs.errors import one_line_errors
from world_models.glam.benchmark_cases import Case
from world_models.glam.benchmark_tables import (
    GAMES,
    cases,
    form_table,
    phase_table,
    projection_table,
    worlds_milliseconds,
)
from world_models.speed_script import Measuring, Show, publish


@dataclass(frozen=True)
class Args(Measuring):
    """Measure GLAM: acting, both updates, imagination. On a cpu the smoke preset, on cuda the full size.

    Tables: phases, imagination, projection (which needs the phases). Engines: eager, and on cuda cudagraph.
    """

    tables: ClassVar[tuple[str, ...]] = ("phases", "imagination", "projection")
    on_cpu: ClassVar[tuple[str, ...]] = ("eager",)
    on_cuda: ClassVar[tuple[str, ...]] = ("eager", "cudagraph")
    warm_up: ClassVar[int] = 3

    backend: Backend = "auto"
    """What the scan of a Mamba runs on."""

    def cases(self) -> list[Case]:
        """What is measured."""
        return [replace(case, backend=self.backend) for case in cases(self.place, self.engine)]


def measure(args: Args, show: Show) -> None:
    """All tables that were asked for."""
    effort, chosen = args.effort(), args.cases()
    if args.wants("phases", "projection"):
        rows: list[dict[str, Value]] = []
        for case in chosen:  # shown after each, as all of them at full size take minutes
            table = phase_table(effort, [case])
            rows += table.rows
            phases = show(replace(table, rows=rows[:]))
    if args.wants("imagination"):
        show(form_table(effort, chosen))
    if args.wants("projection"):
        alone, evaluated = (worlds_milliseconds(effort, chosen[0], games) for games in (1, GAMES))
        show(projection_table(phases, chosen, alone, evaluated))


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    publish(Args, "world_models.glam.benchmark", argv, "Speed of GLAM", measure)


if __name__ == "__main__":
    main()
