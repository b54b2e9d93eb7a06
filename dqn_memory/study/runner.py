"""Carries out the runs of a study: a worker for each, plain processes of this machine, and the drive over all of them.

A worker starts the trainer's script anew or from its last checkpoint. Ray is in dqn_memory/study/cluster.py.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.kinds import script_of
from dqn_memory.study import child, store
from dqn_memory.study.definition import Resources
from dqn_memory.study.store import RunState, Study, checkpoint, final_metrics, finished
from envs.registry import WORLDS

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
LAST_LINES = 12  # of a trainer's log that an error repeats
POLL = 1.0  # seconds between looks at the room for more runs
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Order:
    """What a worker needs to know; folders are absolute, since a worker may be another machine's."""

    run: RunState
    script: str
    study: Path
    cwd: Path
    cpus: int
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the trainer (None: as the worker has it; empty: no device)."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `killed`: by a signal or with its worker, so it can go on from its last checkpoint."""

    result: Literal["finished", "failed", "killed"]
    error: str = ""


def carry_out(order: Order, started: Callable[[Process], object] = lambda process: None) -> Outcome:
    """Bring one run to its end, or say how it stopped; `started` is given the trainer's process."""
    run = order.run
    try:
        # the lock is held while a trainer of this run lives
        with store.held_lock(order.study / "locks" / run.name, "the run is still being trained") as lock:
            return Outcome("finished") if finished(run.folder) else _train(order, lock, started)
    except (UserError, OSError) as error:
        return Outcome("failed", f"{error} (on {platform.node()})")


def _train(order: Order, lock: int, started: Callable[[Process], object]) -> Outcome:
    run, command = order.run, _command(order)
    changed = dict.fromkeys(THREADS, str(order.cpus)) | {"PYTHONUNBUFFERED": "1"}
    if order.devices is not None:
        changed["CUDA_VISIBLE_DEVICES"] = order.devices
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("ab") as log:
        said = shlex.join(["python", *command[1:]])
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        log.write(f"# {when} attempt {run.attempts} on {platform.node()}: {said}\n".encode())
        log.flush()
        began = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=order.cwd,
            env=os.environ | changed, pass_fds=(lock,), start_new_session=True,
        )  # fmt: skip
        started(process)
        code = process.wait()
    return _judge(run, code, began)


def _command(order: Order) -> list[str]:
    folder, module = order.run.folder, [sys.executable, "-m", order.script]
    if (folder / "checkpoints" / "manifest.json").is_file():
        return [*module, "--resume", str(folder)]
    if folder.exists():  # killed before its first checkpoint: nothing of it can be continued
        shutil.rmtree(folder)
    return [*module, "--config", str(store.config_file(order.study, order.run.name)), "--run", str(folder)]


def _judge(run: RunState, code: int, began: int) -> Outcome:
    """Tell how a run ended from its trainer's exit code and what that said from byte `began` of the log on."""
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return Outcome("killed", f"its process was ended by {names.get(-code, f'signal {-code}')}")
    lines = run.log.read_bytes()[began:].decode(errors="replace").rstrip().splitlines()
    said = "\n".join(lines[-LAST_LINES:])
    if code > 0:
        return Outcome("failed", said or f"it ended with exit code {code} and said nothing")
    if not finished(run.folder):
        return Outcome("failed", f"it ended without its final evaluation\n{said}")
    return Outcome("finished")


