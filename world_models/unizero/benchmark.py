"""How fast the world model is: `python -m world_models.unizero.benchmark`.

Acting (search and its parts), learning, attention under every prior by context, and what a whole run of 100,000 steps
adds up to. On a CPU the tiny preset, on an accelerator the full one. Prints the tables and writes them, with the
machine, into results/benchmarks/unizero.{md,json}, a section for each device. `benchmark_run` adds what whole runs
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dqn_memory.runs.errors import one_line_errors
from world_models.speed_script import Measuring, Show, publish
from world_models.unizero.benchmark_cases import Case, Mixing
from world_models.unizero.benchmark_tables import (
    acting_table,
    cases,
    learning_table,
    prior_table,
    projection_table,
    smaller,
    worlds_milliseconds,
)

QUICK_CONTEXTS = (16, 32, 128)


@dataclass(frozen=True)
class Args(Measuring):
    """Measure UniZero: searches, updates, priors. On a cpu the tiny preset, on cuda the full size.

    Tables: acting, learning, projection (which needs the first two), priors. Engines: eager, compile, and on cuda
    cudagraph. `--quick` takes a model 16 wide.
    """

    tables: ClassVar[tuple[str, ...]] = ("acting", "learning", "projection", "priors")
    on_cpu: ClassVar[tuple[str, ...]] = ("eager", "compile")
    on_cuda: ClassVar[tuple[str, ...]] = ("eager", "compile", "cudagraph")

    def cases(self) -> list[Case]:
        """What acting and learning are measured on."""
        chosen = cases(self.place, self.engine)
        return [smaller(case) for case in chosen] if self.quick else chosen


def measure(args: Args, show: Show) -> None:
    """All tables that were asked for."""
    effort, chosen = args.effort(), args.cases()
    if args.wants("acting", "projection"):
        acting = show(acting_table(effort, chosen))
    if args.wants("learning", "projection"):
        learning = show(learning_table(effort, chosen))
    if args.wants("projection"):
        show(projection_table(acting, learning, worlds_milliseconds(effort, chosen[0].size.worlds, args.place)))
    if args.wants("priors"):
        mixing = Mixing(heads=2, width=4, batch=1, device=args.place) if args.quick else None
        contexts = {"contexts": QUICK_CONTEXTS} if args.quick else {}
        show(prior_table(effort, args.place, mixing, **contexts))


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    publish(Args, "world_models.unizero.benchmark", argv, "Speed of UniZero", measure)


if __name__ == "__main__":
    main()
