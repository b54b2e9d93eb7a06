"""Processes that die at a chosen moment of writing, and runs that must end as if they had not."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

DEAD = 9  # exit code of a process that was killed at its moment


@contextmanager
def dies_at(moment: int, after: bool) -> Iterator[Callable[[], int]]:
    """End this process at its `moment`-th fsync, replace, unlink or mkdir, before it or after; gives their count."""
    count = 0
    places = [(os, "fsync"), (os, "replace"), (os, "unlink"), (os, "mkdir"), (os, "rename"), (os, "ftruncate")]
    originals = [getattr(holder, name) for holder, name in places]

    def counted(original: Callable[..., object], *arguments: object, **keywords: object) -> object:
        nonlocal count
        count += 1
        if count == moment and not after:
            os._exit(DEAD)
        try:
            return original(*arguments, **keywords)
        finally:
            if count == moment:
                os._exit(DEAD)

    for (holder, name), original in zip(places, originals, strict=True):
        setattr(holder, name, partial(counted, original))
    try:
        yield lambda: count
    finally:
        for (holder, name), original in zip(places, originals, strict=True):
            setattr(holder, name, original)


def forked(work: Callable[[], object], log: Path) -> int:
    """Do a piece of work in a forked process; gives its exit code. What it says goes to a file."""
    child = os.fork()
    if child == 0:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        try:
            work()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def count_moments(work: Callable[[], object], log: Path) -> int:
    """Count the moments of a piece of work, in a process of its own."""
    reader, writer = os.pipe()

    def counted() -> None:
        with dies_at(-1, False) as count:
            work()
            os.write(writer, str(count()).encode())

    code = forked(counted, log)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = pipe.read()
    assert code == 0, log.read_text()[-2000:]
    return int(found)
