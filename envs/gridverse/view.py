"""What the agent sees: a window that turns with it, cut by walls."""

import torch
from torch import Tensor

from envs.gridverse.objects import DIRECTIONS, HIDDEN, blocks_vision, pack, table
from envs.gridverse.rules import looking


class View:
    """A window of rows x columns; the agent stands in the middle of the last row and looks at the first."""

    def __init__(self, height: int, width: int, rows: int, columns: int, device: torch.device) -> None:
        self.height, self.width, self.rows, self.columns = height, width, rows, columns
        self.offset = torch.tensor([_window(h, rows, columns) for h in range(len(DIRECTIONS))], device=device)
        self.flat = self.offset[..., 0] * width + self.offset[..., 1]  # (4, rows*columns)
        self.opaque = table(blocks_vision, device)  # (CODES,)
        # The agent never stands on the border and never inside something opaque, so the cells that touch it
        # are always inside the grid and always lit.
        self.close = rows <= 2 and columns <= 3

    def __call__(self, cells: Tensor, position: Tensor, heading: Tensor) -> Tensor:
        """Codes (N, rows*columns) int64 of the window, row by row, on grids cells (N, H*W)."""
        if self.close:
            return cells.gather(1, position[:, None] + self.flat[heading]).long()
        codes = self._cut(cells, position, heading)
        lit = visible(~self.opaque[codes].view(-1, self.rows, self.columns)).flatten(1)
        return codes.masked_fill(~lit, pack(HIDDEN))

    def _cut(self, cells: Tensor, position: Tensor, heading: Tensor) -> Tensor:
        """The window's codes before occlusion; cells outside the grid are hidden."""
        offset = self.offset[heading]  # (N, rows*columns, 2)
        y = (position // self.width)[:, None] + offset[..., 0]
        x = (position % self.width)[:, None] + offset[..., 1]
        inside = (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)
        index = y.clamp(0, self.height - 1) * self.width + x.clamp(0, self.width - 1)
        return cells.gather(1, index).long().masked_fill(~inside, pack(HIDDEN))


def visible(clear: Tensor) -> Tensor:
    """Cells that the agent sees, from the see-through cells `clear`, both (N, rows, columns) bool.

    Two floods start at the agent; each goes on from a clear cell ahead, sideways and diagonally ahead, one to
    the left and one to the right, never back. Opaque cells are seen themselves.
    """
    left = _flood(clear[..., : clear.shape[-1] // 2 + 1].flip(-1)).flip(-1)
    right = _flood(clear[..., clear.shape[-1] // 2 :])
    return torch.cat([left, right[..., 1:]], -1)


def _flood(clear: Tensor) -> Tensor:
    """The flood to the right of an agent in the first column of the last row."""
    _, rows, columns = clear.shape
    lit = torch.zeros_like(clear)
    lit[:, -1, 0] = True
    for row in reversed(range(rows)):
        for column in range(columns):
            for before in ((row + 1, column), (row, column - 1), (row + 1, column - 1)):
                if before[0] < rows and before[1] >= 0:
                    lit[:, row, column] |= lit[:, before[0], before[1]] & clear[:, before[0], before[1]]
    return lit


def _window(heading: int, rows: int, columns: int) -> list[tuple[int, int]]:
    """Offsets (y, x) of the window's cells from the agent."""
    (ahead_y, ahead_x), (right_y, right_x) = looking(heading)
    steps = [(rows - 1 - row, column - columns // 2) for row in range(rows) for column in range(columns)]
    return [(a * ahead_y + r * right_y, a * ahead_x + r * right_x) for a, r in steps]
