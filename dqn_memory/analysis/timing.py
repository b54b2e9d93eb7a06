"""Time alternatives side by side: one repetition of each in turn, so that a busy machine slows all alike."""

from __future__ import annotations

import itertools
import statistics
import timeit
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from dqn_memory.analysis.size import environment_sizes
from dqn_memory.blocks import PRIORS, PriorConfig
from dqn_memory.blocks.attention import attend
from dqn_memory.network import ObservationSpec
from dqn_memory.replay import Replay
from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.runs.settings import Bounds, Repeatable, check_numbers
from envs.fleet import make_fleet
from envs.machine import CLOCKS, Clock, MeasureArgs
from envs.tables import Value

Work = Callable[[], object]
Timer = Callable[[Mapping[str, Work]], dict[str, "Timing"]]
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

    def against(self, baseline: Timing | None, name: str = "baseline") -> dict[str, Value]:
        """Give a row's columns of times, beside those of a baseline where there is one."""
        return {
            "ms": self.median, "fastest_ms": self.fastest, "spread": self.spread,
            f"{name}_ms": None if baseline is None else baseline.median,
            "speed_up": None if baseline is None else self.speed_up(baseline),
        }  # fmt: skip


@dataclass(frozen=True)
class BenchmarkConfig:
    """How much is measured, and with which clock."""

    repetitions: int = 15
    """Turns of each alternative, at least 2; medians are over these."""
    warm_up: int = 3
    """Turns that are not counted."""
    clock: Clock = "wall"

    def compare(self, alternatives: Mapping[str, Work]) -> dict[str, Timing]:
        """Time the alternatives by turns."""
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
    def config(self) -> BenchmarkConfig:
        """How often everything is measured."""
        return BenchmarkConfig(*(2, 1) if self.quick else (self.repetitions, 3), self.clock)

    def check_tables(self, known: Collection[str]) -> None:
        """Refuse numbers out of their bounds, and tables that are not known."""
        super().check()
        check_numbers(self)
        for name in set(self.only) - set(known):
            raise UserError(near_names("table of --only", name, sorted(known)))


# ---- what is timed ---------------------------------------------------------------------------------------------------
def matrix_product(size: int, dtype: torch.dtype) -> tuple[Work, float]:
    """Make a product of two square matrices, on the current threads, and its billions of operations."""
    left, right = torch.rand(2, size, size).to(dtype)
    result = torch.empty(size, size, dtype=dtype)
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


def random_replay(env: str, num_envs: int, steps: int) -> Replay:
    """Fill a replay with what a uniformly random policy meets."""
    row, draws = environment_sizes(env), torch.Generator().manual_seed(0)
    fleet = make_fleet(env, num_envs, seed=0)
    replay = Replay(row.spec, row.num_actions, num_envs, num_envs * steps, torch.device("cpu"))
    observation = fleet.reset()
    previous, time = torch.full((num_envs,), row.num_actions), torch.zeros(num_envs, dtype=torch.int64)
    for _ in range(steps):
        action = torch.randint(row.num_actions, (num_envs,), generator=draws)
        step = fleet.step(action)
        replay.add(
            observation=observation, next_observation=step.final_observation, previous_action=previous,
            action=action, reward=step.reward, terminated=step.terminated, done=step.done, time=time,
        )  # fmt: skip
        observation = step.observation
        previous, time = torch.where(step.done, row.num_actions, action), torch.where(step.done, 0, time + 1)
    return replay


def environment_step(env: str, num_envs: int, device: str, env_kwargs: Mapping[str, Any]) -> Work:
    """Make a step of parallel environments under random actions, with observations on the device."""
    fleet = make_fleet(env, num_envs, 0, torch.device(device), env_kwargs=dict(env_kwargs))
    draws = torch.Generator().manual_seed(0)
    fleet.reset()
    return lambda: fleet.step(torch.randint(fleet.num_actions, (num_envs,), generator=draws).to(device))


def mixing_work(
    shape: tuple[int, int, int], device: str, kind: str, tokens: int, gradient: bool, masked: bool = False
) -> Work:
    """Mix the values of `tokens` positions for a shape (B, H, E); `masked` computes a local prior as all others."""
    prior = PriorConfig(kind=kind).build(shape[1], tokens).to(device)
    draws = torch.Generator().manual_seed(0)
    values = torch.randn(3, *shape[:2], tokens, shape[2], generator=draws).to(device)
    query, key, value = inputs = [value.clone().requires_grad_(gradient) for value in values]

    def mix() -> Tensor:
        scale, bias = prior.tables(tokens)
        window = None if masked else prior.fixed_window
        mixed = attend(query, key, value, scale, bias, future_logit_zero=prior.future_logit_zero, window=window)
        if gradient:
            torch.autograd.backward(mixed, torch.ones_like(mixed), inputs=inputs)
        return mixed

    return mix if gradient else torch.no_grad()(mix)


def prior_rows(
    timer: Timer, shape: tuple[int, int, int], contexts: Sequence[int], device: str
) -> Iterator[dict[str, Value]]:
    """Measure the milliseconds of attention under every prior, by context, forward and with the gradient."""
    names = (*PRIORS, "local, masked")
    measured: dict[tuple[str, int], float] = {}  # with the gradient
    for tokens in contexts:
        works = {
            name + both: mixing_work(shape, device, name.removesuffix(", masked"), tokens, both != "", ", " in name)
            for name, both in itertools.product(names, ("", " both"))
        }
        times = timer(works)
        for name in names:
            forward, both, half = times[name], times[f"{name} both"], measured.get((name, tokens // 2))
            measured[name, tokens] = both.median
            yield {
                "prior": name, "tokens": tokens, "ms": forward.median, "both_ms": both.median, "spread": both.spread,
                "of_causal": 1 / forward.speed_up(times["causal"]),
                "both_of_causal": 1 / both.speed_up(times["causal both"]),
                "growth": None if half is None else both.median / half,
            }  # fmt: skip
