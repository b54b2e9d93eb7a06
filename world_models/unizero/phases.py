"""Measures the seconds of each phase of an algorithm, without waiting for the device in between."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

ACTING, SEARCH, LEARNING, EVALUATION = PHASES = ("acting", "search", "learning", "evaluation")
BETWEEN = ""  # logging, saving
MOST = 10_000  # marks that are kept before they are added up

Mark = float | torch.cuda.Event


class Stopwatch:
    """Adds up the seconds of each phase since they were last read.

    A phase lasts from its mark to the next one. On a CPU a mark is the time. On CUDA it is an event in the stream of
    kernels, which passes when all earlier kernels have finished: an update's kernels count as learning even if they
    still run when the next search has been launched. Events are read at a log line, with one wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.marks: list[tuple[str, Mark]] = []
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def begin(self, phase: str) -> None:
        """End the phase that is running and begin another."""
        self.marks.append((phase, self._mark()))
        if len(self.marks) > MOST:
            self._add_up()

    def stop(self) -> None:
        """End the phase that is running."""
        self.begin(BETWEEN)

    def scalars(self) -> dict[str, float]:
        """Seconds of all phases since the last call: `time/acting` and its like."""
        self._add_up()
        seconds, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return {f"time/{phase}": value for phase, value in seconds.items()}

    def _mark(self) -> Mark:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _add_up(self) -> None:
        if self.cuda and self.marks:
            torch.cuda.synchronize()
        for (phase, start), (_, end) in pairwise(self.marks):
            if phase != BETWEEN:
                self.seconds[phase] += _between(start, end)
        self.marks = self.marks[-1:]


def _between(start: Mark, end: Mark) -> float:
    if isinstance(start, float) or isinstance(end, float):
        return float(end) - float(start)  # type: ignore[arg-type]
    return start.elapsed_time(end) / 1000
