"""Write files atomically, and read the files of other people safely.

A run, a study or an archive may come from a stranger. Only regular files in it are opened, up to a size, and never
through a link. The folder that the user gives may itself be a link.
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

TEMPORARY = ".*.tmp"  # name of a file that is still being written
LEFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")  # name of a temporary file of this suite
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')  # characters that Windows forbids in names
DEVICES = re.compile("con|prn|aux|nul|(com|lpt)[0-9]", re.I)  # names of devices on Windows
MAX_BYTES = 1 << 30  # maximum of a file that is read into memory, such as a run's log
MAX_TEXT_BYTES = 1 << 26  # maximum of a file of settings or facts
SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK"))  # flags; Windows has none of them


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system, such as a full disk, into a UserError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write {path}: {reason}; older files are unchanged") from error


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path`; readers and crashes see either the old file or the new one.

    Raises:
        UserError: writing failed; the old file stays and the temporary file is removed.
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
    """Open a regular file as `open` does; never wait for a pipe, and use a link only with `follow`.

    Raises:
        OSError: opening failed, or the path is no regular file.
    """

    def opener(name: str, flags: int) -> int:
        status = None
        with suppress(FileNotFoundError):
            status = os.stat(name) if follow else os.lstat(name)
        if status is not None:
            _check_regular(name, status.st_mode)
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
    """Read a regular file; an OSError if it has more than `limit` bytes, or is a link without `follow`."""
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
    """Raise a UserError if an entry of `folder` that should be a folder, such as checkpoints, is a link or a file."""
    for path in (folder / name for name in names):
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            what = "a link" if path.is_symlink() else "no folder"
            raise UserError(f"{path} is {what}; it must be a folder inside {folder}, so put the folder itself there")


def make_inside(folder: Path, name: str) -> Path:
    """Make a folder inside `folder`, with the errors of `check_inside` and `disk_errors`."""
    check_inside(folder, name)
    with disk_errors(folder / name):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return folder / name


def portable_name(text: str) -> str:
    """Turn a text into a name that every system allows: no separators, no : or *, no device of Windows."""
    name = FORBIDDEN.sub("-", text).rstrip(". ") or "-"
    return f"_{name}" if DEVICES.fullmatch(name.partition(".")[0].rstrip()) else name


def leftovers(folder: Path) -> list[Path]:
    """List the temporary files of killed processes."""
    return [path for path in folder.glob(TEMPORARY) if LEFT.fullmatch(path.name) and is_file(path)]


def is_file(path: Path) -> bool:
    """Tell whether a path is a regular file and no link."""
    return path.is_file() and not path.is_symlink()


def parse_json(data: bytes | str) -> Any:
    """Read JSON; a ValueError also if it is nested too deeply, or an object has a key twice."""
    try:
        return json.loads(data, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object has two entries {next(key for key in keys if keys.count(key) > 1)!r:.99}")
    return entries


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, if the file system can."""
    with suppress(OSError):  # some file systems refuse to open or sync folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder that results can be written to; call it before a long computation."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
    require(os.access(folder, os.W_OK), f"cannot write to {folder}: it is protected; choose another folder")


def read_text(path: Path, what: str = "", follow: bool = True) -> str:
    """Read a UTF-8 text file, with or without a byte order mark; a UserError calls it `what` and gives the reason.

    A file that the user gives may be a link; a file inside a run or a study may not (`follow=False`).
    """
    try:
        text = read_bytes(path, MAX_TEXT_BYTES, follow).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")  # as Python's text mode does
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read {what}{path}: {reason}") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file as `write_atomic` does; make its folder if it is missing."""
    make_folder(path.parent)
    write_atomic(path, text.encode())


def sha256(data: bytes) -> str:
    """Return the hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()
