"""Report how large every architecture is in every environment: `python -m dqn_memory.parameters`.

Prints one row a network, and writes the same rows with the DBGFQN paper's Table 3 beside them into results/.
"""

from __future__ import annotations

import copy
import csv
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from dqn_memory.analysis.size import (
    ENVIRONMENTS,
    Unmatched,
    count,
    environment_sizes,
    forward_operations,
    match,
    on_meta,
    parse_budget,
    part_counts,
    published_count,
)
from dqn_memory.analysis.timing import full_replay
from dqn_memory.blocks import PriorConfig
from dqn_memory.config import LearnerConfig
from dqn_memory.network import ARCHITECTURES, NetworkConfig, ObservationSpec, QNetwork
from dqn_memory.runs.errors import UserError, near_names, one_line_errors
from dqn_memory.runs.settings import Repeatable, load_plugins, parse
from dqn_memory.train import make_optimizer, sample, update
from envs.files import disk_errors, write_atomic
from envs.machine import benchmark_facts
from envs.tables import Table

MISSING_COLUMNS = ("dbgfqn", "dtqn4")  # the proposed model and its baseline, which the paper's Table 3 leaves out
UNCOUNTED_UPDATES = 2  # the first ones allocate memory

DEFINITIONS = """\
- **published**: the count as the reference prints it: trainable parameters and, for each attention
  layer, the K x K cells of a causal mask that it keeps as a frozen parameter. Blank where the paper and
  its reference have no such network.
- **trainable**, **frozen**: parameters that an optimiser changes, and those that none does. **buffers**:
  elements of tables that are not parameters (positions, distances).
- **flops**: floating-point operations of one forward pass over a full window of K observations, batch 1:
  two for each multiply-add of linear maps, recurrences and gates, and 4 K^2 D for each attention (all K
  x K scores, masked ones included). Look-ups, biases, activations, softmax, LayerNorm and priors are not
  counted.
- **width**: D. **head_width**: hidden units of the Q head. **embedding ... head**: how the trainable
  parameters divide.
- **ms_per_update**: median time of one update with the learner's defaults on full windows, if asked for."""


@dataclass(frozen=True)
class Args:
    """Count the parameters of every architecture in every environment."""

    env: tuple[str, ...] = ()
    """Environment ids (none given: every environment of the table, registered yet or not)."""
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

    def network(self, architecture: str) -> NetworkConfig:
        """Give the network of one row; its width comes from the environment, or from the budget."""
        return NetworkConfig(
            architecture=architecture, heads=self.heads, context=self.context, form=self.form,
            prior=PriorConfig(kind=self.prior),
        )  # fmt: skip

    def selected(self) -> list[tuple[str, str]]:
        """List environment ids with architecture names; a UserError offers names near to an unknown one."""
        envs, architectures = self.env or tuple(ENVIRONMENTS), self.architecture or tuple(ARCHITECTURES)
        for env in envs:
            environment_sizes(env)
        for name in architectures:
            if name not in ARCHITECTURES:
                raise UserError(near_names("architecture", name, ARCHITECTURES))
        return [(env, name) for env in envs for name in architectures]


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One environment and architecture. The first six names are stable for programs that read the report."""

    world: str
    architecture: str
    published: int | None  # with the causal masks that the reference counts; None without a paper form
    trainable: int
    frozen: int
    buffers: int
    flops: int  # of one forward pass over a full window, batch 1
    width: int  # D
    head_width: int | None  # hidden units of the Q head; None where it is one linear map
    embedding: int  # trainable parameters of each part, from here on
    positions: int
    encoder: int
    norm: int
    head: int
    ms_per_update: float | None = None


COLUMNS = tuple(field.name for field in fields(Row))


def collect(args: Args) -> tuple[list[Row], list[str]]:
    """Count all networks asked for; give the rows, and one sentence for each network that cannot meet the budget."""
    budget = None if args.match is None else parse_budget(args.match)
    rows, misses = [], []
    for env, architecture in track(args.selected(), "timing", console=Console(stderr=True), disable=not args.time):
        try:
            rows.append(make_row(env, args.network(architecture), budget, args.time))
        except Unmatched as error:
            misses.append(f"{env}: {error}")
    if not rows:
        raise UserError(misses[0])
    return rows, misses


def make_row(env: str, config: NetworkConfig, budget: int | None = None, timed: bool = False) -> Row:
    """Count `config` at the paper's width for this environment, or matched to `budget` trainable parameters."""
    sizes = environment_sizes(env)
    config = replace(config, width=sizes.width)
    counts = _counted(config, sizes.spec(), sizes.num_actions, budget, timed)
    return replace(counts, world=env.removeprefix("envs:"))


@cache  # most environments have the same sizes
def _counted(config: NetworkConfig, spec: ObservationSpec, num_actions: int, budget: int | None, timed: bool) -> Row:
    if budget is not None:
        config = match(budget, config, spec, num_actions)
    network = on_meta(config, spec, num_actions)
    counts = count(network)
    return Row(
        world="", architecture=config.architecture, published=published_count(network),
        trainable=counts.trainable, frozen=counts.frozen, buffers=counts.buffers,
        flops=forward_operations(network), width=config.width, head_width=_hidden_units(network),
        **part_counts(network),
        ms_per_update=round(milliseconds_per_update(config, spec, num_actions), 2) if timed else None,
    )  # fmt: skip


def _hidden_units(network: QNetwork) -> int | None:
    head = network.head
    first = head[0] if isinstance(head, nn.Sequential) else None
    return first.out_features if isinstance(first, nn.Linear) else None


