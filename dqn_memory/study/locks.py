"""Locks that end with their holder, however it ends: held through an open file, which a child process inherits.

On a network file system that emulates such locks a child does not inherit them; there a trainer is told to end with
its parent (see `child`), so nobody is left who would have to be noticed.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

PATIENCE = 10.0  # seconds that a dying holder has to let go


def acquire(path: Path, patience: float = PATIENCE) -> int | None:
    """An open descriptor that holds the lock until all its copies are closed, or None where somebody has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + patience
    while not _lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > until:
            os.close(descriptor)
            return None
        time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    note = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
    os.write(descriptor, json.dumps(note).encode())
    return descriptor


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a lock: {"pid", "host", "since"}, or None where nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return None
        note = json.loads(os.read(descriptor, 4096) or b"{}")
    except ValueError:  # between its two writes
        note = {}
    finally:
        os.close(descriptor)
    return {"pid": note.get("pid"), "host": note.get("host"), "since": note.get("since")}


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
