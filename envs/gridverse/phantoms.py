"""Structure that is seen and is not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.errors import UserError
from envs.gridverse.objects import NONE, PHANTOM, WALL, pack
from envs.gridverse.splits import splits
from envs.registry import near_names

# What a phantom cell looks like, in every encoding: a wall, or "nothing", which no real cell ever is.
LOOKS = {"walls": pack(WALL), "floor-cue": pack(NONE)}


@dataclass(frozen=True)
class Phantoms:
    """Places whose floor is seen as something else. Nothing but the view knows of them."""

    flags: Tensor  # (H*W,) int64, PHANTOM on a line and 0 elsewhere
    look: int  # code of the object that is seen


def plan(height: int, width: int, rooms: Sequence[int], cells: str, device: torch.device) -> Phantoms:
    """The inner lines of rooms = (down, across) equally sized rooms, from border to border, without openings.

    Raises:
        UserError: that many rooms do not fit, or there is no such look.
    """
    if cells not in LOOKS:
        raise UserError(f"There is no phantom look {cells!r}; {near_names(cells, LOOKS)}")
    return Phantoms(lines(height, width, rooms).flatten().to(device) * PHANTOM, LOOKS[cells])


def lines(height: int, width: int, rooms: Sequence[int]) -> Tensor:
    """Interior cells (H, W) bool that lie on an inner line of the rooms."""
    ys, xs = splits((height, width), rooms)
    marked = torch.zeros(height, width, dtype=torch.bool)
    marked[ys[1:-1], 1:-1] = True
    marked[1:-1, xs[1:-1]] = True
    return marked
