"""Play an environment at random, and name what is odd about it, with what to do.

Shapes: T steps of N environments, M observations, d numbers of an observation.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

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
FEW_STEPS = 256  # steps that are played even if they are slow
HISTORY = 4  # observations and actions from which `aliasing` predicts, beside one
FEW_REPEATS = 200  # min predictions of `aliasing`
SPREAD = 10.0  # largest standard deviation, or distance of the mean from 0, that a network reads well
HUGE = 100.0  # a reward that is better scaled
DENSE = 0.1  # share of steps with another reward than the usual one, above which rewards are dense
RARE = 0.02  # share of episodes


@dataclass(frozen=True)
class RandomPlay:
    """T random steps in each of N environments.

    Attributes:
        seen: number of each observation that an action was chosen for, (T, N); equal ones have equal numbers.
        after: number of each action's next observation, before any reset, (T, N).
        action: number of each action, (T, N).
        reward: (T, N).
        terminated, truncated, success: (T, N) bool.
        returns, lengths: of the episodes that ended, (E,).
        low, high, mean, spread: of each number of the observations, (d,); `spread` is the standard deviation.
        space: of the observations.
        reports_success: whether the environment defines success.
    """

    seen: Array
    after: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    success: Array
    returns: Array
    lengths: Array
    low: Array
    high: Array
    mean: Array
    spread: Array
    space: gymnasium.Space
    reports_success: bool

    @property
    def score(self) -> Array:
        """Success of each episode, (E,) of 0 and 1, or its return if the environment defines no success.

        If no episode has ended, each environment counts as far as it came.
        """
        done = self.terminated | self.truncated
        if not done.any():
            return np.asarray(self.success.any(0) if self.reports_success else self.reward.sum(0))
        return self.success[done].astype(np.float64) if self.reports_success else self.returns

    @property
    def dense(self) -> bool:
        """Whether rewards often differ from the usual one."""
        _, counts = np.unique(self.reward, return_counts=True)
        return bool(counts.max() < (1 - DENSE) * self.reward.size)

    @property
    def unscaled(self) -> list[int]:
        """The places of real numbers that are far from 0, or vary far more or less than 1."""
        far = (np.abs(self.mean) > SPREAD) | (self.spread > SPREAD) | ((self.spread < 1 / SPREAD**2) & self.varies)
        return np.flatnonzero(far & real_numbers(self.space)).tolist()

    @property
    def varies(self) -> Array:
        """Whether each number changes, (d,) bool."""
        return self.high > self.low


def real_numbers(space: gymnasium.Space) -> Array:
    """Tell which numbers of a flat observation are real, and neither tokens, pixels nor flags, (d,) bool."""
    spec, size = observation_spec(space), len(entry_bounds("The observation", space)[0])
    found = np.zeros(size, bool)
    for place, part in spec.parts:
        found[place] = part.kind == "continuous"
    return found


@torch.no_grad()
def play_randomly(vector: VectorEnvironment, seed: int, seconds: float = 10.0, steps: int | None = None) -> RandomPlay:
    """Take random actions for at most `seconds` of processor time, but at least `FEW_STEPS` in each environment.

    `steps` is an exact number of steps instead.
    """
    draws, hashing = generator(seed), np.random.default_rng(0)
    observation = vector.reset()
    bounds = entry_bounds("The observation", vector.observation_space)
    weights = hashing.integers(1, 2**63, observation[0].numel() * 8, np.uint64) | np.uint64(1)
    flags = vector.observation_space.flags if isinstance(vector.observation_space, RowSpace) else 0
    names = "seen", "after", "action", "reward", "terminated", "truncated", "success", "returns", "lengths"
    columns: dict[str, list[Array]] = {name: [] for name in names}
    low, high, total, squares = np.full(len(bounds[0]), np.inf), np.full(len(bounds[0]), -np.inf), 0.0, 0.0
    began, taken = time.process_time(), 0
    least, most = (FEW_STEPS, STEPS) if steps is None else (steps, steps)
    while taken < least or (taken < most and time.process_time() - began < seconds):
        rows = observation.flatten(1).double().numpy()  # (N, d)
        low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
        total, squares = total + rows.sum(0), squares + np.square(rows).sum(0)
        legal = observation[:, -flags:] > 0.5 if flags else None
        shape = vector.num_envs if vector.actions.count else (vector.num_envs, *vector.actions.shape)
        action = vector.actions.random(torch.rand(shape, generator=draws), legal)
        step = vector.step(action)
        values = (
            _number(observation, weights), _number(step.final_observation, weights), _number(action, weights),
            step.reward, step.terminated, step.truncated, step.success, step.episode_return, step.episode_length,
        )  # fmt: skip
        for name, value in zip(names, values, strict=True):
            columns[name].append(np.asarray(value).copy())
        observation, taken = step.observation, taken + 1
    found = {name: np.stack(column) for name, column in columns.items()}  # each (T, N)
    done, mean = found["terminated"] | found["truncated"], total / (taken * vector.num_envs)
    found |= {name: found[name][done] for name in ("returns", "lengths")}
    spread = np.sqrt(np.maximum(squares / (taken * vector.num_envs) - np.square(mean), 0))
    numbers = {"low": low, "high": high, "mean": mean, "spread": spread}
    return RandomPlay(**found, **numbers, space=vector.observation_space, reports_success=vector.reports_success)


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
            f"Observations leave their space: number {place} went from {play.low[place]:g} to {play.high[place]:g}; "
            f"the space says {low[place]:g} to {high[place]:g}{_others(len(outside))}. Correct observation_space."
        )
    if play.unscaled:
        place = play.unscaled[0]
        yield (
            f"Observations are not scaled: number {place} has mean {play.mean[place]:.3g} and standard deviation "
            f"{play.spread[place]:.3g}{_others(len(play.unscaled))}. --normalize-observation scales them; these runs "
            "use it."
        )
    if not play.varies.any():
        yield "The observation never changes under random actions: an agent can only count steps. Check what it shows."
    elif constant := int((real & ~play.varies).sum()):
        yield f"{constant} of {real.sum()} numbers of an observation never change. Leave them out, if that is right."
    if (found := aliasing(play)) is not None and found.wrong[0] - found.wrong[1] > 0.02:
        yield (
            f"Different states look alike: the newest observation and action tell what follows in "
            f"{1 - found.wrong[0]:.0%} of {found.predictions:,} steps, the last {HISTORY} of both in "
            f"{1 - found.wrong[1]:.0%}. That is a task for a memory, if the difference matters for returns."
        )


def _about_rewards(play: RandomPlay) -> Iterator[str]:
    largest, given = np.abs(play.reward).max(), (play.reward != 0).mean()
    if largest == 0:
        yield (
            f"No reward in {play.reward.size:,} random steps: nothing can be learned before chance finds one. Make the "
            "task easier at first, or reward steps towards the goal."
        )
    elif len(play.returns) > 1 and np.ptp(play.reward) == 0 and np.ptp(play.returns) == 0:
        yield f"Rewards never vary: every step gives {play.reward.flat[0]:g}, and every episode the same. Check them."
    elif largest > HUGE:
        yield f"Rewards are huge, up to {largest:,.0f}. --normalize-reward scales them; these runs use it."
    elif given * max(1.0, play.lengths.mean() if len(play.lengths) else 1.0) < RARE:
        yield (
            f"Rewards are rare: {int((play.reward != 0).sum())} in {play.reward.size:,} random steps. Curves may stay "
            "flat for long; that says nothing about memories."
        )


def _about_episodes(play: RandomPlay) -> Iterator[str]:
    count = len(play.lengths)
    if count == 0:
        yield (
            f"No episode ended within {len(play.reward):,} steps. Give the environment a limit: --time-limit, or "
            "max_episode_steps at its registration."
        )
        return
    longest, usual = int(play.lengths.max()), Counter(play.lengths.tolist()).most_common(1)[0]
    if play.terminated.sum() == count and usual == (longest, count) and longest > 1:
        yield (
            f"Every episode terminated after {longest} steps. If that is a time limit, let it be `truncated`: an agent "
            "takes the value of what follows a termination to be 0. If the task ends there, all is well."
        )
    elif play.truncated.sum() == count:
        yield (
            f"Every one of {count:,} random episodes met its time limit of {longest} steps. If no policy ends them "
            "earlier, that is the task; else chance never reaches an end."
        )
    wins = int(play.success.sum())
    if play.reports_success and wins:
        low, high = wilson(wins, count)
        yield f"Random actions succeed in {wins / count:.3f} [{low:.3f}, {high:.3f}] of episodes; scores begin there."
    elif play.reports_success:
        yield f"Random actions never succeeded in {count:,} episodes: early successes will be luck."


def _others(count: int) -> str:
    """Say how many numbers more than one are meant."""
    return f", and {count - 1} more" if count > 1 else ""


@dataclass(frozen=True)
class Aliasing:
    """How often the outcome of an action is not the usual one after what was seen before it.

    Attributes:
        wrong: share of wrong predictions from one observation and action, and from the last `HISTORY` of both.
        predictions: number of predictions.
    """

    wrong: tuple[float, float]
    predictions: int


def aliasing(play: RandomPlay) -> Aliasing | None:
    """Predict reward, end and next observation from what was seen before; None if too few observations repeat.

    Half of the environments give the usual outcome of each history, and the other half is predicted.
    """
    done, terminated = play.terminated | play.truncated, play.terminated.astype(np.uint64)
    outcome = _joined(play.reward.view(np.uint32).astype(np.uint64), terminated, play.after)
    newest, rows = _joined(play.seen, play.action), done.shape[1] // 2  # (T, N)
    last = len(done) - HISTORY + 1
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
    wrong = [float((each[known] != true[known]).mean()) for each in predicted]
    return Aliasing((wrong[0], wrong[1]), int(known.sum()))


def _joined(*parts: Array) -> Array:
    """Give each tuple of numbers one number that depends on all."""
    weights = np.random.default_rng(1).integers(1, 2**63, len(parts), np.uint64) | np.uint64(1)
    return np.asarray(np.sum([part * weight for part, weight in zip(parts, weights, strict=True)], 0, dtype=np.uint64))


def _usual_outcomes(keys: list[int], outcomes: list[int]) -> dict[int, int]:
    """Give the most frequent outcome of each key."""
    counts = Counter(zip(keys, outcomes, strict=True))
    return {key: outcome for (key, outcome), _ in sorted(counts.items(), key=lambda item: item[1])}
