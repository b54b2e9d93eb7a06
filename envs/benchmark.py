"""Measure steps per second of the environments: `python -m envs.benchmark`.

Every registered environment is measured alone and as a vector of 1,024, and compared with the original, which
for POPGym runs beside it if popgym is installed. All take about a minute and a half of processor time.
Prints the table; --write FOLDER also writes it as environments.md and environments.json.
"""

import csv
import importlib
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from envs.cli import Ids
from envs.console import say
from envs.errors import check_known, one_line_errors, require
from envs.registry import FROM_FILES, WORLDS
from envs.tables import Table, Value
from envs.timing import BenchmarkArgs, Page, Timer, run_benchmark

# Steps per second of the original environments, by id. Source: measured by us on the original code, gym-gridverse
# 07909d9 and gym-pomdps 81ffa37 as DTQN (9f8d72b) wraps them, on one core of an AMD EPYC, processor time, medians,
# +-20 %; the file has microseconds. "Step" is one wrapped env.step (dynamics, observation, conversion) without resets.
with Path(__file__).with_name("originals.csv").open(encoding="utf-8") as file:
    ORIGINALS = {row["id"]: 1e6 / float(row["step"]) for row in csv.DictReader(file)}
SINGLE_RATIO = 1.0  # bar of one environment, in multiples of the original's steps per second
LARGE_RATIO = 3.0  # the same bar of a grid of 13x13 or larger
VECTOR_RATIO = 300.0  # the same bar of 1,024 grid environments
VECTOR_RATE = 5e6  # bar of 1,024 other environments, in steps per second
POPGYM_RATE = 1e7  # the same bar of POPGym's card games and bandits
POPGYM_RATES = {"Battleship": 3e6, "MineSweeper": 3e6, "CartPole": 3e6, "Pendulum": 3e6, "Labyrinth": 1e6}
SMALL = ("-5x5", "-7x7", "-9x9", "-11x11")

TEXTS: dict[str, tuple[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class EnvironmentArgs(BenchmarkArgs):
    """Measure the environments' steps per second; --only takes `single` and `vector`."""

    repetitions: int = 11
    """Repetitions of each measurement; tables show their median."""
    env: Ids = ()
    """Environment ids to measure; repeatable (none given: all)."""

    @property
    def known_tables(self) -> Sequence[str]:
        """Names that --only takes."""
        return "single", "vector"

    def check(self) -> None:
        """Refuse environments that cannot be measured."""
        super().check()
        for id in self.env:
            check_known("environment", id, WORLDS, "--env: ")
            require(id not in FROM_FILES, f"--env {id} reads its rules from a file; name an environment without a file")

    @property
    def ids(self) -> Sequence[str]:
        """Ids to measure."""
        return self.env or [id for id in WORLDS if id not in FROM_FILES]


def bars(id: str) -> dict[str, float | None]:
    """Give the bars of one and of 1,024 environments in steps per second; None without a bar."""
    if id.startswith("POPGym/"):
        return {
            "single": None,
            "vector": next((POPGYM_RATES[name] for name in POPGYM_RATES if name in id), POPGYM_RATE),
        }
    original = ORIGINALS.get(id)
    if original is None:
        return {"single": None, "vector": None}
    if not id.startswith("Gridverse/"):
        return {"single": original * SINGLE_RATIO, "vector": VECTOR_RATE}
    ratio = SINGLE_RATIO if id.removesuffix("-v0").endswith(SMALL) else LARGE_RATIO
    return {"single": original * ratio, "vector": original * VECTOR_RATIO}


def environment_row(id: str, args: EnvironmentArgs) -> dict[str, Value]:
    """Measure an environment and compare it with the original and with the required steps per second."""
    original = original_rate(id, args)
    row: dict[str, Value] = {"env": id, "original": original}
    for name, bar in bars(id).items():
        if args.only and name not in args.only:
            continue
        rate = steps_per_second(*made(id, args, vector=name == "vector"), args)
        row |= {name: rate, f"{name}_ratio": None if original is None else rate / original}
        row |= {f"{name}_bar": bar, f"{name}_holds": None if bar is None else rate >= bar}
    return row


def original_rate(id: str, args: EnvironmentArgs) -> float | None:
    """Return the steps per second of an environment's original; None if it has none or it cannot run here."""
    if not id.startswith("POPGym/"):
        return ORIGINALS.get(id)
    name = id.removeprefix("POPGym/").removesuffix("-v0").replace("-", "")
    try:
        original = getattr(importlib.import_module("popgym.envs"), name, None)  # mazes need mazelib, too
        shown = importlib.import_module("popgym.wrappers").PreviousAction
    except ImportError:
        return None
    if original is None:
        return None
    env = original()
    return steps_per_second(shown(env) if env.obs_requires_prev_action else env, 1, args)


def made(id: str, args: EnvironmentArgs, vector: bool) -> tuple[Any, int]:
    """Make one environment, or a vector; return it with its number of rows."""
    if not vector:
        return gymnasium.make(id), 1
    rows = 16 if args.quick else 1024
    return gymnasium.make_vec(id, num_envs=rows, autoreset_mode="SameStep"), rows


def steps_per_second(env: Any, rows: int, args: EnvironmentArgs) -> float:
    """Time random steps of an environment or of a vector, resets included; return the median repetition's rate."""
    vector = rows > 1
    if vector:
        steps, warm_up = (5, 2) if args.quick else (60, 11)  # until episodes no longer end together
    else:
        steps, warm_up = 20 if args.quick else 1000, 1
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        actions = list(map(int, actions))  # as most users give them
    env.reset(seed=0)

    def play() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if not vector and (terminated or truncated):
                env.reset()

    timer = Timer(args.timer.repetitions, warm_up, args.clock)
    return 1000 * rows * steps / timer({"play": play})["play"].median


def environment_tables(args: EnvironmentArgs) -> Iterator[Table]:
    """Measure one environment after the other; print the progress on standard error."""
    rows = []
    for number, id in enumerate(args.ids, 1):
        say(f"{number} of {len(args.ids)}: {id}", file=sys.stderr)
        rows.append(environment_row(id, args))
    yield Table.from_records(rows, *TEXTS["cpu"])


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write it if --write is given."""
    run_benchmark(
        "envs.benchmark",
        EnvironmentArgs,
        lambda args: [Page("environments", "Speed of the environments", environment_tables(args))],
        argv,
    )


if __name__ == "__main__":
    main()
