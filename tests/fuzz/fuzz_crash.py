"""Processes that die at a chosen moment of writing, and runs that must end as if they had not."""

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fuzz_targets import RUNS
from run_folders import assert_same_run, metrics

from dqn_memory.runs.kinds import trainer_class

CHECKPOINTS = {"q_network": "50", "unizero": "40", "glam": "16"}  # environment steps between them
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
        sys.stdout = sys.stderr = log.open("a", buffering=1)  # pytest's own would swallow what is said
        for stream in (1, 2):
            os.dup2(sys.stdout.fileno(), stream)
        try:
            work()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
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


class Crashes:
    """Runs of one kind that die at a moment, and one that does not."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.log = kind, folder, folder / "log"
        self.main: Callable[[list[str]], None] = trainer_class(kind).main
        folder.mkdir(parents=True, exist_ok=True)
        self.finish(folder / "whole")
        self.moments = count_moments(partial(self.main, self.flags(folder / "counted")), self.log)

    def flags(self, run: Path) -> list[str]:
        """Give the command line of a fresh run."""
        return RUNS[self.kind](run, "--checkpoint-every", CHECKPOINTS[self.kind])

    def finish(self, run: Path) -> None:
        """Start a run, or resume it where it was begun, until it ends."""
        begun = (run / "config.toml").exists()
        self.log.unlink(missing_ok=True)
        code = forked(partial(self.main, ["--resume", str(run)] if begun else self.flags(run)), self.log)
        said = self.log.read_text()
        assert code == 0 or "is complete at" in said, said[-3000:]

    def die(self, moment: int, after: bool) -> None:
        """Kill a run at a moment, before it or after, finish it, and compare it with the one that nobody killed."""
        run = self.folder / f"died-{moment}-{after}"

        def dying() -> None:
            with dies_at(moment, after):
                self.main(self.flags(run))

        assert forked(dying, self.log) == DEAD, (moment, after)
        self.finish(run)
        assert metrics(run) == metrics(self.folder / "whole"), (moment, after)
        assert_same_run(self.folder / "whole", run)
        assert not list(run.rglob("*.tmp")), (moment, after)
        shutil.rmtree(run)
