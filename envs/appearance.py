"""What a world's observation tensor must look like, from the space that the world declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
BRIEF = 100  # characters of a space in a sentence


@dataclass(frozen=True)
class Appearance:
    """The form of one row, and the least and the greatest value in each place of it once it is laid out flat."""

    space: gymnasium.Space[Any]
    shape: tuple[int, ...]
    dtype: str
    low: Array  # (d,)
    high: Array  # (d,)


def appearance(what: str, space: Any) -> Appearance:
    """The form that `envs.core.World` prescribes for a space: one flat row, but for an image.

    Raises:
        UserError: `what` is no space that a world may declare.
    """
    low, high = _limits(what, space)
    image = isinstance(space, spaces.Box) and len(space.shape) == 3
    shape = space.shape if image else low.shape
    return Appearance(space, shape, low.dtype.name, low, high)


def brief(space: gymnasium.Space[Any]) -> str:
    """A space on one line that is not too long."""
    line = " ".join(str(space).split())
    return line if len(line) <= BRIEF else line[: BRIEF - 3] + "..."


def _limits(what: str, space: Any) -> tuple[Array, Array]:
    """Least and greatest value (d,) of each place, of the dtype that the space says."""
    if isinstance(space, spaces.Dict):
        entries = [_limits(f"{what}, entry {name!r},", entry) for name, entry in space.items()]
        low, high = (np.concatenate(part) for part in zip(*entries, strict=True))
        return low, high
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1), space.high.reshape(-1)
    if isinstance(space, spaces.Discrete):
        return _counted(what, space, np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _counted(what, space, np.array(space.nvec).reshape(-1), np.array(space.start).reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        return _counted(what, space, np.full(int(np.prod(space.shape)), 2), np.zeros(1))
    raise UserError(f"{what} must be Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, not {space!r}.")


def _counted(what: str, space: gymnasium.Space[Any], count: Array, start: Array) -> tuple[Array, Array]:
    if start.any():  # trainers take such numbers for places in a table, and the one behind the last for padding
        raise UserError(f"{what} must count from 0, not {brief(space)}.")
    return np.zeros(count.shape, space.dtype), (count - 1).astype(space.dtype)
