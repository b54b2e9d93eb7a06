"""Measure steps per second of the environments: `python -m envs.benchmark`.

Every registered environment is measured alone and 1,024 at a time, and compared with the originals; with
`--device cuda` 65,536 at a time inside one CUDA graph. Prints the table; --write FOLDER keeps it as environments.*.
"""

import csv
import statistics
import sys
import time
import timeit
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
import tyro
from torch import Tensor

from envs.cli import Ids, MeasureArgs
from envs.core import Step, World
from envs.errors import UserError, check_known, one_line_errors
from envs.fleet import advance
from envs.machine import CLOCKS, benchmark_facts
from envs.registry import FROM_FILES, WORLDS, make_world
from envs.tables import Table, Value, origin, publish
from envs.terminal import say

# Steps per second of the original environments, by id. Source: measured by us on the original code, gym-gridverse
# 07909d9 and gym-pomdps 81ffa37 as DTQN (9f8d72b) wraps them, on one core of an AMD EPYC, processor time, medians,
# +-20 %; the file has microseconds. "Step" is one wrapped env.step (dynamics, observation, conversion) without resets.
with Path(__file__).with_name("originals.csv").open(encoding="utf-8") as file:
    ORIGINALS = {row["id"]: 1e6 / float(row["step"]) for row in csv.DictReader(file)}
SINGLE_RATIO = 1.0  # bar of one environment of a grid: at least this many times the original's steps per second
LARGE_RATIO = 3.0  # the same where the grid is 13x13 or larger
VECTOR_RATIO = 300.0  # bar of 1,024 environments of a grid
VECTOR_RATE = 5e6  # bar of 1,024 other environments, steps per second
GRAPH_RATE = 20e6  # bar of 65,536 environments inside one CUDA graph, steps per second, resets included
GRAPH_ENVS = 65_536
GRAPH_IDS = ("Gridverse/Memory-13x13-v0", "Gridverse/Memory-NineRooms-13x13-v0")
SMALL = ("-5x5", "-7x7", "-9x9", "-11x11")

