"""How large every architecture is in every world: `python -m dqn_memory.parameters`.

Prints one row a network, and writes the same rows with the paper's Table 3 beside them into results/.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import track

from dqn_memory.analysis.size import WORLD_TABLE, Unmatched, parse_budget, world_row
from dqn_memory.architectures import ARCHITECTURES
from dqn_memory.blocks import PriorConfig
from dqn_memory.network import NetworkConfig
from dqn_memory.parameter_pages import csv_page, markdown_page, text_page
from dqn_memory.parameter_rows import Row, make_row
from dqn_memory.runs.errors import UserError, near_names, one_line_errors
from dqn_memory.runs.files import disk_errors, write_atomic
from dqn_memory.runs.machine import describe_environment
from dqn_memory.runs.settings import Repeatable, load_plugins, parse


@dataclass(frozen=True)
class Args:
    """Count the parameters of every architecture in every world."""

    world: tuple[str, ...] = ()
    """World ids (none given: every world of the table, registered yet or not)."""
    architecture: tuple[str, ...] = ()
    """Architecture names (none given: all)."""
    prior: str = "causal"
    """Attention prior; counts as published are given for the causal one only."""
    form: Literal["paper", "paper_equations"] = "paper"
    """`paper` is the DBGFQN paper's Algorithm 1 with Table 3's counts, `paper_equations` its equations."""
    context: int = 50
    """Context length K."""
    heads: int = 8
    """Attention heads H."""
    match: str | None = None
    """Trainable parameters to match, such as 100k or 1.5M: the widest D under it, then a wider Q head."""
    time: bool = False
    """Measure the milliseconds of one update, a few seconds for each network."""
    format: Literal["table", "json", "csv"] = "table"
    """What is printed; messages go to standard error."""
    write: bool = True
    """Write parameters.md and parameters.csv."""
    results: str = "results"
    """Folder of the two files."""
    plugin: Repeatable = ()
    """Modules imported first, which register blocks or architectures of their own."""


def collect(args: Args) -> tuple[list[Row], list[str]]:
    """All rows asked for, and one sentence for each network that cannot meet the budget."""
    budget = None if args.match is None else parse_budget(args.match)
    rows, misses = [], []
    networks, console = selected(args), Console(stderr=True)
    for world, architecture in track(networks, "timing", console=console, disable=not args.time):
        try:
            rows.append(make_row(world, network_config(args, architecture), budget, args.time))
        except Unmatched as error:
            misses.append(f"{world}: {error}")
    if not rows:
        raise UserError(misses[0])
    return rows, misses


def selected(args: Args) -> list[tuple[str, str]]:
    """World ids with architecture names, all known; a UserError offers names near to an unknown one."""
    worlds, architectures = args.world or tuple(WORLD_TABLE), args.architecture or tuple(ARCHITECTURES)
    for world in worlds:
        world_row(world)
    for name in architectures:
        if name not in ARCHITECTURES:
            raise UserError(near_names("architecture", name, ARCHITECTURES))
    return [(world, name) for world in worlds for name in architectures]


def network_config(args: Args, architecture: str) -> NetworkConfig:
    """The network of one row; its width comes from the world, or from the budget."""
    return NetworkConfig(
        architecture=architecture, heads=args.heads, context=args.context, form=args.form,
        prior=PriorConfig(kind=args.prior),
    )  # fmt: skip


def show(args: Args, rows: Sequence[Row]) -> str:
    """What standard output gets."""
    if args.format == "json":
        return json.dumps([asdict(row) for row in rows], indent=1)
    return csv_page(rows).rstrip() if args.format == "csv" else text_page(rows)


def origin(argv: Sequence[str], timed: bool) -> list[str]:
    """Where a results file comes from: the command, the revision and, for times, the machine."""
    facts = describe_environment()
    revision = facts["revision"] or "unknown"
    changed = " (with uncommitted changes)" if facts["revision"] and facts["dirty"] else ""
    lines = [
        f"command: {shlex.join(['python', '-m', 'dqn_memory.parameters', *argv])}",
        f"revision: {revision}{changed}",
    ]
    machine = f"machine: {facts['cpu']}, {facts['threads']} thread(s), torch {facts['torch']}"
    return [*lines, machine] if timed else lines


def write(folder: Path, rows: Sequence[Row], source: Sequence[str], misses: Sequence[str]) -> None:
    """Put parameters.md and parameters.csv into `folder`; a UserError says what the disk refused."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "parameters.md", markdown_page(rows, source, misses).encode())
    write_atomic(folder / "parameters.csv", csv_page(rows, source).encode())


def put(text: str) -> None:
    """Print to a reader that may stop early, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # the interpreter flushes once more at its end, which would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(Args, argv, prog="python -m dqn_memory.parameters")
    load_plugins(args.plugin)
    rows, misses = collect(args)
    if args.write:
        write(Path(args.results), rows, origin(argv, args.time), misses)
        print(f"wrote {args.results}/parameters.md and {args.results}/parameters.csv", file=sys.stderr)
    for miss in misses:
        print(f"left out, {miss}", file=sys.stderr)
    put(show(args, rows))


if __name__ == "__main__":
    main()
