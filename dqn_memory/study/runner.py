"""Train the runs of a study, each in its own process, on this machine or by Ray (dqn_memory/study/cluster.py).

Each process is the trainer's script, which starts a run, or continues it from its last checkpoint.
"""

import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.lock import held_lock
from dqn_memory.runs.modules import module_of, other_envs
from dqn_memory.study import child
from dqn_memory.study.definition import Resources
from dqn_memory.study.run_record import CONFIG, checkpoint, final_metrics, finished, write_checksums
from dqn_memory.study.store import RunState, Study
from envs.console import say
from envs.files import check_inside, make_inside, open_file
from envs.packages import is_known

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
STOPPING = 30  # seconds that trainers have to save a checkpoint
LAST_LINES = 12  # lines at the end of a trainer's log that an error repeats
MAX_LOG_BYTES = 1 << 20  # bytes at the end of a log that are searched for these lines
POLL = 1.0  # seconds between checks for free slots
Process = subprocess.Popen[bytes]
INTERRUPTED = 130  # the exit code of a trainer that saved and stopped at a signal


@dataclass(frozen=True)
class Job:
    """All facts that a worker needs to train one run. Folders are absolute: a worker may be on another machine."""

    run: RunState
    script: str
    cwd: Path
    cpus: int
    plugins: tuple[str, ...] = ()
    """Modules in the run's config that the trainer's command line must name too."""
    envs: tuple[str, ...] = ()
    """Its environments, if the id of one names a module."""
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the trainer (None: that of the worker; empty: no device)."""


@dataclass(frozen=True)
class JobResult:
    """The end of a run. A `killed` run (by a signal or with its worker) can continue from its last checkpoint."""

    state: Literal["finished", "failed", "killed"]
    error: str = ""


def run_job(job: Job, started: Callable[[Process], object] = lambda process: None) -> JobResult:
    """Train one run to its end, and report the end; call `started` with the trainer's process."""
    run = job.run
    try:
        # the trainer inherits the lock, so it is held as long as a trainer of this run lives
        with held_lock(run.study / "locks" / run.name, "the run is still being trained") as lock:
            return JobResult("finished") if finished(run.folder) else _run_trainer(job, lock, started)
    except (UserError, OSError) as error:
        return JobResult("failed", f"{error} (on {platform.node()})")


