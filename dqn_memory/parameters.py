"""Report how large every architecture is in every environment: `python -m dqn_memory.parameters`.

Prints one row a network. `--format csv` and `--format json` are for files and programs.
"""

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from torch import nn

from dqn_memory.blocks import PriorConfig
from dqn_memory.network import ARCHITECTURES, NetworkConfig
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
from envs.tables import Table
from envs.terminal import say


@dataclass(frozen=True)
class ParametersArgs:
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


# ---- count and print -------------------------------------------------------------------------------------------------
@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Count and print. A network that cannot meet the budget is left out, with a message."""
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
