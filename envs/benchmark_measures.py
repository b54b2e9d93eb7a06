"""Steps per second of one world and of many, with random actions, resets included."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from envs.benchmark_originals import bars

Clock = Literal["wall", "cpu"]
Value = str | float | bool | None
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repetitions: int = 11
    single_steps: int = 1000
    """Steps of one world in a repetition."""
    many: int = 1024
    """Worlds side by side."""
    many_steps: int = 60
    """Steps of each of them in a repetition."""
    warm_up: int = 600
    """Steps of each of them before, until their episodes no longer end together."""
    clock: Clock = "wall"


def world_rows(ids: list[str], effort: Effort) -> list[dict[str, Value]]:
    """One row of the table for every id."""
    return [world_row(id, effort) for id in ids]


def world_row(id: str, effort: Effort) -> dict[str, Value]:
    """Both rates of a world against the original's and against the bars."""
    single, many, wanted = single_rate(id, effort), many_rate(id, effort), bars(id)
    return {
        "world": id,
        "original": wanted.original,
        "one": single,
        "one_ratio": _over(single, wanted.original),
        "one_bar": wanted.single,
        "one_holds": None if wanted.single is None else single >= wanted.single,
        "many": many,
        "many_ratio": _over(many, wanted.original),
        "many_bar": wanted.many,
        "many_holds": None if wanted.many is None else many >= wanted.many,
    }


def single_rate(id: str, effort: Effort) -> float:
    """Steps per second of `gymnasium.make(id)`, median over the repetitions."""
    env = gymnasium.make(id)
    actions = _actions(env.action_space, (effort.single_steps,)).tolist()
    env.reset(seed=0)

    def play() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return effort.single_steps / _seconds(play, effort)


def many_rate(id: str, effort: Effort) -> float:
    """Steps per second of `gymnasium.make_vec(id)`, all worlds together; every step counts, a reset is in its step."""
    env = gymnasium.make_vec(id, num_envs=effort.many, autoreset_mode="SameStep")
    actions = _actions(env.single_action_space, (effort.many_steps, effort.many))
    env.reset(seed=0)

    def play() -> None:
        for action in actions:
            env.step(action)

    for _ in range(0, effort.warm_up, effort.many_steps):
        play()
    return effort.many_steps * effort.many / _seconds(play, effort)


def _seconds(play: Callable[[], None], effort: Effort) -> float:
    """Of one call, the median; the first call is not counted."""
    clock, taken = CLOCKS[effort.clock], []
    for _ in range(effort.repetitions + 1):
        began = clock()
        play()
        taken.append(clock() - began)
    return statistics.median(taken[1:])


def _actions(space: gymnasium.Space[Any], shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise TypeError(f"Worlds have Discrete actions, not {space}.")
    return np.random.default_rng(0).integers(0, space.n, shape)


def _over(rate: float, original: float | None) -> float | None:
    return None if original is None else rate / original
