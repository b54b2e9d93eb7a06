"""Step Gymnasium environments one after the other, in this process or in several worker processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector.async_vector_env import AsyncState, AsyncVectorEnv

from envs import checked
from envs.actions import InterfaceConfig, action_form
from envs.checked import Checked, name_of, with_spaces
from envs.errors import UserError, require
from envs.packages import Make
from envs.rows import Choices, RowSpace, check_choices, out_of_range, row_encoder
from envs.spaces import Array, Unfit, shown

PATIENCE = 600.0  # seconds without an answer before an error is raised


class LocalRows:
    """N environments in this process, each started over when its episode ends."""

    def __init__(self, make: Make, count: int, interface: InterfaceConfig, max_steps: int | None = None) -> None:
        made = [with_spaces(make()) for _ in range(count)]
        key, form, self.masked = interface.observation_key, interface.form, interface.masks
        self._key = key
        choices = Choices(made[0].action_space, form == "numbered") if self.masked else None
        flags = 0 if choices is None else choices.count
        try:
            self.actions, self._decode = action_form(made[0].action_space, form)
            self.observation_space, self._encode = row_encoder(made[0].observation_space, key, True, flags)
        except UserError as error:
            raise UserError(f"{name_of(made[0])}: {error}") from None
        self.envs = [Checked(env, key, max_steps, choices) for env in made]
        if choices is not None:
            check_choices(choices, self.envs[0].name)

    def first(self, seeds: list[int | None]) -> Array:
        """Start all episodes, with seeds (N,) or None for each; returns the observations (N, ...)."""
        observations = [self._row(env, *env.reset(seed=seed)) for env, seed in zip(self.envs, seeds, strict=True)]
        return self._checked(np.stack(observations), self.envs)

    def _row(self, env: Checked, observation: Any, info: dict[str, Any], ended: bool = False) -> Array:
        """Encode an observation, with its flags if the environment masks its actions."""
        given = (observation, env.flags(info, ended)) if self.masked else observation
        try:
            return self._encode(given)
        except Unfit as error:
            raise env.error(str(error)) from None

    def step(self, actions: list[Any]) -> RowsStep:
        """Take one action in each environment and start finished ones over."""
        results = [env.step(self._decode(action)) for env, action in zip(self.envs, actions, strict=True)]
        rows = [
            self._row(env, result[0], result[4], result[2] or result[3])
            for env, result in zip(self.envs, results, strict=True)
        ]
        final = self._checked(np.stack(rows), self.envs)  # (N, ...)
        rewards = np.array([result[1] for result in results])
        with np.errstate(over="ignore"):
            finite = np.isfinite(rewards.astype(np.float32))  # agents learn from float32
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise self.envs[row].wrong(f"gives the reward {rewards[row]}; it must be a finite number")
        terminated = np.array([result[2] for result in results])
        truncated = np.array([result[3] for result in results])
        success = np.array([_success(result[4]) for result in results], np.int8)
        done = terminated | truncated
        fresh = final[done]  # (M, ...)
        begun = [self.envs[row] for row in np.flatnonzero(done)]
        for place, env in enumerate(begun):
            fresh[place] = self._row(env, *env.reset())
        return RowsStep(final, self._checked(fresh, begun), rewards, terminated, truncated, success)

    def _checked(self, observations: Array, envs: list[Checked]) -> Array:
        """Return the observations (N, ...); refuse numbers that are out of range or not finite."""
        space = self.observation_space
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            wild = (observations < 0) | (observations >= space.nvec)
        elif isinstance(space, RowSpace):
            outside = (observations < space.low) | (observations > space.high)
            wild = (space.tokens & outside) | ~np.isfinite(observations)
        elif observations.dtype.kind == "f":
            wild = ~np.isfinite(observations)
        else:
            return observations
        if wild.any():
            row, column = np.argwhere(wild.reshape(len(wild), -1))[0].tolist()
            env, number = envs[row], observations[wild][0]
            raise env.error(out_of_range(env.observation_space, self._key, column, number))
        return observations

    def frame(self, row: int) -> Array | None:
        """Draw one environment; None if it cannot draw or was not made with render_mode="rgb_array"."""
        env = self.envs[row]
        draws = env.render_mode == "rgb_array" and type(env.unwrapped).render is not gymnasium.Env.render
        picture = env.render() if draws else None
        if picture is None:
            return None
        pixels = np.asarray(picture) if isinstance(picture, np.ndarray | list) else np.empty(0)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype.kind not in "biuf":
            raise UserError(f"{env.name}: render gives {shown(picture)}; it must be a picture (height, width, 3)")
        return pixels.astype(np.uint8)

    def close(self) -> None:
        for env in self.envs:
            env.close()


class RowsStep(NamedTuple):
    """The arrays of one step of N environments."""

    final: Array  # (N, ...) of the episode that the action belongs to
    fresh: Array  # (M, ...) first observations of the M new episodes, in the order of rows
    rewards: Array  # (N,) float64
    terminated: Array  # (N,)
    truncated: Array  # (N,) never together with terminated
    success: Array  # (N,) from the info: 1, 0, or -1 without an entry


def _success(info: dict[str, Any]) -> int:
    name = next((name for name in ("success", "is_success") if name in info), None)
    return -1 if name is None else int(bool(info[name]))


# Worker processes


class WorkerRows:
    """N environments in worker processes, each of which has `LocalRows` of some of them.

    The processes are those of Gymnasium's AsyncVectorEnv, whose environments are `RowGroup`s, so that an evaluation in
    hundreds of environments needs few processes. Exceptions are raised here, with their traceback as a note.
    """

    def __init__(
        self, make: Make, count: int, interface: InterfaceConfig, max_steps: int | None = None, workers: int = 1
    ) -> None:
        require(workers >= 1, f"workers must be at least 1 process, not {workers}.")
        sample = LocalRows(make, 1, interface)  # raises here if the environment is wrong
        self.observation_space, self.actions = sample.observation_space, sample.actions
        spec, self.name = sample.envs[0].spec, sample.envs[0].name
        sample.close()
        # the processes are no forks: a fork of a process with threads can hang, and torch and numba have threads
        registered = {} if spec is None or spec.id not in gymnasium.registry else {spec.id: gymnasium.registry[spec.id]}
        bounds = np.linspace(0, count, min(workers, count) + 1).astype(int).tolist()
        settings = registered, make, interface, max_steps
        groups = [partial(RowGroup, begin, end, *settings) for begin, end in pairwise(bounds)]
        self.processes = AsyncVectorEnv(groups, shared_memory=False, context="spawn")
        self._ask("build")

    def first(self, seeds: list[int | None]) -> Array:
        return np.concatenate(self._ask("first", seeds))

    def step(self, actions: list[Any]) -> RowsStep:
        return RowsStep(*map(np.concatenate, zip(*self._ask("step", actions), strict=True)))

    def frame(self, row: int) -> Array | None:
        return next((picture for picture in self._ask("frame", row) if picture is not None), None)

    def close(self) -> None:
        """End the processes."""
        self.processes.close(terminate=True)

    def _ask(self, method: str, argument: Any = None) -> list[Any]:
        """Call a method of all groups at once; returns their results."""
        require(not self.processes.closed, "The processes of these environments have ended; make new ones.")
        try:
            self.processes.call_async("ask", method, argument)
            replies = self.processes.call_wait(PATIENCE)
        except BaseException as error:  # a late reply would be read as the reply to the next request
            self.processes._state = AsyncState.DEFAULT  # else `close` would wait for the replies
            self.close()
            if isinstance(error, multiprocessing.TimeoutError):
                silent = f"a process of --env-workers has not answered {method!r} for {PATIENCE:g} seconds"
                raise UserError(f"{self.name}: {silent}; one of its environments hangs") from None
            if not isinstance(error, EOFError | OSError):
                raise
            codes = [process.exitcode for process in self.processes.processes]
            code = next((code for code in codes if code not in (0, -signal.SIGTERM)), 0)
            raise UserError(
                f"A process that --env-workers started has ended by itself (exit code {code}; -9 often means too "
                "little memory); start fewer, or leave --env-workers out."
            ) from None
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return [*replies]


class RowGroup(gymnasium.Env[Any, Any]):
    """The rows from `begin` to `end`, in a worker process that calls only `ask`.

    The process ignores Ctrl-C, and ends with its parent, even if an environment hangs.
    """

    observation_space = action_space = gymnasium.spaces.Discrete(1)
    rows: LocalRows | None = None

    def __init__(
        self, begin: int, end: int, registered: dict[str, Any], make: Make, interface: InterfaceConfig,
        max_steps: int | None,
    ) -> None:  # fmt: skip
        self.begin, self.end, self.registered = begin, end, registered
        self.job = make, end - begin, interface, max_steps

    def ask(self, method: str, argument: Any) -> Any:
        """Call a method of the rows with their part of the argument; return the exception that it raises."""
        try:
            if self.rows is None:
                self._begin_process()
                self.rows = LocalRows(*self.job)
            if method == "frame":
                return self.rows.frame(argument - self.begin) if self.begin <= argument < self.end else None
            return None if method == "build" else getattr(self.rows, method)(argument[self.begin : self.end])
        except Exception as error:
            return _portable(error)

    def _begin_process(self) -> None:
        if hasattr(os, "setsid"):
            os.setsid()  # so that a signal to the parent's group, such as Ctrl-C, does not reach it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        torch.set_num_threads(1)
        checked.silent = self.begin > 0  # one process prints the messages that all of them would repeat
        gymnasium.registry.update(self.registered)

    def close(self) -> None:
        if self.rows is not None:
            self.rows.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """Make an exception with its traceback that can be pickled."""
    note = "in a worker process:\n" + "".join(traceback.format_exception(error))
    error.add_note(note)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its arguments differ from those of its constructor, or cannot be pickled
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(note)
    return error
