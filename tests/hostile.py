"""What strangers may put into a folder in place of its files: links, pipes, sockets, devices, files without an end."""

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Replace = Callable[[Path, Path], object]  # what stands at a path is gone; the other path is a folder outside


def _moved(path: Path, outside: Path) -> None:
    """Link to a copy of what stood there, so that everything else is right."""
    path.symlink_to(outside / "moved")


def _sparse(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Replace] = {
    "link to a moved file": _moved,
    "link to a diary": lambda path, outside: path.symlink_to(outside / "diary.txt"),
    "link to a folder": lambda path, outside: path.symlink_to(outside / "album"),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "link to itself": lambda path, outside: path.symlink_to(path.name),
    "link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "pipe": lambda path, outside: os.mkfifo(path),
    "socket": lambda path, outside: os.mknod(path, stat.S_IFSOCK | 0o600),
    "folder": lambda path, outside: path.mkdir(),
    "endless file": _sparse,
}


def make_outside(folder: Path) -> Path:
    """Make a folder whose files nobody may change or delete."""
    (folder / "album").mkdir(parents=True)
    (folder / "diary.txt").write_text("dear diary\n")
    (folder / "album" / "manifest.json").write_text("{}")
    (folder / "album" / "step_000000001.pt").write_text("a picture")
    return folder


def put(path: Path, kind: str, outside: Path) -> None:
    """Put something of a kind in place of a file or a folder, which is kept as `moved` outside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        shutil.move(path, outside / "moved")
    KINDS[kind](path, outside)


def seen(folder: Path) -> dict[str, tuple[int, str]]:
    """Tell what is in a folder, without opening anything but its regular files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        small = stat.S_ISREG(mode) and path.lstat().st_size < 1 << 30
        content = path.read_bytes().hex() if small else os.readlink(path) if stat.S_ISLNK(mode) else ""
        found[str(path.relative_to(folder))] = stat.S_IFMT(mode), content
    return found


class Hangs(BaseException):
    """Something does not end; nothing that a script catches."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `Hangs` where something takes longer."""

    def ring(*_: object) -> None:
        raise Hangs(f"it did not end within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
