"""One random stream for each row, so that a row's numbers do not depend on how many rows there are."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.utils import seeding

Floats = np.ndarray[Any, np.dtype[np.float64]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


def digest(values: np.ndarray[Any, Any]) -> int:
    """Hash an array to an integer below 2**56."""
    return int.from_bytes(hashlib.blake2b(values.tobytes(), digest_size=7).digest(), "little")


def restore_generator(generator: torch.Generator, state: torch.Tensor) -> None:
    """Set a generator to a saved state.

    The state of another kind of device does not fit. The generator is then seeded from a hash of the state, so that it
    does not repeat the numbers of the first run.
    """
    if len(state) == len(generator.get_state()):
        generator.set_state(state.cpu())
    else:
        generator.manual_seed(digest(state.cpu().numpy()))


class RowStreams:
    """N numpy generators; row i draws the same numbers as a single environment with the same seed.

    Numbers are drawn in blocks, so that a step needs no Python loop over rows. The default block is an odd number of
    cache lines. With a power of two the next numbers of all rows would share a few cache lines.
    """

    def __init__(self, count: int, block: int = 520) -> None:
        self.block = block
        children = np.random.SeedSequence().spawn(count)
        self.generators = [np.random.Generator(np.random.PCG64(child)) for child in children]
        self.buffer: Floats = np.empty((count, block))
        self.cursor = np.full(count, block)  # (N,), first number not yet used
        self._everybody: Rows = np.arange(count)
        self._block_start: Rows = self._everybody * block  # (N,)
        self._furthest = block  # no cursor is beyond it

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Restart the streams of the rows that have a seed; the others continue."""
        for row, seed in enumerate(seeds):
            if seed is not None:
                self.generators[row], _ = seeding.np_random(seed)
                self.cursor[row] = self._furthest = self.block

    def draw(self, rows: Rows | None, count: int) -> Floats:
        """Draw `count` uniforms (M, count) for each of M different rows; None stands for all N rows."""
        chosen = self._everybody if rows is None else rows
        if count == 0:
            return np.empty((len(chosen), 0))
        if self._furthest + count > self.block:
            for row in chosen[self.cursor[chosen] + count > self.block].tolist():
                self._refill(row, count)
            self._furthest = int(self.cursor.max())
        self._furthest += count
        start = (self._block_start + self.cursor) if rows is None else (self._block_start[rows] + self.cursor[rows])
        if rows is None:
            self.cursor += count
        else:
            self.cursor[rows] += count
        index = start[:, None] if count == 1 else start[:, None] + np.arange(count)
        return self.buffer.reshape(-1).take(index)

    def _refill(self, row: int, count: int) -> None:
        """Move the unused numbers of a row to the front and draw the rest of its block."""
        if count > self.block:
            raise ValueError(f"A block of {self.block} numbers cannot give {count} at once.")
        left = self.block - int(self.cursor[row])
        self.buffer[row, :left] = self.buffer[row, self.block - left :]
        self.generators[row].random(out=self.buffer[row, left:])
        self.cursor[row] = 0
