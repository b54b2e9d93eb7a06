"""Scalars over environment steps: metrics.jsonl for programs, TensorBoard events for people."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.files import disk_errors
from dqn_memory.runs.migration import new_metric

if TYPE_CHECKING:
    from io import BufferedWriter

    from torch.utils.tensorboard import SummaryWriter


FINAL = "final/"  # how the names of a finished run's last evaluation begin


class Metrics:
    """Appends to both files; opens them with the first line, so that reading a run writes nothing."""

    def __init__(self, folder: Path, tensorboard: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        self._folder, self._tensorboard = folder, tensorboard
        self._purge_step: int | None = None
        self._file: BufferedWriter | None = None
        self._events: SummaryWriter | None = None

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add one line; a number that is not finite is written as null."""
        with disk_errors(self.path):
            if self._file is None:
                self._open()
            assert self._file is not None
            self._file.write(metrics_line(step, scalars))
            self._file.flush()
            if self._events is not None:
                for name, value in scalars.items():
                    self._events.add_scalar(name, float(value), step)

    def settle(self) -> int:
        """Put all lines on the disk; returns the file's length in bytes."""
        with disk_errors(self.path):
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
            if self._events is not None:
                self._events.flush()
            return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, length: int, step: int) -> None:
        """Go back to `length` bytes, and let TensorBoard forget what it saw after `step`."""
        self.close()
        present = self.path.stat().st_size if self.path.exists() else 0
        if present < length:
            raise UserError(f"{self.path} is damaged: it has {present} bytes, fewer than the saved {length}")
        with disk_errors(self.path), self.path.open("ab") as file:
            file.truncate(length)
            os.fsync(file.fileno())
        self._purge_step = step + 1

    def close(self) -> None:
        """Write what is pending and let go of both files."""
        file, events, self._file, self._events = self._file, self._events, None, None
        with disk_errors(self.path), ExitStack() as both:
            for opened in (file, events):
                if opened is not None:
                    both.callback(opened.close)

    def _open(self) -> None:
        self._file = self.path.open("ab")
        if not self._tensorboard:
            return
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and not needed to read a run

        self._events = SummaryWriter(str(self._folder), purge_step=self._purge_step)


def metrics_line(step: int, scalars: Mapping[str, float]) -> bytes:
    """One JSON object on a line of its own."""
    values = {name: _plain(value) for name, value in scalars.items()}
    return json.dumps({"step": step, **values}, allow_nan=False).encode() + b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics.jsonl; a line that a kill cut short is left out.

    Raises UserError naming the first line that is not an object with a step.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    return [_parsed(path, number, line) for number, line in enumerate(lines, 1)]


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:  # also bytes that are no text
        parsed = None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("step"), int):
        raise UserError(f"{path} is damaged: line {number} is not a JSON object with a step")
    return {new_metric(name): value for name, value in parsed.items()}


def _plain(value: Any) -> float | int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
