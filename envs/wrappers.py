"""Wrappers for one environment; `envs.vector_wrappers` has the same for vector environments.

    PreviousAction  the action before is part of the observation
    StepCount       so is the number of steps taken
    OneHot          whole numbers as 0 and 1
    Antialias       continuous numbers as weights of places: Car Flag's position, a step count

They are ordinary Gymnasium wrappers and go around each other: `Antialias(StepCount(env), bins=20, entries=[0, 3])`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from envs.errors import UserError
from envs.features import Feature, Joined, antialias, join_choice, join_count, one_hot
from envs.forms import batch_of_one, row

__all__ = ["Antialias", "OneHot", "PreviousAction", "StepCount", "action_count", "step_limit"]
Single = gymnasium.Env[Any, Any]


class _Encoded(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Another form of the observation."""

    def __init__(self, env: Single, feature: Feature) -> None:
        gymnasium.Wrapper.__init__(self, env)
        self.observation_space, self._encode = feature

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._one(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One action."""
        observation, *rest = self.env.step(action)
        return self._one(observation), *rest

    def _one(self, observation: Any) -> Any:
        return row(self._encode(batch_of_one(observation)), 0)


class OneHot(_Encoded):
    """Every whole number k of n as n entries, 1 at k and 0 elsewhere (see `envs.features.one_hot`)."""

    def __init__(self, env: Single) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env, one_hot(single(env, "OneHot").observation_space))


class Antialias(_Encoded):
    """Continuous entries as weights of `bins` places (see `envs.features.antialias`).

    A network that is fed a position as one number must bend a straight line into every decision that depends on
    the place; fed with a single 1 for the nearest place it cannot tell neighbouring positions apart. Weights shared
    by the two nearest places do both. For Car Flag: `Antialias(env, bins=20, entries=[0])`.
    """

    def __init__(self, env: Single, bins: int = 16, entries: Sequence[int] | None = None) -> None:
        RecordConstructorArgs.__init__(self, bins=bins, entries=entries)
        super().__init__(env, antialias(single(env, "Antialias").observation_space, bins, entries))


class _Tracked(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs, ABC):
    """The observation together with a number that the episode's actions make."""

    first: int

    def __init__(self, env: Single, joined: Joined) -> None:
        gymnasium.Wrapper.__init__(self, env)
        self.observation_space, self._encode = joined
        self.number = self.first

    @abstractmethod
    def next(self, action: int) -> int:
        """The number after this action."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.number = self.first
        return self._one(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One action."""
        observation, *rest = self.env.step(action)
        self.number = self.next(int(action))
        return self._one(observation), *rest

    def _one(self, observation: Any) -> Any:
        return row(self._encode(batch_of_one(observation), np.array([self.number])), 0)


class PreviousAction(_Tracked):
    """The action that led to an observation is part of it; at the start of an episode there is none.

    A Box gets one entry for each action; MultiDiscrete and Discrete get one more number, A where there is none; a
    Dict gets the entry "previous_action", Discrete(A + 1).
    """

    def __init__(self, env: Single) -> None:
        RecordConstructorArgs.__init__(self)
        self.first = action_count(single(env, "PreviousAction").action_space)
        super().__init__(env, join_choice(env.observation_space, self.first, "previous_action"))

    def next(self, action: int) -> int:
        """The action itself, counted from 0."""
        return action - int(self.env.action_space.start)  # type: ignore[attr-defined]


class StepCount(_Tracked):
    """The number of steps taken in this episode is part of the observation.

    A Box gets the share of `limit` as one more entry; MultiDiscrete and Discrete one more number of limit + 1
    values; a Dict the entry "step_count", the share as a Box (1,).

    Args:
        env: the environment.
        limit: the count at which it stops; the world's own time limit if not given.
    """

    first = 0

    def __init__(self, env: Single, limit: int | None = None) -> None:
        RecordConstructorArgs.__init__(self, limit=limit)
        self.limit = step_limit(single(env, "StepCount"), limit)
        super().__init__(env, join_count(env.observation_space, self.limit, "step_count"))

    def next(self, action: int) -> int:
        """One more."""
        return min(self.number + 1, self.limit)


def single(env: Any, name: str) -> Single:
    """The environment, or a UserError if it is none."""
    if not isinstance(env, gymnasium.Env):
        other = f"envs.vector_wrappers.{name}" if isinstance(env, gymnasium.vector.VectorEnv) else "gymnasium.make(id)"
        raise UserError(f"{name} wraps a gymnasium.Env, not {type(env).__name__}; use {other}.")
    return env


def action_count(space: gymnasium.Space[Any]) -> int:
    """The number of actions; a UserError unless they are Discrete."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise UserError(f"PreviousAction needs Discrete actions, not {space}.")
    return int(space.n)


def step_limit(env: Any, limit: int | None) -> int:
    """The limit given or the world's own; a UserError where there is neither."""
    found = getattr(getattr(env.unwrapped, "world", None), "time_limit", None) if limit is None else limit
    if found is None or found < 1:
        raise UserError(
            f"StepCount needs a limit of at least 1 step for {env}, not {found}; give StepCount(env, limit=...)."
        )
    return int(found)
