"""What every replay is made of: a ring of columns, one for each step of N parallel environments."""

import math
import sys

import torch
from torch import Tensor

from dqn_memory.runs.errors import SHORT_OF_MEMORY, UserError
from envs.machine import memory
from envs.terminal import say


class Ring:
    """Cells (columns, N, ...) by name on one device; the newest column takes the place of the oldest.

    Columns are counted from the run's beginning, and none changes after it was written. A checkpoint stores them in the
    order of time.
    """

    def __init__(self, columns: int, num_envs: int, device: torch.device) -> None:
        self.num_columns, self.num_envs, self.device = columns, num_envs, device
        self.written = 0
        self.cells: dict[str, Tensor] = {}

    def __len__(self) -> int:
        """Environment steps held."""
        return min(self.written, self.num_columns) * self.num_envs

    def allocate(self, **forms: tuple[torch.dtype, tuple[int, ...]]) -> None:
        """Make room for cells, each of a dtype and a shape. Zeros, not garbage: padding may be read, if to be lost.

        Raises:
            UserError: there is less memory than they take.
        """
        cells = self.num_columns * self.num_envs
        size = sum(cells * dtype.itemsize * math.prod(shape) for dtype, shape in forms.values())
        check_room(size, cells, self.device)
        try:
            for name, (dtype, shape) in forms.items():
                self.cells[name] = torch.zeros(self.num_columns, self.num_envs, *shape, dtype=dtype, device=self.device)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, MemoryError) or SHORT_OF_MEMORY.search(str(error))):
                raise
            raise UserError(too_large(size, cells, "than can be had")) from None

    def add(self, **cells: Tensor) -> None:
        """One column of every kind of cell, (N, ...) each, under the names of `cells`."""
        if cells.keys() != self.cells.keys():
            raise ValueError(f"a column holds {sorted(self.cells)}, not {sorted(cells)}")
        column = self.written % self.num_columns
        for name, value in cells.items():
            self.cells[name][column] = value.to(self.cells[name].dtype)
        self.written += 1

    def cut(self) -> None:
        """Let the episodes of the newest column end there, as a time limit would end them."""
        if "done" in self.cells:
            self.cells["done"][(self.written - 1) % self.num_columns] = True

    @property
    def oldest(self) -> int:
        """Number of the oldest column that is still held."""
        return max(0, self.written - self.num_columns)

    def columns(self, start: int, stop: int) -> dict[str, Tensor]:
        """Cells of the columns [start, stop), which must still be in the ring; (columns, N, ...)."""
        index = torch.arange(start, stop, device=self.device) % self.num_columns
        return {name: cells[index] for name, cells in self.cells.items()}

    def restore(self, start: int, cells: dict[str, Tensor]) -> None:
        """Put back columns that began at `start`, the newest ones of the run."""
        count = len(next(iter(cells.values()))) if cells else 0
        index = torch.arange(start, start + count, device=self.device) % self.num_columns
        for name, value in cells.items():
            self.cells[name][index] = value.to(self.device)
        self.written = start + count

    def _cell(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Column and environment of cells that are counted as column x N + environment."""
        drawn = drawn.to(self.device, non_blocking=True)
        return drawn // self.num_envs, drawn % self.num_envs

    def _at(self, name: str, column: Tensor, row: Tensor) -> Tensor:
        return self.cells[name][column % self.num_columns, row]


def check_room(size: int, cells: int, device: torch.device) -> None:
    """Raise a UserError where a replay of `size` bytes never fits, and say so where it does not fit now.

    A CPU's memory is taken when it is written to, so that a run that ends before its replay is full needs less.
    """
    found = memory(device)
    if found is None:
        return
    free, whole = found
    if size > (whole if device.type == "cpu" else free):
        raise UserError(too_large(size, cells, f"than the {gigabytes(whole)} of this machine's {device.type}"))
    if size > free:
        say(too_large(size, cells, f"once it is full than the {gigabytes(free)} that are free"), file=sys.stderr)


def too_large(size: int, cells: int, than: str) -> str:
    """Say that a replay needs more memory than there is."""
    return f"the replay's {cells:,} environment steps take {gigabytes(size)}, more {than}; lower --capacity"


def gigabytes(size: int) -> str:
    """Write a number of bytes."""
    return f"{size / 1e9:,.1f} GB"
