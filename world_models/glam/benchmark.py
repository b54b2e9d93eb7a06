"""How fast GLAM is: `python -m world_models.glam.benchmark`.

The phases of an environment step, imagination on a sliding window against carried state, and what a whole run of
100,000 steps adds up to. On a CPU the smoke preset, on an accelerator the full size. Prints the tables and writes them,
with the machine, into results/benchmarks/glam.{md,json}.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from dqn_memory.benchmark_pages import machine, rich_tables, write
from dqn_memory.benchmark_tables import Effort, Table
from dqn_memory.configuration import Repeatable, parse
from dqn_memory.errors import UserError, near_names, one_line_errors
from dqn_memory.mamba_backend import Backend
from dqn_memory.stopwatch import Clock
from world_models.glam.benchmark_cases import Case
from world_models.glam.benchmark_tables import cases, form_table, phase_table, projection_table, worlds_milliseconds

MODULE = "world_models.glam.benchmark"
WIDTH = 200
TABLES = ("phases", "imagination", "projection")
ENGINES = ("eager", "cudagraph")


@dataclass(frozen=True)
class Args:
    """Measure GLAM: acting, both updates, imagination."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The smoke preset on a cpu, the full size on cuda (auto: cuda where there is one)."""
    threads: int = 1
    """Threads of every matrix product on a CPU."""
    repetitions: int = 15
    """Turns of each alternative; medians are over these."""
    engine: Repeatable = ()
    """Engines to measure on cuda (none given: both): eager, cudagraph."""
    backend: Backend = "auto"
    """What the scan of a Mamba runs on."""
    only: Repeatable = ()
    """Tables to make (none given: all): phases, imagination, projection (which needs the phases)."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    quick: bool = False
    """Two repetitions: shows that everything runs; its numbers mean little."""
    folder: str = "results/benchmarks"
    """Where glam.md and glam.json go, whole: tables that were not asked for are not kept."""
    write: bool = True
    """Write the two files."""

    def check(self) -> None:
        """One sentence for what cannot work."""
        for name, least in (("repetitions", 2), ("threads", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} {getattr(self, name)} must be at least {least}")
        known_engines = ENGINES if self.place == "cuda" else ENGINES[:1]
        for what, given, known in (("table of --only", self.only, TABLES), ("--engine", self.engine, known_engines)):
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

    def effort(self) -> Effort:
        """How much is measured."""
        return Effort(
            repetitions=2 if self.quick else self.repetitions, warm_up=1 if self.quick else 3, clock=self.clock
        )

    def cases(self) -> list[Case]:
        """What is measured."""
        return [replace(case, backend=self.backend) for case in cases(self.place, self.engine)]

    def wants(self, *tables: str) -> bool:
        """Whether one of the tables is to be made."""
        return not self.only or bool(set(self.only) & set(tables))


def measure(args: Args, console: Console) -> list[Table]:
    """All tables that were asked for, each printed as soon as it is there."""
    tables: list[Table] = []

    def show(table: Table) -> Table:
        console.print(rich_tables([table]))
        tables.append(table)
        return table

    effort, chosen = args.effort(), args.cases()
    if args.wants("phases", "projection"):
        phases = show(phase_table(effort, chosen))
    if args.wants("imagination"):
        show(form_table(effort, chosen))
    if args.wants("projection"):
        show(projection_table(phases, chosen, worlds_milliseconds(effort, chosen[0])))
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
        write(Path(args.folder), "glam", "Speed of GLAM", facts, tables)
        console.print(f"wrote {args.folder}/glam.md and {args.folder}/glam.json")


if __name__ == "__main__":
    main()
