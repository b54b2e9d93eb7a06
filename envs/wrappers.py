"""Gymnasium wrappers for single and for vector environments.

| single           | vector                 | the observation contains                                         |
|------------------|------------------------|------------------------------------------------------------------|
| `PreviousAction` | `VectorPreviousAction` | the previous action as a part                                    |
| `StepCount`      | `VectorStepCount`      | the number of steps taken as a part                              |
| `OneHot`         | `VectorOneHot`         | integers as 0 and 1                                              |
| `Antialias`      | `VectorAntialias`      | continuous numbers, such as Car Flag's position, as soft one-hot |
| `PhantomWalls`   | `VectorPhantomWalls`   | walls of rooms that are not there, in the view of a grid         |

They can be nested: `Antialias(StepCount(env), bins=20, entries=[0, 3])`. A wrapper changes observations by a
`Transform`, a pure function of batches that the single and the vector form share. `PhantomWalls` needs the agent's
place, too, and goes inside of the others.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from envs.errors import UserError, require
from envs.spaces import Array, MultiDiscrete, batch_of_one, integer_ranges, row

Space = gymnasium.Space[Any]
Single = gymnasium.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]


class Transform(NamedTuple):
    """The change that a wrapper makes to observations.

    A wrapper may track one integer per row: the previous action or the step count. It starts at `first` and actions
    change it. The other wrappers ignore it.
    """

    space: Space  # of one transformed observation
    encode: Callable[[Any, Array], Any]  # observations (N, ...) and integers (N,) -> transformed observations (N, ...)
    first: int = 0
    next: Callable[[Array, Any], Array] = lambda integers, actions: integers  # integers (N,), N actions -> (N,)


def one_hot(space: Space) -> Transform:
    """Encode every integer k of n as n entries, 1 at k and 0 elsewhere: Box (sum of all n,) float32.

    In a Dict every entry of integers is encoded and a Box stays as it is. A Dict of Boxes alone raises a UserError.
    """
    if isinstance(space, spaces.Dict) and not all(isinstance(entry, spaces.Box) for entry in space.values()):
        parts = {name: one_hot(entry) for name, entry in space.items() if not isinstance(entry, spaces.Box)}
        encoded = spaces.Dict({name: parts[name].space if name in parts else entry for name, entry in space.items()})

        def encode_entries(batch: Any, integers: Array) -> Any:
            return {n: parts[n].encode(entry, integers) if n in parts else entry for n, entry in batch.items()}

        return Transform(encoded, encode_entries)
    sizes, start = _integers(space)
    first = np.concatenate([[0], np.cumsum(sizes)])  # (K + 1,), the column where each integer's entries begin

    def encode(batch: Array, _: Array) -> Array:
        columns = batch.reshape(len(batch), -1) - start + first[:-1]  # (N, K)
        hot = np.zeros((len(batch), first[-1]), np.float32)
        np.put_along_axis(hot, columns, 1.0, 1)
        return hot

    return Transform(spaces.Box(0.0, 1.0, (int(first[-1]),), np.float32), encode)


def antialias(space: Space, bins: int, entries: Sequence[int] | None) -> Transform:
    """Encode each chosen entry of a bounded flat Box as weights of `bins` equally spaced points from low to high.

    The two points nearest to the value share a weight of 1 by linear interpolation. So the weights change continuously,
    and the weighted mean of the points is the value itself. The other entries stay the same.

    Raises:
        UserError: the space is no flat Box, `bins` is less than 2, or an entry is unknown or not bounded.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UserError(f"Antialias needs a flat Box observation, not {space}.")
    require(bins >= 2, f"bins of Antialias must be at least 2, not {bins}.")
    low, high, dtype = space.low.astype(np.float64), space.high.astype(np.float64), _float_dtype(space)
    chosen = range(len(low)) if entries is None else entries
    for entry in chosen:
        require(0 <= entry < len(low), f"entries of Antialias must be from 0 to {len(low) - 1}, not {entry}.")
        limits = f"from {space.low[entry]} to {space.high[entry]}"
        bounded = np.isfinite([low[entry], high[entry]]).all() and low[entry] < high[entry]
        require(bounded, f"Antialias needs bounds for entry {entry}, but it goes {limits}.")

    def weights(values: Array, entry: int) -> Array:
        """Weigh the points (N, bins) for the values (N,) of an entry."""
        share = (values - low[entry]) / (high[entry] - low[entry])
        return np.clip(1.0 - np.abs(np.clip(share, 0.0, 1.0)[:, None] * (bins - 1) - np.arange(bins)), 0.0, None)

    def spread(batch: Array, weigh: Callable[[Array, int], Array]) -> Array:
        """Put weights (N, bins) in place of the chosen entries of a batch (N, d)."""
        parts = [weigh(batch[:, i], i) if i in chosen else batch[:, [i]] for i in range(len(low))]
        return np.concatenate(parts, 1).astype(dtype)

    lows, highs = spread(low[None], lambda *_: np.zeros((1, bins))), spread(high[None], lambda *_: np.ones((1, bins)))
    return Transform(spaces.Box(lows[0], highs[0], dtype=dtype), lambda batch, _: spread(batch, weights))


