"""The harness of every benchmark: flags, timing by turns, medians, and printing.

A benchmark times one repetition of each alternative in turn, so that a busy machine slows all alike. The cases are in
`envs.benchmark`, `dqn_memory.benchmark` and `world_models.benchmark`.
"""

from __future__ import annotations

import statistics
import sys
import timeit
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

import torch
import tyro

from envs.cli import WriteArgs
from envs.errors import check_known, require
from envs.machine import CLOCKS, Clock, benchmark_facts
from envs.tables import Table, Value, origin, publish

Work = Callable[[], object]
K = TypeVar("K")


# ---- timing ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Timing:
    """Milliseconds of each repetition of one alternative, in their order."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median of the repetitions."""
        return statistics.median(self.milliseconds)

    @property
    def spread(self) -> float:
        """Return half the distance between the quartiles, divided by the median."""
        low, _, high = statistics.quantiles(self.milliseconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    def speed_up(self, slow: Timing) -> float:
        """Return the speed relative to `slow`: the median of the ratios of simultaneous repetitions."""
        pairs = zip(slow.milliseconds, self.milliseconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def against(self, baseline: Timing, name: str = "baseline") -> dict[str, Value]:
        """Return a row's columns of times, with those of a baseline."""
        return {
            "ms": self.median, "fastest_ms": min(self.milliseconds), "spread": self.spread,
            f"{name}_ms": baseline.median, "speed_up": self.speed_up(baseline),
        }  # fmt: skip


@dataclass(frozen=True)
class Timer:
    """Time alternatives by turns. The first `warm_up` turns do not count; at least 2 turns must count."""

    repetitions: int
    warm_up: int = 3
    clock: Clock = "wall"

    def __call__(self, alternatives: Mapping[str, Work]) -> dict[str, Timing]:
        """Measure every alternative."""
        return self.turns({name: partial(self.milliseconds, work) for name, work in alternatives.items()})

    def turns(self, measured: Mapping[K, Callable[[], float]]) -> dict[K, Timing]:
        """Take turns of functions that measure themselves and return milliseconds."""
        taken: dict[K, list[float]] = {name: [] for name in measured}
        for _ in range(self.warm_up + self.repetitions):
            for name, measure in measured.items():
                taken[name].append(measure())
        return {name: Timing(tuple(values[self.warm_up :])) for name, values in taken.items()}

    def milliseconds(self, work: Work) -> float:
        """Do the work once; return the time that it took."""
        return 1000 * timeit.timeit(work, timer=self.now, number=1)

    def now(self) -> float:
        """Return the time in seconds. On an accelerator, wait first until all queued work is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return CLOCKS[self.clock]()


def matrix_product(size: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Work, float]:
    """Make a product of two square matrices, to measure the machine's peak rate; also return its GFLOP."""
    left, right = torch.rand(2, size, size, device=device).to(dtype)
    result = torch.empty(size, size, dtype=dtype, device=device)
    return lambda: torch.mm(left, right, out=result), 2 * size**3 / 1e9


def floor_columns(time: Timing, gigaflop: float, rate: float) -> dict[str, Value]:
    """Return a row's columns of the minimum time of its operations, at a `rate` in GFLOP per millisecond."""
    return {"gflop": gigaflop, "floor_ms": gigaflop / rate, "reached": gigaflop / rate / time.median}


# ---- the command -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class BenchmarkArgs(WriteArgs, ABC):
    """Flags of every benchmark."""

    threads: int = 1
    """Threads of torch on a CPU."""
    clock: Clock = "wall"
    """`cpu` counts processor time, for a shared machine."""
    quick: bool = False
    """Run few repetitions of tiny sizes, as a smoke test."""
    repetitions: int = 15
    """Repetitions of each alternative; tables show their median."""
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Tables to make; repeatable (none given: all that this machine can make)."""

    @property
    def timer(self) -> Timer:
        """Return the timer of all measurements."""
        return Timer(2, 1, self.clock) if self.quick else Timer(self.repetitions, clock=self.clock)

    @property
    @abstractmethod
    def known_tables(self) -> Collection[str]:
        """Names that --only takes."""

    def check(self) -> None:
        """Refuse numbers out of their bounds and unknown tables."""
        require(1 <= self.threads <= 1024, f"--threads {self.threads} must be from 1 to 1,024")
        require(self.repetitions >= 2, f"--repetitions {self.repetitions} must be at least 2")
        for name in self.only:
            check_known("table of --only", name, self.known_tables)


@dataclass(frozen=True)
class Page:
    """A page of results, `name`.md and `name`.json, or only a `section` of it."""

    name: str
    title: str
    tables: Iterable[Table]  # iterating them runs the measurements
    section: str = ""


A = TypeVar("A", bound=BenchmarkArgs)


def run_benchmark(
    module: str, kind: type[A], pages: Callable[[A], Iterable[Page]], argv: Sequence[str] | None = None
) -> None:
    """Parse the flags of `python -m module`, measure its pages, print every table, and write them with --write."""
    argv = sys.argv[1:] if argv is None else argv
    args = tyro.cli(kind, args=argv, prog=f"python -m {module}")
    args.check()
    torch.set_num_threads(args.threads)
    facts = origin(module, argv, **benchmark_facts())
    for page in pages(args):
        publish(page.tables, args.write, page.name, page.title, facts, page.section)
