"""Where runs are carried out: plain processes of this machine, or Ray."""

from __future__ import annotations

import importlib.util
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterable
from typing import Protocol

from dqn_memory.runs.errors import UserError
from dqn_memory.study.worker import Order, Outcome, carry_out, stop


class Backend(Protocol):
    """Takes orders while it has room and hands back outcomes as they come, in any order."""

    describes: str

    def room(self) -> int:
        """How many more orders it can begin now."""

    def submit(self, order: Order) -> None:
        """Begin one."""

    def outcomes(self, seconds: float) -> list[Outcome]:
        """What has ended; waits at most `seconds` for the first."""

    def close(self) -> None:
        """Stop whatever still runs; all of it can be continued."""


def has_ray() -> bool:
    """Whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def visible_devices() -> list[str]:
    """Names of this machine's accelerators, as CUDA_VISIBLE_DEVICES takes them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index, _ in enumerate(listed.stdout.splitlines())]


class Devices:
    """Shares of a machine's accelerators; a run gets whole ones, or a share of one."""

    def __init__(self, names: Iterable[str], share: float) -> None:
        self.share = share
        self._free = dict.fromkeys(names, 1.0)

    def slots(self) -> int:
        """How many runs they take at once."""
        if self.share <= 1:
            return sum(int(1 / self.share + 1e-9) for _ in self._free)
        return len(self._free) // int(self.share)

    def take(self) -> str:
        """CUDA_VISIBLE_DEVICES of one more run."""
        part = min(self.share, 1.0)
        freest = sorted(self._free, key=lambda name: -self._free[name])[: max(1, int(self.share))]
        for name in freest:
            self._free[name] -= part
        return ",".join(freest)

    def give_back(self, taken: str) -> None:
        """What `take` gave."""
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
        given = Order(**{**vars(order), "devices": devices})
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