def previous_action(space: Space, actions: Space) -> Transform:
    """Append the previous action; at the start of an episode it is A, the number of actions, for "none".

    A flat Box gets A entries, 1 at the action, all 0 for "none". Integers get one more integer of A + 1 values. A Dict
    gets the entry "previous_action", Discrete(A + 1).
    """
    if not isinstance(actions, spaces.Discrete):
        raise UserError(f"PreviousAction needs Discrete actions, not {actions}.")
    count, start = int(actions.n), int(actions.start)
    codes = np.eye(count + 1, count, dtype=np.float32)  # the last row, for "none", is all 0
    joined, encode = append_integer(space, "previous_action", codes)
    return Transform(joined, encode, count, lambda _, taken: np.array(taken, np.int64) - start)


def step_count(space: Space, limit: int) -> Transform:
    """Append the number of steps taken, at most `limit`.

    A flat Box gets one entry, the number divided by the limit. Integers get one more integer of limit + 1 values. A
    Dict gets the entry "step_count", Box (1,), the number divided by the limit.
    """
    shares = np.linspace(0.0, 1.0, limit + 1, dtype=np.float32)[:, None]
    joined, encode = append_integer(space, "step_count", shares, code_in_dict=True)
    following = np.minimum(np.arange(1, limit + 2), limit)
    return Transform(joined, encode, 0, lambda count, _: following[count])


def append_integer(
    space: Space, key: str, codes: Array, code_in_dict: bool = False
) -> tuple[Space, Callable[[Any, Array], Any]]:
    """Append an integer to an observation of integers, or its row of `codes` (values, C) float32 to a flat Box.

    A Dict gets the integer as the entry `key`, or its row of `codes` with `code_in_dict`.
    """
    if isinstance(space, spaces.Dict):
        require(key not in space.spaces, f"The observation already has an entry {key!r}; use the wrapper once only.")
        code = spaces.Box(0.0, 1.0, codes.shape[1:], np.float32)
        joined = spaces.Dict({**space.spaces, key: code if code_in_dict else spaces.Discrete(len(codes))})
        return joined, lambda batch, integers: {**batch, key: codes[integers] if code_in_dict else integers.copy()}
    if isinstance(space, spaces.Box):
        flat, dtype = len(space.shape) == 1, _float_dtype(space)
        require(flat, f"A Box observation must be flat to be joined with a number, not of the shape {space.shape}.")
        low, high = np.append(space.low, np.zeros_like(codes[0])), np.append(space.high, np.ones_like(codes[0]))
        box = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
        return box, lambda batch, integers: np.concatenate([batch, codes[integers]], 1).astype(dtype)
    sizes, start = _integers(space)
    more = MultiDiscrete(np.append(sizes, len(codes)), start=np.append(start, 0))
    return more, lambda batch, integers: np.column_stack([batch.reshape(len(batch), -1), integers])


def _float_dtype(space: spaces.Box) -> Any:
    """Give a dtype for fractions: the Box's own if it is a float, else float32."""
    return space.dtype if np.issubdtype(space.dtype, np.floating) else np.float32


def _integers(space: Space) -> tuple[Array, Array]:
    ranges = integer_ranges(space)
    if ranges is None:
        raise UserError(
            f"The observation must hold whole numbers (Discrete, MultiDiscrete or MultiBinary), not {space}."
        )
    return ranges


# Single environments


