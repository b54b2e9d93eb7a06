"""Change files at random and look for what breaks: `make fuzz MINUTES=10`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from fuzz_limits import tried
from fuzz_targets import TARGETS, run_folders


@dataclass(frozen=True)
class Args:
    """Try changed files until the time is over; exit code 1 where one of them broke something."""

    minutes: float = 10.0
    """How long."""
    seed: int = 0
    """Seed of the first case; each case has the next one."""
    only: tuple[str, ...] = ()
    """Kinds of files (none given: all)."""
    cases: int = 0
    """Cases after which it ends (0: the time alone decides)."""


def main() -> None:
    """Try, count by kind, and print what broke with its seed."""
    args = tyro.cli(Args, prog="make fuzz")
    torch.set_num_threads(1)
    kinds = args.only or tuple(TARGETS)
    run_folders()
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    until, seed = time.monotonic() + 60 * args.minutes, args.seed
    while time.monotonic() < until and (not args.cases or seed < args.seed + args.cases):
        kind = kinds[seed % len(kinds)]
        with tempfile.TemporaryDirectory() as folder:
            outcome = tried(TARGETS[kind].case(seed, Path(folder)))
        counts[kind][outcome.word] += 1
        if outcome.bad:
            print(f"{kind}, seed {seed}: {outcome.word} {outcome.detail}", flush=True)
        seed += 1
    for kind, found in counts.items():
        print(f"{kind:16}" + "  ".join(f"{number} {word}" for word, number in sorted(found.items())))
    sys.exit(any(set(found) - {"accepted", "refused"} for found in counts.values()))


if __name__ == "__main__":
    main()