TEXTS: dict[str, tuple[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Args(MeasureArgs):
    """Measure how many steps per second the environments take."""

    device: Literal["cpu", "cuda"] = "cpu"
    """`cuda` measures many environments inside one CUDA graph instead of the Gymnasium environments."""
    env: Ids = ()
    """Ids to measure, each with a flag of its own; none given: all (on `cuda`: the two that have a bar)."""

    def check(self) -> None:
        super().check()
        for id in self.env:
            check_known("environment", id, WORLDS, "--env: ")
            if id in FROM_FILES:
                raise UserError(f"--env {id}: its file decides what it is; name an environment that needs none.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here; leave it out, or run where there is one.")

    def ids(self) -> list[str]:
        every = list(GRAPH_IDS) if self.device == "cuda" else [id for id in WORLDS if id not in FROM_FILES]
        return list(self.env) or every


# ---- on a CPU: Gymnasium environments --------------------------------------------------------------------------------
def cpu_row(id: str, args: Args) -> dict[str, Value]:
    """Compare both rates of an environment with the original and with the bars."""
    original = ORIGINALS.get(id)
    row: dict[str, Value] = {"env": id, "original": original}
    for name, bar in bars(id).items():
        rate = steps_per_second(id, args, vector=name == "vector")
        row |= {name: rate, f"{name}_ratio": None if original is None else rate / original}
        row |= {f"{name}_bar": bar, f"{name}_holds": None if bar is None else rate >= bar}
    return row


def bars(id: str) -> dict[str, float | None]:
    """Give the steps per second that one and that 1,024 environments must reach; None where nothing is asked."""
    original = ORIGINALS.get(id)
    if original is None or not id.startswith("Gridverse/"):
        return {"single": None, "vector": None if original is None else VECTOR_RATE}
    ratio = SINGLE_RATIO if id.removesuffix("-v0").endswith(SMALL) else LARGE_RATIO
    return {"single": original * ratio, "vector": original * VECTOR_RATIO}


def steps_per_second(id: str, args: Args, vector: bool) -> float:
    """Time `gymnasium.make(id)`, or all rows of `gymnasium.make_vec(id)`, resets included; the median repetition."""
    if vector:
        rows, steps, uncounted = (16, 5, 2) if args.quick else (1024, 60, 11)  # until episodes no longer end together
        env: Any = gymnasium.make_vec(id, num_envs=rows, autoreset_mode="SameStep")
        actions = list(np.random.default_rng(0).integers(0, env.single_action_space.n, (steps, rows)))
    else:
        rows, steps, uncounted = 1, 20 if args.quick else 1000, 1
        env = gymnasium.make(id)
        actions = np.random.default_rng(0).integers(0, env.action_space.n, steps).tolist()
    env.reset(seed=0)

    def play() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if not vector and (terminated or truncated):
                env.reset()

    repetitions = uncounted + (2 if args.quick else 11)
    seconds = timeit.repeat(play, timer=CLOCKS[args.clock], number=1, repeat=repetitions)
    return rows * steps / statistics.median(seconds[uncounted:])


# ---- on an accelerator: many worlds inside one CUDA graph ------------------------------------------------------------
class RandomPlay:
    """N worlds whose random steps write into tensors that stay where they are, as a CUDA graph needs.

    `finished` counts the episodes that ended, so that one sees that resets took part.
    """

    def __init__(self, world: World[Any], count: int, seed: int = 0) -> None:
        self.world, self.count = world, count
        self.generator = torch.Generator(world.device).manual_seed(seed)
        first = world.reset(self._uniforms(world.reset_draws))
        self.state = replace(first, **{name: value.clone() for name, value in vars(first).items()})
        self.finished = torch.zeros((), dtype=torch.int64, device=world.device)

    def step(self) -> Step:
        u = self._uniforms(1 + self.world.step_draws + self.world.reset_draws)
        action = (u[:, 0] * self.world.num_actions).long()
        after, step = advance(self.world, self.state, action, u[:, 1:])
        for name, value in vars(after).items():
            getattr(self.state, name).copy_(value)
        self.finished += step.done.sum()
        return step

    def _uniforms(self, draws: int) -> Tensor:
        return torch.rand(self.count, draws, dtype=torch.float64, device=self.world.device, generator=self.generator)


def graph_row(id: str, count: int = GRAPH_ENVS, steps: int = 10, replays: int = 100) -> dict[str, Value]:
    """Measure `count` worlds in a graph of `steps` steps, over `replays` replays; needs a CUDA device."""
    play = RandomPlay(make_world(id, "cuda"), count)
    graph = capture(play, steps)
    for _ in range(1 + play.world.time_limit // steps):  # until episodes no longer end together
        graph.replay()
    torch.cuda.synchronize()
    before, began = int(play.finished), time.perf_counter()
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    rate = count * steps * replays / (time.perf_counter() - began)
    return {
        "env": id, "num_envs": count, "steps_s": rate, "bar": GRAPH_RATE, "holds": rate >= GRAPH_RATE,
        "episodes": int(play.finished) - before,
    }  # fmt: skip


def capture(play: RandomPlay, steps: int) -> torch.cuda.CUDAGraph:
    """Capture a graph of `steps` steps, warmed up on a side stream as capture demands."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            play.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(play.generator)
    with torch.cuda.graph(graph):
        for _ in range(steps):
            play.step()
    return graph


def measured(args: Args) -> Iterator[Table]:
    """Measure every environment in turn, the one at work named on standard error."""
    rows = []
    for number, id in enumerate(args.ids(), 1):
        say(f"{number} of {len(args.ids())}: {id}", file=sys.stderr)
        rows.append(graph_row(id) if args.device == "cuda" else cpu_row(id, args))
    yield Table.from_records(rows, *TEXTS[args.device])


@one_line_errors
def main(argv: Sequence[str] | None = None) -> None:
    """Measure; print the table, and write it where asked."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(Args, args=argv, prog="python -m envs.benchmark")
    args.check()
    torch.set_num_threads(args.threads)
    facts = origin("envs.benchmark", argv, **benchmark_facts())
    publish(measured(args), args.write, "environments", "Speed of the environments", facts)


if __name__ == "__main__":
    main()
