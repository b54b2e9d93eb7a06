"""Replay of frames on the training device: a ring of columns, each one step of N environments.

The ring has no gaps between an environment's episodes, so a window is one gather over consecutive columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dqn_memory.runs.errors import UserError
from dqn_memory.runs.ring import Ring
from world_models.glam.config import GlamReplayConfig


@dataclass(frozen=True)
class FrameBatch:
    """B sequences of T environment steps: a frame, the action after it, and the results of that action."""

    frames: Tensor  # (B, T, 3, S, S) uint8
    action: Tensor  # (B, T) int64
    reward: Tensor  # (B, T) float32
    terminated: Tensor  # (B, T) bool, by that action
    first: Tensor  # (B, T) bool, True if the frame opens an episode


class FrameReplay(Ring):
    """A ring of columns x N cells; windows never cross the newest column.

    A window may contain the end of one episode and the start of the next; `first` marks the steps whose frame opens an
    episode. A window's first step is marked only if its frame does.
    """

    def __init__(
        self, config: GlamReplayConfig, screen: int, num_envs: int, device: torch.device, longest: int
    ) -> None:
        """Allocate frames of `screen` x `screen` pixels; `longest` is the max length of a window."""
        columns = config.capacity // num_envs
        if columns < longest:
            raise UserError(
                f"--capacity {config.capacity} is too small: {num_envs} environments with windows of {longest} "
                f"steps need at least {num_envs * longest}"
            )
        super().__init__(columns, num_envs, device)
        self.config = config
        self.allocate(
            frames=(torch.uint8, (3, screen, screen)),  # before the action
            action=(torch.int16, ()),
            reward=(torch.float32, ()),
            terminated=(torch.bool, ()),
            first=(torch.bool, ()),
        )

    def drawable(self, length: int) -> int:
        """Count the steps at which a window of this length can begin; drawing needs at least one."""
        first, stop = self._starts(length)
        return (stop - first) * self.num_envs

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """Draw the first steps of B windows, as column x N + environment, (B,) int64 on the host.

        They include the newest `recent_windows`; the others are uniform draws with replacement.
        """
        first, stop = self._starts(length)
        low, high = first * self.num_envs, stop * self.num_envs
        if high <= low:
            raise ValueError(f"no window of {length} steps has been stored yet")
        newest = torch.arange(high - 1, max(high - 1 - min(self.config.recent_windows, batch), low - 1), -1)
        return torch.cat((torch.randint(low, high, (batch - len(newest),), generator=generator), newest))

    def windows(self, drawn: Tensor, length: int) -> FrameBatch:
        """Gather the windows (B, T) that begin at the drawn steps."""
        column, env = self._cell(drawn)
        columns = column.unsqueeze(1) + torch.arange(length, device=self.device)  # (B, T)
        gathered = {name: self._at(name, columns, env.unsqueeze(1)) for name in self.cells}
        return FrameBatch(**gathered | {"action": gathered["action"].long()})

    def _starts(self, length: int) -> tuple[int, int]:
        """Return the columns [first, stop) at which a window can begin."""
        return self.oldest, max(self.written - length + 1, self.oldest)
