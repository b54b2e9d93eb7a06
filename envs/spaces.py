"""Convert observations between flat rows, the form of their Gymnasium space, and the form that networks take."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from envs.errors import UserError, check_known, require

Array = np.ndarray[Any, np.dtype[Any]]
Encode = Callable[[Any], Array]
Decode = Callable[[Any], Any]
Fit = Callable[[Any], Any]
BRIEF = 100  # characters of a value in a sentence
COLOURS = (1, 3, 4)  # channels of pictures
MAX_ACTIONS = 2**15 - 2  # int16, minus one number for "no action"


class IntegerSizes(np.ndarray[Any, np.dtype[np.int64]]):
    """Integers that iterate as Python integers."""

    def __iter__(self) -> Iterator[Any]:
        """Yield Python integers, or rows where there are several axes."""
        return iter(self.tolist()) if self.ndim == 1 else super().__iter__()


class MultiDiscrete(spaces.MultiDiscrete):
    """Several integers, `nvec[i]` values each.

    Stable-Baselines3 uses `sum(space.nvec)` as the width of the one-hot form, and sb3-contrib passes it to
    `torch.nn.LSTM`, which refuses numpy's integers. With a plain `nvec` their recurrent agents could not be built.
    """

    def __init__(self, nvec: ArrayLike, **kwargs: Any) -> None:
        super().__init__(np.asarray(nvec), **kwargs)
        self.nvec = self.nvec.view(IntegerSizes)


class ImageBox(spaces.Box):
    """Images (C, H, W), whatever their sizes; of any other Box of three axes the sizes tell where the channels are."""


def integer_ranges(space: Any) -> tuple[Array, Array] | None:
    """Give the number of values and the first value of each integer in a space, both flat (K,).

    None for a space that does not hold integers (Discrete, MultiDiscrete, MultiBinary).
    """
    if isinstance(space, spaces.Discrete):
        return np.array([space.n]), np.array([space.start])
    if isinstance(space, spaces.MultiDiscrete):
        return np.array(space.nvec).flatten(), space.start.flatten()
    if isinstance(space, spaces.MultiBinary):
        count = int(np.prod(space.shape))
        return np.full(count, 2), np.zeros(count, np.int64)
    return None


def entry_bounds(what: str, space: Any) -> tuple[Array, Array]:
    """Return the minimum and the maximum (d,) of each entry, in the dtype of the space."""
    empty = not space.spaces if isinstance(space, spaces.Dict) else 0 in (getattr(space, "shape", None) or ())
    require(not empty, f"{what} must hold at least one number, not {shown(space)}.")
    if isinstance(space, spaces.Dict):
        entries = [entry_bounds(f"{what}, entry {name!r},", entry) for name, entry in space.items()]
        low, high = map(np.concatenate, zip(*entries, strict=True))
        return low, high
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1), space.high.reshape(-1)
    ranges = integer_ranges(space)
    if ranges is None:
        raise UserError(f"{what} must be Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, not {space!r}.")
    count, start = ranges
    # trainers index a table with these numbers, and use the next number for padding
    require(not start.any(), f"{what} must count from 0, not {shown(space)}.")
    return np.zeros(count.shape, space.dtype), (count - 1).astype(space.dtype)


# Batches


def unflatten(space: gymnasium.Space[Any]) -> Callable[[Array], Any]:
    """Make the function from flat observations (N, d) to the batched form of `space`; it always copies.

    An array space of shape s gives (N, *s) in the space's dtype. A Dict is split in the order of its entries.
    """
    if not isinstance(space, spaces.Dict):
        shape, dtype = space.shape or (), space.dtype
        return lambda flat: flat.reshape(-1, *shape).astype(dtype)
    sizes = {name: _size(entry) for name, entry in space.items()}
    stops = dict(zip(sizes, np.cumsum(list(sizes.values())).tolist(), strict=True))
    parts = {name: (slice(stops[name] - size, stops[name]), unflatten(space[name])) for name, size in sizes.items()}
    return lambda flat: {name: shaped(flat[:, part]) for name, (part, shaped) in parts.items()}


def batch_of_one(observation: Any) -> Any:
    """Make a batch of one observation."""
    if isinstance(observation, dict):
        return {name: batch_of_one(entry) for name, entry in observation.items()}
    return np.asarray(observation)[None]


def row(batch: Any, index: int) -> Any:
    """Take one row of a batched observation."""
    if isinstance(batch, dict):
        return {name: row(entry, index) for name, entry in batch.items()}
    return batch[index]


def object_rows(batch: Any, chosen: Array, count: int) -> Array:
    """Put observations (M, ...) into rows (M,) of an object array (N,), None elsewhere, as Gymnasium does."""
    result = np.full(count, None, object)
    each = (row(batch, index) for index in range(len(chosen))) if isinstance(batch, dict) else batch
    result[chosen] = np.fromiter(each, object, len(chosen))
    return result


def _size(space: gymnasium.Space[Any]) -> int:
    if isinstance(space, spaces.Dict):
        return sum(map(_size, space.values()))
    return math.prod(space.shape or ())


# One observation in the form of its space


class Unfit(UserError):
    """An observation outside its space; the sentence begins with "an observation" and names the space."""


def fitter(space: gymnasium.Space[Any]) -> Fit:
    """Make the function that converts one observation to the shape and the dtype of an array space.

    Acting and the replay read the same converted array. A cast must keep the value and its kind: whole numbers within
    the bounds, or any number if the space holds real ones. Anything else raises `Unfit`. The entries of a Dict and of a
    Tuple are converted one by one. Observations of other kinds of spaces are returned unchanged.
    """
    if isinstance(space, spaces.Dict):
        named = {name: fitter(entry) for name, entry in space.items()}
        return lambda given: {name: _entry_fitted(given, name, fit, Mapping) for name, fit in named.items()}
    if isinstance(space, spaces.Tuple):
        fits = tuple(map(fitter, space))
        return lambda given: tuple(_entry_fitted(given, place, fit, Sequence) for place, fit in enumerate(fits))
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return lambda given: given
    shape, dtype = space.shape or (), space.dtype
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n)
        return lambda given: given if type(given) is int and first <= given < last else _fitted(space, given)

    def fit(given: Any) -> Any:
        if type(given) is np.ndarray and given.dtype == dtype and given.shape == shape:
            return given
        return _fitted(space, given)

    return fit


def _entry_fitted(given: Any, name: Any, fit: Fit, kind: type[Any]) -> Any:
    """Convert the entry of an observation by its function."""
    if not isinstance(given, kind) or (name not in given if isinstance(given, Mapping) else name >= len(given)):
        raise Unfit(f"an observation without the entry {name!r}: {shown(given)}")
    try:
        return fit(given[name])
    except Unfit as error:
        raise Unfit(f"in the entry {name!r} {error}") from None


def _fitted(space: gymnasium.Space[Any], given: Any) -> Array:
    shape, dtype = space.shape or (), np.dtype(space.dtype)
    try:
        array = np.asarray(given)
    except Exception:  # ragged lists, and errors of an object's own conversion
        raise Unfit(f"an observation that is no array: {shown(given)}; its space is {shown(space)}") from None
    if array.dtype.kind not in "biuf":
        raise Unfit(f"an observation that holds no numbers: {shown(given)}; its space is {shown(space)}")
    if isinstance(space, spaces.Discrete) and array.size == 1:
        array = array.reshape(())
    if array.shape != shape:
        raise Unfit(f"an observation of shape {array.shape}, its space is of shape {shape}")
    if array.dtype == dtype or dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinite numbers are refused later
            return array.astype(dtype, copy=False)
    if array.dtype.kind == "f":
        raise Unfit(f"an observation of {array.dtype}, but its space {shown(space)} holds whole numbers")
    low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (_least(dtype), _most(dtype))
    outside = array[(array < low) | (array > high)]
    if outside.size:
        raise Unfit(f"an observation of {array.dtype} that holds {outside[0]}, outside of its space {shown(space)}")
    return array.astype(dtype)


def _least(dtype: np.dtype[Any]) -> int:
    return 0 if dtype.kind == "b" else int(np.iinfo(dtype).min)


def _most(dtype: np.dtype[Any]) -> int:
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


def shown(value: Any) -> str:
    """Write a value for a sentence: on one line, shortened, without control characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}..."


