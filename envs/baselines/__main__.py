"""Compute reference scores: `python -m envs.baselines`.

Prints the scores of random actions and the best known scores of every environment. --write FOLDER writes baselines.md
and .json; rows of other environments than those of --env stay. MiniGrid's memory rooms and rungs of ladders are played
if --env names them.
"""

import fnmatch
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import tyro

from envs.baselines.best import Best, Budget
from envs.baselines.bounds import BY_CHANCE, POINT_BASED, bounds_of
from envs.baselines.minigrid_players import PLAYED, ROOMS, MemoryRoom
from envs.baselines.players import play_episodes, random_player, sampled_level
from envs.baselines.reference import (
    LESS,
    UNKNOWN,
    Level,
    ReferenceScores,
    read_references,
    reference_of,
    references_json,
    references_page,
)
from envs.checker import probe
from envs.cli import Ids, Options, Plugins, WriteArgs, check_id, keywords, load_plugins, row_name
from envs.console import say
from envs.core import World
from envs.errors import UserError, one_line_errors, require
from envs.files import make_folder, write_text
from envs.machine import cpu, revision
from envs.packages import make_env
from envs.popgym.ladders import RUNGS
from envs.registry import FROM_FILES, WORLDS, make_world


@dataclass(frozen=True)
class Args(Budget, WriteArgs):
    """Measure random actions and the best known players."""

    env: Ids = ()
    """Id or a pattern such as 'POPGym/*'; repeatable (none: all but ladders, MiniGrid and those from files)."""
    options: Options = ()
    """Keywords and values of the environment of --env, such as path my.pomdp."""
    plugin: Plugins = ()
    """A module that registers environments of your own, by its name without .py; repeatable."""

    def check(self) -> None:
        for name, minimum in (("episodes", 2), ("seed", 0), ("size", 1)):  # a standard error needs 2 episodes
            value = getattr(self, name)
            require(minimum <= value < 2**63, f"--{name} {value} must be at least {minimum}, and below 2**63.")
        require(self.gap > 0.0, f"--gap {self.gap} must be above 0.")
        for id in self.env:
            if fnmatch.filter(known_ids(), id):
                continue
            if id.startswith("MiniGrid-"):
                raise UserError(f"--env {id} is none of MiniGrid's memory rooms, which are {', '.join(ROOMS)}.")
            check_id(id, self.plugin)
        if self.options and len(self.ids()) != 1:
            raise UserError("--options belong to one environment; name it with --env.")
        if self.options and set(self.ids()) & set(ROOMS):
            raise UserError("MiniGrid's memory rooms are played as they are; leave out --options.")

    def ids(self) -> list[str]:
        """List the environments to compute, in the registry's order; by default without those from a file."""
        wanted = [id.removeprefix("envs:") for id in self.env]
        named = {id for pattern in wanted for id in fnmatch.filter(known_ids(), pattern)}
        by_default = () if wanted else set(WORLDS).difference(FROM_FILES)
        return [id for id in known_ids() if id in named or id in by_default]

    def worlds(self) -> dict[str, World[Any] | MemoryRoom]:
        """Make the environments by the names of their rows, and check all before the first is computed."""
        given, rooms = keywords(self.options), [id for id in self.ids() if id in ROOMS]
        made = {row_name(id, given): make_world(id, **given) for id in self.ids() if id not in ROOMS}
        for world in made.values():
            probe(world)
        for id in rooms:
            make_env(id).close()
        return {**made, **{id: MemoryRoom(id) for id in rooms}}


def known_ids() -> tuple[str, ...]:
    """List the ids in the order of rows: the registry, which plugins may add to, rungs, and MiniGrid's memory rooms."""
    return (*WORLDS, *RUNGS, *ROOMS)


def play_world(id: str, world: World[Any] | MemoryRoom, args: Args) -> tuple[Level, Best]:
    """Measure random actions, and find the best; print why if no player is known, except beside a shipped row."""
    if isinstance(world, MemoryRoom):
        return world.random(args), world.best(args)
    player = random_player(world, args.seed + 1)
    random = sampled_level(play_episodes(world, player, args.episodes, args.seed), "measured")
    try:
        return random, bounds_of(world, args)
    except UserError as error:
        if reference_of(id) is None:
            say(f"{id}: no best. {error}")
        return random, Best(None, UNKNOWN)


def compute_reference(id: str, world: World[Any] | MemoryRoom, args: Args, command: str) -> ReferenceScores:
    """Compute one row. Without a known player, the bounds are those of the shipped row.

    Without a shipped row, as for your own environment, the row has no bounds.
    """
    begin = time.perf_counter()
    shipped, (random, best) = reference_of(id), play_world(id, world, args)
    upper = best.upper if shipped is None or best.upper is not UNKNOWN else shipped.upper
    lower, scripted_episodes = best.lower, min(args.episodes, PLAYED) if isinstance(world, MemoryRoom) else 0
    if lower is None and shipped is not None:
        lower, scripted_episodes = shipped.lower, shipped.scripted_episodes
    elif lower is None:
        lower = UNKNOWN if upper is UNKNOWN else replace(random, kind=BY_CHANCE)
    elif lower.kind == POINT_BASED:  # best by discounted returns, so random actions may score higher
        success, returns = (max(each, key=lambda measure: measure.mean) for each in (
            (lower.success, random.success), (lower.returns, random.returns)
        ))  # fmt: skip
        lower = Level(success, returns, POINT_BASED if success is lower.success else BY_CHANCE)
    lines = {**(shipped.lines if shipped else {}), **best.lines}
    return ReferenceScores(
        id=id,
        time_limit=world.time_limit,
        random=random,
        lower=lower,
        upper=upper,
        episodes=args.episodes,
        scripted_episodes=scripted_episodes,
        discounted=best.discounted,
        lines={name: lines[name] for name in LESS if name in lines},
        seed=args.seed,
        revision=revision(),
        command=command,
        machine=cpu(),
        seconds=round(time.perf_counter() - begin, 1),
        defines_success=world.defines_success,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Compute and print; write after every environment, so that an interruption loses nothing."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m envs.baselines")
    load_plugins(args.plugin)
    args.check()
    torch.set_num_threads(1)
    command = shlex.join(["python", "-m", "envs.baselines", *argv])
    folder = args.write
    rows = {} if folder is None else read_references(folder / "baselines.json")
    worlds = args.worlds()
    if folder is not None:
        make_folder(folder)
    for id, world in worlds.items():
        rows[id] = reference = compute_reference(id, world, args, command)
        say(f"{id:<48} {reference.summary}")
        if folder is not None:
            # In the registry's order; rows with options and rows of unregistered environments come last.
            known = [id for id in known_ids() if id in rows]
            rows = {id: rows[id] for id in (*known, *sorted(set(rows) - set(known)))}
            write_text(folder / "baselines.json", references_json(rows))
            write_text(folder / "baselines.md", references_page(rows))


if __name__ == "__main__":
    one_line_errors(main)()
