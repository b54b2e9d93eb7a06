"""Convert an environment's observations and actions to a network's, and check observations from users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import numpy as np
import torch

from dqn_memory.runs.errors import UserError, require
from envs.actions import Actions, InterfaceConfig, action_form
from envs.packages import make_env
from envs.registry import WORLDS, make_world
from envs.rows import Choices, entry_at, leaves, name_of_entry, row_encoder
from envs.spaces import Array, Decode, Encode, encoder, integer_ranges, shown
from envs.vector import make_vector


@dataclass(frozen=True)
class Interface:
    """Conversion between the observations and actions of an environment and those of the network."""

    raw: gymnasium.Space[Any]  # space of the environment's observations; with a key, of the entry that the agent sees
    encode: Encode  # makes the flat observation that the network reads
    encoded: gymnasium.Space[Any]  # space of these flat observations
    actions: Actions
    decode: Decode  # makes the environment's actions from the agent's
    key: str | None = None  # of the entry that the agent sees, if it does not see all
    choices: Choices | None = None  # how to read masks of actions; None: the environment has none

    @classmethod
    def of(cls, env: str, kwargs: dict[str, Any], config: InterfaceConfig) -> Self:
        """Make the interface of an environment with `kwargs`; raise a UserError if it cannot have one."""
        key, form = config.observation_key, config.form
        if env.startswith("ALE/"):
            vector = make_vector(env, 1, 0, env_kwargs=kwargs, interface=config)
            raw, (_, encode) = vector.observation_space, encoder(vector.observation_space)
            return cls(raw, encode, raw, vector.actions, lambda action: action, key)
        if env.removeprefix("envs:") in WORLDS:
            made: Any = make_world(env.removeprefix("envs:"), **kwargs)
            choices = Choices(made.action_space, True) if made.masks_actions else None
            require(key is None, f"observation_key {key!r} chooses from a dictionary, but {env} shows none here.")
        else:
            made, choices = make_env(env, **kwargs), None
        try:
            raw = made.observation_space
            encoder(raw, key) if key is not None else None  # raises a UserError for a wrong key
            raw = raw if key is None else raw[key]
            if config.masks and isinstance(made, gymnasium.Env):
                choices = Choices(made.action_space, form == "numbered")
            encoded, encode = row_encoder(raw, flags=0 if choices is None else choices.count)
            return cls(raw, encode, encoded, *action_form(made.action_space, form), key, choices)
        finally:
            if isinstance(made, gymnasium.Env):
                made.close()

    def batch(self, observation: Any, mask: Any = None) -> tuple[Array, bool]:
        """Encode observations (N, ...) and their masks; also tell whether it was a single one without the axis N.

        Raises:
            UserError: the observation or the mask has another form, or lies outside its space.
        """
        pair = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict)
        if pair and not isinstance(self.raw, gymnasium.spaces.Tuple):
            raise UserError(
                "the observation is a pair with a dictionary: reset returns (observation, info); give the first"
            )
        if isinstance(observation, dict) and not isinstance(self.raw, gymnasium.spaces.Dict):
            if self.key is None or self.key not in observation:
                wanted = "no dictionary" if self.key is None else f"one with {self.key!r}"
                names = ", ".join(map(repr, observation))
                raise UserError(f"the observation is a dictionary of {names}; it must be {wanted}")
            observation = observation[self.key]
        checked = [_entry_batch(path, space, observation) for path, space in leaves(self.raw)]
        singles, counts = {single for _, single in checked}, {len(rows) for rows, _ in checked}
        require(len(singles) == len(counts) == 1, f"the entries of the observation have {counts} rows; they must agree")
        (single,), (count,) = singles, counts
        entries = {path: rows for (path, _), (rows, _) in zip(leaves(self.raw), checked, strict=True)}
        observations = [
            _tree(self.raw, {path: rows[index] for path, rows in entries.items()}) for index in range(count)
        ]
        if self.choices is None:
            require(mask is None, "a mask was given, but the agent was trained without masks of actions; leave it out")
            return np.stack([self.encode(each) for each in observations]), single
        flags = self._flags(mask, count, single)
        return np.stack([self.encode(pair) for pair in zip(observations, flags, strict=True)]), single

    def _flags(self, mask: Any, count: int, single: bool) -> list[Array]:
        """Read the masks of N observations."""
        assert self.choices is not None
        wanted = f"{sum(self.choices.sizes)} flags, 0 or 1, for each observation"
        given = [mask] if single else list(mask) if isinstance(mask, Sequence | np.ndarray | torch.Tensor) else []
        flags = [None if each is None else self.choices.flags(each) for each in given]
        known = [each for each in flags if each is not None and self.choices.some(each)]
        require(
            len(known) == len(given) == count,
            f"mask is {shown(mask)}; this agent was trained with masks of actions, so it must hold {wanted}, with a "
            'legal action, such as info["action_mask"]',
        )
        return known


def _entry_batch(path: tuple[Any, ...], space: gymnasium.Space[Any], observation: Any) -> tuple[Array, bool]:
    """Check one entry of observations; give its rows (N, ...), and whether it was a single one."""
    where = "the observation" if not path else f"the entry {name_of_entry(path)!r} of the observation"
    try:
        entry = entry_at(observation, path)
    except (KeyError, IndexError, TypeError):
        raise UserError(f"{where} is missing: {shown(observation)}") from None
    if isinstance(entry, dict):
        raise UserError(f"{where} is a dictionary of {', '.join(map(repr, entry))}; it must be no dictionary")
    given, shape = as_array(entry), space.shape or ()
    if given is None:
        raise UserError(f"{where} is no array: its rows must all have the same shape")
    if (given.shape != shape and given.shape[1:] != shape) or given.ndim < len(shape) or not given.size:
        raise UserError(f"{where} has shape {given.shape}; it must be {shape}, or (N, ...) for a batch")
    ranges = integer_ranges(space)
    _check_numbers(where, given, space, ranges is not None)
    if ranges is not None and given.dtype.kind == "f":
        given = given.astype(np.int64)  # whole numbers, as has been checked
    rows = given[None] if given.shape == shape else given
    if ranges is not None:
        values = rows.reshape(len(rows), -1) - ranges[1]
        if ((values < 0) | (values >= ranges[0])).any():
            raise UserError(f"{where} holds {given.min()} .. {given.max()}; it must be within {space}")
    return rows, given.shape == shape


def _check_numbers(where: str, given: Array, space: gymnasium.Space[Any], whole: bool) -> None:
    """Check that all values are finite numbers, and whole ones if they are categories."""
    if given.dtype.kind not in "biuf":
        raise UserError(f"{where} is of type {given.dtype}; it must hold numbers")
    if given.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):  # the network would read numbers beyond float32 as infinite
        finite = np.isfinite(given.astype(np.float32)).all()
    if not finite:
        raise UserError(f"{where} holds NaN, infinity or numbers beyond 1e38; it must hold finite numbers")
    if whole and (given != np.trunc(given)).any():
        raise UserError(f"{where} holds fractions; it must hold whole numbers within {space}")


def _tree(space: gymnasium.Space[Any], entries: Mapping[tuple[Any, ...], Any], path: tuple[Any, ...] = ()) -> Any:
    """Give entries the form of their space."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _tree(entry, entries, (*path, name)) for name, entry in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_tree(entry, entries, (*path, place)) for place, entry in enumerate(space))
    return entries[path]


def as_array(given: Any) -> Array | None:
    """Make one array; None if that is impossible, as for ragged lists."""
    try:
        if isinstance(given, torch.Tensor):
            dense = given.detach().to_dense().cpu()
            return (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()  # numpy has no bfloat16
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # also for lists of tensors
        return None
