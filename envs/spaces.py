"""Gymnasium's spaces, where another library needs them a little different."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike


class Sizes(np.ndarray[Any, np.dtype[np.int64]]):
    """Whole numbers that come out of a loop as Python's own."""

    def __iter__(self) -> Iterator[Any]:
        """Python integers, or rows where there are several axes."""
        return iter(self.tolist()) if self.ndim == 1 else super().__iter__()


class MultiDiscrete(gymnasium.spaces.MultiDiscrete):
    """Several whole numbers, `nvec[i]` values each.

    Stable-Baselines3 takes `sum(space.nvec)` for the width of its one-hot form, and sb3-contrib hands that to
    `torch.nn.LSTM`, which refuses numpy's integers: over plain sizes no recurrent agent of theirs can be built.
    """

    def __init__(self, nvec: ArrayLike, **kwargs: Any) -> None:
        super().__init__(np.asarray(nvec), **kwargs)
        self.nvec = self.nvec.view(Sizes)
