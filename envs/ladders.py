"""List the ladders of difficulty, with the steps and the reference scores of each rung: `python -m envs.ladders`.

`LADDERS` has them by name. The id of a rung, such as `Ladder/hold-64-v0`, is one for `gymnasium.make` and for `--env`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from envs.baselines.reference import LESS, shipped_references
from envs.console import say
from envs.errors import check_known, one_line_errors
from envs.popgym.ladders import LADDERS, Ladder, Rung
from envs.tables import Table, Value

__all__ = ["LADDERS", "Ladder", "Rung"]

FORMATS = dict.fromkeys(("random", *LESS, "perfect"), ".3f")


@dataclass(frozen=True, kw_only=True)
class Args:
    """List the rungs of ladders with their reference scores."""

    ladder: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME")] = ()
    """Name of a ladder; repeatable (none given: all)."""

    def check(self) -> None:
        """Refuse unknown ladders."""
        for name in self.ladder:
            check_known("ladder", name, LADDERS, "--ladder: ")


def rung_row(rung: Rung) -> dict[str, Value]:
    """Give a rung's keywords, its steps, and the returns of players who know more and more of the past."""
    scores = shipped_references()[rung.id]
    levels = {"random": scores.random, **scores.lines, "perfect": scores.lower}
    options = ", ".join(f"{name}={value}" for name, value in rung.kwargs.items())
    returns = {name: level.returns.mean for name, level in levels.items()}
    return {"id": rung.id, "keywords": options, "steps": rung.steps, **returns}


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each ladder."""
    args = tyro.cli(Args, args=argv, prog="python -m envs.ladders")
    args.check()
    for name in dict.fromkeys(args.ladder or LADDERS):
        ladder = LADDERS[name]
        rows = [rung_row(rung) for rung in ladder.rungs]
        say(Table.from_records(rows, f"{name}: {ladder.asks}", formats=FORMATS).text(), end="\n\n")


if __name__ == "__main__":
    main()
