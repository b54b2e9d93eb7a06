"""What every replay is made of: a ring of columns, one for each step of N parallel environments."""

import torch
from torch import Tensor


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

    def allocate(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """Room for one kind of cell. Zeros, not garbage: padding may be read, if only to be thrown away."""
        return torch.zeros(self.num_columns, self.num_envs, *shape, dtype=dtype, device=self.device)

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
