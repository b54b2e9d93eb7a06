"""The contract of a World: a batch of N independent episodes held as tensors on one device.

A world draws nothing by itself. The caller passes float64 uniforms from [0, 1), so one implementation serves
a single environment on a CPU, a vector environment, and many thousands of worlds inside a CUDA graph.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.errors import UserError, require
from envs.numpy_backend import put_rows, zeros


@dataclass
class State:
    """Base of every world's state: a dataclass of tensors, each with the leading axis N."""

    observation: Tensor  # (N, d), flat unless it is an image: see `World.observation_space`
    steps: Tensor  # (N,) int64, steps taken in this episode
    returns: Tensor  # (N,) float64, undiscounted reward, summed step by step


@dataclass
class Step:
    """The result of one action in each of N worlds."""

    observation: Tensor  # (N, ...) what to act on next: of the new episode where one ended
    final_observation: Tensor  # (N, ...) o_{t+1} of the episode the action belongs to, before any reset
    reward: Tensor  # (N,) float32
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool, never together with terminated
    success: Tensor  # (N,) bool, True only where an episode ended well
    episode_return: Tensor  # (N,) float64, up to and with this step
    episode_length: Tensor  # (N,) int64, up to and with this step

    @property
    def done(self) -> Tensor:
        """Tell which rows (N,) have ended their episode."""
        return self.terminated | self.truncated


S = TypeVar("S", bound=State)
OBSERVE = ("observation", "state")  # what `make_world(observe=...)` takes
SHOWN = "shown"  # the field in which `StateObserved` keeps the world's own observation, which pictures may need


