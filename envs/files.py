"""Files that a reader, and a crash, sees whole or not at all."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from envs.errors import UserError, require

TEMPORARY = ".*.tmp"  # what a file is called that is not yet whole
LEFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")  # such a file of ours, and nobody else's
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # in a file's name, by Windows
DEVICES = re.compile("con|prn|aux|nul|(com|lpt)[0-9]", re.I)  # names that stand for no file there


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

    Raises:
        UserError: the system refuses; the old file stays and nothing temporary is left.
    """
    temporary = path.with_name(TEMPORARY.replace("*", f"{path.name}.{secrets.token_hex(4)}"))
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def portable_name(text: str) -> str:
    """Write a text as one part of a path that every system allows: no separators, no : or *, no device of Windows."""
    name = FORBIDDEN.sub("-", text).rstrip(". ") or "-"
    return f"_{name}" if DEVICES.fullmatch(name.partition(".")[0].rstrip()) else name


def leftovers(folder: Path) -> list[Path]:
    """List files that a killed process left not yet whole."""
    return [path for path in folder.glob(TEMPORARY) if LEFT.fullmatch(path.name) and path.is_file()]


def parse_json(data: bytes | str) -> Any:
    """Read JSON; a ValueError also where it is nested too deeply to be read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut, where the system can."""
    with suppress(OSError):  # some file systems refuse to open or sync folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, or find out before a long computation that its results could not be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
    require(os.access(folder, os.W_OK), f"cannot write to {folder}: it is protected; choose another folder")


def read_text(path: Path, what: str = "") -> str:
    """Read a UTF-8 text file, with or without a byte order mark; a UserError names it `what` and says why it cannot."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read {what}{path}: {reason}") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file as `write_atomic` does, in a folder that is made where it is missing."""
    make_folder(path.parent)
    write_atomic(path, text.encode())


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
