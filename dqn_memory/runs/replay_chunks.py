"""Which columns of a replay ring a checkpoint still has to write, and how they come back."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class ReplaySource(Protocol):
    """A ring buffer seen as an endless row of columns, numbered by when they were written.

    A column never changes after it was written. Those from `columns_written() - capacity()` on are live.
    """

    def columns_written(self) -> int:
        """Count of columns ever written; never falls."""
        ...

    def capacity(self) -> int:
        """How many columns the ring holds."""
        ...

    def columns(self, start: int, stop: int) -> dict[str, Tensor]:
        """Live columns start..stop-1, oldest first: each tensor (stop - start, ...)."""
        ...


@dataclass(frozen=True)
class Columns:
    """Saved columns `start`, start + 1, ...: each tensor (columns, ...); no tensor if none was written."""

    start: int
    data: dict[str, Tensor]

    @property
    def stop(self) -> int:
        """Number of the first column that was not yet written."""
        return self.start + next((len(column) for column in self.data.values()), 0)


def live_start(replay: ReplaySource) -> int:
    """Number of the oldest column that the ring still holds."""
    return max(0, replay.columns_written() - replay.capacity())


def next_span(
    chunks: list[dict[str, Any]], begin: int, written: int
) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
    """Chunks that still reach into begin..written, and the span that none of them holds yet."""
    saved = chunks[-1]["stop"] if chunks else 0
    if saved > written:  # another, younger ring: nothing of the old one is part of it
        chunks, saved = [], 0
    kept = [chunk for chunk in chunks if chunk["stop"] > begin]
    start = max(saved, begin)
    return kept, (start, written) if start < written else None


def columns_from(parts: list[tuple[int, dict[str, Tensor]]], begin: int) -> Columns:
    """Join chunks (number of the first column, tensors), without the columns older than `begin`."""
    if not parts:
        return Columns(begin, {})
    dead = begin - parts[0][0]
    joined = {name: torch.cat([part[name] for _, part in parts])[dead:] for name in parts[0][1]}
    return Columns(begin, joined)
