"""Processes that die at a chosen moment of writing, and runs that must end as if they had not."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fuzz_limits import FORK
from fuzz_targets import RUNS
from run_folders import assert_same_run, metrics

from dqn_memory.runs.kinds import trainer_class

CHECKPOINTS = {"q_network": "50", "unizero": "40", "glam": "16", "ppo": "128", "pqn": "128"}  # steps
DEAD = 9  # exit code of a process that was killed at its moment


@contextmanager
def dies_at(moment: int, after: bool) -> Iterator[Callable[[], int]]:
    """End this process at its `moment`-th fsync, replace, unlink or mkdir, before it or after; gives their count."""
    count = 0
    originals = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "mkdir", "rename", "ftruncate")}

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

    for name, original in originals.items():
        setattr(os, name, partial(counted, original))
    try:
        yield lambda: count
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def forked(work: Callable[[], object], log: Path) -> int | None:
    """Do a piece of work in a forked process; gives its exit code. What it says goes to a file."""

    def telling() -> None:
        sys.stdout = sys.stderr = log.open("a", buffering=1)  # pytest's own would swallow what is said
        for stream in (1, 2):
            os.dup2(sys.stdout.fileno(), stream)
        work()

    child = FORK.Process(target=telling)
    child.start()
    child.join()
    return child.exitcode


def count_moments(work: Callable[[], object], log: Path) -> int:
    """Count the moments of a piece of work, in a process of its own."""
    found = log.with_name("moments")

    def counted() -> None:
        with dies_at(-1, False) as count:
            work()
            found.write_text(str(count()))

    assert forked(counted, log) == 0, log.read_text()[-2000:]
    return int(found.read_text())


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
