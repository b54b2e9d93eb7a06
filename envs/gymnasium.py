"""The adapter to Gymnasium, in both directions.

`WorldEnv` and `WorldVectorEnv` turn a `World` into a Gymnasium environment, with numpy in and out: one row as an Env, N
rows as a VectorEnv. `GymnasiumVector` turns N Gymnasium environments of any package into a vector for trainers.
"""

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from envs.actions import PLAIN, InterfaceConfig
from envs.checker import probe
from envs.core import Plain, State, Step, World, plain_row, plain_step_of, put_state, state_of
from envs.errors import DrawsNothing, UserError, require
from envs.packages import Make, make_env, without_module
from envs.registry import make_world
from envs.replayed import ReplayedVector
from envs.rows import legal_in
from envs.seeding import Floats, Rows, RowStreams
from envs.spaces import Array, object_rows, row, unflatten
from envs.workers import LocalRows, WorkerRows

Mask = np.ndarray[Any, np.dtype[np.bool_]]
RENDER_MODES = ("rgb_array", "ansi")
INTEGERS = (int, np.int64)  # types of most actions
METADATA: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 8}
SEED_STEPS, SEED_SECONDS = 30, 1.0  # limits of the comparison of two environments with the same seed


class _Adapter:
    """The base of both adapters: a World, the engine that runs it, and the state of its rows."""

    metadata = METADATA
    state: State | None = None

    def _set_up(self, world: str | World[Any], render_mode: str | None, kwargs: dict[str, Any]) -> None:
        known = (None, *RENDER_MODES)
        require(render_mode in known, f"render_mode must be None, 'rgb_array' or 'ansi', not {render_mode!r}.")
        self.world = make_world(world, **kwargs) if isinstance(world, str) else world
        probe(self.world)  # `unflatten` would hide a wrong shape
        self.render_mode, self._engine = render_mode, Engine(self.world)
        self._unflatten = unflatten(self.world.observation_space)

    def _started(self) -> State:
        if self.state is None:
            raise UserError("The environment has not been started; call reset() before anything else.")
        return self.state

    def _render_row(self, index: int) -> Any:
        draw = self.world.frame if self.render_mode == "rgb_array" else self.world.text
        return draw(self._started(), index)


