"""The contract of a World: a batch of N independent episodes, stored as tensors on one device.

A World draws no random numbers. The caller passes float64 uniforms from [0, 1). So one implementation serves a single
environment on a CPU, a vector environment, and many thousands of episodes inside a CUDA graph.
"""

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
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
    """Base of every World's state: a dataclass of tensors, each with the leading axis N."""

    observation: Tensor  # (N, d), flat unless it is an image: see `World.observation_space`
    steps: Tensor  # (N,) int64, steps taken in this episode
    returns: Tensor  # (N,) float64, undiscounted reward, summed step by step


@dataclass
class Step:
    """The result of one action in each of N environments."""

    observation: Tensor  # (N, ...) for the next action; after an episode's end that of the new episode
    final_observation: Tensor  # (N, ...) o_{t+1} of the episode that the action belongs to, before any reset
    reward: Tensor  # (N,) float32
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool, never together with terminated
    success: Tensor  # (N,) bool, True only if the step ended an episode with success
    episode_return: Tensor  # (N,) float64, including this step
    episode_length: Tensor  # (N,) int64, including this step

    @property
    def done(self) -> Tensor:
        """Tell which rows (N,) have ended their episode."""
        return self.terminated | self.truncated


S = TypeVar("S", bound=State)
Plain = tuple[Any, ...]  # one row's fields of a State as Python numbers, or lists or tuples of them
Uniform = Callable[[], float]  # draws the next uniform from [0, 1)
PlainStep = Callable[[Plain, Any, Uniform], tuple[Plain, float, bool, bool]]
OBSERVE = ("observation", "state")  # values of `make_world(observe=...)`
SHOWN = "shown"  # the field with the World's own observation in a `Reobserved` state; pictures may need it