# The form that networks take


def encoder(
    space: gymnasium.Space[Any], key: str | None = None, fitted: bool = False
) -> tuple[gymnasium.Space[Any], Encode]:
    """Give the space that a network sees, and the function that converts an observation to it.

    Discrete, MultiDiscrete and MultiBinary become flat int64 vectors that count from 0, as a MultiDiscrete. An image, a
    Box of three axes, keeps its shape and gets a dtype that torch supports. Images of bytes with two or four axes get
    three, see `_arranged`. Any other Box becomes a flat float32 vector. From a Dict the entry `key` is used. With
    `fitted`, observations have the form of their space already.
    """
    if isinstance(space, spaces.Dict):
        inner, encode = encoder(_entry(space, key), None, fitted)
        return inner, lambda observation: encode(observation[key])
    require(key is None, f"observation_key {key!r} needs a Dict observation, but the observation is {space}.")
    fit = (lambda observation: observation) if fitted else fitter(space)
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        dtype = _stored(space.dtype)
        if dtype == space.dtype:
            return space, fit
        fits = dtype.kind == "f" or int(space.high.max(initial=0)) <= _most(dtype)
        require(fits, f"Images of {space.dtype} may hold numbers up to {_most(dtype)}, not those of {shown(space)}.")
        wide = type(space)(space.low.astype(dtype), space.high.astype(dtype), dtype=dtype.type)
        return wide, lambda observation: fit(observation).astype(dtype)
    if isinstance(space, spaces.Box) and (arranged := _arranged(space)) is not None:
        low, high = arranged(space.low), arranged(space.high)
        return spaces.Box(low, high, dtype=np.uint8), lambda observation: arranged(fit(observation))
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float32).flatten(), space.high.astype(np.float32).flatten()
        return spaces.Box(low, high, dtype=np.float32), lambda observation: np.float32(fit(observation)).reshape(-1)
    if (ranges := integer_ranges(space)) is not None:
        sizes, start = ranges
        return spaces.MultiDiscrete(sizes), lambda observation: np.int64(fit(observation)).reshape(-1) - start
    raise UserError(f"Observations must be Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these, not {space}.")


