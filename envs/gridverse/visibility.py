"""Sight along rays: which cells of a window are lit when walls stop rays that leave the agent's cell.

The rays are fixed by the window, so they are walked once. What remains for a step is to ask, for every stretch of
a ray, whether an opaque cell lies on it, and to add up the rays that reach each cell: two products of matrices.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

STEP = 0.01  # of a cell, the stride at which a ray is walked
Cell = tuple[int, int]  # (row, column) of the window
Stretch = tuple[frozenset[int], int]  # the cells that a ray crosses before a cell, and that cell


class Raytracing:
    """Cells that enough rays reach: at least `threshold` of them, or that share of all rays through the cell."""

    draws = 0

    def __init__(
        self,
        rows: int,
        columns: int,
        agent: Cell,
        absolute_counts: bool = True,
        threshold: float = 1,
        device: str | torch.device = "cpu",
    ) -> None:
        self.rays = Rays(rows, columns, agent, device)
        self.absolute, self.threshold = absolute_counts, threshold

    def __call__(self, clear: Tensor, agent: Cell, u: Tensor) -> Tensor:
        """Lit cells of windows whose see-through cells are `clear`, both (N, rows, columns) bool; u (N, 0)."""
        counts = self.rays.counts(clear.flatten(1)) if self.absolute else self.rays.shares(clear.flatten(1))
        return (counts >= self.threshold).view_as(clear)


class StochasticRaytracing:
    """Every cell is lit with a probability of its own: the share of the rays through it that reach it."""

    def __init__(self, rows: int, columns: int, agent: Cell, device: str | torch.device = "cpu") -> None:
        self.draws = rows * columns
        self.rays = Rays(rows, columns, agent, device)

    def __call__(self, clear: Tensor, agent: Cell, u: Tensor) -> Tensor:
        """Lit cells of windows whose see-through cells are `clear`, both (N, rows, columns) bool; u (N, cells)."""
        return (u < self.rays.shares(clear.flatten(1))).view_as(clear)


class Rays:
    """One ray from the centre of the agent's cell towards every corner of every cell of a window."""

    def __init__(self, rows: int, columns: int, agent: Cell, device: str | torch.device = "cpu") -> None:
        stretches = Counter(_stretches(rows, columns, agent))
        before = torch.zeros(rows * columns, len(stretches))
        reached = torch.zeros(len(stretches), rows * columns)
        for index, ((crossed, cell), rays) in enumerate(stretches.items()):
            before[sorted(crossed), index] = 1.0
            reached[index, cell] = rays
        self.before = before.to(device)  # (cells, stretches), 1 where the stretch crosses the cell
        self.reached = reached.to(device)  # (stretches, cells), how many rays end this stretch at the cell
        self.total = reached.sum(0).double().to(device)  # (cells,)

    def counts(self, clear: Tensor) -> Tensor:
        """Rays (N, cells) float64 that reach each cell past see-through cells only, from clear (N, cells) bool."""
        # Whole numbers far below 2^24, so float32 counts exactly, and faster than float64 on an accelerator.
        passed = ((~clear).float() @ self.before) == 0  # (N, stretches)
        return (passed.float() @ self.reached).double()

    def shares(self, clear: Tensor) -> Tensor:
        """The reaching rays (N, cells) float64 as a share of all rays through a cell; 0 where there is none."""
        return self.counts(clear) / self.total.clamp(min=1.0)


def _stretches(rows: int, columns: int, agent: Cell) -> list[Stretch]:
    """Every ray cut at each of its cells."""
    corners = [(row - 0.5, column - 0.5) for row in range(rows + 1) for column in range(columns + 1)]
    found = []
    for y, x in corners:
        ray = _ray(rows, columns, agent, math.atan2(y - agent[0], x - agent[1]))
        found += [(frozenset(ray[:length]), cell) for length, cell in enumerate(ray)]
    return found


def _ray(rows: int, columns: int, agent: Cell, angle: float) -> list[int]:
    """The cells (row * columns + column) of a ray in order, each once, until it leaves the window."""
    (y, x), down, right = agent, STEP * math.sin(angle), STEP * math.cos(angle)
    at_y, at_x = float(y), float(x)
    cells: dict[int, None] = {}
    while 0 <= round(at_y) < rows and 0 <= round(at_x) < columns:
        cells[round(at_y) * columns + round(at_x)] = None
        at_y, at_x = at_y + down, at_x + right
    return list(cells)
