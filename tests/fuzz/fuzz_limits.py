"""One case in a process of its own, with a limit on its time and a measure of its memory."""

import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from dqn_memory.runs.errors import UserError

FORK = multiprocessing.get_context("fork")
MOST_SECONDS = 5  # of the processor
MOST_WAIT = 30  # seconds on the clock, of a machine that others use too
MOST_GROWTH = 500  # megabytes
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # but for tab and line feed
CEILING = 3 << 30  # bytes above what the process has when the case begins, so that no case takes the machine


@dataclass(frozen=True)
class Outcome:
    """What became of a case: accepted, refused, or one of the ways in which it must not end."""

    word: str  # accepted, refused, traceback, slow, hangs, memory, killed, several lines, ...
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.word not in ("accepted", "refused")


def tried(case: Callable[[], object]) -> Outcome:
    """Carry out a case in a forked process, and look at what it printed and left behind."""
    reader, writer = FORK.Pipe(duplex=False)
    with tempfile.TemporaryFile() as output:
        child = FORK.Process(target=lambda: writer.send(_carried_out(case, output.fileno())))
        child.start()
        writer.close()
        found = _answer(reader, child)
        child.join()
        output.seek(0)
        printed = output.read().decode(errors="replace")
    left = _group_left(child.pid)
    if found is None:
        found = Outcome("slow" if child.exitcode == -signal.SIGXCPU else "killed", f"exit code {child.exitcode}")
    if not found.bad and left:
        return Outcome("left processes", found.detail)
    if found.word == "refused" and printed.rpartition("error: ")[2].strip().count("\n") and "error: " in printed:
        return Outcome("several lines", printed[-2000:])
    if not found.bad and (control := CONTROL.search(printed + found.detail)):
        return Outcome("control characters", repr(control[0]) + " in " + repr(printed[-2000:] + found.detail))
    return found


def _answer(reader: Connection, child: multiprocessing.process.BaseProcess) -> Outcome | None:
    """Wait for what the child says; None where it died before it could say anything."""
    if not reader.poll(MOST_WAIT):
        child.kill()
        return Outcome("hangs", f"for {MOST_WAIT} s")
    try:
        return reader.recv()
    except EOFError:
        return None


def _group_left(group: int) -> bool:
    """End the processes that a case has left, and say whether there were any."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _carried_out(case: Callable[[], object], output: int) -> Outcome:
    os.setpgid(0, 0)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + CEILING,) * 2)
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (spent + MOST_SECONDS, spent + MOST_SECONDS + 5))
    before = _peak()
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  # pytest's own would swallow it
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