def _arranged(space: spaces.Box) -> Encode | None:
    """Make the function that arranges bytes of two or four axes as an image of three; None for all else.

    A grey image (H, W) becomes (1, H, W). S stacked images (S, H, W, C) or (S, C, H, W), where C is 1, 3 or 4, become
    (S * C, H, W). An image is larger than four pixels in both directions.
    """
    shape = space.shape
    if space.dtype != np.uint8 or len(shape) not in (2, 4):
        return None
    last = shape[-1] in COLOURS and len(shape) == 4
    height, width = shape[-3:-1] if last else shape[-2:]
    if min(height, width) <= max(COLOURS) or not (last or len(shape) == 2 or shape[1] in COLOURS):
        return None
    channels = math.prod(shape) // (height * width)
    known = channels < min(height, width) or height == width  # the network knows the channels by the sizes
    require(
        known, f"{shape[0]} images of {height} x {width} have {channels} channels; stack fewer, or pad to a square."
    )
    return lambda image: (np.moveaxis(image, -1, 1) if last else image).reshape(-1, height, width)


def _stored(dtype: Any) -> np.dtype[Any]:
    """Give the dtype of an image in a tensor; torch lacks most unsigned integers, and long double."""
    given = np.dtype(dtype)
    wider = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "longdouble": "float64", "float128": "float64"}
    return np.dtype(wider.get(given.name, given.name)).newbyteorder("=")


def image_bounds(space: spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Give the minimum and the maximum: one of each for all entries, or one per entry if they differ.

    None for the usual bounds: 0 .. 255 of whole numbers, 0 .. 1 of real ones.
    """
    low, high = (np.asarray(each, np.float64).flatten() for each in (space.low, space.high))
    if (low == low[:1]).all() and (high == high[:1]).all():
        low, high = low[:1], high[:1]
    usual = [0.0], [1.0 if np.dtype(space.dtype).kind == "f" else 255.0]
    return None if (low.tolist(), high.tolist()) == usual else (tuple(low.tolist()), tuple(high.tolist()))


def discrete_actions(space: gymnasium.Space[Any]) -> tuple[int, Decode]:
    """Give the number of actions A, and the function from numbers 0 .. A - 1 to the environment's actions.

    The combinations of several integers (MultiDiscrete) are numbered; the last integer changes fastest. The function
    takes one number or an array of them.
    """
    ranges = integer_ranges(space) if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else None
    if ranges is None:
        raise UserError(f"The actions must be Discrete or MultiDiscrete, not {space}; recurrent PPO takes others.")
    sizes, start = ranges
    count = math.prod(sizes.tolist())
    require(count <= MAX_ACTIONS, f"The actions must be at most {MAX_ACTIONS}, not the {count} of {shown(space)}.")
    if isinstance(space, spaces.MultiDiscrete):
        table = np.stack(np.unravel_index(np.arange(count), sizes), -1) + start  # (A, K)
        shape, dtype = space.nvec.shape, space.dtype
        return count, lambda action: table[action].reshape(*np.shape(action), *shape).astype(dtype)
    first = int(start[0])
    return count, lambda action: action + first


def only_box(space: gymnasium.Space[Any]) -> str | None:
    """Name the only Box among the entries of a Dict; None if there is no Dict, no Box or several."""
    entries = space.spaces if isinstance(space, spaces.Dict) else {}
    boxes = [name for name, entry in entries.items() if isinstance(entry, spaces.Box)]
    return boxes[0] if len(boxes) == 1 else None


def _entry(space: spaces.Dict, key: str | None) -> gymnasium.Space[Any]:
    keys = ", ".join(map(repr, space))
    if key is None:
        raise UserError(f"The observation is a Dict; choose one of its keys {keys} with observation_key.")
    check_known("key of the observation", key, space.spaces)
    nested = isinstance(space[key], spaces.Dict)
    require(not nested, f"The entry {key!r} of the observation is a Dict itself; flatten it with a wrapper.")
    return space[key]
