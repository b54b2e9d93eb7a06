"""Time alternatives side by side: one repetition of each in turn, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dqn_memory.analysis.size import environment_sizes
from dqn_memory.blocks import PRIORS, PriorConfig
from dqn_memory.blocks.attention import attend
from dqn_memory.network import ObservationSpec
from dqn_memory.replay import Replay
from envs.fleet import make_fleet
from envs.tables import Table, Value

Clock = Literal["wall", "cpu"]
Work = Callable[[], object]
Timer = Callable[[Mapping[str, Work]], dict[str, "Timing"]]
FULL_REPLAY_ROWS = 4  # parallel environments of a random replay


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


@dataclass(frozen=True)
class BenchmarkConfig:
    """How much is measured, and with which clock."""

    repetitions: int = 15
    """Turns of each alternative, at least 2; medians are over these."""
    warm_up: int = 2
    """Turns that are not counted."""
    clock: Clock = "wall"

    def compare(self, alternatives: Mapping[str, Work]) -> dict[str, Timing]:
        """Time the alternatives by turns."""
        return interleaved(alternatives, self.repetitions, self.clock, self.warm_up)


def against(ours: Timing, baseline: Timing | None) -> dict[str, Value]:
    """Write a row's columns of times, with the baseline's beside them where there is one."""
    return {
        "ms": ours.median, "fastest_ms": ours.fastest, "spread": ours.spread,
        "baseline_ms": None if baseline is None else baseline.median,
        "speed_up": None if baseline is None else ours.speed_up(baseline),
    }  # fmt: skip


def now(clock: Clock) -> float:
    """Give the time in seconds; on an accelerator after all that was asked of it is done.

    `cpu` counts the time that this process was given, all its threads together: a better measure than `wall` on
    a machine that others use, with one thread.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() if clock == "wall" else time.process_time()


def matrix_product(size: int, dtype: torch.dtype) -> tuple[Work, float]:
    """Make a product of two square matrices, on the current threads, and its billions of operations."""
    left, right = torch.rand(2, size, size).to(dtype)
    result = torch.empty(size, size, dtype=dtype)
    return lambda: torch.mm(left, right, out=result), 2 * size**3 / 1e9


def full_replay(spec: ObservationSpec, num_actions: int, context: int, draws: torch.Generator) -> Replay:
    """Make a replay of random transitions that has wrapped around, so that every window is K steps long."""
    columns = 2 * context + 2
    replay = Replay(spec, num_actions, FULL_REPLAY_ROWS, columns * FULL_REPLAY_ROWS, torch.device("cpu"))
    never = torch.zeros(FULL_REPLAY_ROWS, dtype=torch.bool)
    for t in range(columns + context):
        action = torch.randint(num_actions, (2, FULL_REPLAY_ROWS), generator=draws)
        replay.add(
            observation=_observation(spec, draws), next_observation=_observation(spec, draws),
            previous_action=action[0], action=action[1], reward=torch.rand(FULL_REPLAY_ROWS, generator=draws),
            terminated=never, done=never,
            time=torch.full((FULL_REPLAY_ROWS,), t),
        )  # fmt: skip
    return replay


def random_replay(env: str, num_envs: int, steps: int) -> Replay:
    """Fill a replay with what a uniformly random policy meets."""
    row, draws = environment_sizes(env), torch.Generator().manual_seed(0)
    fleet = make_fleet(env, num_envs, seed=0)
    replay = Replay(row.spec(), row.num_actions, num_envs, num_envs * steps, torch.device("cpu"))
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


PRIORS_NOTE = (
    "Attention without its projections; forward (`ms`) and with the gradient (`both_ms`). `local` looks 10 back, in "
    "blocks where that pays; `local, masked` is the same function with all scores computed. `of_causal`, "
    "`both_of_causal`: over plain causal attention at the same context. `growth`: `both_ms` over that of half the "
    "context if measured; 2 is linear, 4 square."
)


def mixing_work(
    shape: tuple[int, int, int], device: str, kind: str, tokens: int, gradient: bool, masked: bool = False
) -> Work:
    """Mix the values of `tokens` positions for a shape (B, H, E); `masked` computes a local prior as all others."""
    prior = PriorConfig(kind=kind).build(shape[1], tokens).to(device)
    generator = torch.Generator().manual_seed(0)
    size = (*shape[:2], tokens, shape[2])
    query, key, value = (
        torch.randn(size, generator=generator).to(device).requires_grad_(gradient) for _ in range(3)
    )  # fmt: skip

    def mix() -> Tensor:
        scale, bias = prior.tables(tokens)
        window = None if masked else prior.fixed_window
        mixed = attend(query, key, value, scale, bias, future_logit_zero=prior.future_logit_zero, window=window)
        if gradient:
            torch.autograd.backward(mixed, torch.ones_like(mixed), inputs=[query, key, value])
        return mixed

    return mix if gradient else torch.no_grad()(mix)


def prior_table(timer: Timer, shape: tuple[int, int, int], contexts: Sequence[int], device: str) -> Table:
    """Measure the milliseconds of attention under every prior, by context, forward and with the gradient."""
    rows, names = list[dict[str, Value]](), (*PRIORS, "local, masked")
    measured: dict[tuple[str, int], float] = {}  # with the gradient
    for tokens in contexts:
        works: dict[str, Work] = {}
        for name in names:
            kind, masked = name.removesuffix(", masked"), name.endswith(", masked")
            works[name] = mixing_work(shape, device, kind, tokens, False, masked)
            works[f"{name} both"] = mixing_work(shape, device, kind, tokens, True, masked)
        times = timer(works)
        for name in names:
            forward, both, half = times[name], times[f"{name} both"], measured.get((name, tokens // 2))
            measured[name, tokens] = both.median
            rows.append({
                "prior": name, "tokens": tokens, "ms": forward.median, "both_ms": both.median, "spread": both.spread,
                "of_causal": 1 / forward.speed_up(times["causal"]),
                "both_of_causal": 1 / both.speed_up(times["causal both"]),
                "growth": None if half is None else both.median / half,
            })  # fmt: skip
    note = f"{shape[0]} sequences, {shape[1]} heads of {shape[2]}. {PRIORS_NOTE}"
    return Table.from_records(rows, "Priors", note)


def _observation(spec: ObservationSpec, draws: torch.Generator) -> Tensor:
    if spec.kind == "discrete":
        return torch.randint(spec.vocabulary - 1, (FULL_REPLAY_ROWS, *spec.shape), generator=draws)
    return torch.rand(FULL_REPLAY_ROWS, *spec.shape, generator=draws)