class _Wrapper(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Apply a transform to one environment; the environment's spec records `arguments`."""

    def __init__(self, env: Single, transform: Transform, **arguments: Any) -> None:
        RecordConstructorArgs.__init__(self, **arguments)
        gymnasium.Wrapper.__init__(self, env)
        self.transform, self.observation_space = transform, transform.space
        self._integer = np.array([transform.first])  # (1,)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._integer = np.array([self.transform.first])
        return self._encode(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action."""
        observation, *rest = self.env.step(action)
        self._integer = self.transform.next(self._integer, [action])
        return self._encode(observation), *rest

    def _encode(self, observation: Any) -> Any:
        return row(self.transform.encode(batch_of_one(observation), self._integer), 0)


class OneHot(_Wrapper):
    """Encode every integer k of n as n entries, 1 at k and 0 elsewhere (see `one_hot`)."""

    def __init__(self, env: Single) -> None:
        super().__init__(env, one_hot(_space(env, "OneHot")))


class Antialias(_Wrapper):
    """Encode continuous entries as weights of `bins` points (see `antialias`).

    A network that reads a position as one number must learn a nonlinear function for every decision that depends on
    it. A one-hot code of the nearest point hides small differences. Weights of the two nearest points avoid both. For
    Car Flag: `Antialias(env, bins=20, entries=[0])`.
    """

    def __init__(self, env: Single, bins: int = 16, entries: Sequence[int] | None = None) -> None:
        super().__init__(env, antialias(_space(env, "Antialias"), bins, entries), bins=bins, entries=entries)


class PreviousAction(_Wrapper):
    """Append the previous action to the observation (see `previous_action`)."""

    def __init__(self, env: Single) -> None:
        super().__init__(env, previous_action(_space(env, "PreviousAction"), env.action_space))


class StepCount(_Wrapper):
    """Append the number of steps taken in this episode to the observation (see `step_count`).

    Args:
        env: the environment.
        limit: maximum of the count; the environment's own time limit, or that of its id, if not given.
    """

    def __init__(self, env: Single, limit: int | None = None) -> None:
        space, self.limit = _space(env, "StepCount"), _step_limit(env, limit)
        super().__init__(env, step_count(space, self.limit), limit=limit)


class PhantomWalls(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Hallucinate structure: the agent sees inner walls of phantom rooms, which block neither it nor its sight.

    The observations of a Gridverse world are those of the same world with `phantom_rooms=rooms`. So
    `PhantomWalls(gymnasium.make("Gridverse/Memory-Empty-13x13-v0"), rooms=(5, 5))` shows what
    `Gridverse/Memory-13x13-Hallucinated-v0` shows. Pictures of `render` stay without the walls.

    MiniGrid's view gets grey walls, also inside of `ViewSizeWrapper` and `ImgObsWrapper`. The agent's own cell shows
    what it carries there and is never painted.

    Args:
        env: a Gridverse world, or a MiniGrid environment with its own partial view.
        rooms: numbers of rooms (down, across), which divide the grid like real rooms.

    Raises:
        UserError: the environment is no such grid, a wrapper changes its view, or the rooms do not fit.
    """

    def __init__(self, env: Single, rooms: Sequence[int]) -> None:
        from envs.grids import phantom_view  # imports torch

        _space(env, "PhantomWalls")
        RecordConstructorArgs.__init__(self, rooms=rooms)
        gymnasium.ObservationWrapper.__init__(self, env)
        self._view = phantom_view(env, rooms)

    def observation(self, observation: Any) -> Any:
        """Paint one observation."""
        inner: Any = self.unwrapped
        return self._view.paint(observation, self._view.pose(getattr(inner, "state", inner)))


# Vector environments, in every autoreset mode, final observations included


class _VectorWrapper(VectorWrapper[Any, Any, Any, Any, Array]):
    """Apply a transform to a vector environment."""

    def __init__(self, env: Vector, transform: Transform) -> None:
        super().__init__(env)
        self.transform, self.single_observation_space = transform, transform.space
        self.observation_space = batch_space(transform.space, env.num_envs)
        self._same_step = AutoresetMode(env.metadata["autoreset_mode"]) is AutoresetMode.SAME_STEP  # some give its text
        self._integers = np.full(env.num_envs, transform.first, np.int64)  # (N,)
        self._ended = np.zeros(env.num_envs, bool)  # (N,)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes, or those of `options["reset_mask"]`."""
        mask = (options or {}).get("reset_mask")
        mask = np.ones(self.env.num_envs, bool) if mask is None else mask
        observation, info = self.env.reset(seed=seed, options=options)
        self._integers = np.where(mask, self.transform.first, self._integers)
        self._ended = self._ended & ~mask
        return self.transform.encode(observation, self._integers), info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take one action in every row."""
        observation, reward, terminated, truncated, info = self.env.step(actions)
        integers = self.transform.next(self._integers, actions)
        for index in np.flatnonzero(info.get("_final_obs", ())):
            final = batch_of_one(info["final_obs"][index])
            info["final_obs"][index] = row(self.transform.encode(final, integers[index : index + 1]), 0)
        ended = terminated | truncated
        restarted = ended if self._same_step else self._ended
        self._integers, self._ended = np.where(restarted, self.transform.first, integers), ended
        return self.transform.encode(observation, self._integers), reward, terminated, truncated, info


class VectorOneHot(_VectorWrapper):
    """`OneHot` for vector environments."""

    def __init__(self, env: Vector) -> None:
        super().__init__(env, one_hot(_space(env, "VectorOneHot")))


class VectorAntialias(_VectorWrapper):
    """`Antialias` for vector environments."""

    def __init__(self, env: Vector, bins: int = 16, entries: Sequence[int] | None = None) -> None:
        super().__init__(env, antialias(_space(env, "VectorAntialias"), bins, entries))


class VectorPreviousAction(_VectorWrapper):
    """`PreviousAction` for vector environments."""

    def __init__(self, env: Vector) -> None:
        super().__init__(env, previous_action(_space(env, "VectorPreviousAction"), env.single_action_space))


class VectorStepCount(_VectorWrapper):
    """`StepCount` for vector environments."""

    def __init__(self, env: Vector, limit: int | None = None) -> None:
        space, self.limit = _space(env, "VectorStepCount"), _step_limit(env, limit)
        super().__init__(env, step_count(space, self.limit))


class VectorPhantomWalls(VectorWrapper[Any, Any, Any, Any, Array]):
    """`PhantomWalls` for vectors of Gridverse worlds.

    Other vectors wrap each environment: `gymnasium.make_vec(id, wrappers=[partial(PhantomWalls, rooms=(2, 2))])`.
    """

    def __init__(self, env: Vector, rooms: Sequence[int]) -> None:
        from envs.grids import phantom_view  # imports torch

        _space(env, "VectorPhantomWalls")
        super().__init__(env)
        self._view = phantom_view(env, rooms)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes, or those of `options["reset_mask"]`."""
        observation, info = self.env.reset(seed=seed, options=options)
        inner: Any = self.unwrapped
        return self._view.paint(observation, self._view.pose(inner.state)), info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take one action in every row."""
        observation, *rest, info = self.env.step(actions)
        inner: Any = self.unwrapped
        for index in np.flatnonzero(info.get("_final_obs", ())):
            final, pose = info["final_obs"][index], self._view.pose(inner.last)[index : index + 1]
            info["final_obs"][index] = self._view.paint(final, pose)
        return self._view.paint(observation, self._view.pose(inner.state)), *rest, info


# Checks of the wrapped environment


def _space(env: Any, name: str) -> Space:
    """Return the observation space of one environment in `env`."""
    vector = name.startswith("Vector")
    wanted, maker, wrapper = ("vector.VectorEnv", "make_vec", name[6:]) if vector else ("Env", "make", f"Vector{name}")
    fits = isinstance(env, VectorEnv if vector else gymnasium.Env)
    other = f"envs.wrappers.{wrapper}" if isinstance(env, gymnasium.Env | VectorEnv) else f"gymnasium.{maker}(id)"
    require(fits, f"{name} wraps a gymnasium.{wanted}, not {type(env).__name__}; use {other}.")
    known = not vector or "autoreset_mode" in env.metadata
    require(known, f"{name} needs metadata['autoreset_mode'] of {env}, to know when a row starts over.")
    return env.single_observation_space if vector else env.observation_space


def _step_limit(env: Any, limit: int | None) -> int:
    """Return the given limit, or else the environment's own or that of its id; raise a UserError without any."""
    world, spec = getattr(env.unwrapped, "world", None), env.spec
    steps: Any = limit
    if steps is None:
        steps = getattr(world, "time_limit", None) or getattr(spec, "max_episode_steps", None)
    sentence = f"StepCount needs a limit of at least 1 step for {env}, not {steps}; give StepCount(env, limit=...)."
    require(steps is not None and steps >= 1, sentence)
    return int(steps)
