"""One form for the observations of any Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.errors import UserError, near_names

Array = np.ndarray[Any, np.dtype[Any]]
Encode = Callable[[Any], Array]
MOST_ACTIONS = 2**15 - 2  # int16, and one number that stands for none


def encoder(space: gymnasium.Space[Any], key: str | None = None) -> tuple[gymnasium.Space[Any], Encode]:
    """The space that a network sees, and the function that brings an observation into it.

    Discrete, MultiDiscrete and MultiBinary become flat int64 vectors counted from 0 (MultiDiscrete; Discrete
    has length 1). A Box of three axes (an image) stays as it is; any other Box becomes a flat float32 vector.
    Of a Dict the entry `key` is used.

    Raises:
        UserError: a key is missing, wrong or unused, or the space has another form.
    """
    if isinstance(space, spaces.Dict):
        inner, encode = encoder(_entry(space, key))
        return inner, lambda observation: encode(observation[key])
    if key is not None:
        raise UserError(f"observation_key {key!r} needs a Dict observation, but the observation is {space}.")
    if isinstance(space, spaces.Box):
        return _box(space)
    if isinstance(space, spaces.Discrete):
        return _integers(np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _integers(space.nvec.flatten(), space.start.flatten())
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return _integers(np.full(size, 2), np.zeros(size, np.int64))
    raise UserError(f"Observations must be Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, not {space}.")


def actions(space: gymnasium.Space[Any]) -> tuple[int, int]:
    """Number of actions and the first action's number; a UserError unless the actions are Discrete."""
    if not isinstance(space, spaces.Discrete):
        raise UserError(f"The actions must be Discrete, not {space}.")
    if space.n > MOST_ACTIONS:
        raise UserError(f"There are {space.n} actions; a replay holds numbers up to {MOST_ACTIONS}.")
    return int(space.n), int(space.start)


def _entry(space: spaces.Dict, key: str | None) -> gymnasium.Space[Any]:
    if key is None:
        keys = ", ".join(repr(name) for name in space)
        raise UserError(f"The observation is a Dict; choose one of its keys {keys} with observation_key.")
    if key not in space.spaces:
        raise UserError(near_names("key of the observation", key, space.spaces))
    if isinstance(space[key], spaces.Dict):
        raise UserError(f"The entry {key!r} of the observation is a Dict itself; flatten it with a wrapper.")
    return space[key]


def _box(space: spaces.Box) -> tuple[spaces.Box, Encode]:
    if len(space.shape) == 3:
        return space, np.asarray
    low, high = space.low.astype(np.float32).flatten(), space.high.astype(np.float32).flatten()
    return spaces.Box(low, high, dtype=np.float32), lambda observation: np.float32(observation).reshape(-1)


def _integers(sizes: Array, start: Array) -> tuple[spaces.MultiDiscrete, Encode]:
    return spaces.MultiDiscrete(sizes), lambda observation: np.int64(observation).reshape(-1) - start
