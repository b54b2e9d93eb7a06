"""Files that a reader, and a crash, sees whole or not at all; those of others are read with care.

A run, a study or an archive may come from a stranger. Only regular files in it are opened, through no link, and only up
to a size. The folder that a user names may itself be a link.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from envs.errors import UserError, require

TEMPORARY = ".*.tmp"  # what a file is called that is not yet whole
LEFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")  # such a file of ours, and nobody else's
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # in a file's name, by Windows
DEVICES = re.compile("con|prn|aux|nul|(com|lpt)[0-9]", re.I)  # names that stand for no file there
MAX_BYTES = 1 << 30  # of a file that is read whole, such as the log of a run
MAX_TEXT_BYTES = 1 << 26  # bytes of a file that holds settings or facts
SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK"))  # flags; Windows has none of them


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
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def open_file(path: Path, mode: str = "rb", follow: bool = False, **others: Any) -> IO[Any]:
    """Open a regular file as `open` does, without waiting for a pipe and through no link unless it may `follow` one.

    Raises:
        OSError: the system refuses, or something else than a file stands there.
    """

    def opener(name: str, flags: int) -> int:
        found = None
        with suppress(FileNotFoundError):
            found = os.stat(name) if follow else os.lstat(name)
        if found is not None:
            _check_regular(name, found.st_mode)
        nofollow = getattr(os, "O_NOFOLLOW", 0) if follow else 0
        descriptor = os.open(name, flags | (SAFELY & ~nofollow), 0o666)
        try:
            _check_regular(name, os.fstat(descriptor).st_mode)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    return open(path, mode, opener=opener, **others)


def _check_regular(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise OSError(errno.EINVAL, f"it is {what}, not a regular file", name)


def read_bytes(path: Path, limit: int = MAX_BYTES, follow: bool = False) -> bytes:
    """Read a regular file; an OSError also where it has more than `limit` bytes, or is a link and `follow` is False."""
    with open_file(path, "rb", follow, buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; such a file has at most {limit:,}", str(path))
        try:
            data: bytes = file.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, f"its {size:,} bytes do not fit into memory", str(path)) from None
        return data


def check_inside(folder: Path, *names: str) -> None:
    """Raise a UserError where what should be a folder inside `folder`, such as checkpoints, is a link or no folder."""
    for path in (folder / name for name in names):
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            what = "a link" if path.is_symlink() else "no folder"
            raise UserError(f"{path} is {what}, where a folder inside {folder} belongs: put the folder itself there")


def make_inside(folder: Path, name: str) -> Path:
    """Make a folder inside one of ours; a UserError as `check_inside` and `disk_errors` raise it."""
    check_inside(folder, name)
    with disk_errors(folder / name):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return folder / name


def portable_name(text: str) -> str:
    """Write a text as one part of a path that every system allows: no separators, no : or *, no device of Windows."""
    name = FORBIDDEN.sub("-", text).rstrip(". ") or "-"
    return f"_{name}" if DEVICES.fullmatch(name.partition(".")[0].rstrip()) else name


def leftovers(folder: Path) -> list[Path]:
    """List files that a killed process left not yet whole."""
    return [path for path in folder.glob(TEMPORARY) if LEFT.fullmatch(path.name) and is_file(path)]


def is_file(path: Path) -> bool:
    """Tell whether a regular file stands there, and no link to one."""
    return path.is_file() and not path.is_symlink()


def parse_json(data: bytes | str) -> Any:
    """Read JSON; a ValueError also where it is nested too deeply to be read, or an object names a key twice."""
    try:
        return json.loads(data, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object has two entries {next(key for key in keys if keys.count(key) > 1)!r:.99}")
    return found


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


def read_text(path: Path, what: str = "", follow: bool = True) -> str:
    """Read a UTF-8 text file, with or without a byte order mark; a UserError names it `what` and says why it cannot.

    A file that the user names may be a link; one inside a run or a study may not (`follow=False`).
    """
    try:
        text = read_bytes(path, MAX_TEXT_BYTES, follow).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")  # as text is read elsewhere
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
