"""How fast the core is: `python -m dqn_memory.benchmark`.

Every number stands beside that of a baseline which computes the published update as its reference does, measured in
the same process by turns. Prints the tables and writes them, with the machine, into results/benchmarks/.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from dqn_memory.analysis.tables import machine, rich_tables, write
from dqn_memory.analysis.timing import Clock
from dqn_memory.benchmark_cuda import graph_table, training_table
from dqn_memory.benchmark_mamba import mamba_tables
from dqn_memory.benchmark_tables import Effort, Table, acting_table, update_table, window_table, world_table
from dqn_memory.runs.errors import UserError, near_names, one_line_errors
from dqn_memory.runs.precision import set_tf32
from dqn_memory.runs.settings import Repeatable, parse

WIDTH = 170
PAGES = {"core": "Speed of the core", "mamba": "Speed of Mamba"}


@dataclass(frozen=True)
class Args:
    """Measure updates, acting and worlds against the reference's way of computing them."""

    threads: int = 1
    """Threads of every matrix product, ours and the baseline's."""
    repetitions: int = 15
    """Turns of each alternative; medians are over these."""
    compile: bool = False
    """Also measure the published update under --engine compile (needs a C++ compiler, minutes of it)."""
    only: Repeatable = ()
    """Tables to make (none given: all that this machine can): update, windows, acting, worlds, mamba (the mixer and its
    scan, beside the package mambapy where it is installed); with a CUDA device also graphs (eager against captured
    updates), training (environment steps/s with one update a step) and mamba_cuda (every backend there)."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    quick: bool = False
    """Two repetitions of small batches: shows that everything runs; its numbers mean nothing."""
    folder: str = "results/benchmarks"
    """Where core.* and mamba.* go (md and json), each whole: its tables that were not asked for are not kept."""
    write: bool = True
    """Write the two files."""

    def check(self) -> None:
        """One sentence for what cannot work."""
        if self.repetitions < 2:
            raise UserError(f"--repetitions {self.repetitions} must be at least 2, for a spread")
        if self.threads < 1:
            raise UserError(f"--threads {self.threads} must be at least 1")
        for name in self.only:
            if name not in TABLES:
                raise UserError(near_names("table of --only", name, TABLES))
        if not torch.cuda.is_available() and set(self.only) & set(ON_CUDA):
            raise UserError(
                f"--only {' '.join(self.only)}: torch sees no CUDA device here, and {' and '.join(ON_CUDA)} need one"
            )
        if self.clock == "cpu" and set(self.tables()) & set(ON_CUDA):
            raise UserError("--clock cpu cannot time an accelerator; name other tables by --only")

    def tables(self) -> list[str]:
        """What is to be measured, in the order of the page."""
        possible = [name for name in TABLES if torch.cuda.is_available() or name not in ON_CUDA]
        return [name for name in possible if not self.only or name in self.only]

    def effort(self) -> Effort:
        """How much is measured."""
        if self.quick:
            return Effort(repetitions=2, warm_up=1, batch=4, columns=60, rows=2, matrix=128, clock=self.clock)
        return Effort(repetitions=self.repetitions, clock=self.clock)


TABLES: dict[str, Callable[[Args, Effort], list[Table]]] = {
    "update": lambda args, effort: [update_table(effort, args.compile)],
    "windows": lambda args, effort: [window_table(effort)],
    "acting": lambda args, effort: [acting_table(effort)],
    "worlds": lambda args, effort: [world_table(effort)],
    "graphs": lambda args, effort: [graph_table(effort)],
    "training": lambda args, effort: [training_table(args.quick)],
    "mamba": lambda args, effort: mamba_tables(effort),
    "mamba_cuda": lambda args, effort: mamba_tables(effort, "cuda"),
}
ON_CUDA = ("graphs", "training", "mamba_cuda")
OF_MAMBA = ("mamba", "mamba_cuda")  # they have a page of their own


def measure(args: Args, console: Console, facts: Mapping[str, object]) -> dict[str, list[Table]]:
    """All tables that were asked for by the name of their page, each printed and written as soon as it is there.

    A table that fails, or a machine that is taken away, so loses none of those before it.
    """
    pages: dict[str, list[Table]] = {}
    for name in args.tables():
        page, tables = "mamba" if name in OF_MAMBA else "core", TABLES[name](args, args.effort())
        console.print(rich_tables(tables))
        pages.setdefault(page, []).extend(tables)
        if args.write:
            write(Path(args.folder), page, PAGES[page], facts, pages[page])
    return pages


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog="python -m dqn_memory.benchmark")
    args.check()
    torch.set_num_threads(args.threads)
    set_tf32(False)
    facts = machine("dqn_memory.benchmark", argv)
    console = Console(width=WIDTH)  # a narrower terminal wraps lines, which is better than cutting cells
    for page, tables in measure(args, console, facts).items():
        console.print("\n".join(table.note for table in tables if page == "mamba"))
        if args.write:
            console.print(f"wrote {args.folder}/{page}.md and {args.folder}/{page}.json")


if __name__ == "__main__":
    main()
