"""How fast the worlds are: `python -m envs.benchmark`.

Measures every registered world, one at a time and 1,024 side by side, against the originals' steps; on an accelerator
(`--device cuda`) 65,536 worlds inside one CUDA graph. Prints the table and writes it, with the machine, into
results/benchmarks/worlds.{md,json}.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.console import Console

from envs.benchmark_cuda import IDS, graph_row
from envs.benchmark_measures import Clock, Effort, world_row
from envs.benchmark_pages import Table, terminal, write
from envs.errors import UserError, near_names
from envs.machine import machine
from envs.registry import WORLDS

NEED_A_FILE = ("Gridverse/Yaml-v0", "POMDP/File-v0")
WORLDS_NOTE = (
    "Steps per second with random actions, resets included: `one` world through `gymnasium.make`, `many`: 1,024 "
    "through `gymnasium.make_vec` in SAME_STEP mode, all rows together; medians of the repetitions. `original`: steps "
    "per second of the original environment, its resets not counted (`envs/benchmark_originals.py`); `ratio`: ours "
    "over that; `bar`: what is asked for; `holds`: whether it is reached."
)
GRAPH_NOTE = (
    "Steps per second of all worlds together inside one CUDA graph: random numbers, actions, steps and resets of "
    "finished worlds. `episodes`: those that ended while it was timed."
)


@dataclass(frozen=True)
class Args:
    """Measure how many steps per second the worlds take."""

    device: Literal["cpu", "cuda"] = "cpu"
    """`cuda` measures many worlds inside one CUDA graph instead of the Gymnasium environments."""
    only: tuple[str, ...] = ()
    """Ids to measure; none given: all (on `cuda`: the two that have a bar)."""
    threads: int = 1
    """Threads of torch on the CPU; a step of 1,024 worlds is too little work to gain from more."""
    clock: Clock = "wall"
    """`cpu` counts the time that the process was given, for a machine that others use too."""
    quick: bool = False
    """Few steps: shows that everything runs; its numbers mean nothing."""
    folder: Path = Path("results/benchmarks")
    """Where worlds.md and worlds.json go."""
    write: bool = True
    """Write the two files."""

    def check(self) -> None:
        """One sentence for what cannot work."""
        for id in self.only:
            if id not in WORLDS:
                raise UserError(f"--only: {near_names('world', id, WORLDS)}")
            if id in NEED_A_FILE:
                raise UserError(f"--only {id}: its file decides what it is; name a world that needs none.")
        if self.threads < 1:
            raise UserError(f"--threads must be at least 1, not {self.threads}.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here; leave it out, or run where there is one.")

    def ids(self) -> list[str]:
        """What is to be measured."""
        every = list(IDS) if self.device == "cuda" else [id for id in WORLDS if id not in NEED_A_FILE]
        return list(self.only) or every

    def effort(self) -> Effort:
        """How much is measured."""
        quick = Effort(repetitions=2, single_steps=20, many=16, many_steps=5, warm_up=5, clock=self.clock)
        return quick if self.quick else Effort(clock=self.clock)


def measure(args: Args, console: Console) -> Table:
    """The table, with a line for each world as soon as it is measured."""
    rows = []
    with console.status("") as status:
        for id in args.ids():
            status.update(id)
            rows.append(graph_row(id) if args.device == "cuda" else world_row(id, args.effort()))
    if args.device == "cuda":
        return Table("Many worlds inside one CUDA graph", GRAPH_NOTE, rows)
    return Table("Worlds on a CPU", WORLDS_NOTE, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = tyro.cli(Args, args=words, prog="python -m envs.benchmark")
    try:
        args.check()
        torch.set_num_threads(args.threads)
        facts = {"command": shlex.join(["python", "-m", "envs.benchmark", *words]), **machine()}
        console = Console(width=170)  # a narrower terminal wraps lines, which is better than cutting cells
        table = measure(args, console)
        console.print(terminal(table))
        if args.write:
            write(args.folder, facts, [table])
            console.print(f"wrote {args.folder}/worlds.md and {args.folder}/worlds.json")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
