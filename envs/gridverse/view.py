"""The agent's view: a window that turns with the agent, in which walls and doors block sight."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from envs.errors import UserError, require
from envs.gridverse.objects import DIRECTIONS, HIDDEN, blocks_vision, pack, tabulate
from envs.gridverse.rules import heading_axes
from envs.numpy_backend import integers, take, take_columns

Area = tuple[tuple[int, int], tuple[int, int]]  # ((first row, last row), (first column, last column)) from the agent
Cell = tuple[int, int]  # (row, column) of the window
Stretch = tuple[frozenset[int], int]  # the cells that a ray crosses before a cell, and this cell


class Visibility:
    """The lit cells of a window: all of them. `agent` is the agent's (row, column) in the window."""

    draws = 0

    def __init__(self, rows: int, columns: int, agent: Cell, device: str | torch.device = "cpu") -> None:
        self.column = agent[1]

    def __call__(self, clear: Tensor, u: Tensor) -> Tensor:
        """Return the lit cells from the transparent cells `clear`, both (N, rows, columns) bool; u is (N, draws)."""
        return torch.ones_like(clear)


class Occluded(Visibility):
    """Light floods from an agent in the last row, to the left and to the right.

    Each flood continues from a clear cell ahead, sideways and diagonally ahead, never back. Opaque cells are lit, too.
    """

    def __init__(self, rows: int, columns: int, agent: Cell, device: str | torch.device = "cpu") -> None:
        super().__init__(rows, columns, agent, device)
        require(agent[0] == rows - 1, "partially_occluded needs the agent in the last row of its window.")

    def __call__(self, clear: Tensor, u: Tensor) -> Tensor:
        left = _flood(clear[..., : self.column + 1].flip(-1)).flip(-1)
        right = _flood(clear[..., self.column :])
        return torch.cat([left, right[..., 1:]], -1)