class World(ABC, Generic[S]):
    """N independent episodes as pure functions of tensors: static shapes, no global randomness.

    The list below has the parts of your own World, in the order in which you write them. `make_world` refuses a class
    that lacks a part. Vectors and adapters try one reset and one step and refuse wrong tensors (`envs.checker`).
    `envs.checker.check_registered(id)` plays random steps and calls `reset` and `step` twice with the same arguments.
    If all probabilities fit into tables, a subclass of `envs.worlds.tabular.Tabular` needs only
    `super().__init__(tables, time_limit, device)`.

    1. A state: a dataclass under `State` that describes the episode completely, in tensors with the leading axis N.
    2. `num_actions`, the size A of the discrete action set; actions are 0 .. A - 1. Or 0, and a property
       `action_space`, a Box with one axis; actions are then (N, k) float32 within its bounds.
    3. `reset_draws` and `step_draws`: uniforms per row that `reset` and `step` consume, 0 if they draw nothing.
    4. `observation_space`: the Gymnasium space of ONE environment, a Box, Discrete, MultiDiscrete, MultiBinary or a
       Dict of these; integers count from 0. The observation tensor has the dtype of the space (a Box is float32 by
       default, a Discrete int64). It is one flat row (N, d): for a Discrete d is 1, for a Dict the row has the
       flattened entries in the space's order. The adapters restore the space's form. Only an image, a Box of three
       axes, has the form of its space, (N, C, H, W), as trainers read it from a vector.
    5. `__init__(self, ..., time_limit=100, device="cpu")`, whose first line is `super().__init__(time_limit, device)`.
       `device` is always passed by keyword; make all tables on it. `Entry.kwargs`, `gymnasium.make`, and `--options`
       of `envs.baselines` and `envs.memoryless` set the other keywords, so each needs a default or a value in the
       Entry. Trainers have no `--options`: to train with another keyword, register one more id, with
       `Entry("module:Class", {"noise": 0.1})`.
    6. `reset(u)`: N first states, with steps and returns from `self.counters(N)`.
    7. `step(state, action, u)`: a new state and four tensors, see below; do not write into the given state. `steps`
       grows by one and `returns` by the reward. The World truncates by itself at `time_limit`.
    8. `frame(state, row)` and `text(state, row)`: one row as a picture and as text, for videos and terminals.
    9. Optional: `mask(state)`, which tells the legal actions, together with `masks_actions = True`.
    10. Optional: `plain_step(row, action, draw)`, `step` in plain Python, which is faster for a single environment.

    Attributes:
        action_names: a name for each action, for pictures; may be empty.
        time_limit: an episode that has not terminated after this many steps is truncated.
        state_space: the space of `observe_state`'s result; None if the World does not offer it.
        device: the device of all tables and tensors.
        defines_success: whether an episode can succeed; if none can, scores are returns.
        masks_actions: whether `mask` tells which actions are legal.
        runs_on_numpy: numpy arrays may replace all tensors. Then `reset`, `step` and `truncated` use only
            `envs.numpy_backend` and operators, and all tables are tensor attributes of the World or of parts that
            also set `runs_on_numpy`.
    """

    num_actions: int
    action_names: tuple[str, ...] = ()
    reset_draws: int
    step_draws: int
    observation_space: gymnasium.Space[Any]
    state_space: gymnasium.Space[Any] | None = None
    defines_success: bool = True
    masks_actions: bool = False
    runs_on_numpy: bool = False

    def __init__(self, time_limit: int, device: str | torch.device = "cpu") -> None:
        whole = isinstance(time_limit, int | np.integer) and not isinstance(time_limit, bool)
        fits = whole and 1 <= time_limit < 2**63
        require(fits, f"time_limit must be at least 1 step, whole and below 2**63, not {time_limit!r}.")
        self.time_limit = time_limit
        self.device = torch.device(device)
        # Constants as tensors: on a CPU an operation with a Python number takes 1.5 times as long.
        self.one = torch.tensor(1, device=self.device)
        self.nothing = torch.tensor(0.0, dtype=torch.float64, device=self.device)
        self._limit = torch.tensor(time_limit, device=self.device)

    @abstractmethod
    def reset(self, u: Tensor) -> S:
        """Start N episodes from uniforms u (N, reset_draws) float64."""

    @abstractmethod
    def step(self, state: S, action: Tensor, u: Tensor) -> tuple[S, Tensor, Tensor, Tensor, Tensor]:
        """Advance every row by one action (N,) int64 with uniforms u (N, step_draws) float64.

        Returns (state, observation (N, d), reward (N,) float64, terminated (N,) bool, success (N,) bool). The
        observation is that of the returned state. Success is the World's verdict on a terminated episode, and False
        before its end.
        """

    @abstractmethod
    def frame(self, state: S, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one row as an RGB picture (height, width, 3), for videos."""

    @abstractmethod
    def text(self, state: S, row: int) -> str:
        """Draw one row as lines of plain text, for terminals."""

    def plain_step(self: Any, row: Plain, action: Any, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        """Do `step` for one row in plain Python; returns (row, reward, terminated, success). Optional.

        A single environment on a CPU uses it if the World `runs_on_numpy`. All tables are numpy arrays then, and
        tensors of one number are numbers. A row is a tuple of the State's fields in their order. The observation in it
        is a sequence of numbers, even of a single one. The action is a whole number, or an array (k,) float32. Every
        step calls `draw` `step_draws` times. The results must equal those of `step` to the last bit.
        """
        raise UserError(f"{type(self).__name__} has no plain_step.")

    def mask(self, state: S) -> Tensor:
        """Tell which actions are legal, (N, num_actions) bool; at least one in every state that goes on. Optional."""
        raise UserError(f"{type(self).__name__} has no mask.")

    def observe_state(self, state: S) -> Tensor:
        """Return a Markov state (N, e) in the form of `state_space`: the episode's future depends on nothing else.

        `make_world(id, observe="state")` shows it in place of the observation, see `StateObserved`.
        """
        raise UserError(f"{type(self).__name__} has no observe_state.")

    def initial_draws(self) -> Tensor | None:
        """List reset draws (M, reset_draws) float64, one row per initial state of a deterministic World; else None.

        An evaluation plays each of these episodes once if the agent draws no actions. The steps must draw nothing:
        `step_draws` is 0.
        """
        return None

    def truncated(self, state: S, terminated: Tensor) -> Tensor:
        """Tell which rows (N,) reached the time limit without terminating; never both."""
        return (state.steps >= self._limit) > terminated  # for truth values `a > b` means `a and not b`

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The space of one environment's actions: numbers below `num_actions`, or a Box that a subclass gives."""
        return gymnasium.spaces.Discrete(self.num_actions)

    def counters(self, count: int) -> tuple[Tensor, Tensor]:
        """Make zero step counts (N,) int64 and returns (N,) float64 for a reset of `count` rows."""
        return zeros(self.one, count), zeros(self.nothing, count)


class Reobserved(World[Any]):
    """A World that shows something else in place of its observation; everything else stays the same."""

    def __init__(self, world: World[Any]) -> None:
        super().__init__(world.time_limit, world.device)
        self.world = world
        self.num_actions, self.action_names = world.num_actions, world.action_names
        self.reset_draws, self.step_draws = world.reset_draws, world.step_draws
        self.observation_space: Any = world.observation_space
        self.state_space, self.defines_success = world.state_space, world.defines_success
        self.runs_on_numpy, self.masks_actions = world.runs_on_numpy, world.masks_actions

    @abstractmethod
    def seen(self, state: State) -> Tensor:
        """Compute what is shown (N, ...) from the World's own state."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return self.world.action_space

    def reset(self, u: Tensor) -> State:
        return self._observed(self.world.reset(u))

    def step(self, state: State, action: Tensor, u: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
        after, _, reward, terminated, success = self.world.step(state, action, u)
        after = self._observed(after)
        return after, after.observation, reward, terminated, success

    def mask(self, state: State) -> Tensor:
        return self.world.mask(_original(state))

    def observe_state(self, state: State) -> Tensor:
        return self.world.observe_state(state)

    def initial_draws(self) -> Tensor | None:
        return self.world.initial_draws()

    def truncated(self, state: State, terminated: Tensor) -> Tensor:
        return self.world.truncated(state, terminated)

    def frame(self, state: State, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self.world.frame(_original(state), row)

    def text(self, state: State, row: int) -> str:
        return self.world.text(_original(state), row)

    def _observed(self, state: State) -> State:
        kind, name = _kind(type(state))  # type: ignore[arg-type]  # a dataclass type hashes
        return kind(**{**vars(state), "observation": self.seen(state), name: state.observation})


class StateObserved(Reobserved):
    """A World that shows its state instead of its observation, made by `observe="state"`.

    So an agent that must remember can be compared with one that need not, on the same episodes.

    Raises:
        UserError: the World has no `state_space`.
    """

    def __init__(self, world: World[Any]) -> None:
        kind, advice = type(world).__name__, "give it state_space and observe_state, or use observe='observation'"
        require(world.state_space is not None, f"{kind} shows no state; {advice}.")
        super().__init__(world)
        self.observation_space = world.state_space

    def seen(self, state: State) -> Tensor:
        return self.world.observe_state(state)


@cache  # states of one World must have one class
def _kind(inner: type[State]) -> tuple[type[State], str]:
    """Make a subclass of a World's state class whose last field, also named, has the World's own observation."""
    fields = [field.name for field in dataclasses.fields(inner)]
    name = f"{SHOWN}_{len(fields)}" if SHOWN in fields else SHOWN
    return dataclasses.make_dataclass(f"Observed{inner.__name__}", [(name, Tensor)], bases=(inner,)), name


def _original(state: State) -> State:
    """Return the World's own state, with its own observation."""
    values = dict(vars(state))
    values["observation"] = values.pop(dataclasses.fields(state)[-1].name)
    return type(state).__bases__[0](**values)


def plain_step_of(world: World[Any]) -> PlainStep | None:
    """Return `world.plain_step`, or None if it cannot stand for `world.step`.

    A subclass that changes another function of the class with the plain step changes the rules, which the plain step
    does not know. Only `__init__`, `reset` and pictures may differ. Observations must have one axis at most.
    """
    kind, shape = type(world), world.observation_space.shape
    if kind.plain_step is World.plain_step or shape is None or len(shape) > 1:
        return None
    owner = next(each for each in kind.__mro__ if "plain_step" in vars(each))
    rules = {name for name, _ in inspect.getmembers(owner, inspect.isfunction)} - {"__init__", "reset", "frame", "text"}
    same = all(getattr(kind, name) is getattr(owner, name) for name in rules)
    return world.plain_step if same else None


def plain_row(state: State) -> Plain:
    """Turn a state of one row in arrays into plain numbers."""
    return tuple(value[0].tolist() for value in vars(state).values())


def state_of(row: Plain, like: S) -> S:
    """Turn plain numbers into a state of one row, in arrays with the dtypes of another state."""
    fields = zip(vars(like).items(), row, strict=True)
    values: dict[str, Any] = {name: np.array([value], old.dtype) for (name, old), value in fields}
    return type(like)(**values)


def where_state(mask: Tensor, chosen: S, other: S) -> S:
    """Choose row by row between two states of one dataclass: `chosen` where mask (N,) is True, else `other`."""
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
