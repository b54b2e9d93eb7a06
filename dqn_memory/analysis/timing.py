"""Time alternatives side by side: one repetition of each in turn, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from dqn_memory.network import ObservationSpec
from dqn_memory.replay import Replay
from dqn_memory.runs.errors import check_known
from dqn_memory.runs.settings import Bounds, Repeatable, check_numbers
from envs.cli import MeasureArgs
from envs.machine import CLOCKS, Clock
from envs.tables import Value

Work = Callable[[], object]
ROWS = 4  # parallel environments of a full replay


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each repetition of one alternative, in the order of time."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle repetition."""
        return statistics.median(self.milliseconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        low, _, high = statistics.quantiles(self.milliseconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    def speed_up(self, slow: Timing) -> float:
        """How many times faster than `slow`: the median of the ratios of neighbouring repetitions."""
        pairs = zip(slow.milliseconds, self.milliseconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def against(self, baseline: Timing | None, name: str = "baseline") -> dict[str, Value]:
        """Give a row's columns of times, beside those of a baseline where there is one."""
        return {
            "ms": self.median, "fastest_ms": min(self.milliseconds), "spread": self.spread,
            f"{name}_ms": None if baseline is None else baseline.median,
            "speed_up": None if baseline is None else self.speed_up(baseline),
        }  # fmt: skip


@dataclass(frozen=True)
class Timer:
    """Times alternatives by turns; `warm_up` turns come before those that count, of which there are at least 2."""

    repetitions: int
    warm_up: int = 3
    clock: Clock = "wall"

    def __call__(self, alternatives: Mapping[str, Work]) -> dict[str, Timing]:
        """Measure every alternative."""
        taken: dict[str, list[float]] = {name: [] for name in alternatives}
        for _ in range(self.warm_up + self.repetitions):
            for name, work in alternatives.items():
                taken[name].append(1000 * timeit.timeit(work, timer=self.now, number=1))
        return {name: Timing(tuple(values[self.warm_up :])) for name, values in taken.items()}

    def now(self) -> float:
        """Give the time in seconds; on an accelerator after all that was asked of it is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return CLOCKS[self.clock]()


@dataclass(frozen=True, kw_only=True)
class CompareArgs(MeasureArgs):
    """What the benchmarks take that compare alternatives."""

    repetitions: Annotated[int, Bounds(2)] = 15
    """Turns of each alternative; medians are over these."""
    only: Repeatable = ()
    """Tables to make (none given: all that this machine can)."""

    @property
    def timer(self) -> Timer:
        """How everything is measured."""
        return Timer(2, 1, self.clock) if self.quick else Timer(self.repetitions, clock=self.clock)

    def check_tables(self, known: Collection[str]) -> None:
        """Refuse numbers out of their bounds, and tables that are not known."""
        super().check()
        check_numbers(self)
        for name in self.only:
            check_known("table of --only", name, known)


# ---- what is timed ---------------------------------------------------------------------------------------------------
def matrix_product(size: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Work, float]:
    """Make a product of two square matrices, on a CPU on the current threads, and its billions of operations."""
    left, right = torch.rand(2, size, size, device=device).to(dtype)
    result = torch.empty(size, size, dtype=dtype, device=device)
    return lambda: torch.mm(left, right, out=result), 2 * size**3 / 1e9


def full_replay(spec: ObservationSpec, num_actions: int, context: int, draws: torch.Generator) -> Replay:
    """Make a replay of random transitions that has wrapped around, so that every window is K steps long."""
    columns, tokens = 2 * context + 2, spec.vocabulary - 1 if spec.kind == "discrete" else 1
    replay = Replay(spec, num_actions, ROWS, columns * ROWS, torch.device("cpu"))
    cells = {name: torch.zeros_like(cell) for name, cell in replay.cells.items()}
    below = {"observation": tokens, "next_observation": tokens, "previous_action": num_actions, "action": num_actions}
    for name, end in {**below, "reward": 1}.items():
        cells[name] = (torch.rand(cells[name].shape, generator=draws) * end).to(cells[name].dtype)
    cells["time"] += torch.arange(context, context + columns)[:, None]
    replay.restore(context, cells)
    return replay
