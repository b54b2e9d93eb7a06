"""One run, carried out by a worker: a process of the trainer's script, started anew or from its last checkpoint.

Imports no torch, so that a worker costs little beside its trainer.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from dqn_memory.runs.errors import UserError
from dqn_memory.study import child, locks
from dqn_memory.study.finished import finished
from dqn_memory.study.state import run_folder

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
LAST_LINES = 12
Result = Literal["finished", "failed", "killed"]
Started = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True)
class Order:
    """What a worker needs to know; folders are absolute, since a worker may be another machine's."""

    name: str
    kind: str
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
        lock = locks.acquire(order.lock)
    except OSError as error:
        return Outcome(order.name, "failed", f"{platform.node()} cannot write {order.lock}: {error.strerror}")
    if lock is None:
        who = locks.holder(order.lock) or {}
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
    module = [sys.executable, "-m", order.kind]
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
    """The end of what a trainer said from byte `begin` on."""
    try:
        data = log.read_bytes()[begin:]
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-count:])
