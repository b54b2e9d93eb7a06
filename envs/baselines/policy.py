"""Tabular worlds: the policy behind the lower bound, played with exact beliefs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from envs.baselines import hsvi
from envs.baselines.hsvi import TINY, Bounds
from envs.baselines.model import Floats, Model
from envs.baselines.playing import Player

if TYPE_CHECKING:
    from numpy.typing import NDArray


def belief_player(model: Model, bounds: Bounds) -> Player:
    """Track the belief of every row, and act by the linear function that is largest there.

    The first observation of an episode says nothing. Observations (N, 1) are numbers below Z after that.
    """
    beliefs: Floats | None = None  # (N, S)
    actions: NDArray[np.int64] = np.empty(0, np.int64)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal beliefs, actions
        if beliefs is None:
            beliefs = np.repeat(model.start[None], len(observation), 0)
        else:
            beliefs = updated(model, beliefs, actions, observation[:, 0].cpu().numpy())
        actions = bounds.actions[(beliefs @ bounds.vectors.T).argmax(1)]
        return torch.from_numpy(actions).to(observation.device)

    return act


def updated(model: Model, beliefs: Floats, actions: NDArray[np.int64], seen: NDArray[Any]) -> Floats:
    """Beliefs (N, S) after actions (N,) and observations (N,); one that has become impossible starts anew.

    Only the beliefs of ended episodes become impossible, and nobody asks for those.
    """
    after = np.empty_like(beliefs)
    looks = model.look.shape[2]
    for action in range(len(model.move)):
        rows = np.flatnonzero(actions == action)
        likely = model.look[action][:, np.minimum(seen[rows], looks - 1)].T  # (rows, S')
        after[rows] = (beliefs[rows] @ model.move[action]) * likely
    mass = after.sum(1, keepdims=True)
    return np.where(mass > TINY, after / np.maximum(mass, TINY), model.start)


def solve(tables: Any, gap: float, size: int) -> tuple[Model, Bounds, dict[str, float]]:
    """A model, its bounds, and what is printed of them."""
    model = Model.of(tables)
    found = hsvi.solve(model, gap, size)
    return model, found, {"discount": model.discount, "lower": found.lower, "upper": found.upper}
