"""Observations of several entries, and flags of legal actions, as one row of numbers.

A Dict or a Tuple becomes a row with the numbers of all entries, and a network splits the row again. So vectors,
rollouts and replays hold one tensor, whatever an environment shows. An action mask is the end of the row.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from envs.core import Reobserved, State, World
from envs.errors import UserError, require
from envs.numpy_backend import concatenate, converted
from envs.spaces import Array, Encode, Unfit, encoder, fitter, integer_ranges, shown

READABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)  # by networks
Path = tuple[str | int, ...]  # of an entry: keys of dictionaries and places in tuples


class RowSpace(spaces.Box):
    """The space of rows: the numbers of all entries, flat and in order, then a flag (0 or 1) for each choice.

    Rows are bytes if all their numbers are, else float32.

    Attributes:
        entries: the space of each entry by its name, as `envs.spaces.encoder` gives it.
        flags: number of flags of legal choices at the end of a row; 0 for an environment without masks.
        tokens: columns (n,) whose numbers are whole and within bounds.
    """

    def __init__(self, entries: Mapping[str, gymnasium.Space[Any]], flags: int = 0) -> None:
        self.entries, self.flags = dict(entries), flags
        low, high, tokens, whole = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, bool)], True
        for entry in self.entries.values():
            ranges, box = integer_ranges(entry), entry if isinstance(entry, spaces.Box) else None
            first, last = (box.low, box.high) if box is not None else (np.zeros(len(ranges[0])), ranges[0] - 1)  # type: ignore[index]
            low.append(np.ravel(first).astype(np.float64))
            high.append(np.ravel(last).astype(np.float64))
            tokens.append(np.full(low[-1].shape, box is None))
            whole &= np.uint8 == entry.dtype if box is not None else bool(last.max(initial=0) < 256)
        self.tokens = np.concatenate([*tokens, np.zeros(flags, bool)])
        dtype: Any = np.uint8 if whole else np.float32
        first, last = np.concatenate([*low, np.zeros(flags)]), np.concatenate([*high, np.ones(flags)])
        super().__init__(first.astype(dtype), last.astype(dtype), dtype=dtype)

    def __eq__(self, other: object) -> bool:
        """Tell whether another space has the same entries and flags."""
        return isinstance(other, RowSpace) and (self.entries, self.flags) == (other.entries, other.flags)

    def __repr__(self) -> str:
        flags = f" and {self.flags} flags of legal choices" if self.flags else ""
        return f"entries {', '.join(f'{name} {space}' for name, space in self.entries.items())}{flags}"


def row_encoder(
    space: gymnasium.Space[Any], key: str | None = None, fitted: bool = False, flags: int = 0
) -> tuple[gymnasium.Space[Any], Encode]:
    """Give the space that a network sees, and the function that converts an observation to it.

    It is that of `envs.spaces.encoder`, but a Dict without a key and a Tuple become rows, and so does any observation
    with `flags`. The function then takes (observation, flags) if there are flags.
    """
    joined = key is None and isinstance(space, spaces.Dict | spaces.Tuple)
    empty = all(0 in (leaf.shape or ()) for _, leaf in leaves(space))
    require(not empty, f"The observation {shown(space)} holds no number, so there is nothing to see.")
    if not joined and not flags:
        return encoder(space, key, fitted)
    parts = dict(leaves(space)) if joined else {(): space}
    known = {path: _encoded(path, entry, key, fitted or joined) for path, entry in parts.items()}
    row = RowSpace({name_of_entry(path): each[0] for path, each in known.items()}, flags)
    fit = fitter(space) if joined and not fitted else (lambda observation: observation)

    def encode(given: Any) -> Array:
        observation, *ends = given if flags else (given,)
        observation = fit(observation)
        read = (*(encode(entry_at(observation, path)) for path, (_, encode) in known.items()), *ends)
        numbers = np.concatenate([np.ravel(part) for part in read])
        joined = numbers.astype(row.dtype)
        if row.dtype == np.uint8 and numbers.dtype != np.uint8 and (wrapped := joined != numbers).any():
            column = int(wrapped.argmax())
            raise Unfit(out_of_range(space, key, column, numbers[column]))
        return joined

    return row, encode


def is_readable(space: gymnasium.Space[Any]) -> bool:
    """Tell whether a network can read all entries of an observation."""
    return all(isinstance(leaf, READABLE) for _, leaf in leaves(space))


def _encoded(path: Path, space: Any, key: str | None, fitted: bool) -> tuple[gymnasium.Space[Any], Encode]:
    hollow = 0 in (space.shape or ()) and not isinstance(space, spaces.Box)  # integers, but none
    if path and (hollow or not isinstance(space, READABLE)):
        raise UserError(
            f"The entry {name_of_entry(path)!r} of the observation is {space}, which no network reads; choose another "
            "by --observation-key, or leave it out by gymnasium.wrappers.FilterObservation."
        )
    return encoder(space, key, fitted)


def leaves(space: gymnasium.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gymnasium.Space[Any]]]:
    """List the entries of Dict and Tuple spaces, in the order of rows."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        for name, entry in named:
            yield from leaves(entry, (*path, name))
    else:
        yield path, space


def name_of_entry(path: Path) -> str:
    """Name an entry: its keys and places, joined by dots."""
    return ".".join(map(str, path)) or "observation"


def entry_at(observation: Any, path: Path) -> Any:
    """Take the entry of an observation."""
    for name in path:
        observation = observation[name]
    return observation


