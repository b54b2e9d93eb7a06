"""How far one gets without a memory: `python -m envs.memoryless WORLD_ID`.

Searches the best reactive policy, from the newest observation alone to an action (a table), or to chances of actions.
What it finds is a lower bound on the best reactive policy: every number is that of a policy, and nothing proves that
there is no better one. How many restarts of the search end with the best value says how firm it is. Pictures and
numbers are told apart as they are, the components of a continuous observation by the cells of a grid (`games.BINS`).

A table may do without a memory what a memory would do: where the body stands, how fast it moves and where it looks are
seen, and a policy can arrange that they say what was seen before.

Writes results/memoryless.json and memoryless.md; worlds that are not asked for keep their place there.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from envs.cli import Options, Plugins, check_id, keywords, load_plugins, named
from envs.contract import probe
from envs.errors import UserError
from envs.files import make_folder, write_text
from envs.machine import cpu, revision
from envs.memoryless import pages
from envs.memoryless.climb import MEASURES, Climbed, Effort, certain, climb, soften
from envs.memoryless.games import Game, make_game
from envs.memoryless.pages import Found, Record
from envs.registry import make_world


@dataclass(frozen=True)
class Args:
    """Search the best policy without a memory in one world, and keep what it reaches."""

    id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="WORLD_ID")]
    """The world."""
    options: Options = ()
    """Keywords of the world and their values, such as grid 5 blink 4, or path my.pomdp."""
    plugin: Plugins = ()
    """A module that registers worlds of your own, by its name without .py; repeatable."""
    restarts: int = 16
    """Searches from tables of their own."""
    sweeps: int = 8
    """Most passes of a search over everything that can be seen."""
    patience: int = 2
    """Passes without a gain after which it ends."""
    updates: int = 100
    """Updates of the chances, which begin at the best table."""
    episodes: int = 200
    """Starts that a search judges by, where they cannot all be tried."""
    fresh: int = 10_000
    """Other episodes that its result is judged by then."""
    seed: int = 0
    """Seed of the searches."""
    folder: str = "results"
    """Where memoryless.json and memoryless.md go."""
    write: bool = True
    """Write the two files."""

    def check(self) -> None:
        """One sentence for what cannot work."""
        check_id(self.id, self.plugin)
        keywords(self.options)
        for name in ("restarts", "sweeps", "patience", "updates", "episodes", "fresh"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 1.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} must not be negative.")

    @property
    def name(self) -> str:
        """The world with its keywords."""
        return named(self.id, keywords(self.options))


def search(game: Game, measure: int, climbed: Climbed, effort: Effort) -> Found:
    """How good the best table of a search by success or by return is, and the best chances that begin at it."""
    table = game.judge(certain(climbed.best, game.actions))
    chances = game.judge(soften(game, measure, climbed.best, effort))
    return Found(
        table=[float(value) for value in table], chances=[float(value) for value in chances], reached=climbed.reached
    )


def compute(args: Args, command: str) -> Record:
    """Both searches in one world."""
    begin = time.perf_counter()
    world = make_world(args.id, "cpu", **keywords(args.options))
    probe(world)
    game = make_game(world, args.episodes, args.seed, args.fresh)
    effort = Effort(args.restarts, args.sweeps, args.patience, args.updates, args.seed)
    found, climbed = {}, None
    for measure, name in enumerate(MEASURES):
        climbed = climb(game, measure, effort, climbed)
        found[name] = search(game, measure, climbed, effort)
    return Record(
        found=found, looks=game.looks, exact=game.exact, restarts=args.restarts,
        episodes=None if game.exact else args.fresh, time_limit=world.time_limit, seed=args.seed, command=command,
        revision=revision(), machine=cpu(), seconds=round(time.perf_counter() - begin, 1),
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Search, print, write."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m envs.memoryless")
    load_plugins(args.plugin)
    args.check()
    torch.set_num_threads(1)
    folder = Path(args.folder)
    if args.write:
        pages.read(folder / "memoryless.json")  # before the search, whose result would be lost with it
        make_folder(folder)
    record = compute(args, shlex.join(["python", "-m", "envs.memoryless", *argv]))
    print(pages.in_words(args.name, record))
    if args.write:
        records = pages.read(folder / "memoryless.json") | {args.name: record}
        plain = {name: asdict(entry) for name, entry in sorted(records.items())}
        write_text(folder / "memoryless.json", json.dumps(plain, indent=1) + "\n")
        write_text(folder / "memoryless.md", pages.markdown(dict(sorted(records.items()))))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