class WorldEnv(_Adapter, gymnasium.Env[Any, Any]):
    """One episode of a World as a Gymnasium environment on numpy.

    `info["success"]` is set on the final step of every episode if the World defines a success. The World truncates
    itself at `time_limit`. A World that masks its actions gives `info["action_mask"]` (A,) int8.

    Args:
        world: an id of `envs.registry.WORLDS`, which takes the remaining keywords, or a World.
        render_mode: None, "rgb_array" or "ansi".
    """

    def __init__(self, world: str | World[Any], render_mode: str | None = None, **kwargs: Any) -> None:
        self._set_up(world, render_mode, kwargs)
        self.observation_space = self.world.observation_space
        self.action_space = self.world.action_space
        self._actions = list(np.arange(self.world.num_actions)[:, None])  # each (1,)
        box: Any = self.action_space
        self._ends = [] if self._actions else list(zip(box.low.tolist(), box.high.tolist(), strict=True))
        self._no_draws = np.empty((1, 0))
        self._plain_step = plain_step_of(on_numpy(self.world, plain=True)) if self._engine.on_arrays else None
        self._dtype: Any = self.observation_space.dtype
        self._scalar, self._limit = self.observation_space.shape == (), int(self.world.time_limit)
        self._state: State | None = None
        self._row: Plain | None = None  # newer than `_state`, if the World has a plain step

    @property
    def state(self) -> State | None:
        """The World's state with one row; None before the first reset."""
        return self._state if self._row is None or self._state is None else state_of(self._row, self._state)

    @state.setter
    def state(self, state: State | None) -> None:
        self._state, self._row = state, None if self._plain_step is None or state is None else plain_row(state)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed restarts the random stream."""
        super().reset(seed=seed)
        state = self.state = self._engine.reset(self._draw(self.world.reset_draws))
        return self._observation(state), self._masks() if self.world.masks_actions else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        known = type(action) in INTEGERS and 0 <= action < self.world.num_actions  # faster than `contains`
        if not known and not self._allows(action):
            raise UserError(f"The action {action!r} is not in {self.action_space}.")
        if self._row is None or self._plain_step is None:
            observation, reward, ended, cut, success = self._step(action)
        else:  # inlined, because a call takes a tenth of the time
            chosen = int(action) if self._actions else np.asarray(action, np.float32)
            self._row, reward, ended, success = self._plain_step(self._row, chosen, self.np_random.random)
            seen, dtype = self._row[0], self._dtype
            observation = dtype.type(seen[0]) if self._scalar else np.array(seen, dtype)
            cut = not ended and self._row[1] >= self._limit
        info = {"success": success} if (ended or cut) and self.world.defines_success else {}
        if self.world.masks_actions:
            info |= self._masks()
        return observation, reward, ended, cut, info

    def _allows(self, action: Any) -> bool:
        """Tell whether an action is in its space, for an array of float32 in a tenth of the time of `contains`."""
        usual = type(action) is np.ndarray and (action.dtype, action.shape) == (np.float32, (len(self._ends),))
        if not usual or not self._ends:
            return self.action_space.contains(action)
        return all(low <= each <= high for each, (low, high) in zip(action.tolist(), self._ends, strict=True))

    def _masks(self) -> dict[str, Any]:
        return {"action_mask": self._engine.mask(self._started())[0]}

    def render(self) -> Any:
        """Draw a picture (height, width, 3) or a text; None without a render mode."""
        return None if self.render_mode is None else self._render_row(0)

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, bool]:
        """Take one action by the World's `step`; returns observation, reward, terminated, truncated and success."""
        u = self._draw(self.world.step_draws)
        chosen = self._actions[int(action)] if self._actions else np.asarray(action, np.float32)[None]
        self._state, *values = self._engine.step(self._started(), chosen, u)
        reward, ended, cut, success = (value.item() for value in values)
        return self._observation(self._state), reward, ended, cut, success

    def _observation(self, state: State) -> Any:
        return row(self._unflatten(self._engine.observation(state)), 0)

    def _draw(self, count: int) -> Floats:
        return self.np_random.random((1, count)) if count else self._no_draws


