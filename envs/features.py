"""What the wrappers make of an observation: pure functions of batches, shared by their single and vector forms.

Every function takes the space of ONE observation and gives the new space and the function from a batch to a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.errors import UserError
from envs.spaces import MultiDiscrete

Array = np.ndarray[Any, np.dtype[Any]]


class Feature(NamedTuple):
    """A new form of the observation."""

    space: gymnasium.Space[Any]
    encode: Callable[[Any], Any]  # batched observations (N, ...) -> batched observations (N, ...)


class Joined(NamedTuple):
    """A new form of the observation together with one whole number."""

    space: gymnasium.Space[Any]
    encode: Callable[[Any, Array], Any]  # batched observations (N, ...) and numbers (N,) -> batched observations


def one_hot(space: gymnasium.Space[Any]) -> Feature:
    """Every whole number k of n as n entries, 1 at k and 0 elsewhere: Box (sum of all n,) float32.

    In a Dict every entry of whole numbers is so encoded and a Box stays.

    Raises:
        UserError: there is no whole number to encode.
    """
    if isinstance(space, spaces.Dict) and not all(isinstance(entry, spaces.Box) for entry in space.values()):
        parts = {name: one_hot(entry) for name, entry in space.items() if not isinstance(entry, spaces.Box)}
        forms = {name: parts[name].space if name in parts else entry for name, entry in space.items()}
        return Feature(spaces.Dict(forms), lambda batch: _entries(batch, parts))
    sizes, start = _sizes(space)
    first = np.concatenate([[0], np.cumsum(sizes)])  # (K + 1,), the column where each number's entries begin

    def encode(batch: Array) -> Array:
        places = batch.reshape(len(batch), -1) - start + first[:-1]  # (N, K)
        hot = np.zeros((len(batch), first[-1]), np.float32)
        np.put_along_axis(hot, places, 1.0, 1)
        return hot

    return Feature(spaces.Box(0.0, 1.0, (int(first[-1]),), np.float32), encode)


def antialias(space: gymnasium.Space[Any], bins: int, entries: Sequence[int] | None) -> Feature:
    """Each chosen entry of a bounded flat Box as `bins` weights of equally spaced places from its low to its high.

    The weight is shared between the two places next to the value in proportion to its nearness, so the weights sum
    to 1, change continuously and give the value back exactly as their mean place. The other entries stay.

    Raises:
        UserError: the space is no flat Box, `bins` is less than 2, or an entry is unknown or not bounded.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UserError(f"Antialias needs a flat Box observation, not {space}.")
    if bins < 2:
        raise UserError(f"bins of Antialias must be at least 2, not {bins}.")
    width = space.shape[0]
    chosen = list(range(width)) if entries is None else list(entries)
    for entry in chosen:
        if not 0 <= entry < width:
            raise UserError(f"entries of Antialias must be from 0 to {width - 1}, not {entry}.")
        if not np.isfinite([space.low[entry], space.high[entry]]).all() or space.low[entry] == space.high[entry]:
            raise UserError(
                f"Antialias needs bounds for entry {entry}, but it goes from {space.low[entry]} to {space.high[entry]}."
            )
    low, high, kind = space.low.astype(np.float64), space.high.astype(np.float64), _kind(space)

    def encode(batch: Array) -> Array:
        columns = [
            _weights((batch[:, entry] - low[entry]) / (high[entry] - low[entry]), bins)
            if entry in chosen
            else batch[:, entry, None]
            for entry in range(width)
        ]
        return np.concatenate(columns, 1).astype(kind)

    bounds = [
        ([0.0] * bins, [1.0] * bins) if entry in chosen else ([low[entry]], [high[entry]]) for entry in range(width)
    ]
    lows, highs = (np.concatenate(each).astype(kind) for each in zip(*bounds, strict=True))
    return Feature(spaces.Box(lows, highs, dtype=kind), encode)


def join_choice(space: gymnasium.Space[Any], count: int, key: str) -> Joined:
    """The observation and one of `count` choices, or none of them, given as the number `count`.

    A flat Box gets `count` entries, 1 at the choice and all 0 for none; whole numbers get one more, of count + 1
    values; a Dict gets the entry `key`, Discrete(count + 1).
    """
    names = np.eye(count + 1, count, dtype=np.float32)  # the last row, for none, is all 0
    return _join(space, count + 1, key, names)


def join_count(space: gymnasium.Space[Any], limit: int, key: str) -> Joined:
    """The observation and a number from 0 to `limit`.

    A flat Box gets one entry, the share of the limit from 0 to 1; whole numbers get one more, of limit + 1 values;
    a Dict gets the entry `key`, Box (1,), the share of the limit.
    """
    shares = np.linspace(0.0, 1.0, limit + 1, dtype=np.float32)[:, None]
    return _join(space, limit + 1, key, shares, shares_in_dict=True)


def _join(space: gymnasium.Space[Any], count: int, key: str, codes: Array, shares_in_dict: bool = False) -> Joined:
    """Codes (count, C) float32 say what a Box gets for each number."""
    code = spaces.Box(0.0, 1.0, codes.shape[1:], np.float32)
    if isinstance(space, spaces.Dict):
        if key in space.spaces:
            raise UserError(f"The observation already has an entry {key!r}; use the wrapper once only.")
        entry = code if shares_in_dict else spaces.Discrete(count)
        whole = spaces.Dict({**space.spaces, key: entry})
        if shares_in_dict:
            return Joined(whole, lambda batch, numbers: {**batch, key: codes[numbers]})
        return Joined(whole, lambda batch, numbers: {**batch, key: numbers.copy()})
    if isinstance(space, spaces.Box):
        return _join_box(space, codes)
    sizes, start = _sizes(space)
    form = MultiDiscrete(np.append(sizes, count), start=np.append(start, 0))
    return Joined(form, lambda batch, numbers: np.column_stack([batch.reshape(len(batch), -1), numbers]))


def _join_box(space: spaces.Box, codes: Array) -> Joined:
    if len(space.shape) != 1:
        raise UserError(f"A Box observation must be flat to be joined with a number, not of the shape {space.shape}.")
    width, kind = codes.shape[1], _kind(space)
    low, high = np.append(space.low, np.zeros(width)), np.append(space.high, np.ones(width))
    form = spaces.Box(low.astype(kind), high.astype(kind), dtype=kind)
    return Joined(form, lambda batch, numbers: np.concatenate([batch, codes[numbers]], 1).astype(kind))


def _kind(space: spaces.Box) -> Any:
    """Of numbers with shares of 1 among them: the box's own where it has fractions."""
    return space.dtype if np.issubdtype(space.dtype, np.floating) else np.float32


def _entries(batch: dict[str, Any], parts: dict[str, Feature]) -> dict[str, Any]:
    return {name: parts[name].encode(entry) if name in parts else entry for name, entry in batch.items()}


def _sizes(space: gymnasium.Space[Any]) -> tuple[Array, Array]:
    """How many values each whole number of an observation has, and its first value, both flat (K,)."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.n]), np.array([space.start])
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.flatten(), space.start.flatten()
    if isinstance(space, spaces.MultiBinary):
        count = int(np.prod(space.shape))
        return np.full(count, 2), np.zeros(count, np.int64)
    raise UserError(f"The observation must hold whole numbers (Discrete, MultiDiscrete or MultiBinary), not {space}.")


def _weights(share: Array, bins: int) -> Array:
    """Weights (N, bins) of the places for shares (N,) of the way from the first to the last."""
    place = np.clip(share, 0.0, 1.0) * (bins - 1)
    return np.clip(1.0 - np.abs(place[:, None] - np.arange(bins)), 0.0, None)
