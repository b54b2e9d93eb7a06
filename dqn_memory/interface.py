"""Convert an environment's observations and actions to a network's, and check observations from users."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import gymnasium
import numpy as np
import torch

from dqn_memory.runs.errors import UserError
from envs.actions import Actions, Form, action_form
from envs.packages import make_env
from envs.registry import WORLDS, make_world
from envs.spaces import Array, Decode, Encode, encoder, integer_ranges
from envs.vector import make_vector


@dataclass(frozen=True)
class Interface:
    """Conversion between the observations and actions of an environment and those of the network."""

    raw: gymnasium.Space[Any]  # space of the environment's observations; of a Dict, of the entry that the agent sees
    encode: Encode  # makes the flat observation that the network reads
    encoded: gymnasium.Space[Any]  # space of these flat observations
    actions: Actions
    decode: Decode  # makes the environment's actions from the agent's
    key: str | None = None  # of the entry that the agent sees, if observations are dictionaries

    @classmethod
    def of(cls, env: str, kwargs: dict[str, Any], key: str | None = None, form: Form = "numbered") -> Self:
        """Make the interface of an environment with `kwargs`; raise a UserError if it cannot have one."""
        if env.startswith("ALE/") or env.removeprefix("envs:") in WORLDS:
            vector = make_vector(env, 1, 0, observation_key=key, env_kwargs=kwargs, form=form)
            raw, (_, encode) = vector.observation_space, encoder(vector.observation_space)
            decode: Decode = lambda action: action  # noqa: E731 - nothing is encoded
            if not vector.actions.count:
                decode = action_form(make_world(env.removeprefix("envs:"), **kwargs).action_space, form)[1]
            return cls(raw, encode, raw, vector.actions, decode, key)
        made = make_env(env, **kwargs)
        try:
            encoder(made.observation_space, key)  # raises a UserError for a wrong key
            raw = made.observation_space
            raw = raw[str(key)] if isinstance(raw, gymnasium.spaces.Dict) else raw
            encoded, encode = encoder(raw)
            return cls(raw, encode, encoded, *action_form(made.action_space, form), key)
        finally:
            made.close()

    @cached_property
    def sizes(self) -> Array | None:
        """Give the number of values of each component of an encoded observation; None if it holds real numbers."""
        ranges = integer_ranges(self.encoded)
        return None if ranges is None else ranges[0]

    def batch(self, observation: Any) -> tuple[Array, bool]:
        """Encode observations (N, ...); also return whether it was a single one without the axis N.

        Raises:
            UserError: the observation has another form, or lies outside its space.
        """
        if isinstance(observation, dict):
            if self.key is None or self.key not in observation:
                wanted = "no dictionary" if self.key is None else f"one with {self.key!r}"
                names = ", ".join(map(repr, observation))
                raise UserError(f"the observation is a dictionary of {names}; it must be {wanted}")
            observation = observation[self.key]
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise UserError(
                "the observation is a pair with a dictionary: reset returns (observation, info); give the first"
            )
        given, shape = as_array(observation), self.raw.shape or ()
        if given is None:
            raise UserError("the observation is no array: its rows must all have the same shape")
        if (given.shape != shape and given.shape[1:] != shape) or given.ndim < len(shape) or not given.size:
            raise UserError(f"the observation has shape {given.shape}; it must be {shape}, or (N, ...) for a batch")
        self._check_numbers(given)
        if self.sizes is not None and given.dtype.kind == "f":
            given = given.astype(np.int64)  # whole numbers, as has been checked
        single = given.shape == shape
        rows = given[None] if single else given
        batch = np.stack([self.encode(row) for row in rows])  # (N, ...)
        if self.sizes is not None and ((batch < 0) | (batch >= self.sizes)).any():
            raise UserError(f"the observation holds {given.min()} .. {given.max()}; it must be within {self.raw}")
        return batch, single

    def _check_numbers(self, given: Array) -> None:
        """Check that all values are finite numbers, and whole ones if they are categories."""
        if given.dtype.kind not in "biuf":
            raise UserError(f"the observation is of type {given.dtype}; it must hold numbers")
        if given.dtype.kind != "f":
            return
        with np.errstate(over="ignore"):  # the network would read numbers beyond float32 as infinite
            finite = np.isfinite(given.astype(np.float32)).all()
        if not finite:
            raise UserError("the observation holds NaN, infinity or numbers beyond 1e38; it must hold finite numbers")
        if self.sizes is not None and (given != np.trunc(given)).any():
            raise UserError(f"the observation holds fractions; it must hold whole numbers within {self.raw}")


def as_array(given: Any) -> Array | None:
    """Make one array; None if that is impossible, as for ragged lists."""
    try:
        if isinstance(given, torch.Tensor):
            dense = given.detach().to_dense().cpu()
            return (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()  # numpy has no bfloat16
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # also for lists of tensors
        return None
