"""Report how large every architecture is in every environment: `python -m dqn_memory.parameters`.

Prints one row a network. --write FOLDER writes the rows to parameters.csv, and the rows with the DBGFQN paper's Table 3
to parameters.md.
"""

import csv
import itertools
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from torch import nn

from dqn_memory.architectures import ARCHITECTURES
from dqn_memory.blocks import PriorConfig
from dqn_memory.network import NetworkConfig
from dqn_memory.runs.errors import UserError, one_line_errors
from dqn_memory.runs.modules import load_named
from dqn_memory.runs.settings import Repeatable, parse
from dqn_memory.size import (
    WIDTHS,
    EnvironmentSizes,
    Unmatched,
    count,
    environment_sizes,
    match,
    on_meta,
    parse_budget,
    published_count,
)
from envs.cli import WriteArgs
from envs.console import say
from envs.files import write_text
from envs.machine import revision
from envs.tables import Table, origin, tables_page

MISSING_COLUMNS = ("dbgfqn", "dtqn4")  # the proposed model and its baseline, which the paper's Table 3 leaves out
TEXTS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class ParametersArgs(WriteArgs):
    """Count the parameters of every architecture in every environment."""

    env: Repeatable = ()
    """Environment id; repeatable (none given: every environment of the paper's suite)."""
    architecture: Repeatable = ()
    """Architecture name; repeatable (none given: all)."""
    prior: str = "causal"
    """Attention prior; only the causal one has published counts."""
    form: Literal["paper", "paper_equations"] = "paper"
    """`paper`: Algorithm 1 and Table 3 of the DBGFQN paper; `paper_equations`: its equations."""
    context: int = 50
    """Context length K."""
    heads: int = 8
    """Attention heads H."""
    match: str | None = None
    """Trainable parameters to match, such as 100k or 1.5M: the largest width under it, then a wider Q head."""
    format: Literal["table", "json", "csv"] = "table"
    """Form of the printed rows; messages go to standard error."""
    plugin: Repeatable = ()
    """Module that registers blocks or architectures of your own; repeatable."""


# ---- rows ------------------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    """One environment and architecture. The first six names are stable for programs that read the report."""

    world: str
    architecture: str
    published: int | None  # with the causal masks that the reference counts; None without a paper form
    trainable: int
    frozen: int
    buffers: int
    width: int  # D
    head_width: int | None  # hidden units of the Q head; None where it is one linear map


def make_row(env: str, config: NetworkConfig, budget: int | None = None) -> Row:
    """Count `config` at the paper's width for this environment, or matched to `budget` trainable parameters."""
    return _counted(config, environment_sizes(env), budget)._replace(world=env.removeprefix("envs:"))


@cache  # most environments have the same sizes
def _counted(config: NetworkConfig, sizes: EnvironmentSizes, budget: int | None) -> Row:
    config = replace(config, width=sizes.width)
    if budget is not None:
        config = match(budget, config, sizes.spec, sizes.num_actions)
    network = on_meta(config, sizes.spec, sizes.num_actions)
    first = network.head[0] if isinstance(network.head, nn.Sequential) else None
    return Row(
        "", config.architecture, published_count(network), **vars(count(network)), width=config.width,
        head_width=first.out_features if isinstance(first, nn.Linear) else None,
    )  # fmt: skip


# ---- the page --------------------------------------------------------------------------------------------------------
@cache
def read_table3() -> dict[tuple[str, str], int]:
    """Read the counts that the DBGFQN paper's Table 3 prints, by environment and architecture."""
    with (Path(__file__).parent / "table3.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return {(line["env"], name): int(line[name]) for line in lines for name in line if name != "env"}


def page_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Make Table 3 with the paper's count beside ours, the division of the published counts, and all rows."""
    printed = read_table3()
    envs = dict.fromkeys([*(env for env, _ in printed), "Gridverse/Keydoor-5x5-v0"])  # the last is not in the paper's
    names = list(dict.fromkeys([*(name for _, name in printed), *MISSING_COLUMNS]))
    ours = {(env, name): make_row(env, NetworkConfig(architecture=name)) for env in envs for name in names}

    def compared(cell: tuple[str, str]) -> str:
        theirs, count = printed.get(cell), ours[cell].published
        return f"– / {count:,}" if theirs is None else f"{theirs:,} / {count:,} {'✓' if theirs == count else '✗'}"

    def divided(cell: tuple[str, str]) -> str:
        return f"{ours[cell].trainable:,} + {(ours[cell].published or 0) - ours[cell].trainable:,}"

    def table(write: Callable[[tuple[str, str]], str], title: str, note: str) -> Table:
        lines = [[env, *(write((env, name)) for name in names)] for env in envs]
        return Table(["world", *map(str.upper, names)], lines, title, note)

    matching = sum(ours[cell].published == value for cell, value in printed.items())
    yield table(compared, "The DBGFQN paper's Table 3", TEXTS["table3"].format(matching, len(printed)))
    yield table(divided, "Trainable parameters and causal masks", TEXTS["masks"])
    yield from _size_tables(rows)


def _size_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Make one table for each group of environments with equal rows."""
    alike: dict[tuple[Row, ...], list[str]] = {}
    for env in dict.fromkeys(row.world for row in rows):
        alike.setdefault(tuple(row._replace(world="") for row in rows if row.world == env), []).append(env)
    for several, envs in alike.items():
        sizes = environment_sizes(envs[0])
        spec, vocabulary = sizes.spec, f", V = {sizes.spec.vocabulary}" if sizes.spec.vocabulary else ""
        title = f"{spec.kind.capitalize()}, d = {spec.shape[0]}{vocabulary}, A = {sizes.num_actions}"
        yield Table(Row._fields[1:], [row[1:] for row in several], title, ", ".join(envs))


# ---- count, print, write ---------------------------------------------------------------------------------------------
@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count and print; write with --write. A network that cannot meet the budget is left out, with a message."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(ParametersArgs, argv, prog="python -m dqn_memory.parameters")
    load_named(argv)
    budget = None if args.match is None else parse_budget(args.match)
    base = NetworkConfig(heads=args.heads, context=args.context, form=args.form, prior=PriorConfig(kind=args.prior))
    rows, misses = [], []
    for env, name in itertools.product(args.env or WIDTHS, args.architecture or ARCHITECTURES):
        try:
            rows.append(make_row(env, replace(base, architecture=name), budget))
        except Unmatched as error:
            misses.append(f"{env}: {error}")
    if not rows:
        raise UserError(misses[0])
    table = Table(Row._fields, rows)
    if args.write is not None:
        facts = origin("dqn_memory.parameters", argv, revision=revision())
        lines = [f"{name}: {value}" for name, value in facts.items()]
        write_text(args.write / "parameters.csv", table.csv(lines))
        shown = facts | {"left out": "; ".join(misses) or None}
        write_text(args.write / "parameters.md", tables_page("Parameters", shown, page_tables(rows)))
        say(f"wrote {args.write}/parameters.md and {args.write}/parameters.csv", file=sys.stderr)
    for miss in misses:
        say(f"left out, {miss}", file=sys.stderr)
    forms = {
        "table": table.text,
        "csv": table.csv,
        "json": lambda: json.dumps([row._asdict() for row in rows], indent=1),
    }
    say(forms[args.format]().rstrip())


if __name__ == "__main__":
    main()
