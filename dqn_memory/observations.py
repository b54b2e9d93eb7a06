"""What an observation is: the four numbers (kind, shape, vocabulary, padding) a network and a replay need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import gymnasium
import numpy as np
import torch

from dqn_memory.runs.errors import UserError

CONTINUOUS_PADDING = -5.0  # below every observation of the published worlds (specified by the reference)


@dataclass(frozen=True)
class ObservationSpec:
    """One observation's form. `vocabulary` counts the padding token; it is 0 unless `kind` is discrete."""

    kind: Literal["discrete", "continuous", "image"]
    shape: tuple[int, ...]
    vocabulary: int = 0
    dtype: torch.dtype = torch.float32  # as kept in the replay

    @property
    def padding(self) -> float:
        """The value that stands behind the last real observation of a window."""
        if self.kind == "discrete":
            return self.vocabulary - 1
        return CONTINUOUS_PADDING if self.kind == "continuous" else 0


def observation_spec(space: gymnasium.Space) -> ObservationSpec:
    """The spec of a Discrete, MultiDiscrete or Box space; a UserError names what else was given.

    Vocabularies follow the reference: Discrete(n) has n + 1 tokens, MultiDiscrete(nvec) max(nvec) + 2 (one row
    is never used), in both the last one being padding.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return _tokens(1, int(space.n) + 1)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return _tokens(int(np.prod(space.shape)), int(space.nvec.max()) + 2)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3:
        return ObservationSpec("image", tuple(space.shape), 0, torch.from_numpy(np.zeros(1, space.dtype)).dtype)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return ObservationSpec("continuous", tuple(space.shape))
    raise UserError(
        f"observation space {space} cannot be embedded; use Discrete, MultiDiscrete, a 1-D Box or an image Box"
    )


def _tokens(components: int, vocabulary: int) -> ObservationSpec:
    dtype = torch.uint8 if vocabulary <= 256 else torch.int32
    return ObservationSpec("discrete", (components,), vocabulary, dtype)
