"""Carries out the runs of a study: a worker for each, plain processes of this machine, and the drive over all of them.

A worker starts the trainer's script anew or from its last checkpoint. Ray is in dqn_memory/study/cluster.py.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import script_of
from dqn_memory.study import child
from dqn_memory.study.definition import Resources
from dqn_memory.study.store import (
    RunState,
    Study,
    acquire_lock,
    checkpoint,
    final_metrics,
    finished,
    in_words,
    lock_holder,
    run_folder,
    write_checksums,
)  # fmt: skip
from envs.registry import WORLDS

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
LAST_LINES = 12  # of a trainer's log that an error repeats
POLL = 1.0  # seconds between looks at the room for more runs
Say = Callable[[str], object]
Result = Literal["finished", "failed", "killed"]
Started = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True)
class Order:
    """What a worker needs to know; folders are absolute, since a worker may be another machine's."""

    name: str
    script: str
    study: str
    cwd: str
    cpus: int
    attempt: int = 1
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the trainer (None: as the worker has it; empty: no device)."""

    @property
    def folder(self) -> Path:
        """The run folder."""
        return run_folder(Path(self.study), self.name)

    @property
    def log(self) -> Path:
        """What the trainer says, in all attempts."""
        return Path(self.study) / "logs" / f"{self.name}.log"

    @property
    def lock(self) -> Path:
        """Held while a trainer of this run lives."""
        return Path(self.study) / "locks" / self.name


@dataclass(frozen=True)
class Outcome:
    """How it ended. `killed`: by a signal, so the run can go on from its last checkpoint."""

    name: str
    result: Result
    error: str = ""


def carry_out(order: Order, started: Started = lambda process: None) -> Outcome:
    """Bring one run to its end, or say how it stopped; `started` is given the trainer's process."""
    try:
        lock = acquire_lock(order.lock)
    except OSError as error:
        return Outcome(order.name, "failed", f"{platform.node()} cannot write {order.lock}: {error.strerror}")
    if lock is None:
        who = lock_holder(order.lock) or {}
        who_is_it = f"process {who.get('pid')} on {who.get('host')}"
        return Outcome(order.name, "failed", f"the run is still being trained by {who_is_it}; end that first")
    try:
        return _train(order, lock, started)
    except UserError as error:
        return Outcome(order.name, "failed", str(error))
    except OSError as error:
        return Outcome(order.name, "failed", f"{platform.node()} cannot start the trainer: {error}")
    finally:
        os.close(lock)


def _train(order: Order, lock: int, started: Started) -> Outcome:
    if finished(order.folder):
        return Outcome(order.name, "finished")
    command = _command(order)
    order.log.parent.mkdir(parents=True, exist_ok=True)
    with order.log.open("ab") as log:
        began = _head(log, order, command)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=order.cwd, env=_environment(order),
            pass_fds=(lock,), start_new_session=True,
        )  # fmt: skip
        try:
            started(process)
            code = process.wait()
        except BaseException:
            stop(process)
            raise
    return _judge(order, code, began)


def stop(process: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """End a trainer, which has nothing to tidy up: whatever it was writing is whole or absent."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(order: Order) -> list[str]:
    module = [sys.executable, "-m", order.script]
    if (order.folder / "checkpoints" / "manifest.json").is_file():
        return [*module, "--resume", str(order.folder)]
    if order.folder.exists():  # killed before its first checkpoint: nothing of it can be continued
        shutil.rmtree(order.folder)
    config = Path(order.study) / "configs" / f"{order.name}.toml"
    return [*module, "--config", str(config), "--run", str(order.folder)]


def _environment(order: Order) -> dict[str, str]:
    changed = dict.fromkeys(THREADS, str(order.cpus)) | {"PYTHONUNBUFFERED": "1"}
    if order.devices is not None:
        changed["CUDA_VISIBLE_DEVICES"] = order.devices
    return {**os.environ, **changed}


def _head(log: BinaryIO, order: Order, command: list[str]) -> int:
    """Mark the beginning of an attempt; returns where its own lines begin."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    said = shlex.join(["python", *command[1:]])
    log.write(f"# {when} attempt {order.attempt} on {platform.node()}: {said}\n".encode())
    log.flush()
    return log.tell()


def _judge(order: Order, code: int, began: int) -> Outcome:
    if code < 0:
        return Outcome(order.name, "killed", f"its process was ended by {_signal_name(-code)}")
    said = last_lines(order.log, began)
    if code > 0:
        return Outcome(order.name, "failed", said or f"it ended with exit code {code} and said nothing")
    if not finished(order.folder):
        return Outcome(order.name, "failed", f"it ended without its final evaluation\n{said}")
    return Outcome(order.name, "finished")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(log: Path, begin: int = 0, count: int = LAST_LINES) -> str:
    """Give the end of what a trainer said from byte `begin` on."""
    try:
        data = log.read_bytes()[begin:]
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-count:])


