"""From the flat observations of a world to the form that its Gymnasium space declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
Form = Callable[[Array], Any]


def form(space: gymnasium.Space[Any]) -> Form:
    """The function that brings flat observations (N, d) into the batched form of `space`, as an array of their own.

    Array spaces of shape s become (N, *s) of the space's dtype; a Dict is cut up in the order of its entries.

    Raises:
        UserError: the space is neither an array space nor a Dict of such.
    """
    if not isinstance(space, spaces.Dict):
        shape, dtype = _shape(space), space.dtype
        return lambda flat: flat.reshape(-1, *shape).astype(dtype)
    sizes = {name: _size(entry) for name, entry in space.items()}
    stops = dict(zip(sizes, np.cumsum(list(sizes.values())).tolist(), strict=True))
    parts = {name: (slice(stops[name] - size, stops[name]), form(space[name])) for name, size in sizes.items()}
    return lambda flat: {name: shaped(flat[:, part]) for name, (part, shaped) in parts.items()}


def row(batch: Any, index: int) -> Any:
    """One row of a batched observation."""
    if isinstance(batch, dict):
        return {name: row(entry, index) for name, entry in batch.items()}
    return batch[index]


def batch_of_one(observation: Any) -> Any:
    """One observation as a batch of it."""
    if isinstance(observation, dict):
        return {name: batch_of_one(entry) for name, entry in observation.items()}
    return np.asarray(observation)[None]


def rows(batch: Any, chosen: Array, count: int) -> Array:
    """Observations (M, ...) of the chosen rows (M,) as an object array (N,), None elsewhere, as Gymnasium has it."""
    result = np.full(count, None, object)
    each = (row(batch, place) for place in range(len(chosen))) if isinstance(batch, dict) else batch
    result[chosen] = np.fromiter(each, object, len(chosen))
    return result


def _shape(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    if space.shape is None:
        raise UserError(
            f"An observation space must be Box, Discrete, MultiDiscrete, MultiBinary or a Dict, not {space}."
        )
    return space.shape


def _size(space: gymnasium.Space[Any]) -> int:
    if isinstance(space, spaces.Dict):
        return sum(_size(entry) for entry in space.values())
    return int(np.prod(_shape(space)))
