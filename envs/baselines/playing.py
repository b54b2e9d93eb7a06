"""Play one episode in each of many worlds and keep what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.baselines.known import Level, Measure
from envs.core import State, World, where

Player = Callable[[Tensor, Tensor], Tensor]
"""From observations (N, d) and the rows still running (N,) bool to actions (N,) int64. A player keeps its own memory
between calls, so each game needs a fresh one."""


@dataclass(frozen=True)
class Outcomes:
    """What came of N episodes."""

    success: Tensor  # (N,) bool, the world's own verdict
    returns: Tensor  # (N,) float64, undiscounted
    lengths: Tensor  # (N,) int64


def measure(values: Tensor) -> Measure:
    """Compute the mean of sampled values (N,), N > 1, with its standard error."""
    sample = values.double()
    return Measure(float(sample.mean()), float(sample.std(correction=1)) / len(sample) ** 0.5)


def level(outcomes: Outcomes, kind: str) -> Level:
    """Measure the success and the return of sampled episodes."""
    return Level(measure(outcomes.success), measure(outcomes.returns), kind)


def exactly(success: float, returns: float, kind: str) -> Level:
    """Make a level of numbers that were computed and not sampled."""
    return Level(Measure(success), Measure(returns), kind)


def play(world: World[Any], player: Player, episodes: int, seed: int) -> Outcomes:
    """Play one episode in each of `episodes` rows.

    Every row counts exactly once, however long it takes: what ends early is not counted more often.
    """
    generator = torch.Generator(world.device).manual_seed(seed)
    start = world.reset(draws(generator, episodes, world.reset_draws))
    return finish(world, start, player, lambda: draws(generator, episodes, world.step_draws))


def finish(world: World[Any], state: State, player: Player, chance: Callable[[], Tensor] | None = None) -> Outcomes:
    """Play all rows of a state to their ends.

    Args:
        world: the world.
        state: N rows of it.
        player: chooses the actions.
        chance: gives the uniforms (N, step_draws) of the next step; none: the world's steps must be deterministic.
    """
    rows = len(state.steps)
    running = torch.ones(rows, dtype=torch.bool, device=world.device)
    success = torch.zeros_like(running)
    while running.any():
        u = no_chance(world, rows) if chance is None else chance()
        after, _, _, terminated, won = world.step(state, player(state.observation, running), u)
        success |= won & running
        state = where(running, after, state)  # an ended episode stands still
        running = running & ~(terminated | world.truncated(after, terminated))
    return Outcomes(success, state.returns, state.steps)


def random_player(num_actions: int, seed: int, device: str | torch.device = "cpu") -> Player:
    """Choose uniformly random actions from a stream of their own."""
    generator = torch.Generator(device).manual_seed(seed)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        return torch.randint(num_actions, (len(running),), generator=generator, device=device)

    return act


def no_chance(world: World[Any], rows: int) -> Tensor:
    """Return uniforms (rows, step_draws) for a step of a deterministic world, which do not matter."""
    return torch.zeros(rows, world.step_draws, dtype=torch.float64, device=world.device)


def draws(generator: torch.Generator, rows: int, count: int) -> Tensor:
    """Draw uniforms (rows, count)."""
    return torch.rand(rows, count, dtype=torch.float64, generator=generator, device=generator.device)
