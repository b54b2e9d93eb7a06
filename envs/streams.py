"""One random stream per row, drawn in blocks: a row's numbers do not depend on how many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

Floats = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class RowStreams:
    """N numpy generators that hand out the numbers a single environment with the same seed would draw.

    Drawing in blocks keeps the Python loop over rows out of the step.
    """

    def __init__(self, count: int, block: int = 1024) -> None:
        self.block = block
        children = np.random.SeedSequence().spawn(count)
        self.generators = [np.random.Generator(np.random.PCG64(child)) for child in children]
        self.buffer: Floats = np.empty((count, block))
        self.cursor = np.full(count, block)  # (N,), first number not yet used

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Start the streams of the rows that have a seed anew; the others go on."""
        for row, seed in enumerate(seeds):
            if seed is not None:
                self.generators[row], _ = seeding.np_random(seed)
                self.cursor[row] = self.block

    def draw(self, rows: Mask, count: int) -> Floats:
        """The next `count` uniforms of the chosen rows (N,) bool as (N, count); the other rows hold zeros."""
        for row in np.flatnonzero(rows & (self.cursor + count > self.block)).tolist():
            self._refill(row)
        taken = np.zeros((len(self.cursor), count))
        index = self.cursor[rows, None] + np.arange(count)
        taken[rows] = np.take_along_axis(self.buffer[rows], index, 1)
        self.cursor[rows] += count
        return taken

    def _refill(self, row: int) -> None:
        used = int(self.cursor[row])
        fresh = self.generators[row].random(used)
        self.buffer[row] = np.concatenate([self.buffer[row, used:], fresh])
        self.cursor[row] = 0
