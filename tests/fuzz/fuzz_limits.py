"""One case in a process of its own, with a limit on its time and a measure of its memory."""

import contextlib
import multiprocessing
import os
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dqn_memory.runs.errors import UserError

FORK = multiprocessing.get_context("fork")
MOST_SECONDS = 5  # of the processor
MOST_GROWTH = 500  # megabytes
CEILING = 3 << 30  # bytes above what the process has when the case begins, so that no case takes the machine


@dataclass(frozen=True)
class Outcome:
    """What became of a case: accepted, refused, or one of the ways in which it must not end."""

    word: str  # accepted, refused, traceback, slow, memory, killed
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.word not in ("accepted", "refused")


def tried(case: Callable[[], object]) -> Outcome:
    """Carry out a case in a forked process."""
    reader, writer = FORK.Pipe(duplex=False)
    child = FORK.Process(target=lambda: writer.send(_carried_out(case)))
    child.start()
    writer.close()
    found = None
    with contextlib.suppress(EOFError):  # it died before it could say anything
        found = reader.recv()
    child.join()
    return found or Outcome("slow" if child.exitcode == -signal.SIGXCPU else "killed", f"exit code {child.exitcode}")


def _carried_out(case: Callable[[], object]) -> Outcome:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + CEILING,) * 2)
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (spent + MOST_SECONDS, spent + MOST_SECONDS + 5))
    before, null = _peak(), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    try:
        case()
        word, detail = "accepted", ""
    except UserError as error:
        word, detail = "refused", str(error)
        if "\n" in detail:
            word = "traceback"
    except SystemExit as error:
        word, detail = ("accepted" if error.code in (0, None) else "refused"), ""
    except BaseException:
        word, detail = "traceback", traceback.format_exc()
    grown = _peak() - before
    return Outcome("memory", f"{grown} MB") if grown > MOST_GROWTH else Outcome(word, detail)


def _peak() -> int:
    """Give the most memory that this process had at once, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))
