"""Step Gymnasium environments one after the other, in this process or in several worker processes.

Gymnasium's AsyncVectorEnv has one process per environment. Here a process steps many environments, so that an
evaluation in hundreds of environments needs few processes.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from bisect import bisect
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import IO, Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np

from envs import checked
from envs.checked import CONTROL, Checked, with_spaces
from envs.errors import UserError, require
from envs.packages import Make
from envs.spaces import Array, discrete_actions, encoder, shown
from envs.terminal import say

PATIENCE = 5.0  # seconds that a process has to close its environments
SLOW, LOST = 60.0, 600.0  # seconds without an answer before a message is printed, and before an error is raised


class LocalRows:
    """N environments in this process, each started over when its episode ends."""

    def __init__(self, make: Make, count: int, key: str | None, max_steps: int | None = None) -> None:
        made = [with_spaces(make()) for _ in range(count)]
        self.observation_space, self._encode = encoder(made[0].observation_space, key, fitted=True)
        self.num_actions, self._decode = discrete_actions(made[0].action_space)
        self.envs = [Checked(env, key, max_steps) for env in made]

    def first(self, seeds: list[int | None]) -> Array:
        """Start all episodes, with seeds (N,) or None for each; returns the observations (N, ...)."""
        observations = [self._encode(env.reset(seed=seed)[0]) for env, seed in zip(self.envs, seeds, strict=True)]
        return self._checked(np.stack(observations), self.envs)

    def step(self, actions: list[int]) -> RowsStep:
        """Take one action in each environment and start finished ones over."""
        results = [env.step(self._decode(action)) for env, action in zip(self.envs, actions, strict=True)]
        final = self._checked(np.stack([self._encode(result[0]) for result in results]), self.envs)  # (N, ...)
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
            fresh[place] = self._encode(env.reset()[0])
        return RowsStep(final, self._checked(fresh, begun), rewards, terminated, truncated, success)

    def _checked(self, observations: Array, envs: list[Checked]) -> Array:
        """Return the observations (N, ...); refuse numbers that are out of range or not finite."""
        space = self.observation_space
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            wild = (observations < 0) | (observations >= space.nvec)
        elif observations.dtype.kind == "f":
            wild = ~np.isfinite(observations)
        else:
            return observations
        if wild.any():
            row = int(np.argwhere(wild)[0][0])
            raise envs[row].error(f"an observation holds {observations[wild][0]}, outside of {shown(space)}")
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


class Failure(NamedTuple):
    """The reply of a worker process that raised an exception."""

    error: Exception


class WorkerRows:
    """N environments in worker processes, each of which has `LocalRows` of some of them.

    A worker is a fresh interpreter that reads requests from its standard input and writes replies to its standard
    output. It always ends with its parent, even if the parent is killed or an environment hangs. Its exceptions are
    raised here, with its traceback as a note.
    """

    def __init__(self, make: Make, count: int, key: str | None, max_steps: int | None = None, workers: int = 1) -> None:
        require(workers >= 1, f"workers must be at least 1 process, not {workers}.")
        sample = LocalRows(make, 1, key)  # raises here if the environment is wrong
        self.observation_space, self.num_actions = sample.observation_space, sample.num_actions
        spec, self.name = sample.envs[0].spec, sample.envs[0].name
        sample.close()
        # a fresh interpreter lacks the ids that the user's module or notebook registered
        registered = {} if spec is None or spec.id not in gymnasium.registry else {spec.id: gymnasium.registry[spec.id]}
        self._bounds = np.linspace(0, count, min(workers, count) + 1).astype(int).tolist()
        self._children = [_start(prints=worker == 0) for worker in range(len(self._bounds) - 1)]
        self._end = weakref.finalize(self, _stop, self._children)
        sizes = np.diff(self._bounds).tolist()
        jobs = [cloudpickle.dumps((registered, make, size, key, max_steps)) for size in sizes]
        self._ask("build", dict(enumerate(jobs)))

    def first(self, seeds: list[int | None]) -> Array:
        return np.concatenate(self._ask("first", self._shares(seeds)))

    def step(self, actions: list[int]) -> RowsStep:
        parts = zip(*self._ask("step", self._shares(actions)), strict=True)
        return RowsStep(*map(np.concatenate, parts))

    def frame(self, row: int) -> Array | None:
        worker = bisect(self._bounds, row) - 1
        return self._ask("frame", {worker: row - self._bounds[worker]})[0]

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _shares(self, values: list[Any]) -> dict[int, list[Any]]:
        """Split a list (N,) among the processes."""
        return {worker: values[slice(*bounds)] for worker, bounds in enumerate(pairwise(self._bounds))}

    def _ask(self, method: str, arguments: Mapping[int, Any]) -> list[Any]:
        """Call a method in several processes at once, each with its argument; returns the results in their order."""
        children = [self._children[worker] for worker in arguments]
        try:
            for child, argument in zip(children, arguments.values(), strict=True):
                _send(_pipe(child.stdin), (method, argument))
            replies = [self._reply(worker, method) for worker in arguments]
        except BaseException as error:  # a late reply would be read as the reply to the next request
            self.close()
            if not isinstance(error, EOFError | BrokenPipeError | pickle.UnpicklingError):
                raise
            code = next((child.returncode for child in children if child.returncode), 0)
            raise UserError(
                f"A process that --env-workers started has ended by itself (exit code {code}; -9 often means too "
                "little memory); start fewer, or leave --env-workers out."
            ) from None
        for reply in replies:
            if isinstance(reply, Failure):
                raise reply.error
        return replies

    def _reply(self, worker: int, method: str) -> Any:
        """Wait for a process's answer; print a message every SLOW seconds, and raise after LOST seconds."""
        child, waited = self._children[worker], 0.0
        stream = _pipe(child.stdout)
        while not _answers(stream, SLOW):
            waited += SLOW
            first, last = self._bounds[worker], self._bounds[worker + 1] - 1
            silent = (
                f"{self.name}: process {child.pid} of --env-workers, which has environments {first} to {last}, has not "
                f"answered {method!r} for {waited:g} seconds"
            )
            require(waited < LOST, f"{silent}; one of its environments hangs")
            say(silent, file=sys.stderr)
        return pickle.load(stream)


