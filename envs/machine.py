"""Describe the machine, the versions and the revision behind a measured number."""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch

PACKAGES = ("dqn-memory", "numpy", "gymnasium")
FACTS = ("cpu", "cores", "threads", "platform", "python", "torch", "numpy", "gymnasium", "revision", "dirty")
CONTAINERS = (  # files with the memory limit and the memory use of a container, for both versions of cgroup
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
Clock = Literal["wall", "cpu"]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def describe_environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Collect the facts for judging or repeating a run, as JSON values."""
    device = torch.device(device)
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "torch": torch.__version__,  # includes the build, cpu or cuda, unlike package metadata
        **git_state(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
    }


def benchmark_facts() -> dict[str, Any]:
    """Collect the facts that influence a measured speed."""
    facts = describe_environment() | {"cores": os.cpu_count()}
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"accelerator": accelerator, **{name: facts[name] for name in FACTS}}


def revision() -> str:
    """Return the git revision of this code, with a + for uncommitted changes; "unknown" outside a checkout."""
    state = git_state()
    return f"{state['revision'][:10]}{'+' if state['dirty'] else ''}" if state["revision"] else "unknown"


def git_state() -> dict[str, Any]:
    """Return the git revision of this code, and whether files differ from it; None outside a checkout.

    An installed package inside another repository, as in its .venv, has no revision of its own.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {"revision": None, "dirty": None}
    changes = _git("status", "--porcelain")
    return {"revision": _git("rev-parse", "HEAD"), "dirty": changes is None or changes != ""}


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def device_memory(device: torch.device | str = "cpu") -> tuple[int, int] | None:
    """Return the free and the total bytes of a device for this process; None if they are unknown."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    facts = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition(":")
            facts[name] = int(rest.split()[0]) << 10
    if not {"MemAvailable", "MemTotal"} <= facts.keys():
        return None
    free, total = facts["MemAvailable"], facts["MemTotal"]
    for limit, used in CONTAINERS:
        with suppress(OSError, ValueError):  # without a limit the file reads "max"
            maximum = int(Path(limit).read_text(encoding="ascii"))
            free = min(free, max(0, maximum - int(Path(used).read_text(encoding="ascii"))))
            total = min(total, maximum)
    return free, total


def cpu() -> str:
    """Return the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
