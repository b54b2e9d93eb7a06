"""Play an environment at random, and name what is odd about it, with what to do.

Shapes: T steps of N environments, M observations, d numbers of an observation.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from dqn_memory.intervals import wilson
from dqn_memory.observations import observation_spec
from dqn_memory.runs.seeding import generator
from envs.rows import RowSpace
from envs.spaces import Array, entry_bounds
from envs.vector import VectorEnvironment

STEPS = 4_096  # max steps of random play in each environment
FEW_STEPS = 256  # fewest steps, if they fit into PATIENCE
PATIENCE = 60.0  # max seconds until they are played, and until each environment has ended an episode
HISTORY = 4  # observations and actions from which `aliasing` predicts, beside one
FEW_REPEATS = 200  # min predictions of `aliasing`
CHANCE = 4.0  # standard errors of a difference that may be chance
SPREAD = 10.0  # largest standard deviation, or distance of the mean from 0, that a network reads well
HUGE = 100.0  # a reward that is better scaled
DENSE = 0.1  # share of steps with another reward than the usual one, above which rewards are dense
RARE = 0.02  # share of episodes


@dataclass(frozen=True)
class RandomPlay:
    """T random steps in each of N environments."""

    seen: Array  # (T, N) number of the observation that an action was chosen for; equal ones have equal numbers
    after: Array  # (T, N) number of the next observation, before any reset
    action: Array  # (T, N) number of the action
    reward: Array  # (T, N)
    terminated: Array  # (T, N) bool, as the next two
    truncated: Array
    success: Array
    returns: Array  # (E,) of the episodes that ended
    lengths: Array  # (E,)
    low: Array  # (d,) minimum of each number of the observations
    high: Array
    mean: Array
    spread: Array  # standard deviation
    space: gymnasium.Space  # of the observations
    reports_success: bool
    limit: int | None = None  # steps after which episodes were cut because none had ended without it

    @property
    def score(self) -> Array:
        """Success of each episode, 0 or 1, or its return if the environment defines no success.

        Each environment counts with as many episodes as the slowest one: more of them would favour short episodes.
        """
        done = self.terminated | self.truncated
        number = done.cumsum(0)  # (T, N) of the episode that ends
        kept = number[done] <= max(1, number[-1].min())
        return (self.success[done].astype(np.float64) if self.reports_success else self.returns)[kept]

    @property
    def dense(self) -> bool:
        """Whether rewards often differ from the usual one."""
        _, counts = np.unique(self.reward, return_counts=True)
        return bool(counts.max() < (1 - DENSE) * self.reward.size)

    @property
    def unscaled(self) -> list[int]:
        """The places of real numbers that are far from 0, or vary far more or less than 1."""
        still = (self.spread < 1 / SPREAD**2) & (self.high > self.low)
        far = (np.abs(self.mean) > SPREAD) | (self.spread > SPREAD) | still
        return np.flatnonzero(far & real_numbers(self.space)).tolist()


def real_numbers(space: gymnasium.Space) -> Array:
    """Tell which numbers of a flat observation are real, and neither tokens, pixels nor flags, (d,) bool."""
    spec, size = observation_spec(space), len(entry_bounds("The observation", space)[0])
    found = np.zeros(size, bool)
    for place, part in spec.parts:
        found[place] = part.kind == "continuous"
    return found


@torch.no_grad()
def play_randomly(
    vector: VectorEnvironment, seed: int, seconds: float = 10.0, steps: int | None = None, limit: int | None = None
) -> RandomPlay:
    """Take random actions for about `seconds`, and longer within FEW_STEPS or until each environment ended an episode.

    `steps` is an exact number of steps instead; `limit` is that of the result.
    """
    draws, hashing = generator(seed), np.random.default_rng(0)
    observation = vector.reset()
    bounds = entry_bounds("The observation", vector.observation_space)
    weights = hashing.integers(1, 2**63, observation[0].numel() * 8, np.uint64) | np.uint64(1)
    flags = vector.observation_space.flags if isinstance(vector.observation_space, RowSpace) else 0
    columns = defaultdict[str, list[Array]](list)
    low, high, total, squares = np.full(len(bounds[0]), np.inf), np.full(len(bounds[0]), -np.inf), 0.0, 0.0
    began, ended = time.monotonic(), np.zeros(vector.num_envs, bool)  # not processor time: a step may only wait
    for taken in range(steps or STEPS):
        allowed = seconds if taken >= FEW_STEPS and ended.all() else PATIENCE
        if steps is None and taken > 0 and time.monotonic() - began > allowed:
            break
        rows = observation.flatten(1).double().numpy()  # (N, d)
        low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        total, squares = total + rows.sum(0), squares + np.square(rows).sum(0)
        legal = observation[:, -flags:] > 0.5 if flags else None
        shape = vector.num_envs if vector.actions.count else (vector.num_envs, *vector.actions.shape)
        action = vector.actions.random(torch.rand(shape, generator=draws), legal)
        step = vector.step(action)
        rows_of = {"seen": observation, "after": step.final_observation, "action": action}
        values: dict[str, Any] = {name: _number(value, weights) for name, value in rows_of.items()}
        values |= {name: getattr(step, name) for name in ("reward", "terminated", "truncated", "success")}
        for name, value in (values | {"returns": step.episode_return, "lengths": step.episode_length}).items():
            columns[name].append(np.asarray(value).copy())
        observation, ended = step.observation, ended | np.asarray(step.done)
    found = {name: np.stack(column) for name, column in columns.items()}  # each (T, N)
    done, mean = found["terminated"] | found["truncated"], total / found["reward"].size
    found |= {name: found[name][done] for name in ("returns", "lengths")}
    spread = np.sqrt(np.maximum(squares / found["reward"].size - np.square(mean), 0))
    numbers = {"low": low, "high": high, "mean": mean, "spread": spread}
    space, reports = vector.observation_space, vector.reports_success
    return RandomPlay(**found, **numbers, space=space, reports_success=reports, limit=limit)


def _number(rows: torch.Tensor, weights: Array) -> Array:
    """Give each row (N, ...) a whole number that depends on its bytes, (N,)."""
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1).numpy()).view(np.uint8)
    return (flat.astype(np.uint64) + np.uint64(1)) @ weights[: flat.shape[1]]


# ---- what is odd -----------------------------------------------------------------------------------------------------
def oddities(play: RandomPlay) -> list[str]:
    """List what is odd, a sentence or two each: what was seen, and what to do about it."""
    return [*_about_observations(play), *_about_rewards(play), *_about_episodes(play)]


def _about_observations(play: RandomPlay) -> Iterator[str]:
    low, high = (bound.astype(np.float64) for bound in entry_bounds("The observation", play.space))
    real, margin = real_numbers(play.space), 1e-6
    outside = np.flatnonzero((play.low < low - margin) | (play.high > high + margin))
    if len(outside):
        place = int(outside[0])
        yield (
            f"Observations leave their space: number {place} went from {play.low[place]:g} to {play.high[place]:g}, "
            f"and the space says {low[place]:g} to {high[place]:g}{_others(len(outside))}. Correct observation_space."
        )
    if play.unscaled:
        place = play.unscaled[0]
        yield (
            f"Observations are not scaled: number {place} has mean {play.mean[place]:.3g} and standard deviation "
            f"{play.spread[place]:.3g}{_others(len(play.unscaled))}. Scale them: --normalize-observation does."
        )
    varies = play.high > play.low
    if not varies.any():
        yield "The observation never changes under random actions: an agent can only count steps. Check what it shows."
    elif constant := int((real & ~varies).sum()):
        yield f"{constant} of {real.sum()} real numbers of an observation never change. Leave them out, or mend them."
    if (found := aliasing(play)) is not None and found.wrong[0] - found.wrong[1] > max(0.02, CHANCE * found.error):
        yield (
            f"Different states look alike: the newest observation and action tell what follows in "
            f"{1 - found.wrong[0]:.0%} of {found.predictions:,} steps, the last {HISTORY} of both in "
            f"{1 - found.wrong[1]:.0%}. That is a task for a memory, if the difference matters for returns."
        )


def _about_rewards(play: RandomPlay) -> Iterator[str]:
    largest, given = np.abs(play.reward).max(), int((play.reward != 0).sum())
    if largest == 0:
        yield (
            f"No reward in {play.reward.size:,} random steps: nothing can be learned before chance finds one. Make the "
            "task easier at first, or reward steps towards the goal."
        )
    elif len(play.returns) > 1 and np.ptp(play.reward) == 0 and np.ptp(play.returns) == 0:
        yield f"Rewards never vary: every step gives {play.reward.flat[0]:g}, and every episode the same. Check them."
    elif largest > HUGE:
        yield f"Rewards are huge, up to {largest:,.0f}. Scale them: --normalize-reward does."
    elif given / play.reward.size * max(1.0, play.lengths.mean()) < RARE:
        yield (
            f"Rewards are rare: {given:,} in {play.reward.size:,} random steps. Curves may stay flat for long; that "
            "says nothing about memories."
        )


def _about_episodes(play: RandomPlay) -> Iterator[str]:
    count, longest = len(play.lengths), int(play.lengths.max())
    ends = Counter(play.lengths[play.terminated[play.terminated | play.truncated]].tolist())
    usual, times = ends.most_common(1)[0] if ends else (0, 0)
    if play.limit is not None:
        yield (
            f"Episodes hardly ever end by themselves: random play and these runs cut them after {play.limit} steps. "
            "Give the environment a limit of its own, max_episode_steps at its registration."
        )
    elif longest == 1:
        yield "Every episode ends with its first step: there is nothing to remember. Check why it ends."
    elif usual == longest:
        which = "Every episode" if times == count else f"{times / count:.0%} of all episodes"
        yield (
            f"{which} terminated after {longest} steps, and none was longer. If that is a time limit, return it as "
            "truncated: an agent takes the value of what follows a termination to be 0. If the task ends there, all is "
            "well."
        )
    elif play.truncated.sum() == count:
        yield (
            f"Every one of {count:,} random episodes met its time limit of {longest} steps. If no policy can end them "
            "earlier, all is well. Else chance finds no end: raise the limit, or begin episodes nearer to their end."
        )
    wins, tried = int(play.score.sum()), len(play.score)
    if play.reports_success and wins:
        low, high = wilson(wins, tried)
        yield (
            f"Random actions succeed in {wins / tried:.3f} [{low:.3f}, {high:.3f}] of episodes. A success rate in that "
            "range shows nothing learned."
        )
    elif play.reports_success:
        yield (
            f"Random actions never succeeded in {tried:,} episodes: rewards must lead to the first success. Reward "
            "steps towards the goal, or make the task easier at first."
        )


def _others(count: int) -> str:
    """Say how many numbers more than one are meant."""
    return f" ({count - 1} more likewise)" if count > 1 else ""


class Aliasing(NamedTuple):
    """How often the outcome of an action is not the usual one after what was seen before it."""

    wrong: tuple[float, float]  # share of wrong predictions from one observation and action, and from HISTORY of both
    error: float  # standard error of the difference of the two
    predictions: int


def aliasing(play: RandomPlay) -> Aliasing | None:
    """Predict reward, end and next observation from what was seen before; None if too few observations repeat.

    Half of the environments give the usual outcome of each history, and the other half is predicted.
    """
    done, terminated = play.terminated | play.truncated, play.terminated.astype(np.uint64)
    outcome = _joined(play.reward.view(np.uint32).astype(np.uint64), terminated, play.after)
    newest, rows = _joined(play.seen, play.action), done.shape[1] // 2  # (T, N)
    if (last := len(done) - HISTORY + 1) < 1:
        return None
    history = _joined(*(newest[back : back + last] for back in range(HISTORY)))
    whole = ~np.any([done[back : back + last] for back in range(HISTORY - 1)], 0)  # within one episode
    newest, outcome = newest[HISTORY - 1 :], outcome[HISTORY - 1 :]
    past, future = np.arange(done.shape[1]) < rows, np.arange(done.shape[1]) >= rows
    predicted = []
    for keys in (newest, history):
        usual = _usual_outcomes(keys[whole & past].tolist(), outcome[whole & past].tolist())
        predicted.append(np.array([usual.get(key, 0) for key in keys[whole & future].tolist()], np.uint64))
    known, true = (predicted[0] != 0) & (predicted[1] != 0), outcome[whole & future]
    if known.sum() < FEW_REPEATS:
        return None
    wrong = np.array([each[known] != true[known] for each in predicted], np.float64)  # (2, P)
    error = float((wrong[0] - wrong[1]).std()) / math.sqrt(wrong.shape[1])
    return Aliasing((float(wrong[0].mean()), float(wrong[1].mean())), error, wrong.shape[1])


def _joined(*parts: Array) -> Array:
    """Give each tuple of numbers one number that depends on all."""
    weights = np.random.default_rng(1).integers(1, 2**63, len(parts), np.uint64) | np.uint64(1)
    return np.asarray(np.sum([part * weight for part, weight in zip(parts, weights, strict=True)], 0, dtype=np.uint64))


def _usual_outcomes(keys: list[int], outcomes: list[int]) -> dict[int, int]:
    """Give the most frequent outcome of each key."""
    counts = Counter(zip(keys, outcomes, strict=True))
    return {key: outcome for (key, outcome), _ in sorted(counts.items(), key=lambda item: item[1])}