class World(ABC, Generic[S]):
    """N independent episodes as pure functions of tensors: static shapes, no global randomness.

    What a world of your own must have, in the order in which you need it. `make_world` refuses a class that lacks a
    part, vectors and adapters try one reset and one step and refuse wrong tensors (`envs.checker`), and
    `envs.checker.check_registered(id)` plays whole episodes. Where all probabilities can be written as tables, a
    subclass of `envs.worlds.tabular.Tabular` needs nothing but `super().__init__(tables, time_limit, device)`.

    1. A state: a dataclass under `State` with all that an episode is, tensors with the leading axis N.
    2. `num_actions`, the size A of the discrete action set; actions are 0 .. A - 1.
    3. `reset_draws` and `step_draws`: uniforms per row that `reset` and `step` consume, 0 where nothing is drawn.
    4. `observation_space`: the Gymnasium space of ONE world, a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of
       these; integers count from 0. The observation tensor has the dtype of the space (a Box is float32
       unless told, a Discrete int64) and is always one flat row (N, d); for a Dict it holds the flattened entries in
       the space's order, for a Discrete d is 1, and the adapters give it the space's form. Only an image, a Box of
       three axes, has that form in the world already, (N, C, H, W), as trainers read it from a vector.
    5. `__init__(self, ..., time_limit=100, device="cpu")`, whose first line is `super().__init__(time_limit, device)`.
       `device` is always given by keyword; all tables are made there. Other keywords are what `Entry.kwargs`,
       `--options` and `gymnasium.make` set, so each needs a default or a value in the Entry.
    6. `reset(u)`: N first states, with steps and returns from `self.counters(N)`.
    7. `step(state, action, u)`: a new state and four more, see below; the given state stays as it is. `steps` grows
       by one and `returns` by the reward. The world truncates by itself at `time_limit`.
    8. `frame(state, row)` and `text(state, row)`: one row as a picture and as text, for videos and terminals.

    Attributes:
        action_names: a name for each action, for pictures; may be empty.
        time_limit: an episode that has not terminated after this many steps is truncated.
        state_space: the space of what `observe_state` returns; None where a world does not offer it.
        device: where all tables are and all tensors are expected.
        defines_success: whether an episode can succeed at all; where it cannot, scores are returns.
        runs_on_numpy: `reset`, `step` and `truncated` are written with `envs.numpy_backend` and operators alone, and
            all tables are tensors among the attributes of the world, or of parts that say the same of themselves, so
            that numpy arrays may stand for all tensors.
    """

    num_actions: int
    action_names: tuple[str, ...] = ()
    reset_draws: int
    step_draws: int
    observation_space: gymnasium.Space[Any]
    state_space: gymnasium.Space[Any] | None = None
    defines_success: bool = True
    runs_on_numpy: bool = False

    def __init__(self, time_limit: int, device: str | torch.device = "cpu") -> None:
        require(1 <= time_limit < 2**63, f"time_limit must be at least 1 step and below 2**63, not {time_limit}.")
        self.time_limit = time_limit
        self.device = torch.device(device)
        # Constants as tensors: on a CPU an operation with a Python number takes half as long again.
        self.one = torch.tensor(1, device=self.device)
        self.nothing = torch.tensor(0.0, dtype=torch.float64, device=self.device)
        self._limit = torch.tensor(time_limit, device=self.device)

    @abstractmethod
    def reset(self, u: Tensor) -> S:
        """Start N episodes from uniforms u (N, reset_draws) float64."""

    @abstractmethod
    def step(self, state: S, action: Tensor, u: Tensor) -> tuple[S, Tensor, Tensor, Tensor, Tensor]:
        """Advance every row by one action (N,) int64 with uniforms u (N, step_draws) float64.

        Returns (state, observation (N, d), reward (N,) float64, terminated (N,) bool, success (N,) bool);
        the observation is that of the state, and success is the world's own verdict on a terminated episode and
        False before.
        """

    @abstractmethod
    def frame(self, state: S, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one row as an RGB picture (height, width, 3), for videos."""

    @abstractmethod
    def text(self, state: S, row: int) -> str:
        """Draw one row as lines of plain text, for terminals."""

    def observe_state(self, state: S) -> Tensor:
        """Show all that the future of an episode depends on, (N, e) in the form of `state_space`: nothing is hidden.

        It is what `make_world(id, observe="state")` shows in place of the observation, see `StateObserved`.
        """
        raise UserError(f"The world {type(self).__name__} does not say what its state looks like.")

    def initial_draws(self) -> Tensor | None:
        """List reset draws (M, reset_draws), one row per initial state of a deterministic world; else None."""
        return None

    def truncated(self, state: S, terminated: Tensor) -> Tensor:
        """Tell which rows (N,) reached the time limit without terminating; never both."""
        return (state.steps >= self._limit) > terminated  # of truth values, `a > b` is `a and not b`

    def counters(self, count: int) -> tuple[Tensor, Tensor]:
        """Make zero step counts (N,) int64 and returns (N,) float64 for a reset of `count` rows."""
        return zeros(self.one, count), zeros(self.nothing, count)


class StateObserved(World[Any]):
    """A world that shows its state instead of its observation, made by `observe="state"`.

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
        self.state_space, self.defines_success = world.state_space, world.defines_success
        self.runs_on_numpy = world.runs_on_numpy

    def reset(self, u: Tensor) -> State:
        return self._observed(self.world.reset(u))

    def step(self, state: State, action: Tensor, u: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
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
    return dataclasses.make_dataclass(f"Observed{inner.__name__}", [(SHOWN, Tensor)], bases=(inner,))


def _as_the_world_has_it(state: State) -> State:
    """Return the state without its view, with the world's own observation in its place."""
    values = dict(vars(state))
    values["observation"] = values.pop(SHOWN)
    return type(state).__bases__[0](**values)


def where_state(mask: Tensor, chosen: S, other: S) -> S:
    """Choose row by row between two states of one dataclass: `chosen` where mask (N,) holds, else `other`."""
    values = {}
    for field in dataclasses.fields(chosen):
        ours, theirs = getattr(chosen, field.name), getattr(other, field.name)
        values[field.name] = torch.where(mask.view(-1, *[1] * (ours.dim() - 1)), ours, theirs)
    return type(chosen)(**values)


def put_state(state: S, rows: Tensor, fresh: S) -> S:
    """Copy `state` with the M rows of `fresh` in its rows (M,) int64."""
    new = vars(fresh)
    return type(state)(**{name: put_rows(old, rows, new[name]) for name, old in vars(state).items()})


def choose(u: Tensor, count: int) -> Tensor:
    """Turn uniforms from [0, 1) into integers, uniform over 0 .. count-1."""
    return (u * count).long().clamp(max=count - 1)