# Where workers are


class Backend(Protocol):
    """Takes orders while it has room and hands back outcomes as they come, in any order."""

    describes: str

    def room(self) -> int:
        """Count the orders that it can begin now."""

    def submit(self, order: Order) -> None:
        """Begin one."""

    def outcomes(self, seconds: float) -> list[Outcome]:
        """Collect what has ended; wait at most `seconds` for the first."""

    def close(self) -> None:
        """Stop whatever still runs; all of it can be continued."""


def has_ray() -> bool:
    """Tell whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def visible_devices() -> list[str]:
    """Name this machine's accelerators, as CUDA_VISIBLE_DEVICES takes them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index, _ in enumerate(listed.stdout.splitlines())]


def slots_of(devices: int, share: float) -> int:
    """Count the runs that some devices take at once, each a share of one, or whole ones."""
    return devices * int(1 / share + 1e-9) if share <= 1 else devices // int(share)


class Devices:
    """Shares of a machine's accelerators; a run gets whole ones, or a share of one."""

    def __init__(self, names: Iterable[str], share: float) -> None:
        self.share = share
        self._free = dict.fromkeys(names, 1.0)

    def slots(self) -> int:
        """Count the runs that they take at once."""
        return slots_of(len(self._free), self.share)

    def take(self) -> str:
        """Give the CUDA_VISIBLE_DEVICES of one more run."""
        part = min(self.share, 1.0)
        freest = sorted(self._free, key=lambda name: -self._free[name])[: max(1, int(self.share))]
        for name in freest:
            self._free[name] -= part
        return ",".join(freest)

    def give_back(self, taken: str) -> None:
        """Return what `take` gave."""
        for name in taken.split(","):
            self._free[name] += min(self.share, 1.0)


