"""Replay of frames on the training device: one column of N steps per step of N parallel worlds, in a ring.

A world's cells hold its episodes without gaps, so a window is one gather over consecutive columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dqn_memory.errors import UserError
from world_models.glam.losses import Batch


@dataclass(frozen=True)
class ReplayConfig:
    """What is kept and which windows are drawn."""

    capacity: int = 100_000
    """Environment steps kept; rounded down to whole columns of all worlds."""
    recent_windows: int = 0
    """How many windows of every draw are the newest ones there are (5 in the released code, which says nothing of it
    in the paper); the others are drawn uniformly."""

    def check(self) -> None:
        """One sentence for every value that cannot work."""
        if self.recent_windows < 0:
            raise UserError(f"--recent-windows {self.recent_windows} must not be negative")


class Replay:
    """A ring of columns x N cells; windows never reach over the place where it is being written.

    A window may hold the end of one episode and the beginning of the next; `first` marks the steps whose frame opened
    an episode. At a window's first step too it says whether an episode began there, not that the window does.
    """

    def __init__(self, config: ReplayConfig, screen: int, num_worlds: int, device: torch.device, longest: int) -> None:
        """Room for frames of `screen` pixels square; `longest` is the longest window that will be drawn."""
        config.check()
        columns = config.capacity // num_worlds
        if columns < longest:
            raise UserError(
                f"--capacity {config.capacity} is too small: {num_worlds} worlds with windows of {longest} steps need "
                f"at least {num_worlds * longest}"
            )
        self.config, self.num_worlds, self.device = config, num_worlds, device
        self.num_columns, self.written = columns, 0
        self.cells = {
            "frames": self._room(torch.uint8, 3, screen, screen),
            "action": self._room(torch.int16),
            "reward": self._room(torch.float32),
            "terminated": self._room(torch.bool),
            "first": self._room(torch.bool),
        }

    def __len__(self) -> int:
        """Environment steps held."""
        return min(self.written, self.num_columns) * self.num_worlds

    def drawable(self, length: int) -> int:
        """Steps at which a window of that length can begin; drawing needs at least one."""
        first, stop = self._starts(length)
        return (stop - first) * self.num_worlds

    def add(self, **cells: Tensor) -> None:
        """One column, (N, ...) each: frames (what was acted on), action, reward, terminated, first."""
        if cells.keys() != self.cells.keys():
            raise ValueError(f"a column holds {sorted(self.cells)}, not {sorted(cells)}")
        column = self.written % self.num_columns
        for name, value in cells.items():
            self.cells[name][column] = value.to(self.cells[name].dtype)
        self.written += 1

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """First steps of B windows, as column x N + world, (B,) int64 on the host.

        Uniform with replacement among all windows, but for the newest `recent_windows`, which are always there.
        """
        first, stop = self._starts(length)
        low, high = first * self.num_worlds, stop * self.num_worlds
        if high <= low:
            raise ValueError(f"no window of {length} steps has been stored yet")
        newest = torch.arange(high - 1, max(high - 1 - min(self.config.recent_windows, batch), low - 1), -1)
        return torch.cat((torch.randint(low, high, (batch - len(newest),), generator=generator), newest))

    def windows(self, drawn: Tensor, length: int) -> Batch:
        """The windows (B, T) that begin at the drawn steps."""
        drawn = drawn.to(self.device, non_blocking=True)
        column, world = drawn // self.num_worlds, drawn % self.num_worlds
        columns = column.unsqueeze(1) + torch.arange(length, device=self.device)  # (B, T)
        place = columns % self.num_columns * self.num_worlds + world.unsqueeze(1)
        taken = {name: cells.flatten(0, 1)[place] for name, cells in self.cells.items()}
        return Batch(**taken | {"action": taken["action"].long()})

    def _room(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(self.num_columns, self.num_worlds, *shape, dtype=dtype, device=self.device)

    def _starts(self, length: int) -> tuple[int, int]:
        """Columns [first, stop) at which a window can begin."""
        oldest = max(self.written - self.num_columns, 0)
        return oldest, max(self.written - length + 1, oldest)

    # what a checkpoint stores: columns in the order of time (dqn_memory.replay_chunks.ReplaySource)

    def columns_written(self) -> int:
        """As `ReplaySource`."""
        return self.written

    def capacity(self) -> int:
        """As `ReplaySource`."""
        return self.num_columns

    def columns(self, start: int, stop: int) -> dict[str, Tensor]:
        """Cells of the columns [start, stop), which must still be in the ring; (columns, N, ...)."""
        index = torch.arange(start, stop, device=self.device) % self.num_columns
        return {name: cells[index] for name, cells in self.cells.items()}

    def restore(self, start: int, cells: dict[str, Tensor]) -> None:
        """Put back columns that began at `start`, the newest ones of the run."""
        count = len(cells["first"]) if cells else 0
        index = torch.arange(start, start + count, device=self.device) % self.num_columns
        for name, value in cells.items():
            self.cells[name][index] = value.to(self.device)
        self.written = start + count
