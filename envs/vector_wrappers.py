"""The wrappers of `envs.wrappers` for vector environments, in every autoreset mode, final observations included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from envs.errors import UserError
from envs.features import Feature, Joined, antialias, join_choice, join_count, one_hot
from envs.forms import batch_of_one, row
from envs.wrappers import action_count, step_limit

__all__ = ["Antialias", "OneHot", "PreviousAction", "StepCount"]
Array = np.ndarray[Any, np.dtype[Any]]
Vector = VectorEnv[Any, Any, Any]


class _Encoded(VectorWrapper[Any, Any, Any, Any, Array]):
    """Another form of the observation."""

    def __init__(self, env: Vector, feature: Feature) -> None:
        super().__init__(env)
        self._encode = feature.encode
        self.single_observation_space = feature.space
        self.observation_space = batch_space(feature.space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes, or those of `options["reset_mask"]`."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._encode(observation), info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One action in every row."""
        observation, reward, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            finals = info["final_obs"]
            for index in np.flatnonzero(info["_final_obs"]):
                finals[index] = row(self._encode(batch_of_one(finals[index])), 0)
        return self._encode(observation), reward, terminated, truncated, info


class OneHot(_Encoded):
    """As `envs.wrappers.OneHot`."""

    def __init__(self, env: Vector) -> None:
        super().__init__(env, one_hot(vector(env, "OneHot").single_observation_space))


class Antialias(_Encoded):
    """As `envs.wrappers.Antialias`."""

    def __init__(self, env: Vector, bins: int = 16, entries: Sequence[int] | None = None) -> None:
        super().__init__(env, antialias(vector(env, "Antialias").single_observation_space, bins, entries))


class _Tracked(VectorWrapper[Any, Any, Any, Any, Array], ABC):
    """The observation together with a number that each row's actions make."""

    first: int

    def __init__(self, env: Vector, joined: Joined) -> None:
        super().__init__(env)
        self._encode = joined.encode
        self.single_observation_space = joined.space
        self.observation_space = batch_space(joined.space, env.num_envs)
        self.numbers = np.full(env.num_envs, self.first, np.int64)
        self._ended = np.zeros(env.num_envs, bool)

    @abstractmethod
    def next(self, actions: Array) -> Array:
        """The numbers (N,) after these actions (N,)."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes, or those of `options["reset_mask"]`."""
        mask = (options or {}).get("reset_mask")
        mask = np.ones(self.env.num_envs, bool) if mask is None else mask
        observation, info = self.env.reset(seed=seed, options=options)
        self.numbers = np.where(mask, self.first, self.numbers)
        self._ended = self._ended & ~mask
        return self._encode(observation, self.numbers), info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One action in every row."""
        mode = self.env.metadata["autoreset_mode"]
        observation, reward, terminated, truncated, info = self.env.step(actions)
        numbers = self.next(np.asarray(actions))
        for index in np.flatnonzero(info.get("_final_obs", ())):
            final = batch_of_one(info["final_obs"][index])
            info["final_obs"][index] = row(self._encode(final, numbers[index : index + 1]), 0)
        ended = terminated | truncated
        restarted = ended if mode is AutoresetMode.SAME_STEP else self._ended
        self.numbers, self._ended = np.where(restarted, self.first, numbers), ended
        return self._encode(observation, self.numbers), reward, terminated, truncated, info


class PreviousAction(_Tracked):
    """As `envs.wrappers.PreviousAction`."""

    def __init__(self, env: Vector) -> None:
        self.first = action_count(vector(env, "PreviousAction").single_action_space)
        super().__init__(env, join_choice(env.single_observation_space, self.first, "previous_action"))

    def next(self, actions: Array) -> Array:
        """The actions themselves, counted from 0."""
        return actions - int(self.env.single_action_space.start)  # type: ignore[attr-defined]


class StepCount(_Tracked):
    """As `envs.wrappers.StepCount`."""

    first = 0

    def __init__(self, env: Vector, limit: int | None = None) -> None:
        self.limit = step_limit(vector(env, "StepCount"), limit)
        super().__init__(env, join_count(env.single_observation_space, self.limit, "step_count"))

    def next(self, actions: Array) -> Array:
        """One more."""
        return np.minimum(self.numbers + 1, self.limit)


def vector(env: Any, name: str) -> Vector:
    """The vector environment, or a UserError if it is none, or does not say when its rows start over."""
    if not isinstance(env, VectorEnv):
        other = f"envs.wrappers.{name}" if isinstance(env, gymnasium.Env) else "gymnasium.make_vec(id)"
        raise UserError(f"{name} wraps a gymnasium.vector.VectorEnv, not {type(env).__name__}; use {other}.")
    if "autoreset_mode" not in env.metadata:
        raise UserError(f"{name} needs metadata['autoreset_mode'] of {env}, to know when a row starts over.")
    return env
