"""Log scalars over environment steps: into metrics.jsonl for programs, to trackers for people."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dqn_memory.runs.errors import UserError, train_anew
from dqn_memory.runs.trackers import NONE, TRACKERS, TensorBoard, Tracker
from envs.console import say
from envs.extras import has_extra, missing
from envs.files import disk_errors, open_file, parse_json, read_bytes, sha256

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from envs.core import Step
    from envs.spaces import Array

METRICS = "metrics.jsonl"
RAW = ("config.toml", "environment.json", METRICS)  # small files of a run, besides its checkpoints
TIMES = ("time/elapsed", "time/processor")
RECENT = 100  # episodes that charts/success_rate averages
INT64_END = 2**63  # the first whole number above 64 bits
FINAL = "final/"  # prefix of the metrics of the final evaluation


class Metrics:
    """Appends lines to metrics.jsonl. The file is opened at the first line, so that reading a run writes nothing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self._resumed: int | None = None
        self._file: IO[bytes] | None = None
        self._trackers: list[Tracker] = []

    def track(self, names: Sequence[str]) -> None:
        """Pass each later line to these trackers."""
        if "tensorboard" in names and not has_extra("tensorboard"):  # beside other trackers it is an error
            names = [name for name in names if name != "tensorboard"]
            say(f"scalars go into {METRICS} alone: {missing('tensorboard', 'tensorboard')}", file=sys.stderr)
        with disk_errors(self.path.parent):
            self._trackers += [TRACKERS[name](self.path.parent, self._resumed) for name in names if name != NONE]

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add one line, and pass it to the trackers; the file holds null for a number that is not finite."""
        values = {name: _number(value) for name, value in scalars.items()}
        with disk_errors(self.path):
            if self._file is None:
                self._file = open_file(self.path, "ab")
            self._file.write(metrics_line(step, values))
            self._file.flush()
            for tracker in self._trackers:
                tracker.log(step, values)

    def log_histograms(self, step: int, values: Mapping[str, Array]) -> None:
        """Pass histograms of these arrays to TensorBoard."""
        with disk_errors(self.path.parent):
            for tracker in self._trackers:
                if isinstance(tracker, TensorBoard):
                    tracker.log_histograms(step, values)

    def flush(self) -> bytes:
        """Write all lines to the disk, and return them."""
        with disk_errors(self.path):
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
            return read_bytes(self.path) if os.path.lexists(self.path) else b""

    def truncate(self, length: int, step: int, digest: str | None = None) -> None:
        """Cut the file to `length` bytes; later trackers learn that the run continues from `step`.

        Raises:
            UserError: the file is shorter, or its SHA-256 is not `digest` (None: unknown).
        """
        self.close()
        present = self.flush()
        advice = train_anew(self.path.parent)
        if len(present) < length:
            raise UserError(
                f"{self.path} is damaged: it has {len(present)} bytes, fewer than the saved {length}; {advice}"
            )
        if digest not in (None, sha256(present[:length])):
            raise UserError(f"{self.path} is damaged: its first {length} bytes have changed since the save; {advice}")
        with disk_errors(self.path), open_file(self.path, "ab") as file:
            file.truncate(length)
            os.fsync(file.fileno())
        self._resumed = step

    def close(self) -> None:
        """Close the file and the trackers."""
        file, trackers, self._file, self._trackers = self._file, self._trackers, None, []
        with disk_errors(self.path), ExitStack() as stack:
            for opened in (file, *trackers):
                if opened is not None:
                    stack.callback(opened.close)


def metrics_line(step: int, scalars: Mapping[str, float]) -> bytes:
    """Encode scalars as one line with a JSON object."""
    numbers = {name: _number(value) for name, value in scalars.items()}
    values = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
    return json.dumps({"step": step, **values}, allow_nan=False).encode() + b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines of a metrics.jsonl; a line that a kill cut short is left out.

    Raises:
        UserError: a line is not an object of numbers (or null) with a step; the error names the first one.
    """
    try:
        lines = read_bytes(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    return [_parsed(path, number, line) for number, line in enumerate(lines, 1)]


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        parsed = parse_json(line)
    except ValueError:  # includes bytes that are no text
        parsed = None
    if not is_line(parsed):
        raise UserError(f"{path} is damaged: line {number} is not a JSON object of numbers with a step")
    return parsed


def checked_facts(facts: Any) -> dict[str, Any]:
    """Check the facts in environment.json; a ValueError names the first one of another form."""
    if not isinstance(facts, dict):
        raise ValueError("it is not a JSON object")
    for name, fact in facts.items():
        if not (fact is None or isinstance(fact, str | bool) or is_number(fact)):
            raise ValueError(f"its fact {name!r:.99} is no text, number or truth value")
    if not isinstance(facts.get("command", ""), str):
        raise ValueError("its command is no text")
    return facts


def is_line(value: Any) -> bool:
    """Tell whether a value has the form of a log line: a step, and finite numbers or null by name."""
    if not isinstance(value, dict) or not is_count(value.get("step")):
        return False
    return all(each is None or is_number(each) for each in value.values())


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number that 64 bits hold."""
    return (type(value) is int and -INT64_END <= value < INT64_END) or (type(value) is float and math.isfinite(value))


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number from 0 to below 2**63."""
    return type(value) is int and 0 <= value < INT64_END


def _number(value: Any) -> float | int:
    return value if isinstance(value, int) and not isinstance(value, bool) else float(value)


@dataclass
class Ended:
    """Ends of episodes in T steps of N environments."""

    done: Tensor  # (T, N)
    success: Tensor  # (T, N)
    episode_return: Tensor  # (T, N)
    episode_length: Tensor  # (T, N)


class EpisodeStats:
    """Counts of the episodes of training."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=RECENT)  # success of the newest ones
        self.finished = (0, 0.0, 0.0)  # since the last log line: number, sums of returns and of lengths

    def count(self, success: float, returned: float, length: float) -> None:
        """Add one episode."""
        number, returns, lengths = self.finished
        self.finished = number + 1, returns + returned, lengths + length
        self.recent.append(success)

    def scalars(self) -> dict[str, float]:
        """Give the success rate of the newest episodes, and the means since the last call."""
        scalars = {"charts/success_rate": sum(self.recent) / len(self.recent)} if self.recent else {}
        number, *sums = self.finished
        if number:
            names = "charts/episodic_return", "charts/episodic_length"
            scalars |= {name: total / number for name, total in zip(names, sums, strict=True)}
        self.finished = (0, 0.0, 0.0)
        return scalars

    def state_dict(self) -> dict[str, Any]:
        """Give the state as plain values."""
        return {"recent": list(self.recent), "finished": list(self.finished)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self.recent = deque(map(float, state["recent"]), maxlen=RECENT)
        number, returned, length = state["finished"]
        self.finished = int(number), float(returned), float(length)


class RunStats:
    """Sums and counts of a run. A checkpoint holds them, so that a resumed run logs the same numbers.

    `rows` has the number of rows of each environment by id, if there are several.
    """

    def __init__(
        self,
        device: torch.device,
        loss: str = "losses/td_loss",
        norm: str = "grad/norm",
        rate: str = "--learning-rate",
        rows: Mapping[str, int] | None = None,
    ) -> None:
        import torch  # here, as reading metrics needs no torch

        self.loss, self.norm = loss, norm  # metrics that must stay finite
        self.rate = rate  # flag of the learning rate, named in an error
        self.episodes = EpisodeStats()
        self.each = {id: EpisodeStats() for id in rows or {}}
        self.owners = [self.each[id] for id, count in (rows or {}).items() for _ in range(count)]  # of the rows
        self.sums: dict[str, Tensor] = {}
        self.summed = 0
        self.broken_at = torch.full((), -1, dtype=torch.int64, device=device)  # step of the first non-finite update

    def count_update(self, metrics: Mapping[str, Tensor], step: int) -> None:
        """Add the metrics of one update, or of U updates (U,), without waiting for the device."""
        finite = metrics[self.loss].isfinite().all() & metrics[self.norm].isfinite().all()
        self.broken_at = self.broken_at.where(finite | (self.broken_at >= 0), step)
        self.sums = {name: self.sums.get(name, 0) + value.sum() for name, value in metrics.items()}
        self.summed += metrics[self.loss].numel()

    def count_episodes(self, step: Step | Ended) -> None:
        """Add the episodes that ended in this step, or in several steps.

        Raises:
            UserError: an earlier update was not finite; this is checked on a CPU alone, where nothing waits for it.
        """
        if self.broken_at.device.type == "cpu":
            self.check_finite()
        rows = step.done.flatten().nonzero().flatten().tolist()
        if rows:
            returns, lengths = step.episode_return.flatten().tolist(), step.episode_length.flatten().tolist()
            success = step.success.flatten().tolist()
            for row in rows:
                outcome = float(success[row]), returns[row], lengths[row]
                self.episodes.count(*outcome)
                if self.owners:
                    self.owners[row % len(self.owners)].count(*outcome)

    def scalars(self) -> dict[str, float]:
        """Give the means since the last call, and the success rate of the newest episodes; start new means."""
        self.check_finite()
        scalars = {name: float(value) / self.summed for name, value in self.sums.items()}
        self.sums, self.summed = {}, 0
        each = {f"{name}/{id}": value for id, stats in self.each.items() for name, value in stats.scalars().items()}
        return scalars | self.episodes.scalars() | each

    def check_finite(self) -> None:
        """Raise a UserError if a loss or a gradient was not finite; checkpoints call this first."""
        if int(self.broken_at) >= 0:
            raise UserError(
                f"the loss or its gradient was not finite at step {int(self.broken_at)}, which no checkpoint "
                "holds: look for observations or rewards that are not finite (in a World by "
                f"envs.checker.check_registered), or try a smaller {self.rate} in a new run"
            )

    def state_dict(self) -> dict[str, Any]:
        """Give the state as plain values and tensors."""
        each = {"each": {id: stats.state_dict() for id, stats in self.each.items()}} if self.each else {}
        sums = {"sums": self.sums, "summed": self.summed, "broken_at": self.broken_at}
        return self.episodes.state_dict() | sums | each

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        device = self.broken_at.device
        self.episodes.load_state_dict(state)
        for id, stats in self.each.items():
            stats.load_state_dict(state["each"][id])
        self.summed = state["summed"]
        self.sums = {name: value.to(device).reshape(()) for name, value in state["sums"].items()}
        self.broken_at = state["broken_at"].to(device)


class Clock:
    """Seconds of a run, including its earlier processes (from `saved` and the log)."""

    def __init__(self) -> None:
        self.saved: Mapping[str, Any] = {}  # times in the checkpoint from which the run continues
        self.begin([])

    def begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Start at the times of the run's earlier processes; `lines` are their log lines."""
        earlier = [self.saved, *lines]
        self._before = {name: max(float(line.get(name, 0.0)) for line in earlier) for name in TIMES}
        self._began, self._busy = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        """Seconds since this process opened the run."""
        return time.monotonic() - self._began

    def scalars(self) -> dict[str, float]:
        """Give wall-clock and processor seconds; other work on the machine lengthens only the first."""
        now = (self.seconds, time.process_time() - self._busy)
        return {name: self._before[name] + value for name, value in zip(TIMES, now, strict=True)}
