"""Measuring alternatives side by side: one repetition of each in turn, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from dqn_memory.observations import ObservationSpec
from dqn_memory.replay import Replay

Clock = Literal["wall", "cpu"]
Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each repetition of one alternative, in the order of time."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle repetition."""
        return statistics.median(self.milliseconds)

    @property
    def fastest(self) -> float:
        """The repetition that was disturbed least."""
        return min(self.milliseconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        low, _, high = statistics.quantiles(self.milliseconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    def speed_up(self, slow: Timing) -> float:
        """How many times faster than `slow`: the median of the ratios of neighbouring repetitions."""
        pairs = zip(slow.milliseconds, self.milliseconds, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def interleaved(
    alternatives: Mapping[str, Work], repetitions: int, clock: Clock = "wall", warm_up: int = 2
) -> dict[str, Timing]:
    """Time every alternative `repetitions` (at least 2) times, taking turns, after `warm_up` uncounted turns."""
    for _ in range(warm_up):
        for work in alternatives.values():
            work()
    taken: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repetitions):
        for name, work in alternatives.items():
            began = now(clock)
            work()
            taken[name].append(1000 * (now(clock) - began))
    return {name: Timing(tuple(values)) for name, values in taken.items()}


def now(clock: Clock) -> float:
    """Seconds; on an accelerator after all that was asked of it is done.

    `cpu` counts the time that this process was given, all its threads together: a better measure than `wall` on
    a machine that others use, with one thread.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() if clock == "wall" else time.process_time()


def matrix_product(size: int, dtype: torch.dtype) -> tuple[Work, float]:
    """A product of two square matrices, on the current threads, and its billions of operations."""
    left, right = torch.rand(2, size, size).to(dtype)
    result = torch.empty(size, size, dtype=dtype)
    return lambda: torch.mm(left, right, out=result), 2 * size**3 / 1e9


WORLDS = 4


def full_replay(spec: ObservationSpec, num_actions: int, context: int, draws: torch.Generator) -> Replay:
    """A replay of random transitions that has wrapped around, so that every window is K steps long."""
    columns = 2 * context + 2
    replay = Replay(spec, num_actions, WORLDS, columns * WORLDS, torch.device("cpu"))
    for moment in range(columns + context):
        action = torch.randint(num_actions, (2, WORLDS), generator=draws)
        replay.add(
            observation=_observation(spec, draws), next_observation=_observation(spec, draws),
            previous_action=action[0], action=action[1], reward=torch.rand(WORLDS, generator=draws),
            terminated=torch.zeros(WORLDS, dtype=torch.bool), done=torch.zeros(WORLDS, dtype=torch.bool),
            time=torch.full((WORLDS,), moment),
        )  # fmt: skip
    return replay


def _observation(spec: ObservationSpec, draws: torch.Generator) -> torch.Tensor:
    if spec.kind == "discrete":
        return torch.randint(spec.vocabulary - 1, (WORLDS, *spec.shape), generator=draws)
    return torch.rand(WORLDS, *spec.shape, generator=draws)