class Processes:
    """A thread for each running trainer; nothing but this machine and the standard library.

    The thread lives until its trainer has ended, which a trainer that ends with its parent counts on.
    """

    def __init__(self, workers: int | None, cpus: int, gpus: float) -> None:
        self._devices = Devices(visible_devices(), gpus) if gpus else None
        self.slots = max(1, (os.cpu_count() or 1) // cpus) if workers is None else workers
        if self._devices is not None:
            self.slots = min(self.slots, self._devices.slots())
        if self.slots < 1:
            raise UserError(f"a run of this study takes {gpus:g} GPUs and there are not as many here; try --gpus 0")
        self.describes = f"processes of this machine, {self.slots} at once"
        self._ended: queue.Queue[Outcome] = queue.Queue()
        self._running: dict[str, subprocess.Popen[bytes] | None] = {}
        self._taken: dict[str, str] = {}
        self._guard = threading.Lock()
        self._closing = False

    def room(self) -> int:
        return self.slots - len(self._running)

    def submit(self, order: Order) -> None:
        devices = "" if self._devices is None else self._devices.take()
        self._taken[order.name] = devices
        self._running[order.name] = None
        given = replace(order, devices=devices)
        threading.Thread(target=self._work, args=(given,), name=order.name, daemon=True).start()

    def outcomes(self, seconds: float) -> list[Outcome]:
        try:
            ended = [self._ended.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._ended.empty():
            ended.append(self._ended.get())
        for outcome in ended:
            del self._running[outcome.name]
            if self._devices is not None:
                self._devices.give_back(self._taken.pop(outcome.name))
        return ended

    def close(self) -> None:
        with self._guard:
            self._closing = True
            running = [process for process in self._running.values() if process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)  # to all at once, since each may take a moment
        for process in running:
            stop(process)

    def _work(self, order: Order) -> None:
        try:
            self._ended.put(carry_out(order, lambda process: self._began(order.name, process)))
        except Exception as error:  # the study goes on, and says which run met a defect of ours
            self._ended.put(Outcome(order.name, "failed", f"{type(error).__name__}: {error}"))

    def _began(self, name: str, process: subprocess.Popen[bytes]) -> None:
        with self._guard:
            if not self._closing:
                self._running[name] = process
                return
        stop(process)


# The drive over all runs


def open_runs(study: Study, keep_replay: bool) -> list[RunState]:
    """List the runs that are to be brought to their end; the state is put right where the folders tell otherwise."""
    left = []
    for run in study.runs():
        try:
            done = finished(run.folder)
        except UserError as error:
            study.mark(run.name, "failed", str(error))
            left.append(run)
            continue
        if done and run.state != "finished":
            note_finished(study, run, keep_replay)
        elif not done:
            left.append(run)
            if run.state != "waiting":
                study.mark(run.name, "stopped" if checkpoint(run.folder) else "waiting")
    return left


def note_finished(study: Study, run: RunState, keep_replay: bool) -> float | None:
    """Tidy a finished run up, then note it; returns its time in seconds."""
    if not keep_replay and checkpoint(run.folder) is not None:
        from dqn_memory.runs.checkpoint import CheckpointFolder  # it imports torch, which nothing else here needs

        CheckpointFolder(run.folder / "checkpoints").drop_replay()
    elapsed = final_metrics(run.folder).get("time/elapsed")
    seconds = None if elapsed is None else float(elapsed)
    write_checksums(run.folder)
    study.mark(run.name, "finished", seconds=seconds)
    return seconds


class Drive:
    """One session of `study.run`: from the runs that are left to their outcomes."""

    def __init__(self, study: Study, backend: Backend, resources: Resources, retries: int, say: Say) -> None:
        self.study, self.backend, self.retries, self.say = study, backend, retries, say
        self.cpus, self.keep_replay = resources.cpus, resources.keep_replay
        self.waiting: deque[RunState] = deque()
        self.running: dict[str, RunState] = {}
        self._starts: dict[str, int] = {}
        self._vain: dict[str, tuple[int, int]] = {}  # by run: step of its checkpoint, times killed since it had it
        self.done = self.total = 0

    def run(self, runs: Sequence[RunState]) -> None:
        """Go on until every run has finished or failed; an interrupt stops all, and leaves all resumable."""
        self.waiting.extend(runs)
        known = self.study.runs()
        self.total, self.done = len(known), sum(run.state == "finished" for run in known)
        try:
            while self.waiting or self.running:
                while self.waiting and self.backend.room() > 0:
                    self._begin(self.waiting.popleft())
                for outcome in self.backend.outcomes(POLL):
                    self._end(self.running.pop(outcome.name), outcome)
        finally:
            self.backend.close()
            for name in self.running:
                self.study.mark(name, "stopped", "study.run was stopped")

    def _begin(self, run: RunState) -> None:
        attempt = self._starts[run.name] = self._starts.get(run.name, run.attempts) + 1
        self.study.mark(run.name, "running", begun=True)
        self.running[run.name] = run
        folder = str(self.study.folder.resolve())
        order = Order(run.name, script_of(self.study.kind), folder, str(Path.cwd()), self.cpus, attempt)
        self.backend.submit(order)
        self.say(f"started  {run.name}" + (f" (start {attempt})" if attempt > 1 else ""))

    def _end(self, run: RunState, outcome: Outcome) -> None:
        if outcome.result == "finished":
            self.done += 1
            seconds = note_finished(self.study, run, self.keep_replay)
            self.say(f"finished {run.name} in {in_words(seconds)} ({self.done} of {self.total}){_score(run)}")
        elif outcome.result == "killed" and self._worth_another(run):
            self.study.mark(run.name, "stopped", outcome.error)
            self.waiting.append(run)
            self.say(f"lost     {run.name}: {outcome.error}; it continues from its last checkpoint")
        else:
            self.study.mark(run.name, "failed", outcome.error)
            last = outcome.error.splitlines()[-1] if outcome.error else "no word of why"
            self.say(f"failed   {run.name}: {last}")

    def _worth_another(self, run: RunState) -> bool:
        """Tell whether a killed run has not been killed too often without a further checkpoint in between."""
        reached = -1
        with suppress(UserError):  # a damaged checkpoint is the trainer's to refuse
            reached = (checkpoint(run.folder) or {"step": -1})["step"]
        before, times = self._vain.get(run.name, (reached, 0))
        self._vain[run.name] = (reached, times + 1 if reached == before else 1)
        return self._vain[run.name][1] <= self.retries


def _score(run: RunState) -> str:
    """Say what its last evaluation gave, as the report will read it: success only of environments that report it."""
    final = final_metrics(run.folder)
    config = tomllib.loads(run.config.read_text(encoding="utf-8"))
    env = str((config.get("environment") or config["world"])["env"])  # which a config of schema 1 calls world
    named = {"success": "final/success_rate"} if env.removeprefix("envs:") in WORLDS else {}
    named["return"] = "final/episodic_return"
    said = [f"{name} {final[key]:.3g}" for name, key in named.items() if final.get(key) is not None]
    return f": {', '.join(said)}" if said else ""
