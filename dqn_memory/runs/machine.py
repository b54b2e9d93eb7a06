"""What a run ran on: versions, revision, device, threads."""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("dqn-memory", "numpy", "gymnasium")


def describe_environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Collect what a reader needs to judge or repeat a result; plain JSON values."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "torch": torch.__version__,  # with its build, cpu or cuda, which package metadata may leave out
        **_revision(Path(__file__).resolve().parent),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "device": _device_name(torch.device(device)),
        "threads": torch.get_num_threads(),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision(folder: Path) -> dict[str, Any]:
    # A package that merely lies inside some other repository (its .venv) has no revision of its own.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {"revision": None, "dirty": None}
    changes = _git(folder, "status", "--porcelain")
    return {"revision": _git(folder, "rev-parse", "HEAD"), "dirty": changes is None or changes != ""}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
