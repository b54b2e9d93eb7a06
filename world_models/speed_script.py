"""What the benchmark scripts of both world models share: their flags, and the course from flags to pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import torch
from rich.console import Console

from dqn_memory.analysis.tables import machine, rich_tables
from dqn_memory.analysis.timing import Clock
from dqn_memory.benchmark_tables import Effort, Table
from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.runs.precision import set_tf32
from dqn_memory.runs.settings import Repeatable, parse
from world_models.speed_pages import put_section

WIDTH = 200


@dataclass(frozen=True)
class Measuring:
    """Flags of a benchmark."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A small preset on a cpu, the full size on cuda (auto: cuda where there is one)."""
    threads: int = 1
    """Threads of every matrix product on a CPU."""
    repetitions: int = 15
    """Turns of each alternative; medians are over these."""
    engine: Repeatable = ()
    """Engines to measure (none given: all that are meant for the device)."""
    only: Repeatable = ()
    """Tables to make (none given: all)."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    quick: bool = False
    """Two repetitions: shows that everything runs; its numbers mean nothing."""
    folder: str = "results/benchmarks"
    """Where the two files go. A device has a section of its own there, which is replaced whole: tables that were not
    asked for are not kept, those of another device and of runs are."""
    write: bool = True
    """Write the two files."""

    tables: ClassVar[tuple[str, ...]]  # known to --only
    on_cpu: ClassVar[tuple[str, ...]]  # engines
    on_cuda: ClassVar[tuple[str, ...]]
    warm_up: ClassVar[int] = 2

    def check(self) -> None:
        """One sentence for what cannot work."""
        for name, least in (("repetitions", 2), ("threads", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name} {getattr(self, name)} must be at least {least}")
        engines = self.on_cuda if self.place == "cuda" else self.on_cpu
        for what, given, known in (("table of --only", self.only, self.tables), ("--engine", self.engine, engines)):
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
        warm_up = min(self.warm_up, 2) if self.quick else self.warm_up
        return Effort(repetitions=2 if self.quick else self.repetitions, warm_up=warm_up, clock=self.clock)

    def wants(self, *tables: str) -> bool:
        """Whether one of the tables is to be made."""
        return not self.only or bool(set(self.only) & set(tables))


A = TypeVar("A", bound=Measuring)
Show = Callable[[Table], Table]


def publish(
    kind: type[A], module: str, argv: Sequence[str] | None, title: str, measure: Callable[[A, Show], None]
) -> None:
    """A benchmark's whole course: measure; print and write each table as soon as `measure` shows it.

    A table that fails, or a machine that is taken away, so loses none of those before it. A table that is shown again
    with more rows takes its own place.
    """
    argv = sys.argv[1:] if argv is None else argv
    args = parse(kind, argv, prog=f"python -m {module}")
    args.check()
    torch.set_num_threads(args.threads)
    set_tf32(False)
    facts, console, tables = machine(module, argv), Console(width=WIDTH), list[Table]()
    name = module.split(".")[1]

    def show(table: Table) -> Table:
        console.print(rich_tables([table]))
        tables[:] = [*(earlier for earlier in tables if earlier.title != table.title), table]
        if args.write:
            put_section(Path(args.folder), name, title, args.place, facts, tables)
        return table

    measure(args, show)
    if args.write:
        console.print(f"wrote {args.folder}/{name}.md and {args.folder}/{name}.json")
