"""What the tests of studies share: a study of tiny trainers in a folder of its own, as a command to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dqn_memory.study import store

TESTS = Path(__file__).resolve().parent
VOLATILE = ("time/", "charts/SPS")
TINY = """
title = "Tiny"
kind = "tiny_trainer"
[base]
pause = 0.02
[axes]
world = ["POMDP/Hallway-v0", "POMDP/HeavenHell-v0"]
architecture = ["a", "bb"]
seed = [1, 2]
"""

COMMAND = (sys.executable, "-m", "dqn_memory.study.run")


def environment() -> dict[str, str]:
    """The tiny trainer is a distribution of its own: the command and its workers find it through its entry point."""
    path = os.pathsep.join([str(TESTS / "tiny"), str(TESTS.parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def start(study: Path | str, folder: Path, *flags: str) -> subprocess.Popen[str]:
    """`study.run` in a process of its own, in the background; Ctrl-C reaches it even where these tests ignore it."""
    return subprocess.Popen(
        [*COMMAND, str(study), "--folder", str(folder), "--backend", "processes", *flags],
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip


def carry_out(study: Path | str, folder: Path, *flags: str, code: int = 0) -> str:
    """`study.run` to its end; returns what it said."""
    process = start(study, folder, *flags)
    said = process.communicate(timeout=100)[0]
    assert process.returncode == code, said
    return said


def results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Metrics of all runs, but for times."""
    found = {}
    for path in sorted((folder / "runs").glob("*/metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = [{k: v for k, v in x.items() if not k.startswith(VOLATILE)} for x in lines]
    return found


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    """Until `condition()` is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def kill_trainers(folder: Path, most: int) -> None:
    """End up to `most` trainers of a study that are at work."""
    for name in at_work(folder)[:most]:
        kill_trainer(folder / "runs" / name)


def kill_trainer(folder: Path) -> None:
    """End the process that trains into this run folder, whose command line names it."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def at_work(folder: Path) -> list[str]:
    """Runs that are being trained."""
    locked = [path for path in sorted((folder / "locks").glob("*")) if path.name != "study.lock"]
    return [path.name for path in locked if store.lock_holder(path) is not None]


def wait_for_lines(folder: Path, goal: int, process: subprocess.Popen[str]) -> None:
    """Until the runs have logged so many lines, or the study has ended."""
    wait_for(lambda: logged(folder) >= goal or process.poll() is not None)


def logged(folder: Path) -> int:
    """Metric lines of all runs so far."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/metrics.jsonl"))
