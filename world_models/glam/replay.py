"""Replay of frames on the training device: one column of N steps per step of N parallel worlds, in a ring.

A world's cells hold its episodes without gaps, so a window is one gather over consecutive columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.ring import Ring
from dqn_memory.runs.settings import check_numbers
from world_models.glam.config import ReplayConfig


@dataclass(frozen=True)
class Batch:
    """B sequences of T environment steps: a frame, the action taken at it, and what followed."""

    frames: Tensor  # (B, T, 3, S, S) uint8
    action: Tensor  # (B, T) int64
    reward: Tensor  # (B, T) float32
    terminated: Tensor  # (B, T) bool, by that action
    first: Tensor  # (B, T) bool, True where the frame opens an episode


class Replay(Ring):
    """A ring of columns x N cells; windows never reach over the place where it is being written.

    A window may hold the end of one episode and the beginning of the next; `first` marks the steps whose frame opened
    an episode. At a window's first step too it says whether an episode began there, not that the window does.
    """

    def __init__(self, config: ReplayConfig, screen: int, num_envs: int, device: torch.device, longest: int) -> None:
        """Room for frames of `screen` pixels square; `longest` is the longest window that will be drawn."""
        check_numbers(config)
        columns = config.capacity // num_envs
        if columns < longest:
            raise UserError(
                f"--capacity {config.capacity} is too small: {num_envs} worlds with windows of {longest} steps need "
                f"at least {num_envs * longest}"
            )
        super().__init__(columns, num_envs, device)
        self.config = config
        self.cells = {
            "frames": self.allocate(torch.uint8, 3, screen, screen),
            "action": self.allocate(torch.int16),
            "reward": self.allocate(torch.float32),
            "terminated": self.allocate(torch.bool),
            "first": self.allocate(torch.bool),
        }

    def drawable(self, length: int) -> int:
        """Steps at which a window of that length can begin; drawing needs at least one."""
        first, stop = self._starts(length)
        return (stop - first) * self.num_envs

    def add(self, **cells: Tensor) -> None:
        """One column, (N, ...) each: frames (what was acted on), action, reward, terminated, first."""
        super().add(**cells)

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """First steps of B windows, as column x N + world, (B,) int64 on the host.

        Uniform with replacement among all windows, but for the newest `recent_windows`, which are always there.
        """
        first, stop = self._starts(length)
        low, high = first * self.num_envs, stop * self.num_envs
        if high <= low:
            raise ValueError(f"no window of {length} steps has been stored yet")
        newest = torch.arange(high - 1, max(high - 1 - min(self.config.recent_windows, batch), low - 1), -1)
        return torch.cat((torch.randint(low, high, (batch - len(newest),), generator=generator), newest))

    def windows(self, drawn: Tensor, length: int) -> Batch:
        """The windows (B, T) that begin at the drawn steps."""
        column, world = self._cell(drawn)
        columns = column.unsqueeze(1) + torch.arange(length, device=self.device)  # (B, T)
        place = columns % self.num_columns * self.num_envs + world.unsqueeze(1)
        taken = {name: cells.flatten(0, 1)[place] for name, cells in self.cells.items()}
        return Batch(**taken | {"action": taken["action"].long()})

    def _starts(self, length: int) -> tuple[int, int]:
        """Columns [first, stop) at which a window can begin."""
        oldest = max(self.written - self.num_columns, 0)
        return oldest, max(self.written - length + 1, oldest)
