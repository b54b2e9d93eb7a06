"""How a Gymnasium adapter runs a world: numpy in, numpy out; on tensors, or on numpy arrays where a world allows."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from envs.core import State, World, put
from envs.seeding import Floats, Rows

Array = np.ndarray[Any, np.dtype[Any]]


P = TypeVar("P")


class Outcome(NamedTuple):
    """One step of N rows."""

    state: State
    reward: Array  # (N,) float64
    terminated: Array  # (N,) bool
    truncated: Array  # (N,) bool
    success: Array  # (N,) bool


class Engine(Protocol):
    """Runs one world. States are handed through, never changed in place."""

    def reset(self, u: Floats) -> State:
        """First states of as many episodes as there are rows of uniforms."""

    def step(self, state: State, action: Array, u: Floats) -> Outcome:
        """One action (N,) int64 in every row."""

    def restart(self, state: State, rows: Rows, u: Floats) -> State:
        """The state with new episodes in the rows (M,), from uniforms (M, reset_draws)."""

    def observation(self, state: State) -> Array:
        """The flat observation (N, d); not to be written into."""


def engine(world: World[Any]) -> Engine:
    """The faster way to run this world."""
    return NumpyEngine(world) if world.runs_on_numpy and world.device.type == "cpu" else TensorEngine(world)


class TensorEngine:
    """Runs a world on tensors of its device."""

    def __init__(self, world: World[Any]) -> None:
        self.world = world

    @torch.inference_mode()
    def reset(self, u: Floats) -> State:
        """As `Engine`."""
        return self.world.reset(self._tensor(u))

    @torch.inference_mode()
    def step(self, state: State, action: Array, u: Floats) -> Outcome:
        """As `Engine`."""
        after, _, reward, terminated, success = self.world.step(state, self._tensor(action), self._tensor(u))
        truncated = self.world.truncated(after, terminated)
        return Outcome(after, *(each.cpu().numpy() for each in (reward, terminated, truncated, success)))

    @torch.inference_mode()
    def restart(self, state: State, rows: Rows, u: Floats) -> State:
        """As `Engine`."""
        return put(state, self._tensor(rows), self.world.reset(self._tensor(u)))

    def observation(self, state: State) -> Array:
        """As `Engine`."""
        return state.observation.cpu().numpy()

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.world.device)


class NumpyEngine:
    """Runs a world that is written with `envs.numpy_backend` on numpy arrays."""

    def __init__(self, world: World[Any]) -> None:
        self.world = on_numpy(world)

    def reset(self, u: Floats) -> State:
        """As `Engine`."""
        return self.world.reset(u)  # type: ignore[arg-type]

    def step(self, state: State, action: Array, u: Floats) -> Outcome:
        """As `Engine`."""
        after, _, reward, terminated, success = self.world.step(state, action, u)  # type: ignore[arg-type]
        truncated = self.world.truncated(after, terminated)
        return Outcome(after, reward, terminated, truncated, success)  # type: ignore[arg-type]

    def restart(self, state: State, rows: Rows, u: Floats) -> State:
        """As `Engine`."""
        values, fresh = {}, vars(self.world.reset(u))  # type: ignore[arg-type]
        for name, old in vars(state).items():
            values[name] = old.copy()
            values[name][rows] = fresh[name]
        return type(state)(**values)

    def observation(self, state: State) -> Array:
        """As `Engine`."""
        return state.observation  # type: ignore[return-value]


def on_numpy(part: P) -> P:
    """The same world, or part of one, with its tables as numpy arrays that share their memory.

    Single numbers become numpy numbers. Parts that say so by `runs_on_numpy` are brought along.
    """
    twin = copy.copy(part)
    for name, value in vars(part).items():
        object.__setattr__(twin, name, _arrays(value))  # also where a dataclass is frozen
    return twin


def _arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()[()]
    if isinstance(value, tuple):
        return tuple(_arrays(each) for each in value)
    return on_numpy(value) if getattr(value, "runs_on_numpy", False) else value
