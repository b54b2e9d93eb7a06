"""How good is good: `python -m envs.baselines`.

Computes, for every world, what random actions reach and the best that is known, and writes results/baselines.md,
.csv and .json. Rows that are not asked for by --only keep their place in the files.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w
import torch
import tyro

from envs.baselines import report
from envs.baselines.bounds import SCRIPTED, Effort, best, random_level
from envs.baselines.known import SHIPPED, Lines, plain
from envs.baselines.record import Record, as_json, read
from envs.errors import UserError
from envs.kept import make_folder, put
from envs.machine import cpu, revision
from envs.registry import WORLDS, make_world, near_names


@dataclass(frozen=True)
class Args:
    """Measure random actions and the best known players, and write the table of both."""

    only: tuple[str, ...] = ()
    """Ids of the worlds to compute (none given: all that need no file)."""
    episodes: int = 4_000
    """Episodes of random actions, and of all that plays many at once."""
    scripted_episodes: int = 1_000
    """Episodes of the scripted players of rooms and Keydoor, which take turns."""
    seed: int = 0
    """Seed of worlds and players."""
    gap: float = 0.01
    """Difference between the bounds on a tabular world's discounted value at which the search for it ends."""
    size: int = 2_500
    """Vectors and points of these bounds after which the search for it gives up; Hallway's gap closes slowly."""
    folder: str = "results"
    """Where baselines.md, .csv and .json go."""
    write: bool = True
    """Write the three files."""
    ship: bool = False
    """Also write lines.toml in the package, which scripts read to print the two lines beside their scores."""

    def check(self) -> None:
        """One sentence for what cannot work."""
        for flag, value in (("episodes", self.episodes), ("scripted-episodes", self.scripted_episodes)):
            if value < 2:
                raise UserError(f"--{flag} {value} must be at least 2, for a standard error.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} must not be negative.")
        if not self.gap > 0.0 or self.size < 1:
            raise UserError(f"--gap {self.gap} must be above 0 and --size {self.size} at least 1.")
        for id in self.only:
            if id.removeprefix("envs:") not in WORLDS:
                raise UserError(f"There is no world {id!r}; {near_names(id, WORLDS)}")

    def ids(self) -> list[str]:
        """What is to be computed, in the order of the table; worlds that are made from a file have no one answer."""
        wanted = [id.removeprefix("envs:") for id in self.only]
        return [id for id in WORLDS if id in wanted or (not wanted and id not in FROM_FILES)]


FROM_FILES = ("Gridverse/Yaml-v0", "POMDP/File-v0")


def compute(id: str, args: Args, command: str) -> Record:
    """The record of one world with its default options."""
    begin = time.perf_counter()
    world = make_world(id)
    effort = Effort(args.episodes, args.scripted_episodes, args.seed, args.gap, args.size)
    found = best(world, effort)
    lines = Lines(
        id=id,
        time_limit=world.time_limit,
        random=random_level(world, effort),
        lower=found.lower,
        upper=found.upper,
        episodes=args.episodes,
        scripted_episodes=args.scripted_episodes if SCRIPTED in found.lower.kind else 0,
        seed=args.seed,
        revision=revision(),
        discounted=found.discounted,
    )
    return Record(lines, command, cpu(), round(time.perf_counter() - begin, 1))


def main(argv: Sequence[str] | None = None) -> None:
    """Compute, print, write after every world, so that nothing is lost when it is stopped."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m envs.baselines")
    args.check()
    torch.set_num_threads(1)
    command = shlex.join(["python", "-m", "envs.baselines", *argv])
    folder = Path(args.folder)
    records = read(folder / "baselines.json")
    if args.write:
        make_folder(folder)
    for id in args.ids():
        records[id] = compute(id, args, command)
        lines = records[id].lines
        print(f"{id:<48} random {report.show(lines.random.success):<16} best {report.best(lines)}", flush=True)
        if args.write:
            write(folder, {id: records[id] for id in WORLDS if id in records}, args.ship)


def write(folder: Path, records: dict[str, Record], ship: bool) -> None:
    """The three files, and the shipped one."""
    put(folder / "baselines.json", as_json(records))
    put(folder / "baselines.csv", report.as_csv(records))
    put(folder / "baselines.md", report.markdown(records))
    if ship:
        put(SHIPPED, tomli_w.dumps({id: plain(record.lines) for id, record in records.items()}))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