class View:
    """A window on the grid around an agent that always looks at the window's first row.

    Args:
        area: rows and columns of the window relative to the agent; negative rows are ahead.
        visibility: makes the rule for lit cells from the window.
    """

    def __init__(
        self,
        height: int,
        width: int,
        area: Area = ((-1, 0), (-1, 1)),
        visibility: Callable[[int, int, Cell, torch.device], Visibility] = Occluded,
        device: str | torch.device = "cpu",
    ) -> None:
        (top, bottom), (left, right) = area
        if not (top <= 0 <= bottom and left <= 0 <= right):
            raise UserError(f"The view's area must hold the agent's own cell (0, 0), but it is {area}.")
        self.height, self.width, self.agent = height, width, (-top, -left)
        self.rows, self.columns = bottom - top + 1, right - left + 1
        self.visibility = visibility(self.rows, self.columns, self.agent, torch.device(device))
        self.draws = self.visibility.draws
        self.offset = torch.tensor([_window(h, area) for h in range(len(DIRECTIONS))], device=device)
        self.flat = self.offset[..., 0] * width + self.offset[..., 1]  # (4, rows*columns)
        self.transparent = ~tabulate(blocks_vision, torch.device(device))  # (SEEN,)
        # The agent never stands on the border or on an opaque cell, so adjacent cells are always inside the grid and
        # always lit.
        touching = top >= -1 and bottom <= 0 and left >= -1 and right <= 1
        self.close = touching and type(self.visibility) in (Visibility, Occluded)
        self.runs_on_numpy = self.close

    def __call__(
        self, cells: Tensor, position: Tensor, heading: Tensor, u: Tensor, flags: Tensor | None = None
    ) -> Tensor:
        """Return the codes (N, rows*columns) int64 of the window, row by row, from grids `cells` (N, H*W).

        `flags` (H*W,) int64 is PHANTOM on a phantom line and 0 elsewhere, and is added to the codes. Invisible cells
        have the code HIDDEN.
        """
        if self.close:
            return _codes(cells, position[:, None] + take(self.flat, heading), flags)
        index, inside = self._index(position, heading)
        codes = _codes(cells, index, flags).masked_fill(~inside, pack(HIDDEN))
        clear = self.transparent[codes].view(-1, self.rows, self.columns)
        return codes.masked_fill(~self.visibility(clear, u).flatten(1), pack(HIDDEN))

    def _index(self, position: Tensor, heading: Tensor) -> tuple[Tensor, Tensor]:
        """Return the window's flat positions, clamped to the grid, and whether each is inside, (N, rows*columns)."""
        offset = self.offset[heading]  # (N, rows*columns, 2)
        y = (position // self.width)[:, None] + offset[..., 0]
        x = (position % self.width)[:, None] + offset[..., 1]
        inside = (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)
        return y.clamp(0, self.height - 1) * self.width + x.clamp(0, self.width - 1), inside


def window(size: Sequence[int]) -> Area:
    """Make the area of a window of size = (rows, columns) with the agent in the middle of the last row."""
    if not isinstance(size, Sequence) or len(size) != 2:
        raise UserError(f"A view is two numbers (rows, columns), not {size!r}.")
    rows, columns = size
    if rows < 1 or columns < 1 or columns % 2 == 0:
        raise UserError(f"A view needs at least 1 row and an odd number of columns, not {rows} x {columns}.")
    return (1 - rows, 0), (-(columns // 2), columns // 2)


def _codes(cells: Tensor, index: Tensor, flags: Tensor | None) -> Tensor:
    """Return codes int64 at flat positions, both (N, cells of the window)."""
    codes: Tensor = integers(take_columns(cells, index))
    return codes if flags is None else codes + flags[index]


def _flood(clear: Tensor) -> Tensor:
    """Flood to the right of an agent in the first column of the last row, (N, rows, columns) bool.

    A row is one integer, and column c its bit c. The sum of the transparent cells and of those that the light enters
    carries the light along each run of transparent cells to the cell that ends the run.
    """
    bit = torch.arange(clear.shape[2], device=clear.device)  # (columns,)
    rows = (clear.long() << bit).sum(2).flip(1).unbind(1)  # each (N,), the agent's row first
    entered, lit = torch.ones_like(rows[0]), []
    for row in rows:
        reached = (((entered & row) + row) ^ row) | entered
        passed = reached & row
        entered = passed | passed << 1  # straight ahead and diagonally
        lit.append(reached)
    return (torch.stack(lit[::-1], 1)[..., None] >> bit & 1).bool()


def _window(heading: int, area: Area) -> list[tuple[int, int]]:
    """List the offsets (y, x) of the window's cells from the agent."""
    (ahead_y, ahead_x), (right_y, right_x) = heading_axes(heading)
    (top, bottom), (left, right) = area
    return [
        (-row * ahead_y + column * right_y, -row * ahead_x + column * right_x)
        for row in range(top, bottom + 1)
        for column in range(left, right + 1)
    ]


STEP = 0.01  # step along a ray, in cells
MAX_CELLS = 31 * 31  # maximum cells of a window with rays, whose tables grow with the square of its area


class Rays(Visibility):
    """Rays from the centre of the agent's cell to every corner of every cell of a window.

    The rays depend only on the window, so they are computed once. A step then needs two matrix products: one finds the
    stretches of rays without an opaque cell, the other sums the rays that reach each cell.
    """

    def __init__(self, rows: int, columns: int, agent: Cell, device: str | torch.device = "cpu") -> None:
        super().__init__(rows, columns, agent, device)
        if rows * columns > MAX_CELLS:
            raise UserError(
                f"Rays are followed through windows of at most {MAX_CELLS} cells, and {rows} x {columns} has more; "
                "make the area smaller or use partially_occluded."
            )
        stretches = Counter(_stretches(rows, columns, agent))
        before = torch.zeros(rows * columns, len(stretches))
        reached = torch.zeros(len(stretches), rows * columns)
        for index, ((crossed, cell), rays) in enumerate(stretches.items()):
            before[sorted(crossed), index] = 1.0
            reached[index, cell] = rays
        self.before = before.to(device)  # (cells, stretches), 1 if the stretch crosses the cell
        self.reached = reached.to(device)  # (stretches, cells), number of rays whose stretch ends at the cell
        self.total = reached.sum(0).double().to(device)  # (cells,)

    def counts(self, clear: Tensor) -> Tensor:
        """Count the rays (N, cells) float64 that reach each cell, from transparent cells `clear` (N, cells) bool."""
        # Counts are far below 2^24, so float32 is exact, and faster than float64 on an accelerator.
        passed = ((~clear).float() @ self.before) == 0  # (N, stretches)
        return (passed.float() @ self.reached).double()

    def shares(self, clear: Tensor) -> Tensor:
        """Return the counts (N, cells) float64 divided by the number of all rays through a cell; 0 without rays."""
        return self.counts(clear) / self.total.clamp(min=1.0)


class Raytracing(Rays):
    """Light cells that at least `threshold` rays reach, or that share of all rays through the cell."""

    def __init__(self, *window: Any, absolute_counts: bool = True, threshold: float = 1) -> None:
        super().__init__(*window)
        self.measure, self.threshold = self.counts if absolute_counts else self.shares, threshold

    def __call__(self, clear: Tensor, u: Tensor) -> Tensor:
        return (self.measure(clear.flatten(1)) >= self.threshold).view_as(clear)


class StochasticRaytracing(Rays):
    """Light every cell with the probability `shares`: the share of the rays through it that reach it."""

    def __init__(self, rows: int, columns: int, agent: Cell, device: str | torch.device = "cpu") -> None:
        super().__init__(rows, columns, agent, device)
        self.draws = rows * columns

    def __call__(self, clear: Tensor, u: Tensor) -> Tensor:
        return (u < self.shares(clear.flatten(1))).view_as(clear)


def _stretches(rows: int, columns: int, agent: Cell) -> Iterator[Stretch]:
    """List the stretches of every ray, one for each of its cells (row * columns + column) within the window."""
    for row, column in itertools.product(range(rows + 1), range(columns + 1)):
        angle = math.atan2(row - 0.5 - agent[0], column - 0.5 - agent[1])
        y, x, down, right = float(agent[0]), float(agent[1]), STEP * math.sin(angle), STEP * math.cos(angle)
        crossed: set[int] = set()
        while 0 <= round(y) < rows and 0 <= round(x) < columns:
            cell = round(y) * columns + round(x)
            if cell not in crossed:
                yield frozenset(crossed), cell
                crossed.add(cell)
            y, x = y + down, x + right
