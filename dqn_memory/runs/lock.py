"""Locks that end with their holder, however it ends: held through an open file, which a child process may inherit.

On a network file system that emulates such locks a child does not inherit them; a study's trainer is told there to end
with its parent (see `dqn_memory.study.child`), so nobody is left who would have to be noticed.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from dqn_memory.runs.errors import UserError
from envs.files import disk_errors, parse_json

PATIENCE = 10.0  # seconds that a dying holder of a lock has to let go


def take_lock(path: Path, busy: str, patience: float = PATIENCE) -> BinaryIO:
    """Take a lock; it is free again when the file that this gives is closed, also in processes that inherited it.

    Raises:
        UserError: somebody else has it; `busy` says what that means.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not the file of a lock that it should be: delete it")
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
    until = time.monotonic() + patience
    with disk_errors(path):
        while not _lock(file, fcntl.LOCK_EX):
            if time.monotonic() > until:
                file.close()
                raise UserError(f"{busy}, {held_by(lock_holder(path) or {})}")
            time.sleep(0.05)
        file.truncate()
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        file.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}).encode())
    return file


@contextmanager
def held_lock(path: Path, busy: str, patience: float = PATIENCE) -> Iterator[int]:
    """Hold a lock, also in processes that inherit the descriptor that this gives."""
    with take_lock(path, busy, patience) as file:
        yield file.fileno()


def lock_holder(path: Path) -> dict[str, Any] | None:
    """Say who holds a lock, by pid, host and since when (nothing is known between its two writes); None: nobody."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return None if _lock(file, fcntl.LOCK_SH) else dict(parse_json(file.read()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return {}


def held_by(holder: dict[str, Any]) -> str:
    """Name a lock's holder in a sentence."""
    return f"by process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"


def _lock(file: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
