"""Greedy episodes and what they say: success with a Wilson interval, return, length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dqn_memory.acting import ActingMode, ActingState, Actor, make_actor
from dqn_memory.networks import QNetwork
from envs.fleet import TensorFleet, make_fleet
from envs.registry import WORLDS, make_world

MOST_ROWS = 250
Measure = tuple[float, float | None, float | None]  # mean, low, high


@dataclass(frozen=True)
class Score:
    """Outcomes of complete greedy episodes, one entry each. `exhaustive`: every initial state exactly once."""

    success: np.ndarray  # bool
    returns: np.ndarray  # float64, undiscounted
    lengths: np.ndarray  # int64
    exhaustive: bool

    @property
    def episodes(self) -> int:
        return len(self.success)

    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate; a single point where every initial state was tried."""
        rate = float(self.success.mean())
        return (rate, rate) if self.exhaustive else wilson(int(self.success.sum()), self.episodes)

    def scalars(self) -> dict[str, float]:
        low, high = self.interval()
        return {
            "eval/success_rate": float(self.success.mean()),
            "eval/success_low": low,
            "eval/success_high": high,
            "eval/episodic_return": float(self.returns.mean()),
            "eval/episodic_length": float(self.lengths.mean()),
            "eval/episodes": float(self.episodes),
        }


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927)."""
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Arena:
    """Where and how a network is evaluated."""

    env: str
    env_kwargs: dict[str, Any]
    observation_key: str | None
    device: torch.device
    acting: ActingMode = "prefix"
    acting_state: ActingState = "window"

    def fleet(self, episodes: int, seed: int) -> tuple[Any, int, bool]:
        """Worlds for at least `episodes` episodes, episodes a row, and whether they are all initial states."""
        name = self.env.removeprefix("envs:")
        if name in WORLDS:
            world = make_world(name, device=self.device, **self.env_kwargs)
            draws = world.initial_draws()
            if draws is not None:
                return TensorFleet(world, len(draws), seed, initial=draws), 1, True
        rows = min(episodes, MOST_ROWS)
        fleet = make_fleet(
            self.env,
            rows,
            seed,
            self.device,
            observation_key=self.observation_key,
            env_kwargs=self.env_kwargs,
        )
        return fleet, math.ceil(episodes / rows), False


@torch.no_grad()
def evaluate(network: QNetwork, arena: Arena, episodes: int, seed: int) -> Score:
    """Greedy episodes of `network`; each row's first episodes count, so that short ones are not favoured."""
    training = network.training
    network.eval()
    fleet, quota, exhaustive = arena.fleet(episodes, seed)
    actor = make_actor(network, fleet.num_worlds, arena.device, arena.acting, arena.acting_state)
    success, returns, lengths = _play(fleet, actor, quota)
    network.train(training)
    kept = slice(None) if exhaustive else slice(episodes)
    return Score(success[kept], returns[kept], lengths[kept], exhaustive)


def _play(fleet: Any, actor: Actor, quota: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first `quota` episodes of every row, ordered by round, then row."""
    rows = fleet.num_worlds
    outcome = np.zeros((3, quota, rows))
    finished = np.zeros(rows, np.int64)
    action = torch.zeros(rows, dtype=torch.int64, device=fleet.device)
    observation, reset = fleet.reset(), torch.ones(rows, dtype=torch.bool, device=fleet.device)
    while (finished < quota).any():
        actor.observe(observation, action, reset)
        action = actor.q_values().argmax(1)
        step = fleet.step(action)
        observation, reset = step.observation, step.terminated | step.truncated
        ended = np.flatnonzero(reset.cpu().numpy() & (finished < quota))
        for entry, values in enumerate((step.success, step.episode_return, step.episode_length)):
            outcome[entry, finished[ended], ended] = values.cpu().numpy()[ended]
        finished[ended] += 1
    success, returns, lengths = outcome.reshape(3, -1)
    return success.astype(bool), returns, lengths.astype(np.int64)


def report(score: Score) -> dict[str, Measure]:
    """Success rate, return and length, each with its interval; None where there is none."""
    low, high = score.interval()
    rate = float(score.success.mean())
    return {
        "success": (rate, None, None) if score.exhaustive else (rate, low, high),
        "return": mean_interval(score.returns, score.exhaustive),
        "length": mean_interval(score.lengths, score.exhaustive),
    }


def mean_interval(values: np.ndarray[Any, np.dtype[Any]], exhaustive: bool) -> Measure:
    """Mean with the normal 95 % interval, which fewer than two values, or all there are, do not give."""
    mean = float(values.mean())
    if exhaustive or len(values) < 2:
        return mean, None, None
    half = 1.959964 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half
