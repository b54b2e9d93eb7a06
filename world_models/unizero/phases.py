"""Measures the seconds of each phase of an algorithm, without waiting for the device in between."""

import time
from itertools import pairwise
from typing import Any

import torch

ACTING, SEARCH, LEARNING, EVALUATION = PHASES = ("acting", "search", "learning", "evaluation")
BETWEEN = ""  # logging, saving
MOST = 10_000  # marks that are kept before they are added up


class Stopwatch:
    """Adds up the seconds of each phase since they were last read.

    A phase lasts from its mark to the next one. On a CPU a mark is the time. On CUDA it is an event in the stream of
    kernels, which passes when all earlier kernels have finished: an update's kernels count as learning even if they
    still run when the next search has been launched. Events are read at a log line, with one wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.marks: list[tuple[str, Any]] = []
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def begin(self, phase: str) -> None:
        """End the phase that is running and begin another."""
        mark: Any = torch.cuda.Event(enable_timing=True) if self.cuda else time.perf_counter()
        if self.cuda:
            mark.record()
        self.marks.append((phase, mark))
        if len(self.marks) > MOST:
            self._add_up()

    def scalars(self) -> dict[str, float]:
        """Seconds of all phases since the last call: `time/acting` and its like."""
        self._add_up()
        seconds, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return {f"time/{phase}": value for phase, value in seconds.items()}

    def _add_up(self) -> None:
        if self.cuda and self.marks:
            torch.cuda.synchronize()
        for (phase, start), (_, end) in pairwise(self.marks):
            if phase != BETWEEN:
                self.seconds[phase] += start.elapsed_time(end) / 1000 if self.cuda else end - start
        self.marks = self.marks[-1:]
