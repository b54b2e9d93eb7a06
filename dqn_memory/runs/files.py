"""Files that are whole or absent: temporary name, fsync, rename."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dqn_memory.runs.errors import UserError

# What a run folder keeps for its tables and pictures: small files, whole without its checkpoints.
METRICS = "metrics.jsonl"
RAW = ("config.toml", "environment.json", METRICS)

TEMPORARY = ".tmp"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses (a full disk, no permission) into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write {path}: {reason}; what was saved before is untouched") from error


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that any reader, and any crash, sees the old file or the new one.

    Raises UserError where the system refuses; the old file stays and nothing temporary is left.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut, where the system can."""
    with suppress(OSError):  # some file systems refuse to open or sync folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