def _run_trainer(job: Job, lock: int, started: Callable[[Process], object]) -> JobResult:
    run, command = job.run, _command(job)
    changed = dict.fromkeys(THREADS, str(job.cpus)) | {"PYTHONUNBUFFERED": "1"}
    if job.devices is not None:
        changed["CUDA_VISIBLE_DEVICES"] = job.devices
    make_inside(run.study, "logs")
    with open_file(run.log, "ab") as log:
        when, line = time.strftime("%Y-%m-%d %H:%M:%S"), shlex.join(["python", *command[1:]])
        log.write(f"# {when} attempt {run.attempts} on {platform.node()}: {line}\n".encode())
        log.flush()
        begin = log.tell()
        windows = sys.platform == "win32"  # its children inherit no lock, and a process cannot replace itself
        process = subprocess.Popen(
            command if windows else [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=job.cwd,
            env=os.environ | changed, pass_fds=() if windows else (lock,), start_new_session=True,
        )  # fmt: skip
        started(process)
        code = process.wait()
    return _result(run, code, begin)


def _command(job: Job) -> list[str]:
    folder, module = job.run.folder, [sys.executable, "-m", job.script]
    check_inside(job.run.study, "runs", f"runs/{job.run.name}")
    flags = [word for name in job.plugins for word in ("--plugin", name)]
    if os.path.lexists(folder / CONFIG):  # a run without a checkpoint starts over, in the same folder
        flags += [word for env in job.envs for name in module_of(env) for word in ("--plugin", name)]
        return [*module, "--resume", str(folder), *flags]
    flags += [word for env in job.envs for word in ("--env", env)]
    config = job.run.study / "configs" / f"{job.run.name}.toml"
    return [*module, "--config", str(config), "--run", str(folder), *flags]


def _result(run: RunState, code: int, begin: int) -> JobResult:
    """Derive the result of a run from its trainer's exit code, and from the log after byte `begin`."""
    if code < 0:
        return JobResult("killed", f"its process was ended by {signal.Signals(-code).name}")
    if code == INTERRUPTED:
        return JobResult("killed", "its process was stopped by a signal")
    with open_file(run.log) as log:
        log.seek(max(begin, os.fstat(log.fileno()).st_size - MAX_LOG_BYTES))
        lines = log.read(MAX_LOG_BYTES).decode(errors="replace").rstrip().splitlines()
    output = "\n".join(lines[-LAST_LINES:])
    if code > 0:
        return JobResult("failed", output or f"it ended with exit code {code} and no output")
    if not finished(run.folder):
        return JobResult("failed", f"it ended without its final evaluation\n{output}")
    return JobResult("finished")


# ---- backends


class Backend(Protocol):
    """Runs jobs in workers of its own."""

    describes: str

    def slots(self) -> int:
        """Count the jobs that fit at once at the moment."""

    def submit(self, job: Job) -> Future[JobResult]:
        """Start a job."""

    def close(self) -> None:
        """Stop all jobs; each can continue from its last checkpoint."""


def visible_devices() -> list[str]:
    """Name this machine's accelerators in the form of CUDA_VISIBLE_DEVICES."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        import torch  # imported here because a worker needs no torch

        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in given.split(",") if name.strip()]


def device_slots(devices: Sequence[str], share: float) -> list[str]:
    """List the devices of each run that fits at once; a run needs a share of one device, or several devices."""
    size = max(1, int(share))
    groups = [",".join(devices[begin : begin + size]) for begin in range(0, len(devices) - size + 1, size)]
    return groups * (int(1 / share + 1e-9) if share < 1 else 1)


def local_device_slots(gpus: float) -> list[str]:
    """List the devices of each run that fits on this machine; a UserError says that none fits."""
    slots = device_slots(visible_devices(), gpus)
    require(
        slots,
        f"a run of this study needs {gpus:g} GPUs, and there are fewer here; --gpus 0 and a new --folder let it run on "
        "CPUs by the eager engine",
    )
    return slots


class Processes:
    """A thread for each running trainer, on this machine.

    The threads live until `close`, because a trainer ends with the thread that started it.
    """

    def __init__(self, workers: int | None, cpus: int, gpus: float) -> None:
        count = max(1, (os.cpu_count() or 1) // cpus) if workers is None else workers
        self._free = local_device_slots(gpus) if gpus else [""] * count
        self._slots = min(count, len(self._free))
        self.describes = f"processes: processes of this machine, {self._slots} at once"
        self._pool = ThreadPoolExecutor(self._slots)
        self._trainers: list[Process] = []
        self._lock = threading.Lock()
        self._closing = False

    def slots(self) -> int:
        return self._slots

    def submit(self, job: Job) -> Future[JobResult]:
        return self._pool.submit(self._run, job)

    def close(self) -> None:
        with self._lock:
            self._closing, trainers = True, list(self._trainers)
            for process in trainers:  # each then saves a checkpoint
                process.terminate()
        latest = time.monotonic() + STOPPING
        try:
            for process in trainers:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, latest - time.monotonic()))
        finally:  # also after a second interrupt: a kill leaves the last checkpoint valid
            for process in trainers:
                process.kill()
            self._pool.shutdown(cancel_futures=True)

    def _run(self, job: Job) -> JobResult:
        with self._lock:
            devices = max(self._free, key=self._free.count)  # those with the most free slots
            self._free.remove(devices)
        try:
            return run_job(replace(job, devices=devices), self._add)
        finally:
            with self._lock:
                self._free.append(devices)

    def _add(self, process: Process) -> None:
        with self._lock:
            self._trainers.append(process)
            if self._closing:
                process.kill()


# ---- all runs of a study


def unfinished_runs(study: Study, keep_replay: bool) -> list[RunState]:
    """List the unfinished runs, and correct the study's state if a run's folder contradicts it.

    The runs are ordered by seed, so that a stopped study is the same study with fewer seeds.
    """
    left = []
    for run in study.runs():
        try:
            done = final_metrics(run.folder)
        except UserError as error:
            study.mark(run.name, "failed", str(error))
            left.append(run)
            continue
        if done is None:
            left.append(run)
            if run.state != "waiting":
                study.mark(run.name, "stopped" if checkpoint(run.folder) else "waiting")
        elif run.state != "finished":
            mark_finished(study, run, done, keep_replay)
    return sorted(left, key=lambda run: run.seed)


def mark_finished(study: Study, run: RunState, final: dict[str, Any], keep_replay: bool) -> None:
    """Mark a run as finished; delete its replay unless `keep_replay`."""
    if not keep_replay and checkpoint(run.folder) is not None:
        from dqn_memory.runs.checkpoint import CheckpointFolder  # imported here because it loads torch

        CheckpointFolder(run.folder / "checkpoints").drop_replay()
    write_checksums(run.folder)
    study.mark(run.name, "finished", seconds=final.get("time/elapsed"))


def duration(seconds: float | None) -> str:
    """Write a time, such as 0:03:20 or 2 days, 4:00:00."""
    return "unknown time" if seconds is None else str(timedelta(seconds=round(seconds)))


class Scheduler:
    """Submits the runs of a study to a backend, and records their ends.

    Args:
        retries: max kills of a run in a row without a new checkpoint between them.
        configs: configs of the runs by name; they name the modules that a run imports.
    """

    def __init__(
        self, study: Study, backend: Backend, resources: Resources, retries: int, configs: Mapping[str, Any]
    ) -> None:
        self.study, self.backend, self.resources, self.retries = study, backend, resources, retries
        self.configs = configs
        self.waiting: deque[RunState] = deque()
        self.running: dict[Future[JobResult], RunState] = {}
        self._kills: dict[str, tuple[int, int]] = {}  # by run: step of its checkpoint, and kills since then

    def run(self, runs: Sequence[RunState]) -> None:
        """Work until every run has finished or failed; an interrupt stops all runs, and each can continue."""
        self.waiting.extend(runs)
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.backend.slots():
                    self._start(self.waiting.popleft())
                if not self.running:  # no slot is free
                    time.sleep(POLL)
                for future in wait(self.running, POLL, FIRST_COMPLETED).done:
                    self._end(self.running.pop(future), future)
        finally:
            self.backend.close()
            for run in self.running.values():
                self.study.mark(run.name, "stopped", "study.run was stopped")

    def _start(self, run: RunState) -> None:
        run = replace(run, attempts=run.attempts + 1)
        self.study.mark(run.name, "running", begun=True)
        absolute, script = replace(run, folder=run.folder.resolve()), script_of(self.study.kind)
        config = self.configs[run.name]
        others = [name for env in other_envs(config) for name in module_of(env)]
        plugins = tuple(each for each in dict.fromkeys([*config.plugin, *others]) if not is_known(each))
        envs = config.environment.texts
        named = envs if any(map(module_of, envs)) else ()
        job = Job(absolute, script, Path.cwd(), self.resources.cpus, plugins, named)
        self.running[self.backend.submit(job)] = run
        say(f"started  {run.name}" + (f" (start {run.attempts})" if run.attempts > 1 else ""))

    def _end(self, run: RunState, future: Future[JobResult]) -> None:
        try:
            result = future.result()
        except Exception as error:  # a defect of this code, which stops no other run
            result = JobResult("failed", f"{type(error).__name__}: {error}")
        if result.state == "finished":
            final = final_metrics(run.folder) or {}
            mark_finished(self.study, run, final, self.resources.keep_replay)
            states = [each.state for each in self.study.runs()]
            count, taken = f"{states.count('finished')} of {len(states)}", duration(final.get("time/elapsed"))
            say(f"finished {run.name} in {taken} ({count})")
        elif result.state == "killed" and self._may_retry(run):
            self.study.mark(run.name, "stopped", result.error)
            self.waiting.append(run)
            say(f"lost     {run.name}: {result.error}; it continues from its last checkpoint")
        else:
            self.study.mark(run.name, "failed", result.error)
            say(f"failed   {run.name}: {result.error.splitlines()[-1]}")

    def _may_retry(self, run: RunState) -> bool:
        """Tell whether a killed run had at most `retries` kills since its last new checkpoint."""
        step = -1
        with suppress(UserError):  # the trainer refuses a damaged checkpoint
            step = (checkpoint(run.folder) or {"step": -1})["step"]
        before, times = self._kills.get(run.name, (step, 0))
        self._kills[run.name] = (step, times + 1 if step == before else 1)
        return self._kills[run.name][1] <= self.retries