class WorldVectorEnv(_Adapter, VectorEnv[Any, Array, Array]):
    """N episodes of one World as a Gymnasium vector environment.

    A row with seed s equals `WorldEnv` with seed s. An integer seed gives row i the seed `seed + i`, as in Gymnasium's
    own vector environments. All autoreset modes work. In `SAME_STEP`, the default, the step that ends an episode
    returns the first observation of the next. The last observation and info of the old episode are then in
    `info["final_obs"]` and `info["final_info"]`.

    Args:
        world: an id of `envs.registry.WORLDS`, which takes the remaining keywords, or a World.
        num_envs: N.
        autoreset_mode: an AutoresetMode or its value, "NextStep", "SameStep" or "Disabled".
        render_mode: None, "rgb_array" or "ansi".
    """

    def __init__(
        self,
        world: str | World[Any],
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        require(num_envs >= 1, f"num_envs must be at least 1, not {num_envs}.")
        self._set_up(world, render_mode, kwargs)
        modes = {mode.value: mode for mode in AutoresetMode}
        known = autoreset_mode in (*modes, *modes.values())
        require(known, f"autoreset_mode must be one of {', '.join(map(repr, modes))}, not {autoreset_mode!r}.")
        self.num_envs, self.autoreset_mode = num_envs, AutoresetMode(autoreset_mode)
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.world.observation_space
        self.single_action_space = self.world.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.streams = RowStreams(num_envs, max(520, 8 * (self.world.step_draws + self.world.reset_draws)))
        self._done: Mask = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start all episodes, or only those of `options["reset_mask"]` (N,) bool; ignore the seeds of other rows."""
        chosen = self._chosen(options)
        if seed is not None:
            seeds = self._seeds(seed)
            self.streams.seed([each if picked else None for each, picked in zip(seeds, chosen, strict=True)])
        self.state = self._restarted(self.state, np.flatnonzero(chosen))
        self._done = self._done & ~chosen
        return self._unflatten(self._engine.observation(self.state)), self._masks(self.state)

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take one action in every row; a row that needs a reset ignores its action."""
        chosen, idle = self._checked(actions), self._idle()
        after, reward, ended, cut, success = self._engine.step(self._started(), chosen, self._step_draws(idle))
        if idle is not None:
            reward, ended, cut = np.where(idle, 0.0, reward), ended & ~idle, cut & ~idle
        self._done = ended | cut
        finished = np.flatnonzero(self._done)
        self.last = after  # before rows start over
        info: dict[str, Any] = self._info(finished, after, success) if finished.size else {}
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        restarted = finished if same_step else finished[:0] if idle is None else np.flatnonzero(idle)
        self.state = self._restarted(after, restarted)
        info |= self._masks(self.state)
        paid = reward.astype(np.float64)  # as Gymnasium's own vector environments, also of a World that pays float32
        return self._unflatten(self._engine.observation(self.state)), paid, ended.copy(), cut.copy(), info

    def render(self) -> tuple[Any, ...] | None:
        """Draw every row as a picture or a text; None without a render mode."""
        return None if self.render_mode is None else tuple(map(self._render_row, range(self.num_envs)))

    def _masks(self, state: State) -> dict[str, Any]:
        """Make the part of the info with the legal actions (N, A), if the World masks them."""
        if not self.world.masks_actions:
            return {}
        return {"action_mask": self._engine.mask(state), "_action_mask": np.ones(self.num_envs, bool)}

    def _idle(self) -> Mask | None:
        """Return the rows (N,) that this step resets; None if there are none."""
        if self.autoreset_mode is AutoresetMode.SAME_STEP or not self._done.any():
            return None
        if self.autoreset_mode is AutoresetMode.DISABLED:
            rows, advice = ", ".join(map(str, np.flatnonzero(self._done)[:5])), "options={'reset_mask': mask}"
            raise UserError(f"Row {rows} has ended; reset it with {advice} before the next step.")
        return self._done

    def _step_draws(self, idle: Mask | None) -> Floats:
        """Draw uniforms (N, step_draws); a row that is only reset draws none."""
        count = self.world.step_draws
        if idle is None or count == 0:
            return self.streams.draw(None, count)
        u, running = np.zeros((self.num_envs, count)), np.flatnonzero(~idle)
        u[running] = self.streams.draw(running, count)
        return u

    def _restarted(self, state: Any, chosen: Rows) -> State:
        """Start new episodes in the chosen rows (M,); a reset of all rows needs no state."""
        if chosen.size == 0:
            return state
        u = self.streams.draw(chosen, self.world.reset_draws)
        return self._engine.reset(u) if chosen.size == self.num_envs else self._engine.restart(state, chosen, u)

    def _info(self, finished: Rows, after: State, success: Mask) -> dict[str, Any]:
        """Make the info of the episodes that this step ended, in the rows `finished` (M,)."""
        done = self._done
        info: dict[str, Any] = {}
        if self.world.defines_success:
            info = {"success": success & done, "_success": done.copy()}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            final = self._unflatten(self._engine.observation(after)[finished])
            info["final_info"] = {name: value.copy() for name, value in info.items()} | self._final_masks(after)
            info["final_obs"] = object_rows(final, finished, self.num_envs)
            info |= {"_final_info": done.copy(), "_final_obs": done.copy()}
        return info

    def _final_masks(self, after: State) -> dict[str, Any]:
        """Make the legal actions of the last states of episodes, zeros in other rows, as Gymnasium does."""
        masks = self._masks(after)
        if masks:
            masks = {"action_mask": masks["action_mask"] * self._done[:, None], "_action_mask": self._done.copy()}
        return masks

    def _checked(self, actions: Any) -> Array:
        """Return the actions (N,) as int64, or (N, k) of a Box, or raise a UserError."""
        chosen = np.asarray(actions)
        if not self.world.num_actions:
            if chosen not in self.action_space:  # the sentence is written only if it is needed: it takes a millisecond
                raise UserError(f"The actions must be in {self.action_space}, not {actions!r}.")
            return chosen
        if chosen.shape == (self.num_envs,) and chosen.dtype.kind in "iu":
            chosen = np.ascontiguousarray(chosen, np.int64)
            if chosen.view(np.uint64).max() < self.world.num_actions:  # a negative number becomes a huge one
                return chosen
        wanted = f"{self.num_envs} integers from 0 to {self.world.num_actions - 1}"
        raise UserError(f"The actions must be {wanted}, not {actions!r}.")

    def _chosen(self, options: dict[str, Any] | None) -> Mask:
        """Return the rows (N,) that a reset starts."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.ones(self.num_envs, bool)
        fits = isinstance(mask, np.ndarray) and mask.shape == (self.num_envs,) and mask.dtype == bool and mask.any()
        wanted = f"a numpy array of {self.num_envs} truth values, at least one of them True"
        require(fits, f"options['reset_mask'] must be {wanted}, not {mask!r}.")
        first = "The first reset must start all rows; call reset() without options['reset_mask']."
        require(self.state is not None or mask.all(), first)
        return mask

    def _seeds(self, seed: int | Sequence[int | None]) -> Sequence[int | None]:
        if isinstance(seed, int | np.integer):
            return [int(seed) + index for index in range(self.num_envs)]
        wanted = f"one integer or a list of {self.num_envs}"
        require(len(seed) == self.num_envs, f"seed must be {wanted}, not a list of {len(seed)}.")
        return seed


class GymnasiumVector(ReplayedVector):
    """N environments of one kind, stepped one after the other, each reset when its episode ends.

    Every environment is seeded once, at the first reset, with a seed spawned from `seed`. The info of an episode's last
    step tells its success, as "success" or "is_success". Without either, a return above 0 is a success, and
    `reports_success` becomes False.

    Args:
        env: a Gymnasium id, which takes the remaining keywords, or a function that makes one environment.
        interface: what the agent reads, and how it gives actions.
        workers: number of worker processes; None: all environments are in this process. The steps are the same.
        max_steps: truncate an episode after this many steps if the environment has no limit of its own; None: never.

    Raises:
        UserError: the id is unknown or cannot be made, the form does not take actions of this kind, the observation is
            not Box, Discrete, MultiDiscrete, MultiBinary or a Dict or Tuple of these, or a key is missing.
    """

    def __init__(
        self,
        env: str | Make,
        num_envs: int,
        seed: int,
        device: str | torch.device = "cpu",
        interface: InterfaceConfig = PLAIN,
        workers: int | None = None,
        max_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        make: Make = partial(make_env, without_module(env), **kwargs) if isinstance(env, str) else env
        self._sample: Callable[[], LocalRows] = partial(LocalRows, make, 1, interface)
        rows = LocalRows if workers is None else partial(WorkerRows, workers=workers)
        self._open: Callable[[], LocalRows | WorkerRows] = partial(rows, make, num_envs, interface, max_steps)
        children = np.random.SeedSequence(seed).spawn(num_envs)
        self.seeds = [int(child.generate_state(1)[0]) for child in children]
        self.reports_success = True  # until an episode ends without it
        require(num_envs >= 1, f"num_envs must be at least 1, not {num_envs}.")
        self._build()
        self.observation_space, self.actions = self.rows.observation_space, self.rows.actions
        super().__init__(env if isinstance(env, str) else getattr(env, "__name__", repr(env)), num_envs, device)

    def reset(self) -> Tensor:
        """Start all episodes, with seeds only the first time; returns the first observations (N, ...)."""
        if self.observation is None:
            return self._start(self.seeds)
        return self._restart()

    def frame(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw an environment that was made with render_mode="rgb_array" as a picture (height, width, 3)."""
        picture = self.rows.frame(row)
        if picture is None:
            raise DrawsNothing(f"Environment {self.name!r} draws nothing with render_mode='rgb_array'.")
        return picture

    def close(self) -> None:
        self.rows.close()

    def ignores_seed(self) -> bool:
        """Tell whether two new environments with the same seed and actions differ within a few steps."""
        with suppress(Exception), closing(self._sample()) as one, closing(self._sample()) as other:
            seen, twin = one.first([self.seeds[0]]), other.first([self.seeds[0]])
            if not np.array_equal(seen, twin):
                return True
            until = time.monotonic() + SEED_SECONDS
            draws = torch.Generator().manual_seed(0)
            for _ in range(SEED_STEPS):
                u = torch.rand(1, *self.actions.shape, generator=draws)
                action = self.actions.random(u, legal_in(self.observation_space, seen)).tolist()
                results = [rows.step(action) for rows in (one, other)]
                seen = results[0].fresh if len(results[0].fresh) else results[0].final
                if not all(map(np.array_equal, *results)):
                    return True
                if time.monotonic() > until:
                    break
        return False  # also if an environment fails: training will report that

    def _build(self) -> None:
        self.rows = self._open()

    def _first(self, seeds: list[int] | None) -> Array:
        return self.rows.first([None] * self.num_envs if seeds is None else [*seeds])

    def _step(self, chosen: list[Any]) -> Step:
        step = self.rows.step(chosen)
        self._count(step.rewards)
        done = step.terminated | step.truncated
        self.reports_success &= bool((step.success[done] >= 0).all())
        success = done & np.where(step.success < 0, self.returns > 0, step.success > 0)
        self.observation = step.final.copy()
        self.observation[done] = step.fresh
        return Step(**self._fields(step.final, step.rewards, step.terminated, step.truncated, success))


class Engine:
    """Run a World for an adapter, with arrays in and out. States are never changed in place.

    `on_arrays`: run on numpy arrays instead of tensors, which is faster (None: if the World can).
    """

    def __init__(self, world: World[Any], on_arrays: bool | None = None) -> None:
        can = world.runs_on_numpy and world.device.type == "cpu"
        self.on_arrays = can if on_arrays is None else on_arrays
        self.world = on_numpy(world) if self.on_arrays else world
        self._mode: Callable[[], Any] = nullcontext if self.on_arrays else torch.inference_mode

    def reset(self, u: Floats) -> State:
        """Start one episode per row of uniforms."""
        with self._mode():
            return self.world.reset(self._given(u))

    def step(self, state: State, action: Any, u: Any) -> tuple[State, Array, Array, Array, Array]:
        """Take one action (N,) int64 in every row; returns state, reward, terminated, truncated and success (N,)."""
        if self.on_arrays:  # inlined, because a call costs time with one row
            after, _, reward, terminated, success = self.world.step(state, action, u)
            return after, reward, terminated, self.world.truncated(after, terminated), success  # type: ignore[return-value]
        with torch.inference_mode():
            after, _, reward, terminated, success = self.world.step(state, self._given(action), self._given(u))
            truncated = self.world.truncated(after, terminated)
        return after, *(each.cpu().numpy() for each in (reward, terminated, truncated, success))

    def restart(self, state: State, rows: Rows, u: Floats) -> State:
        """Start new episodes in the rows (M,), from uniforms (M, reset_draws)."""
        with self._mode():
            return put_state(state, self._given(rows), self.world.reset(self._given(u)))

    def mask(self, state: State) -> Array:
        """Return the flags of legal actions, (N, A) int8 as Gymnasium's `sample` takes them."""
        with self._mode():
            mask: Any = self.world.mask(state)
        return np.asarray(mask if self.on_arrays else mask.cpu(), np.int8)

    def observation(self, state: State) -> Array:
        """Return the flat observation (N, d), read-only."""
        return state.observation if self.on_arrays else state.observation.cpu().numpy()  # type: ignore[return-value]

    def _given(self, array: Array) -> Any:
        return array if self.on_arrays else torch.from_numpy(array).to(self.world.device)


def on_numpy(part: Any, plain: bool = False) -> Any:
    """Copy a World, or part of one, with its tables as numpy arrays that share their memory.

    Tensors of one number become numpy numbers, or with `plain` numbers of Python, with which sums of single numbers are
    faster. Parts with `runs_on_numpy` are copied in the same way.
    """
    if isinstance(part, Tensor):
        return part.item() if plain and part.dim() == 0 else part.numpy()[()]
    if isinstance(part, tuple):
        return tuple(on_numpy(each, plain) for each in part)
    if not getattr(part, "runs_on_numpy", False):
        return part
    twin = copy.copy(part)
    for name, value in vars(part).items():
        object.__setattr__(twin, name, on_numpy(value, plain))  # works for frozen dataclasses, too
    return twin