def _answers(stream: IO[bytes], seconds: float) -> bool:
    """Wait up to `seconds` for something to read. Windows cannot wait for a pipe; there the read itself waits."""
    return sys.platform == "win32" or bool(select.select([stream], [], [], seconds)[0])


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None or stream.closed:
        raise UserError("The processes of these environments have ended; make new ones.")
    return stream


def _send(stream: IO[bytes], message: Any) -> None:
    pickle.dump(message, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _start(prints: bool) -> subprocess.Popen[bytes]:
    """Start a worker in its own session, so that Ctrl-C reaches only this process.

    One of the workers `prints` the messages that all of them would repeat.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from envs.workers import serve; serve({os.getpid()}, {prints})"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    """End processes by closing their pipes."""
    for child in children:
        for stream in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                _pipe(stream).close()
    for child in children:
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def serve(parent: int, prints: bool) -> None:
    """Answer requests (method, argument) until the pipe closes: the main function of a worker.

    `parent` is the id of the process that started it; `prints`: whether this worker prints messages.
    """
    checked.silent = not prints
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of environments must not mix with the replies
    rows: Any = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            method, argument = pickle.load(requests)
            try:
                if method == "build":
                    registered, *job = cloudpickle.loads(argument)
                    gymnasium.registry.update(registered)
                    rows, reply = LocalRows(*job), None
                else:
                    reply = getattr(rows, method)(argument)
            except Exception as error:
                reply = _failure(error)
            _send(replies, reply)
    with suppress(Exception):  # nobody reads an error any more
        rows.close()
    os._exit(0)  # a normal exit would complain about unread replies


def _end_with(parent: int) -> None:
    """End this process and its children as soon as its parent has ended.

    A worker whose environment hangs does not read its standard input, so it would not see that the pipe closed.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _failure(error: Exception) -> Failure:
    """Make an exception with its traceback that can be pickled."""
    note = CONTROL.sub("", "in a worker process:\n" + "".join(traceback.format_exception(error)))
    error.add_note(note)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its arguments differ from those of its constructor, or cannot be pickled
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(note)
    return Failure(error)
