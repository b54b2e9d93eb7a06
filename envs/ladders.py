"""List the ladders of difficulty, with the steps and the random score of each rung: `python -m envs.ladders`.

`LADDERS` has them by name. The id of a rung, such as `Ladder/hold-64-v0`, is one for `gymnasium.make` and for `--env`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from envs.baselines.players import mean_with_error, play_episodes, random_player
from envs.console import say
from envs.errors import check_known, one_line_errors, require
from envs.popgym.ladders import LADDERS, Ladder, Rung
from envs.registry import make_world
from envs.tables import Table, Value

__all__ = ["LADDERS", "Ladder", "Rung"]

FORMATS = {"random": ".3f", "error": ".3f"}


@dataclass(frozen=True, kw_only=True)
class Args:
    """List the rungs of ladders with the returns of random actions."""

    ladder: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME")] = ()
    """Name of a ladder; repeatable (none given: all)."""
    episodes: int = 1_000
    """Episodes with random actions on each rung."""
    seed: int = 0
    """Seed of these."""

    def check(self) -> None:
        """Refuse unknown ladders and numbers out of their bounds."""
        for name in self.ladder:
            check_known("ladder", name, LADDERS, "--ladder: ")
        for name, minimum in (("episodes", 2), ("seed", 0)):  # a standard error needs 2 episodes
            value = getattr(self, name)
            require(minimum <= value < 2**63, f"--{name} {value} must be at least {minimum}, and below 2**63.")


def rung_row(rung: Rung, args: Args) -> dict[str, Value]:
    """Play a rung at random."""
    world = make_world(rung.id)
    outcomes = play_episodes(world, random_player(world, args.seed + 1), args.episodes, args.seed)
    returns = mean_with_error(outcomes.returns)
    options = ", ".join(f"{name}={value}" for name, value in rung.kwargs.items())
    return {"id": rung.id, "keywords": options, "steps": rung.steps, "random": returns.mean, "error": returns.error}


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each ladder."""
    args = tyro.cli(Args, args=argv, prog="python -m envs.ladders")
    args.check()
    torch.set_num_threads(1)
    for name in dict.fromkeys(args.ladder or LADDERS):
        ladder = LADDERS[name]
        title = f"{name}: {ladder.asks}"
        rows = [rung_row(rung, args) for rung in ladder.rungs]
        say(Table.from_records(rows, title, formats=FORMATS).text(), end="\n\n")


if __name__ == "__main__":
    main()
