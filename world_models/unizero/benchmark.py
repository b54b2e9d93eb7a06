"""How fast the world model is: `python -m world_models.unizero.benchmark`.

Acting (search and its parts), learning, attention under every prior by context, and what a whole run of 100,000 steps
adds up to. On a CPU the tiny preset, on an accelerator the full one. Prints the tables and writes them, with the
machine, into results/benchmarks/unizero.{md,json}.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from dqn_memory.benchmark_pages import machine, rich_tables, write
from dqn_memory.benchmark_tables import Effort, Table
from dqn_memory.configuration import Repeatable, parse
from dqn_memory.errors import UserError, near_names, one_line_errors
from dqn_memory.stopwatch import Clock
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

MODULE = "world_models.unizero.benchmark"
WIDTH = 200
TABLES = ("acting", "learning", "projection", "priors")
QUICK_CONTEXTS = (16, 32, 128)


@dataclass(frozen=True)
class Args:
    """Measure UniZero: searches, updates, priors."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The tiny preset on a cpu, the full one on cuda (auto: cuda where there is one)."""
    threads: int = 1
    """Threads of every matrix product on a CPU."""
    repetitions: int = 15
    """Turns of each alternative; medians are over these."""
    engine: Repeatable = ()
    """Engines to measure (none given: all that are meant for the device): eager, compile, cudagraph."""
    only: Repeatable = ()
    """Tables to make (none given: all): acting, learning, projection (which needs the first two), priors."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    quick: bool = False
    """Two repetitions of a model 16 wide: shows that everything runs; its numbers mean nothing."""
    folder: str = "results/benchmarks"
    """Where unizero.md and unizero.json go, whole: tables that were not asked for are not kept."""
    write: bool = True
    """Write the two files."""

    def check(self) -> None:
        """One sentence for what cannot work."""
        for name, least in (("repetitions", 2), ("threads", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} {getattr(self, name)} must be at least {least}")
        for what, given, known in (("table of --only", self.only, TABLES), ("--engine", self.engine, self.engines())):
            for name in given:
                if name not in known:
                    raise UserError(near_names(what, name, known))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here; use cpu")
        if self.clock == "cpu" and self.place == "cuda":
            raise UserError("--clock cpu cannot time an accelerator; leave it out")

    @property
    def place(self) -> str:
        """Where it is measured."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device

    def engines(self) -> tuple[str, ...]:
        """What the device can have."""
        return ("eager", "compile", "cudagraph") if self.place == "cuda" else ("eager", "compile")

    def effort(self) -> Effort:
        """How much is measured."""
        return Effort(repetitions=2 if self.quick else self.repetitions, warm_up=2, clock=self.clock)

    def wants(self, *tables: str) -> bool:
        """Whether one of the tables is to be made."""
        return not self.only or bool(set(self.only) & set(tables))

    def cases(self) -> list[Case]:
        """What acting and learning are measured on."""
        chosen = cases(self.place, self.engine)
        return [smaller(case) for case in chosen] if self.quick else chosen


def measure(args: Args, console: Console) -> list[Table]:
    """All tables that were asked for, each printed as soon as it is there."""
    tables: list[Table] = []

    def show(table: Table) -> Table:
        console.print(rich_tables([table]))
        tables.append(table)
        return table

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
    return tables


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog=f"python -m {MODULE}")
    args.check()
    torch.set_num_threads(args.threads)
    facts = machine(MODULE, argv)
    console = Console(width=WIDTH)
    tables = measure(args, console)
    if args.write:
        write(Path(args.folder), "unizero", "Speed of UniZero", facts, tables)
        console.print(f"wrote {args.folder}/unizero.md and {args.folder}/unizero.json")


if __name__ == "__main__":
    main()