def stop(process: Process, patience: float = 5.0) -> None:
    """End a trainer, which has nothing to tidy up: whatever it was writing is whole or absent."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# Where workers are


class Backend(Protocol):
    """Carries out orders in workers of its own."""

    describes: str

    def slots(self) -> int:
        """Count the orders that it has room for at once, now."""

    def submit(self, order: Order) -> Future[Outcome]:
        """Begin one."""

    def close(self) -> None:
        """Stop whatever still runs; all of it can be continued."""


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


def device_slots(devices: Sequence[str], share: float) -> list[str]:
    """Give the devices of each run that fits at once, where a run takes a share of one, or whole ones."""
    size = max(1, int(share))
    groups = [",".join(devices[begin : begin + size]) for begin in range(0, len(devices) - size + 1, size)]
    return groups * (int(1 / share + 1e-9) if share < 1 else 1)


class Processes:
    """A thread for each running trainer; nothing but this machine and the standard library.

    Threads live until all has ended, which a trainer that ends with its parent counts on.
    """

    def __init__(self, workers: int | None, cpus: int, gpus: float) -> None:
        most = max(1, (os.cpu_count() or 1) // cpus) if workers is None else workers
        self._free = device_slots(visible_devices(), gpus) if gpus else [""] * most
        self._most = min(most, len(self._free))
        if not self._free:
            raise UserError(f"a run of this study takes {gpus:g} GPUs and there are not as many here; try --gpus 0")
        self.describes = f"processes: processes of this machine, {self._most} at once"
        self._pool = ThreadPoolExecutor(self._most)
        self._trainers: list[Process] = []
        self._guard = threading.Lock()
        self._closing = False

    def slots(self) -> int:
        return self._most

    def submit(self, order: Order) -> Future[Outcome]:
        return self._pool.submit(self._work, order)

    def close(self) -> None:
        with self._guard:
            self._closing = True
            running = [process for process in self._trainers if process.poll() is None]
        for process in running:
            process.terminate()  # all at once, since each may take a moment
        for process in running:
            stop(process)
        self._pool.shutdown(cancel_futures=True)

    def _work(self, order: Order) -> Outcome:
        with self._guard:
            devices = max(self._free, key=self._free.count)  # of those that have the most room left
            self._free.remove(devices)
        try:
            return carry_out(replace(order, devices=devices), self._began)
        finally:
            with self._guard:
                self._free.append(devices)

    def _began(self, process: Process) -> None:
        with self._guard:
            self._trainers.append(process)
            if self._closing:
                process.kill()


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
    seconds: float | None = (final_metrics(run.folder) or {}).get("time/elapsed")
    store.write_checksums(run.folder)
    study.mark(run.name, "finished", seconds=seconds)
    return seconds


class Drive:
    """One session of `study.run`: from the runs that are left to their outcomes."""

    def __init__(
        self, study: Study, backend: Backend, resources: Resources, retries: int, say: Callable[[str], object]
    ) -> None:
        self.study, self.backend, self.resources, self.retries, self.say = study, backend, resources, retries, say
        self.waiting: deque[RunState] = deque()
        self.running: dict[Future[Outcome], RunState] = {}
        self._vain: dict[str, tuple[int, int]] = {}  # by run: step of its checkpoint, times killed since it had it

    def run(self, runs: Sequence[RunState]) -> None:
        """Go on until every run has finished or failed; an interrupt stops all, and leaves all resumable."""
        self.waiting.extend(runs)
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.backend.slots():
                    self._begin(self.waiting.popleft())
                for future in wait(self.running, POLL, FIRST_COMPLETED).done:
                    self._end(self.running.pop(future), future)
        finally:
            self.backend.close()
            for run in self.running.values():
                self.study.mark(run.name, "stopped", "study.run was stopped")

    def _begin(self, run: RunState) -> None:
        run = replace(run, attempts=run.attempts + 1)
        self.study.mark(run.name, "running", begun=True)
        absolute = replace(run, folder=run.folder.resolve())
        folder, script = self.study.folder.resolve(), script_of(self.study.kind)
        self.running[self.backend.submit(Order(absolute, script, folder, Path.cwd(), self.resources.cpus))] = run
        self.say(f"started  {run.name}" + (f" (start {run.attempts})" if run.attempts > 1 else ""))

    def _end(self, run: RunState, future: Future[Outcome]) -> None:
        try:
            outcome = future.result()
        except Exception as error:  # the study goes on, and says which run met a defect of ours
            outcome = Outcome("failed", f"{type(error).__name__}: {error}")
        if outcome.result == "finished":
            seconds = note_finished(self.study, run, self.resources.keep_replay)
            states = [each.state for each in self.study.runs()]
            time_taken = "" if seconds is None else f" in {store.in_words(seconds)}"
            self.say(f"finished {run.name}{time_taken} ({states.count('finished')} of {len(states)}){_score(run)}")
        elif outcome.result == "killed" and self._worth_another(run):
            self.study.mark(run.name, "stopped", outcome.error)
            self.waiting.append(run)
            self.say(f"lost     {run.name}: {outcome.error}; it continues from its last checkpoint")
        else:
            self.study.mark(run.name, "failed", outcome.error)
            self.say(f"failed   {run.name}: {outcome.error.splitlines()[-1]}")

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
    final = final_metrics(run.folder) or {}
    config = tomllib.loads((run.folder / "config.toml").read_text(encoding="utf-8"))
    env = str((config.get("environment") or config["world"])["env"])  # which a config of schema 1 calls world
    named = {"success": "final/success_rate"} if env.removeprefix("envs:") in WORLDS else {}
    named["return"] = "final/episodic_return"
    said = [f"{name} {final[key]:.3g}" for name, key in named.items() if final.get(key) is not None]
    return f": {', '.join(said)}" if said else ""
