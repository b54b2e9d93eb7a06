"""Change files at random, kill runs at every moment of writing, and look for what breaks: `make fuzz MINUTES=10`."""

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import tyro
from fuzz_crash import Crashes
from fuzz_foreign import TARGETS
from fuzz_limits import Outcome, tried
from fuzz_targets import RUNS, run_folders

DEATHS = {f"death of {kind}": kind for kind in RUNS}


@dataclass(frozen=True)
class Args:
    """Try one case after another until the time is over; exit code 1 where one of them broke something."""

    minutes: float = 10.0
    """How long."""
    seed: int = 0
    """Seed of the first case; each case has the next one."""
    only: tuple[str, ...] = ()
    """Kinds of cases, such as yaml or "death of glam" (none given: all)."""
    cases: int = 0
    """Cases after which it ends (0: the time alone decides)."""


def main() -> None:
    """Try, count by kind, and print what broke with its seed."""
    args = tyro.cli(Args, prog="make fuzz")
    torch.set_num_threads(1)
    kinds = args.only or (*TARGETS, *DEATHS)
    run_folders()
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    until, seed = time.monotonic() + 60 * args.minutes, args.seed
    while time.monotonic() < until and (not args.cases or seed < args.seed + args.cases):
        kind, number = kinds[seed % len(kinds)], seed // len(kinds)
        outcome = death(DEATHS[kind], number) if kind in DEATHS else changed(kind, seed)
        counts[kind][outcome.word] += 1
        if outcome.bad:
            print(f"{kind}, seed {seed}: {outcome.word} {outcome.detail}", flush=True)
        seed += 1
    for kind, found in counts.items():
        print(f"{kind:20}" + "  ".join(f"{number} {word}" for word, number in sorted(found.items())))
    sys.exit(any(set(found) - {"accepted", "refused"} for found in counts.values()))


def changed(kind: str, seed: int) -> Outcome:
    """Try a changed file."""
    with tempfile.TemporaryDirectory() as folder:
        return tried(TARGETS[kind].case(seed, Path(folder)))


@cache
def crashes(kind: str) -> Crashes:
    """Make the run that no death interrupts."""
    return Crashes(kind, Path(tempfile.mkdtemp(prefix="fuzz-deaths-")))


def death(kind: str, number: int) -> Outcome:
    """Kill a run at one moment after the other, before it and after."""
    runs = crashes(kind)
    try:
        runs.die(1 + number // 2 % runs.moments, number % 2 == 1)
    except AssertionError as error:
        return Outcome("traceback", str(error))
    return Outcome("accepted")


if __name__ == "__main__":
    main()