def out_of_range(space: gymnasium.Space[Any], key: str | None, column: int, number: Any) -> str:
    """Name the entry and the space of a wrong number in a row, as the environment has them, see `row_encoder`."""
    chosen = key is not None and isinstance(space, spaces.Dict)
    entries = leaves(space[key], (key,)) if chosen else leaves(space)  # type: ignore[index, arg-type]
    owners = [(path, entry, place) for path, entry in entries for place in range(math.prod(entry.shape or ()))]
    path, entry, place = owners[column]
    ranges = integer_ranges(entry)
    own = number if ranges is None else int(number) + ranges[1][place]
    where = f" in its entry {name_of_entry(path)!r}" if path else ""
    return f"an observation holds {own}{where}, outside of {shown(entry)}"


class RowObserved(Reobserved):
    """A World that shows rows: of the entries of its Dict space, and of the flags of `World.mask`."""

    def __init__(self, world: World[Any]) -> None:
        super().__init__(world)
        space = world.observation_space
        entries = {name_of_entry(path): encoder(entry)[0] for path, entry in leaves(space)}
        self.rows = RowSpace(entries, world.num_actions if world.masks_actions else 0)
        self.observation_space = self.rows
        self._like = torch.zeros(0, dtype=torch.uint8 if self.rows.dtype == np.uint8 else torch.float32)

    def seen(self, state: State) -> Tensor:
        flat = state.observation.reshape(len(state.observation), -1)
        parts = [flat, self.world.mask(state)] if self.rows.flags else [flat]
        row: Tensor = concatenate([converted(part, self._like) for part in parts])
        return row


def as_rows(world: World[Any]) -> World[Any]:
    """Let a World show rows if it shows a dictionary or masks actions; else return it."""
    single = not isinstance(world.observation_space, spaces.Dict)
    return world if single and not world.masks_actions else RowObserved(world)


def illegal(observation: Tensor, flags: int) -> Tensor:
    """Tell in which rows (N, n) no action is legal, (N,)."""
    return ~observation[:, -flags:].bool().any(1)


def legal_in(space: gymnasium.Space[Any], observations: Array) -> Tensor | None:
    """Read the flags (N, c) of legal choices from observations; None if their space has none."""
    flags = space.flags if isinstance(space, RowSpace) else 0
    return torch.from_numpy(observations[:, -flags:] > 0) if flags else None


# ---- masks of Gymnasium environments ---------------------------------------------------------------------------------
class Choices:
    """The flags of legal choices of an action space.

    Environments give them by `action_masks()`, as sb3-contrib expects it, or by `info["action_mask"]`, as Gymnasium
    does: an array with a flag for each value, or what the `sample` of a Dict, a Tuple or a MultiDiscrete takes.

    Args:
        space: the environment's actions.
        numbered: number all combinations; there is then a flag for each.
    """

    def __init__(self, space: gymnasium.Space[Any], numbered: bool) -> None:
        self.space, self.sizes = space, tuple(_sizes(space))
        self.numbered = numbered and len(self.sizes) > 1
        self.count = int(np.prod(self.sizes)) if self.numbered else sum(self.sizes)

    def flags(self, given: Any) -> Array | None:
        """Read a mask as truth values (count,); None if it has another form."""
        try:
            flat = np.concatenate([np.ravel(part) for part in _parts(self.space, given)] or [np.zeros(0)])
        except (TypeError, ValueError, KeyError, IndexError):
            return None
        if flat.shape != (sum(self.sizes),) or flat.dtype.kind not in "biuf" or not np.isin(flat, (0, 1)).all():
            return None
        flags = flat.astype(bool)
        if self.numbered:
            combined = np.ones(1, bool)
            for part in np.split(flags, np.cumsum(self.sizes)[:-1]):
                combined = (combined[:, None] & part).reshape(-1)
            flags = combined
        return flags

    def all(self) -> Array:
        """Make the mask of a state in which every value is legal."""
        return np.ones(sum(self.sizes), np.int8)

    def some(self, flags: Array) -> bool:
        """Tell whether an action is legal: of each part at least one value."""
        parts = [flags] if self.numbered else np.split(flags, np.cumsum(self.sizes)[:-1])
        return all(part.any() for part in parts)


def _sizes(space: gymnasium.Space[Any]) -> Iterator[int]:
    """List the numbers of values of all choices in a space."""
    for _, leaf in leaves(space):
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            yield from (int(size) for size in integer_ranges(leaf)[0])  # type: ignore[index]


def _parts(space: gymnasium.Space[Any], given: Any) -> Iterator[Any]:
    """Take the flags of each choice from a mask that has the form of its space, or is flat."""
    if torch.is_tensor(given) or (isinstance(given, np.ndarray | list) and not _ragged(given)):
        yield np.asarray(given)
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        for name, entry in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
            yield from _parts(entry, given[name])
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        if given is None:
            yield np.ones(sum(_sizes(space)))
        else:
            yield from map(np.asarray, given)
    elif given is not None:
        raise ValueError(f"{space} takes no mask here")


def _ragged(given: Any) -> bool:
    """Tell whether a list or an array has parts of different lengths."""
    return any(np.ndim(part) > 0 for part in given) and len({np.size(part) for part in given}) > 1


def mask_function(env: Any) -> Any:
    """Give an environment's own function `action_masks`; None if it has none."""
    function = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None
    return function if callable(function) else None


def has_masks(env: gymnasium.Env[Any, Any]) -> bool:
    """Say whether an environment masks its actions, by a function or in the info of a reset."""
    return mask_function(env) is not None or "action_mask" in env.reset(seed=0)[1]


def check_choices(choices: Choices, name: str) -> None:
    """Refuse the mask of a space without choices."""
    require(
        choices.count > 0,
        f"{name} masks its actions {choices.space}, which have no choices; only Discrete and MultiDiscrete are masked.",
    )
