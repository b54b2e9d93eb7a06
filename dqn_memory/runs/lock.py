"""Lock files that the death of a process releases: a lock is an open file, which a child process may inherit.

Children inherit these locks except on Windows and some network file systems; there a study's trainer holds the lock of
its own run folder only. On Linux a trainer ends with its parent (`dqn_memory.study.child`), so no lock is left behind.
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

PATIENCE = 10.0  # seconds to wait for a lock whose holder is ending
MAX_LOCK_BYTES = 4096  # bytes of a lock file that are read
PROBES = 3  # failed attempts after which a lock counts as held; another probe holds it for a moment


def take_lock(path: Path, busy: str, patience: float = PATIENCE) -> IO[bytes]:
    """Take a lock, and return its open file. The lock is free once all processes have closed that file.

    Raises:
        UserError: another process holds the lock; the sentence begins with `busy`.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not is_file(path):
            raise UserError(f"{path} should be a lock file, but it is something else: delete it")
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
        file.write(f" {holder}".encode())  # the first byte is locked, and on Windows unreadable
    return file


@contextmanager
def held_lock(path: Path, busy: str, patience: float = PATIENCE) -> Iterator[int]:
    """Hold a lock, and give the descriptor of its file, which child processes may inherit."""
    with take_lock(path, busy, patience) as file:
        yield file.fileno()


def lock_holder(path: Path) -> dict[str, Any] | None:
    """Give pid, host and start time of the process that holds a lock (empty: unknown); None: the lock is free."""
    if not is_file(path):
        return None
    try:
        with open_file(path, "r+b" if os.access(path, os.W_OK) else "rb", buffering=0) as file:
            for probe in range(PROBES):
                if lock_descriptor(file.fileno(), blocking=False):
                    return None
                time.sleep(0.01 * (probe + 1 < PROBES))
            file.seek(1)
            return dict(parse_json(file.read(MAX_LOCK_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return {}


def held_by(holder: dict[str, Any]) -> str:
    """Name the holder of a lock in words."""
    return f"by process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
