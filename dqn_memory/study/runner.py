"""Carries out the runs of a study: a worker for each, plain processes of this machine, and the drive over all of them.

A worker starts the trainer's script anew or from its last checkpoint; Ray is in dqn_memory/study/cluster.py. Runs that
another study, or an archive, has finished with the very same settings and seed are taken over.
"""

import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import tomli_w

from dqn_memory.runs.errors import UserError, require
from dqn_memory.runs.kinds import script_of
from dqn_memory.runs.lock import held_lock
from dqn_memory.runs.modules import module_of
from dqn_memory.runs.toml import from_toml, parse_toml, to_toml
from dqn_memory.study import child, store
from dqn_memory.study.archive import CONFIG, ENVIRONMENT, Source, find_study, open_source, placeless, unpack
from dqn_memory.study.definition import Planned, Resources
from dqn_memory.study.store import RunState, Study, checkpoint, final_metrics, finished
from envs.files import check_inside, disk_errors, make_inside, open_file, parse_json, read_text, write_text
from envs.packages import is_known

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
STOPPING = 30  # seconds that trainers have to save a checkpoint
LAST_LINES = 12  # of a trainer's log that an error repeats
MOST_SAID = 1 << 20  # bytes of the end of a trainer's log where they are looked for
POLL = 1.0  # seconds between looks at the room for more runs
NOTHING_TAKEN = "took nothing: --take-from has none of these runs, by the same trainer with the very same settings"
Process = subprocess.Popen[bytes]
INTERRUPTED = 130  # the exit code of a trainer that saved and stopped at a signal


@dataclass(frozen=True)
class Order:
    """What a worker needs to know; folders are absolute, since a worker may be another machine's."""

    run: RunState
    script: str
    cwd: Path
    cpus: int
    plugins: tuple[str, ...] = ()
    """Modules that the run's config names, which the trainer's command line must name too."""
    env: str = ""
    """Its environment, where that names a module."""
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
        with held_lock(run.study / "locks" / run.name, "the run is still being trained") as lock:
            return Outcome("finished") if finished(run.folder) else _train(order, lock, started)
    except (UserError, OSError) as error:
        return Outcome("failed", f"{error} (on {platform.node()})")


