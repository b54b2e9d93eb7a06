"""What a training run counts between two log lines: losses on the device, episodes on the host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from dqn_memory.td_loss import Metrics
from envs.core import Step

TIMES = ("time/elapsed", "time/processor")
RECENT = 100  # episodes behind charts/success_rate


class Meter:
    """Sums and counts of a run; its state is part of a checkpoint, so that a resumed run logs the same numbers."""

    loss, norm = "losses/td_loss", "grad/norm"  # the metrics that must stay finite
    rate = "--learning-rate"  # the flag of the step size behind them

    def __init__(self, device: torch.device) -> None:
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.finished: list[list[float]] = []  # return, length of episodes since the last log line
        self.sums: dict[str, Tensor] = {}
        self.summed = 0
        self.broken_at = torch.full((), -1, dtype=torch.int64, device=device)  # step of the first non-finite update

    def count_update(self, metrics: Metrics, step: int) -> None:
        """Add one update's metrics without waiting for the device."""
        finite = torch.isfinite(metrics[self.loss]) & torch.isfinite(metrics[self.norm])
        self.broken_at = torch.where(finite | (self.broken_at >= 0), self.broken_at, step)
        self.sums = {name: self.sums.get(name, 0) + value for name, value in metrics.items()}
        self.summed += 1

    def count_episodes(self, step: Step) -> None:
        """Add the episodes that ended with this step."""
        rows = step.done.nonzero().flatten().tolist()
        if rows:
            returns, lengths = step.episode_return.tolist(), step.episode_length.tolist()
            success = step.success.tolist()
            self.finished += [[returns[row], float(lengths[row])] for row in rows]
            self.recent.extend(float(success[row]) for row in rows)

    def scalars(self) -> dict[str, float]:
        """Means since the last call, which start anew, and the success rate of the newest episodes."""
        self.check_finite()
        scalars = {name: float(value) / self.summed for name, value in self.sums.items()}
        if self.recent:
            scalars["charts/success_rate"] = sum(self.recent) / len(self.recent)
        if self.finished:
            for entry, name in enumerate(("charts/episodic_return", "charts/episodic_length")):
                scalars[name] = sum(episode[entry] for episode in self.finished) / len(self.finished)
        self.sums, self.summed, self.finished = {}, 0, []
        return scalars

    def check_finite(self) -> None:
        """Stop a run whose loss or gradient was not finite, before anything broken is saved."""
        if int(self.broken_at) >= 0:
            raise UserError(
                f"the loss or its gradient was not finite at step {int(self.broken_at)}; the last checkpoint is "
                f"kept: try a smaller {self.rate} in a new run"
            )

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors."""
        return {**vars(self), "recent": list(self.recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        device = self.broken_at.device
        self.recent = deque(state["recent"], maxlen=RECENT)
        self.finished, self.summed = state["finished"], state["summed"]
        self.sums = {name: value.to(device) for name, value in state["sums"].items()}
        self.broken_at = state["broken_at"].to(device)


class Clock:
    """Seconds of a run, those of its earlier processes included (`lines`: what it has logged so far)."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._before = {name: max((line.get(name, 0.0) for line in lines), default=0.0) for name in TIMES}
        self._began, self._busy = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        """Since this process took the run up."""
        return time.monotonic() - self._began

    def scalars(self) -> dict[str, float]:
        """Time on the wall, and that of the processors: what the run would have taken on a machine of its own."""
        now = (self.seconds, time.process_time() - self._busy)
        return {name: self._before[name] + value for name, value in zip(TIMES, now, strict=True)}