def milliseconds_per_update(config: NetworkConfig, spec: ObservationSpec, num_actions: int, updates: int = 10) -> float:
    """Give the median time of one update with the learner's defaults on full windows of K steps.

    Sampling, three forwards, backward, clipping and Adam; eager, float32, on the CPU with torch's threads.
    """
    learner, draws = LearnerConfig(), torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = config.build(spec, num_actions)
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = make_optimizer(network, learner)
    replay = full_replay(spec, num_actions, config.context, draws)
    ends = learner.contexts_per_window(network)
    seconds = []
    for _ in range(UNCOUNTED_UPDATES + updates):
        began = time.perf_counter()
        update(network, target, optimizer, sample(replay, learner, config.context, ends, draws), learner)
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds[UNCOUNTED_UPDATES:])


# ---- pages -----------------------------------------------------------------------------------------------------------


def table_of(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> Table:
    """Make a table of these columns."""
    return Table(columns, [[getattr(row, name) for name in columns] for row in rows])


@cache
def read_table3() -> dict[tuple[str, str], int]:
    """Read the counts that the DBGFQN paper's Table 3 prints, by environment and architecture."""
    with (Path(__file__).parent / "table3.csv").open(encoding="utf-8") as file:
        return {
            (line["env"], name): int(value)
            for line in csv.DictReader(file)
            for name, value in line.items()
            if name != "env"
        }


def markdown_page(rows: Sequence[Row], origin: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Write the whole report: definitions, Table 3 and its reconciliation, then all rows."""
    sections = [
        "# Parameters",
        "\n".join(f"- {line}" for line in origin),
        "## What is counted\n\n" + DEFINITIONS,
        *_table3_sections(),
        *_size_sections(rows),
    ]
    if notes:
        sections.append("## Left out\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(sections) + "\n"


def _table3_sections() -> Iterable[str]:
    """Put the paper's count beside ours in every cell; then tell what a published count is made of."""
    printed = read_table3()
    envs = list(dict.fromkeys([*(env for env, _ in printed), "Gridverse/Keydoor-5x5-v0"]))  # not in the paper's table
    names = list(dict.fromkeys([*(name for _, name in printed), *MISSING_COLUMNS]))
    columns = ["world", *(name.upper() for name in names)]
    rows = {(env, name): make_row(env, NetworkConfig(architecture=name)) for env in envs for name in names}
    matching = sum(rows[cell].published == value for cell, value in printed.items())

    def compared(cell: tuple[str, str]) -> str:
        theirs, ours = printed.get(cell), rows[cell].published
        return f"– / {ours:,}" if theirs is None else f"{theirs:,} / {ours:,} {'✓' if theirs == ours else '✗'}"

    def divided(row: Row) -> str:
        return f"{row.trainable:,} + {(row.published or 0) - row.trainable:,}"

    table = Table(columns, [[env, *(compared((env, name)) for name in names)] for env in envs])
    yield (
        "## The DBGFQN paper's Table 3\n\n"
        f"Paper / ours, for K = 50 and the causal prior: {matching} of {len(printed)} printed cells match. "
        "A dash is a cell that the paper does not print; its DBGFQN and DTQN4 columns are filled in here.\n\n"
        + table.markdown()
    )
    table = Table(columns, [[env, *(divided(rows[env, name]) for name in names)] for env in envs])
    yield (
        "## Trainable parameters and causal masks\n\n"
        "Published = trainable + masks; the masks are 2 layers x 50 x 50 cells that never learn. "
        "Here they are not parameters, and not stored.\n\n" + table.markdown()
    )


def _size_sections(rows: Sequence[Row]) -> Iterable[str]:
    """One table for all environments whose rows are the same."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.world, []).append(row)
    alike: dict[str, list[str]] = {}
    for env, members in groups.items():
        alike.setdefault(table_of(members, COLUMNS[1:]).markdown(), []).append(env)
    for table, envs in alike.items():
        sizes = environment_sizes(envs[0])
        vocabulary = f", V = {sizes.vocabulary}" if sizes.kind == "discrete" else ""
        title = f"## {sizes.kind.capitalize()}, d = {sizes.components}{vocabulary}, A = {sizes.num_actions}"
        yield f"{title}\n\n{', '.join(envs)}\n\n{table}"


# ---- print and write -------------------------------------------------------------------------------------------------


def show(args: Args, rows: Sequence[Row]) -> str:
    """Format the rows for standard output."""
    if args.format == "json":
        return json.dumps([asdict(row) for row in rows], indent=1)
    return table_of(rows).csv().rstrip() if args.format == "csv" else table_of(rows).text()


def origin(argv: Sequence[str], timed: bool) -> list[str]:
    """Say where a results file comes from: the command, the revision and, for times, the machine."""
    facts = benchmark_facts()
    changed = " (with uncommitted changes)" if facts["revision"] and facts["dirty"] else ""
    lines = [
        f"command: {shlex.join(['python', '-m', 'dqn_memory.parameters', *argv])}",
        f"revision: {facts['revision'] or 'unknown'}{changed}",
    ]
    machine = f"machine: {facts['cpu']}, {facts['threads']} thread(s), torch {facts['torch']}"
    return [*lines, machine] if timed else lines


def write(folder: Path, rows: Sequence[Row], source: Sequence[str], misses: Sequence[str]) -> None:
    """Put parameters.md and parameters.csv into `folder`; a UserError says what the disk refused."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "parameters.md", markdown_page(rows, source, misses).encode())
    write_atomic(folder / "parameters.csv", table_of(rows).csv(source).encode())


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