def _train(order: Order, lock: int, started: Callable[[Process], object]) -> Outcome:
    run, command = order.run, _command(order)
    changed = dict.fromkeys(THREADS, str(order.cpus)) | {"PYTHONUNBUFFERED": "1"}
    if order.devices is not None:
        changed["CUDA_VISIBLE_DEVICES"] = order.devices
    make_inside(run.study, "logs")
    with open_file(run.log, "ab") as log:
        said = shlex.join(["python", *command[1:]])
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        log.write(f"# {when} attempt {run.attempts} on {platform.node()}: {said}\n".encode())
        log.flush()
        began = log.tell()
        windows = sys.platform == "win32"  # where neither the lock nor a process can be handed on
        process = subprocess.Popen(
            command if windows else [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=order.cwd,
            env=os.environ | changed, pass_fds=() if windows else (lock,), start_new_session=True,
        )  # fmt: skip
        started(process)
        code = process.wait()
    return _judge(run, code, began)


def _command(order: Order) -> list[str]:
    folder, module = order.run.folder, [sys.executable, "-m", order.script]
    check_inside(order.run.study, "runs", f"runs/{order.run.name}")
    named = [word for name in order.plugins for word in ("--plugin", name)]
    if os.path.lexists(folder / CONFIG):  # before its first checkpoint it starts over, in the same folder
        named += [word for name in module_of(order.env) for word in ("--plugin", name)]
        return [*module, "--resume", str(folder), *named]
    named += ["--env", order.env] if order.env else []
    config = order.run.study / "configs" / f"{order.run.name}.toml"
    return [*module, "--config", str(config), "--run", str(folder), *named]


def _judge(run: RunState, code: int, began: int) -> Outcome:
    """Tell how a run ended from its trainer's exit code and what that said from byte `began` of the log on."""
    if code < 0:
        return Outcome("killed", f"its process was ended by {signal.Signals(-code).name}")
    if code == INTERRUPTED:
        return Outcome("killed", "its process was told to stop")
    with open_file(run.log) as log:
        log.seek(max(began, os.fstat(log.fileno()).st_size - MOST_SAID))
        lines = log.read(MOST_SAID).decode(errors="replace").rstrip().splitlines()
    said = "\n".join(lines[-LAST_LINES:])
    if code > 0:
        return Outcome("failed", said or f"it ended with exit code {code} and said nothing")
    if not finished(run.folder):
        return Outcome("failed", f"it ended without its final evaluation\n{said}")
    return Outcome("finished")


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
    if given is None:
        import torch  # which a worker goes without

        return [str(index) for index in range(torch.cuda.device_count())]
    return [name.strip() for name in given.split(",") if name.strip()]


def device_slots(devices: Sequence[str], share: float) -> list[str]:
    """Give the devices of each run that fits at once, where a run takes a share of one, or whole ones."""
    size = max(1, int(share))
    groups = [",".join(devices[begin : begin + size]) for begin in range(0, len(devices) - size + 1, size)]
    return groups * (int(1 / share + 1e-9) if share < 1 else 1)


def check_devices(gpus: float, slots: Sequence[str]) -> None:
    """Refuse a study whose runs take more accelerators than this machine has."""
    require(
        slots,
        f"a run of this study takes {gpus:g} GPUs and there are not as many here; --gpus 0 and a new --folder let it "
        "run on processors, by the eager engine",
    )


class Processes:
    """A thread for each running trainer; nothing but this machine and the standard library.

    Threads live until all has ended, which a trainer that ends with its parent counts on.
    """

    def __init__(self, workers: int | None, cpus: int, gpus: float) -> None:
        most = max(1, (os.cpu_count() or 1) // cpus) if workers is None else workers
        self._free = device_slots(visible_devices(), gpus) if gpus else [""] * most
        self._most = min(most, len(self._free))
        check_devices(gpus, self._free)
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
            self._closing, trainers = True, list(self._trainers)
            for process in trainers:  # each saves a checkpoint then
                process.terminate()
        latest = time.monotonic() + STOPPING
        try:
            for process in trainers:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, latest - time.monotonic()))
        finally:  # a second interrupt waits for none; whatever they write is whole or absent
            for process in trainers:
                process.kill()
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
    """List the runs that are to be brought to their end; the state is put right where the folders tell otherwise.

    They come seed by seed, so that what a study has when it is stopped is the same study with fewer seeds.
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
            note_finished(study, run, done, keep_replay)
    return sorted(left, key=lambda run: run.seed)


def note_finished(study: Study, run: RunState, final: dict[str, Any], keep_replay: bool) -> None:
    """Tidy a finished run up, then note it."""
    if not keep_replay and checkpoint(run.folder) is not None:
        from dqn_memory.runs.checkpoint import CheckpointFolder  # it imports torch, which nothing else here needs

        CheckpointFolder(run.folder / "checkpoints").drop_replay()
    store.write_checksums(run.folder)
    study.mark(run.name, "finished", seconds=final.get("time/elapsed"))


class Drive:
    """One session of `study.run`: from the runs that are left to their outcomes."""

    def __init__(
        self,
        study: Study,
        backend: Backend,
        resources: Resources,
        retries: int,
        say: Callable[[str], object],
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        self.configs = configs or {}  # by run
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
                if not self.running:  # no place for any, and nothing to wait for
                    time.sleep(POLL)
                for future in wait(self.running, POLL, FIRST_COMPLETED).done:
                    self._end(self.running.pop(future), future)
        finally:
            self.backend.close()
            for run in self.running.values():
                self.study.mark(run.name, "stopped", "study.run was stopped")

    def _begin(self, run: RunState) -> None:
        run = replace(run, attempts=run.attempts + 1)
        self.study.mark(run.name, "running", begun=True)
        there, script = replace(run, folder=run.folder.resolve()), script_of(self.study.kind)
        order = Order(there, script, Path.cwd(), self.resources.cpus, *self._named(run.name))
        self.running[self.backend.submit(order)] = run
        self.say(f"started  {run.name}" + (f" (start {run.attempts})" if run.attempts > 1 else ""))

    def _named(self, name: str) -> tuple[tuple[str, ...], str]:
        """Give the plugins of a run that are not known to every process, and its environment if that names a module."""
        config = self.configs.get(name)
        if config is None:
            return (), ""
        env = config.environment.env
        return tuple(each for each in config.plugin if not is_known(each)), env if module_of(env) else ""

    def _end(self, run: RunState, future: Future[Outcome]) -> None:
        try:
            outcome = future.result()
        except Exception as error:  # the study goes on, and says which run met a defect of ours
            outcome = Outcome("failed", f"{type(error).__name__}: {error}")
        if outcome.result == "finished":
            final = final_metrics(run.folder) or {}
            note_finished(self.study, run, final, self.resources.keep_replay)
            states = [each.state for each in self.study.runs()]
            count, taken = f"{states.count('finished')} of {len(states)}", store.in_words(final.get("time/elapsed"))
            self.say(f"finished {run.name} in {taken} ({count})")
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


# Runs that others have finished. Those of an archive come without their checkpoints, which no report needs, so that a
# study goes on where only its numbers were kept.

Offer = tuple[str, RunState | None, Source, str]


def take_over(study: Study, planned: Sequence[Planned], sources: Sequence[Path], say: Callable[[str], object]) -> None:
    """Copy into `study` each planned run that has no folder there yet and is finished in a source.

    A source must have the same trainer to give any; a UserError where one is no study at all. Damaged runs are named
    and not taken.
    """
    missing = [run for run in planned if not (study.folder / "runs" / run.name).exists()]
    for name, run, source, problem in offered(study.folder, study.kind, planned, sources):
        if run is None or problem:
            say(f"not taken {name}: {problem}")
        else:
            _copy(run, study.folder / "runs" / name, source)
            say(f"took     {name} from {run.folder}")
    if sources and missing and not any((study.folder / "runs" / run.name).exists() for run in missing):
        say(NOTHING_TAKEN)


def offered(folder: Path, kind: str, planned: Sequence[Planned], sources: Sequence[Path]) -> Iterator[Offer]:
    """Yield the name of each planned run that a source has finished, that run, its source and why it is no good.

    Runs of a source that cannot be compared come with their name there and without a run.
    """
    for path in sources:
        source = open_source(find_study(path))
        if source.folder.resolve() == folder.resolve():
            raise UserError(f"--take-from {source.folder} is the study itself: give the folder of another")
        missing = [run for run in planned if not (folder / "runs" / run.name).exists()]
        if source.kind != kind or not missing:
            continue
        held: dict[str, RunState] = {}
        for run in source.runs:
            try:
                if run.state == "finished" and (source.recorded is not None or finished(run.folder)):
                    text, name = source.record(run).config_toml, str(run.folder / CONFIG)
                    config: Any = from_toml(type(missing[0].config), text, name)
                    made = replace(config, output=replace(config.output, run=None))
                    chosen = replace(made, environment=replace(made.environment, observation_key=None))
                    held |= {_alike(made): run, _alike(chosen): run}  # a key that was not given is chosen in the run
            except UserError as error:
                yield run.name, None, source, str(error)
        for wanted in missing:
            if (found := held.get(_alike(wanted.config))) is not None:
                yield wanted.name, found, source, next(iter(source.damage.get(found.name, ())), "")


def _alike(config: Any) -> str:
    """Write what a run's numbers depend on.

    That is not trackers, nor on what it is computed, nor the widths that --match sets when a run begins.
    """
    if getattr(config, "match", None) is not None:
        config = replace(config, network=replace(config.network, width=1, head_width=1))
    if config.environment.path is not None:
        path = str(Path(config.environment.path).resolve())
        config = replace(config, environment=replace(config.environment, path=path))
    compute = replace(config.compute, device="auto", engine="eager", threads=None)
    return to_toml(replace(config, compute=compute, output=replace(config.output, track=())))


def _copy(run: RunState, folder: Path, source: Source) -> None:
    """Copy a run whole or not at all. Its config names its new folder; its command stays that of the run it was."""
    partial = folder.with_name(f".{folder.name}.partial")
    config, environment = partial / CONFIG, partial / ENVIRONMENT
    make_inside(folder.parents[1], folder.parent.name)
    check_inside(folder.parent, partial.name)
    with disk_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        if source.recorded is not None:
            unpack(source.record(run), partial)
        else:
            shutil.copytree(run.folder, partial, symlinks=True, copy_function=_copy_file)
        values = parse_toml(read_text(config, follow=False), str(config))
        output = values.get("output", {}) | {"run": str(folder.resolve())}
        write_text(config, tomli_w.dumps(values | {"output": output}))
        facts = placeless(store.read_file(environment, parse_json), source.folder, f"{store.HOME}/{source.name}")
        write_text(environment, json.dumps(facts, indent=1))
        store.write_checksums(partial)
        partial.replace(folder)


def _copy_file(source: str, target: str) -> None:
    with open_file(Path(source)) as read, open_file(Path(target), "xb") as written:
        shutil.copyfileobj(read, written, 1 << 20)
    shutil.copystat(source, target)
