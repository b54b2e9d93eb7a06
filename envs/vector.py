"""Vector environments: N environments, stepped at once, each reset when its episode ends.

Trainers step a `VectorEnvironment`. `make_vector` makes one of a single kind from an id; a `MixedVector` joins several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium.spaces import flatdim
from torch import Tensor

from envs.actions import PLAIN, Form, InterfaceConfig, action_form
from envs.atari import AtariConfig, AtariVector
from envs.checker import probe, world_name
from envs.core import State, Step, World, put_state, where_state
from envs.errors import UserError, require
from envs.gymnasium import GymnasiumVector, on_numpy
from envs.numpy_backend import single
from envs.registry import WORLDS, check_keywords, make_world
from envs.rows import RowObserved, as_rows, illegal, out_of_range
from envs.seeding import digest, restore_generator

S = TypeVar("S", bound=State)


def advance(world: World[S], state: S, action: Tensor, u: Tensor) -> tuple[S, Step]:
    """Step every row and reset finished ones: a pure function of tensors with static shapes, for CUDA graphs.

    The uniforms u are (N, step_draws + reset_draws) float64; the last reset_draws matter only if an episode ends.
    """
    after, step = _step(world, state, action, u)
    state = where_state(step.done, world.reset(u[:, world.step_draws :]), after)
    return state, dataclasses.replace(step, observation=state.observation)


def advance_finished(world: World[S], state: S, action: Tensor, u: Tensor) -> tuple[S, Step]:
    """Step every row and compute resets for finished ones only: less work on a CPU, but shapes depend on data."""
    after, step = _step(world, state, action, u)
    rows = step.done.nonzero().squeeze(1)  # (M,)
    if len(rows) == 0:
        return after, step
    state = put_state(after, rows, world.reset(u[rows, world.step_draws :]))
    return state, dataclasses.replace(step, observation=state.observation)


def advance_on_numpy(twin: World[S], before: S, action: Tensor, u: Tensor) -> tuple[S, Step]:
    """Compute `advance_finished` on arrays: half the time for some hundred rows.

    `twin` is the World on arrays, from `on_numpy`; the states have arrays in place of tensors.
    """
    draws: Any = u.numpy()
    taken: Any = action.numpy()
    after, seen, reward, terminated, success = twin.step(before, taken, draws[:, : twin.step_draws])
    truncated, last = twin.truncated(after, terminated), after
    rows: Any = np.flatnonzero(terminated | truncated)  # (M,)
    if len(rows):
        after = put_state(after, rows, twin.reset(draws[rows, twin.step_draws :]))
    numbers = after.observation, seen, single(reward), terminated, truncated, success, last.returns, last.steps
    return after, Step(*map(torch.from_numpy, numbers))


def arrays_of(state: S) -> S:
    """Give a state whose arrays share the memory of the tensors."""
    arrays: Any = {name: value.numpy() for name, value in vars(state).items()}
    return type(state)(**arrays)


def _step(world: World[S], state: S, action: Tensor, u: Tensor) -> tuple[S, Step]:
    """Step every row, before any reset."""
    after, observation, reward, terminated, success = world.step(state, action, u[:, : world.step_draws])
    truncated = world.truncated(after, terminated)
    numbers = observation, reward.float(), terminated, truncated, success, after.returns, after.steps
    return after, Step(observation, *numbers)


class TensorVector:
    """N episodes of a `World`, all on one device, with one random stream.

    Args:
        initial: reset draws (M, reset_draws), M <= num_envs; the first episode of row i < M starts from
            initial[i]. With `world.initial_draws()` the first episodes cover every initial state.
        form: how actions are given, see `envs.actions`.

    Raises:
        UserError: `initial` has more than num_envs rows, or rows of another width; or the World breaks the contract of
            `envs.core.World` by its members or by the results of its functions.
    """

    def __init__(
        self, world: World[Any], num_envs: int, seed: int, initial: Tensor | None = None, form: Form = "numbered"
    ) -> None:
        require(num_envs >= 1, f"num_envs must be at least 1, not {num_envs}.")
        probe(world)
        world = as_rows(world)
        if initial is not None and (len(initial) > num_envs or initial.shape[1:] != (world.reset_draws,)):
            wanted = f"at most {num_envs} rows of {world.reset_draws}"
            raise UserError(f"initial reset draws must be {wanted}, not of shape {tuple(initial.shape)}.")
        self.world, self.num_envs, self.initial = world, num_envs, initial
        self.actions, _ = action_form(world.action_space, form)
        self.num_actions, self.observation_space = world.num_actions, world.observation_space
        self.device, self.reports_success = world.device, world.defines_success
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._advance = advance if self.device.type != "cpu" else advance_finished
        self._twin = on_numpy(world) if world.runs_on_numpy and self.device.type == "cpu" else None
        self._state: State | None = None
        self._arrays: Any = None  # the state on arrays if it is newer than `_state`

    @property
    def state(self) -> State | None:
        """The states of the running episodes; None before the first reset."""
        if self._arrays is not None:
            arrays, self._arrays = self._arrays, None
            self._state = type(arrays)(**{name: torch.from_numpy(value) for name, value in vars(arrays).items()})
        return self._state

    @state.setter
    def state(self, state: State | None) -> None:
        self._state, self._arrays = state, None

    def draws(self, count: int) -> Tensor:
        """Draw uniforms (N, count) float64 from the vector's own stream."""
        return torch.rand(self.num_envs, count, dtype=torch.float64, device=self.device, generator=self.generator)

    def reset(self) -> Tensor:
        """Start all episodes; returns the first observations (N, ...)."""
        u = self.draws(self.world.reset_draws)
        if self.initial is not None:
            u = torch.cat([self.initial.to(u), u[len(self.initial) :]])
        self.state = self.world.reset(u)
        self._check_legal(self.state.observation, self.state.steps)
        return self._started().observation

    def step(self, action: Tensor) -> Step:
        """Take one action in every environment: (N,) int64, or rows (N, k) float32 as `actions` says."""
        if not self.actions.count:
            action = self.actions.reals(action)
        u = self.draws(self.world.step_draws + self.world.reset_draws)
        if self._twin is None:
            self.state, step = self._advance(self.world, self._started(), action, u)
        else:
            before = self._arrays or arrays_of(self._started())
            self._arrays, step = advance_on_numpy(self._twin, before, action, u)
        self._check_legal(step.observation, step.episode_length)
        return step

    def _check_legal(self, observation: Tensor, steps: Tensor) -> None:
        """Refuse a state that goes on without a legal action; an accelerator would wait for the answer."""
        if self.world.masks_actions and self.device.type == "cpu":
            stuck = illegal(observation, self.world.num_actions)
            if stuck.any():
                where = f"step {int(steps[stuck][0])} of an episode"
                raise UserError(f"{world_name(self.world)}: no action is legal, but the episode goes on ({where}).")

    def frame(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one environment as a picture (height, width, 3)."""
        return self.world.frame(self._started(), row)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a bit-exact continuation needs, and a hash of the World's kind."""
        state = self._started()
        fields = {name: value.clone() for name, value in vars(state).items()}
        return {"state": fields, "generator": self.generator.get_state(), "world_hash": self._world_hash()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`.

        Raises:
            UserError: the state belongs to another World or another number of environments.
        """
        template, saved = self.world.reset(self.draws(self.world.reset_draws)), state.get("state", {})
        shapes, wanted = ({name: each.shape for name, each in fields.items()} for fields in (saved, vars(template)))
        kind = type(self.world).__name__
        advice = "resume with the environment and the number that the run was started with"
        fits = shapes == wanted and state.get("world_hash") == self._world_hash()
        require(fits, f"The saved state does not fit {self.num_envs} environments {kind}; {advice}.")
        self.state = type(template)(**{name: value.to(self.device) for name, value in saved.items()})
        restore_generator(self.generator, state["generator"])

    @property
    def generators(self) -> list[torch.Generator]:
        """The random streams that steps draw from."""
        return [self.generator]

    def carried(self) -> dict[str, Any]:
        """List the tensors that one step passes to the next."""
        return dict(vars(self._started()))

    def carry(self, tensors: Mapping[str, Any]) -> None:
        """Restore the tensors that `carried` lists."""
        self.state = dataclasses.replace(self._started(), **tensors)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _world_hash(self) -> int:
        world = self.world
        sizes = [flatdim(space) for space in (world.observation_space, world.state_space) if space is not None]
        kind = f"{type(world).__name__} {world.num_actions} {sizes}"  # numpy's texts differ between versions
        return digest(np.frombuffer(kind.encode(), np.uint8))

    def _started(self) -> State:
        if self.state is None:
            raise UserError("The environments have not been started; call reset() before anything else.")
        return self.state


class MixedVector:
    """N environments of several kinds with one form of observations and actions, in the order of their rows.

    Each part draws from its own random stream: its rows are those that it would have alone.

    Args:
        parts: the vector of each kind, by id; rows of the first come first.

    Raises:
        UserError: two parts differ in their observations or actions.
    """

    def __init__(self, parts: Mapping[str, SingleVector]) -> None:
        self.parts, (first, *_) = dict(parts), parts.values()
        names = list(parts)
        for id, part in parts.items():
            if part.observation_space != first.observation_space:
                raise UserError(
                    f"{names[0]} and {id} cannot be mixed: observations of the first are {first.observation_space}, "
                    f"those of the second {part.observation_space}; name environments with equal ones"
                )
            if part.actions != first.actions:
                raise UserError(
                    f"{names[0]} and {id} cannot be mixed: actions of the first are {first.actions.words}, those of "
                    f"the second {part.actions.words}; name environments with equal ones"
                )
        self.sizes = [part.num_envs for part in parts.values()]
        self.num_envs = sum(self.sizes)
        self.actions, self.num_actions = first.actions, first.num_actions
        self.observation_space, self.device = first.observation_space, first.device

    @property
    def reports_success(self) -> bool:
        """Whether all parts define success."""
        return all(part.reports_success for part in self.parts.values())

    def reset(self) -> Tensor:
        """Start all episodes; returns the first observations (N, ...)."""
        return torch.cat([part.reset() for part in self.parts.values()])

    def step(self, action: Tensor) -> Step:
        """Take one action in every environment."""
        pairs = zip(self.parts.values(), action.split(self.sizes), strict=True)
        steps = [part.step(chosen) for part, chosen in pairs]
        names = [field.name for field in dataclasses.fields(Step)]
        return Step(*(torch.cat([getattr(step, name) for step in steps]) for name in names))

    def frame(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one environment as a picture (height, width, 3)."""
        for part in self.parts.values():
            if row < part.num_envs:
                break
            row -= part.num_envs
        return part.frame(row)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each part by its number."""
        return {str(number): part.state_dict() for number, part in enumerate(self.parts.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`; a UserError says that it belongs to other environments."""
        parts = {str(number): part for number, part in enumerate(self.parts.values())}
        fits = state.keys() == parts.keys()
        require(fits, f"The saved state is not of {len(parts)} environments; resume with those of the run.")
        for number, part in parts.items():
            part.load_state_dict(state[number])

    @property
    def generators(self) -> list[torch.Generator]:
        """The random streams of parts that are tensors."""
        tensors = [part for part in self.parts.values() if isinstance(part, TensorVector)]
        return [generator for part in tensors for generator in part.generators]

    def carried(self) -> dict[str, Any]:
        """List the tensors that one step passes to the next, of parts that are tensors."""
        return {id: part.carried() for id, part in self.parts.items() if isinstance(part, TensorVector)}

    def carry(self, tensors: Mapping[str, Any]) -> None:
        """Restore the tensors that `carried` lists."""
        for id, part in self.parts.items():
            if isinstance(part, TensorVector):
                part.carry(tensors[id])

    def close(self) -> None:
        """Close all environments."""
        for part in self.parts.values():
            part.close()


def single_vectors(vector: VectorEnvironment) -> Sequence[SingleVector]:
    """List the vectors of one kind that a vector consists of."""
    return list(vector.parts.values()) if isinstance(vector, MixedVector) else [vector]


def check_finite(vector: VectorEnvironment, first: Tensor, steps: Sequence[Step]) -> None:
    """Refuse numbers of Worlds that are not finite, in the steps that follow the observations `first` (N, ...).

    Other environments are checked at every step, which would take a tenth of the time of a small World. On an
    accelerator nothing is checked: it would wait for the answer.
    """
    owners: list[Any] = [part for part in single_vectors(vector) for _ in range(part.num_envs)]
    if vector.device.type != "cpu" or not any(isinstance(part, TensorVector) for part in single_vectors(vector)):
        return
    for name in ("reward", "final_observation", "observation"):  # the last differs from that before only at a reset
        values = [getattr(step, name) for step in steps]
        values = [first, *values] if name == "observation" else values
        if not values[0].is_floating_point() or (numbers := torch.stack(values)).sum().isfinite():  # a fast first look
            continue
        if numbers.isfinite().all():
            continue
        numbers = numbers.reshape(len(values), len(owners), -1)  # (T, N, d)
        time, row, column = (~numbers.isfinite()).nonzero()[0].tolist()
        number, world = numbers[time, row, column].item(), owners[row].world
        own = world.world if isinstance(world, RowObserved) else world
        what = f"step gives the reward {number}; it must be a finite number"
        if name != "reward":
            what = out_of_range(own.observation_space, None, column, number)
        where = "at reset" if name == "observation" else f"step {int(steps[time].episode_length[row])} of an episode"
        raise UserError(f"{world_name(own)}: {what} ({where})")


SingleVector = TensorVector | GymnasiumVector | AtariVector  # of environments of one kind
VectorEnvironment = SingleVector | MixedVector  # one interface


def make_vector(
    id: str,
    num_envs: int,
    seed: int,
    device: str | torch.device = "cpu",
    env_kwargs: dict[str, Any] | None = None,
    interface: InterfaceConfig = PLAIN,
    workers: int | None = None,
    max_steps: int | None = None,
) -> SingleVector:
    """Make N environments by id: an AtariVector for ALE/..., a TensorVector for a World, else a GymnasiumVector.

    Only a GymnasiumVector can run in worker processes (`workers`). It truncates episodes without another limit after
    `max_steps` steps. A TensorVector on a CPU uses the low 32 bits of `seed`. A TensorVector always shows the masks of
    its World, a GymnasiumVector with `interface.masks`.
    """
    kwargs, atari = env_kwargs or {}, id.startswith("ALE/")
    require(seed >= 0, f"seed must not be negative, not {seed}.")
    if not atari and id.removeprefix("envs:") not in WORLDS:
        return GymnasiumVector(id, num_envs, seed, device, interface, workers, max_steps, **kwargs)
    key = interface.observation_key
    require(key is None, f"observation_key {key!r} chooses from a dictionary, but {id} shows none here.")
    require(workers is None, f"{id} does not run in worker processes; leave --env-workers out.")
    if atari:
        check_keywords(id, AtariConfig, kwargs)
        return AtariVector(id, num_envs, seed, device, AtariConfig(**kwargs))
    return TensorVector(make_world(id, device, **kwargs), num_envs, seed, form=interface.form)
