"""How fast the core is: `python -m dqn_memory.benchmark`.

Every number stands beside that of a baseline which computes the published update as its reference does, measured in
the same process by turns. Prints the tables and writes them, with the machine, into results/benchmarks/.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from dqn_memory.benchmark_cuda import graph_table, training_table
from dqn_memory.benchmark_pages import markdown_page, rich_tables
from dqn_memory.benchmark_tables import Effort, Table, acting_table, update_table, window_table, world_table
from dqn_memory.configuration import Repeatable, parse
from dqn_memory.environment import describe_environment
from dqn_memory.errors import UserError, near_names, one_line_errors
from dqn_memory.files import disk_errors, write_atomic
from dqn_memory.stopwatch import Clock

WIDTH = 170


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
    """Tables to make (none given: all that this machine can): update, windows, acting, worlds; with a CUDA device
    also graphs (eager against captured updates) and training (environment steps/s with one update a step)."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    quick: bool = False
    """Two repetitions of small batches: shows that everything runs; its numbers mean nothing."""
    folder: str = "results/benchmarks"
    """Where core.md and core.json go, whole: tables that were not asked for are not kept."""
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
            return Effort(repetitions=2, warm_up=1, batch=4, columns=60, matrix=128, clock=self.clock)
        return Effort(repetitions=self.repetitions, clock=self.clock)


TABLES: dict[str, Callable[[Args, Effort], Table]] = {
    "update": lambda args, effort: update_table(effort, args.compile),
    "windows": lambda args, effort: window_table(effort),
    "acting": lambda args, effort: acting_table(effort),
    "worlds": lambda args, effort: world_table(effort),
    "graphs": lambda args, effort: graph_table(effort),
    "training": lambda args, effort: training_table(args.quick),
}
ON_CUDA = ("graphs", "training")


def measure(args: Args, console: Console) -> list[Table]:
    """All tables that were asked for, each printed as soon as it is there."""
    tables = []
    for name in args.tables():
        table = TABLES[name](args, args.effort())
        console.print(rich_tables([table]))
        tables.append(table)
    return tables


def machine(argv: Sequence[str]) -> dict[str, object]:
    """What the numbers depend on."""
    facts = describe_environment()
    names = ("cpu", "cores", "torch", "python", "threads", "revision", "dirty", "platform")
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    facts |= {"cores": torch.multiprocessing.cpu_count()}
    command = shlex.join(["python", "-m", "dqn_memory.benchmark", *argv])
    return {"command": command, "accelerator": cuda, **{name: facts[name] for name in names}}


def write(folder: Path, facts: dict[str, object], tables: Sequence[Table]) -> None:
    """Put core.md and core.json into `folder`; a UserError says what the disk refused."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    page = {"machine": facts, "tables": [asdict(table) for table in tables]}
    write_atomic(folder / "core.json", (json.dumps(page, indent=1) + "\n").encode())
    write_atomic(folder / "core.md", markdown_page(facts, tables).encode())


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog="python -m dqn_memory.benchmark")
    args.check()
    torch.set_num_threads(args.threads)
    facts = machine(argv)
    console = Console(width=WIDTH)  # a narrower terminal wraps lines, which is better than cutting cells
    tables = measure(args, console)
    if args.write:
        write(Path(args.folder), facts, tables)
        console.print(f"wrote {args.folder}/core.md and {args.folder}/core.json")


if __name__ == "__main__":
    main()
