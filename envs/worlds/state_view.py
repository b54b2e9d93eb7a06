"""A world whose state is seen: what an agent of the same kind could reach if nothing were hidden from it."""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from envs.core import State, World
from envs.errors import require

OBSERVE = ("observation", "state")  # what `make_world(observe=...)` takes
SHOWN = "shown"  # the field that keeps the world's own observation, which pictures may need


class StateObserved(World[Any]):
    """The same episodes under the same draws, observed as `world.observe_state` says: made by `observe="state"`.

    Only the observation changes. Initial states, transitions, rewards, endings and pictures are those of the world,
    so that two agents can be compared on the very same episodes, one of which has nothing to remember; all methods do
    as the world's own.

    Raises:
        UserError: the world does not say what its state looks like.
    """

    def __init__(self, world: World[Any]) -> None:
        kind, advice = type(world).__name__, "give it state_space and observe_state, or use observe='observation'"
        require(world.state_space is not None, f"The world {kind} shows no state; {advice}.")
        super().__init__(world.time_limit, world.device)
        self.world = world
        self.num_actions, self.action_names = world.num_actions, world.action_names
        self.reset_draws, self.step_draws = world.reset_draws, world.step_draws
        self.observation_space: Any = world.state_space
        self.state_space = world.state_space
        self.runs_on_numpy = world.runs_on_numpy

    def reset(self, u: Tensor) -> State:
        """Do as the world does."""
        return self._observed(self.world.reset(u))

    def step(self, state: State, action: Tensor, u: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
        """Do as the world does, but for the observation."""
        after, _, reward, terminated, success = self.world.step(state, action, u)
        after = self._observed(after)
        return after, after.observation, reward, terminated, success

    def observe_state(self, state: State) -> Tensor:
        return self.world.observe_state(state)

    def initial_draws(self) -> Tensor | None:
        return self.world.initial_draws()

    def truncated(self, state: State, terminated: Tensor) -> Tensor:
        return self.world.truncated(state, terminated)

    def frame(self, state: State, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self.world.frame(_as_the_world_has_it(state), row)

    def text(self, state: State, row: int) -> str:
        return self.world.text(_as_the_world_has_it(state), row)

    def _observed(self, state: State) -> State:
        values = {**vars(state), "observation": self.world.observe_state(state), SHOWN: state.observation}
        return _kind(type(state))(**values)  # type: ignore[arg-type]  # a dataclass type hashes


@cache  # so that two states of one world are of one class
def _kind(inner: type[State]) -> type[State]:
    """Make a world's state class with one more field."""
    return make_dataclass(f"Observed{inner.__name__}", [(SHOWN, Tensor)], bases=(inner,))


def _as_the_world_has_it(state: State) -> State:
    """Return the state without its view, with the world's own observation in its place."""
    values = dict(vars(state))
    values["observation"] = values.pop(SHOWN)
    return type(state).__bases__[0](**values)
