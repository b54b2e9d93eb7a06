"""The ring buffer of the replays: one column for each step of N parallel environments."""

import math

import torch
from torch import Tensor

from dqn_memory.runs.errors import SHORT_OF_MEMORY, UserError
from envs.machine import device_memory


class Ring:
    """Cells (columns, N, ...) by name on one device; the newest column replaces the oldest.

    Columns are numbered from the start of the run and never change. A checkpoint stores them in the order of time.
    """

    def __init__(self, columns: int, num_envs: int, device: torch.device) -> None:
        self.num_columns, self.num_envs, self.device = columns, num_envs, device
        self.written = 0
        self.cells: dict[str, Tensor] = {}

    def __len__(self) -> int:
        """Count the environment steps in the ring."""
        return min(self.written, self.num_columns) * self.num_envs

    def allocate(self, **forms: tuple[torch.dtype, tuple[int, ...]]) -> None:
        """Allocate cells, each of a dtype and a shape; they are zero because padding may be read.

        On a CPU the memory is taken only as the replay fills, so that a short run needs less.

        Raises:
            UserError: the memory does not suffice.
        """
        cells = self.num_columns * self.num_envs
        size = sum(cells * dtype.itemsize * math.prod(shape) for dtype, shape in forms.values())
        memory = device_memory(self.device)  # free, total
        try:
            if memory is not None and size > memory[self.device.type == "cpu"]:
                raise MemoryError
            for name, (dtype, shape) in forms.items():
                self.cells[name] = torch.zeros(self.num_columns, self.num_envs, *shape, dtype=dtype, device=self.device)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, MemoryError) or SHORT_OF_MEMORY.search(str(error))):
                raise
            what = f"the replay's {cells:,} environment steps take {size / 1e9:,.1f} GB"
            raise UserError(f"{what}, more than the memory of {self.device.type} holds; lower --capacity") from None

    def add(self, **cells: Tensor) -> None:
        """Add one column, with values (N, ...) for each name."""
        if cells.keys() != self.cells.keys():
            raise ValueError(f"a column holds {sorted(self.cells)}, not {sorted(cells)}")
        column = self.written % self.num_columns
        for name, value in cells.items():
            self.cells[name][column] = value.to(self.cells[name].dtype)
        self.written += 1

    def cut(self) -> None:
        """Truncate all episodes at the newest column, as a time limit would."""
        if "done" in self.cells:
            self.cells["done"][(self.written - 1) % self.num_columns] = True

    @property
    def oldest(self) -> int:
        """The number of the oldest column in the ring."""
        return max(0, self.written - self.num_columns)

    def columns(self, start: int, stop: int) -> dict[str, Tensor]:
        """Give the cells (columns, N, ...) of columns [start, stop), which must be in the ring."""
        index = torch.arange(start, stop, device=self.device) % self.num_columns
        return {name: cells[index] for name, cells in self.cells.items()}

    def restore(self, start: int, cells: dict[str, Tensor]) -> None:
        """Restore the newest columns of a run; the first one has the number `start`."""
        count = len(next(iter(cells.values()))) if cells else 0
        index = torch.arange(start, start + count, device=self.device) % self.num_columns
        for name, value in cells.items():
            self.cells[name][index] = value.to(self.device)
        self.written = start + count

    def _cell(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Split cell numbers, column x N + environment, into column and environment."""
        drawn = drawn.to(self.device, non_blocking=True)
        return drawn // self.num_envs, drawn % self.num_envs

    def _at(self, name: str, column: Tensor, row: Tensor) -> Tensor:
        return self.cells[name][column % self.num_columns, row]
