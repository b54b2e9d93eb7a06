"""Locks that end with their holder, however it ends: held through an open file, which a child process may inherit.

On Windows, and on a network file system that emulates such locks, a child does not inherit them: what a study's trainer
holds there is the lock of its own run folder alone. On Linux a trainer ends with its parent (`dqn_memory.study.child`),
so nobody is left who would have to be noticed.
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from dqn_memory.runs.errors import UserError
from envs.files import disk_errors, is_file, open_file, parse_json

PATIENCE = 10.0  # seconds that a dying holder of a lock has to let go
MOST_BYTES = 4096  # of what a lock says of its holder
PROBES = 3  # times that a lock is asked for before it counts as held: who asks holds it, for a moment


def take_lock(path: Path, busy: str, patience: float = PATIENCE) -> IO[bytes]:
    """Take a lock; it is free again when the file that this gives is closed, also in processes that inherited it.

    Raises:
        UserError: somebody else has it; `busy` says what that means.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not is_file(path):
            raise UserError(f"{path} is not the file of a lock that it should be: delete it")
        file = open_file(path, "a+b", buffering=0)
    until = time.monotonic() + patience
    with disk_errors(path):
        while not lock_descriptor(file.fileno(), blocking=False):
            if time.monotonic() > until:
                file.close()
                raise UserError(f"{busy}, {held_by(lock_holder(path) or {})}")
            time.sleep(0.05)
        file.truncate(0)
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        holder = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since})
        file.write(f" {holder}".encode())  # Windows lets nobody read the first byte, which is what is locked there
    return file


@contextmanager
def held_lock(path: Path, busy: str, patience: float = PATIENCE) -> Iterator[int]:
    """Hold a lock, also in processes that inherit the descriptor that this gives."""
    with take_lock(path, busy, patience) as file:
        yield file.fileno()


def lock_holder(path: Path) -> dict[str, Any] | None:
    """Say who holds a lock, by pid, host and since when (nothing where it cannot be asked); None: nobody."""
    if not is_file(path):
        return None
    try:
        with open_file(path, "r+b" if os.access(path, os.W_OK) else "rb", buffering=0) as file:
            for probe in range(PROBES):
                if lock_descriptor(file.fileno(), blocking=False):
                    return None
                time.sleep(0.01 * (probe + 1 < PROBES))
            file.seek(1)
            return dict(parse_json(file.read(MOST_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return {}


def held_by(holder: dict[str, Any]) -> str:
    """Name a lock's holder in a sentence."""
    return f"by process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
