"""What a measurement depends on: machine, versions, revision."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import gymnasium
import numpy as np
import torch


def machine() -> dict[str, str | int | bool | None]:
    """Plain values for a report."""
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    changes = _git("status", "--porcelain")
    return {
        "accelerator": cuda, "cpu": cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "platform": platform.platform(), "python": platform.python_version(), "torch": torch.__version__,
        "numpy": np.__version__, "gymnasium": gymnasium.__version__, "revision": _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else changes != "",
    }  # fmt: skip


def revision() -> str:
    """The git revision of this code, with a + where files differ from it; "unknown" outside a checkout."""
    head, changes = _git("rev-parse", "--short=10", "HEAD"), _git("status", "--porcelain")
    return "unknown" if head is None else f"{head}{'+' if changes else ''}"


def _git(*arguments: str) -> str | None:
    """What git says about this checkout; None where the package is no part of one."""
    folder = Path(__file__).parent
    try:
        for words in (("ls-files", "--error-unmatch", "machine.py"), arguments):
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
