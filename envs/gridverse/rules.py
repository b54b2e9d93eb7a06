"""How the agent moves and turns."""

import torch
from torch import Tensor

from envs.gridverse.objects import DIRECTIONS, TURN_LEFT, TURN_RIGHT, blocks_movement, table

FORWARD, BACKWARD, LEFT, RIGHT, LEFT_TURN, RIGHT_TURN = range(6)


def looking(heading: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The unit vectors (y, x) ahead of and to the right of an agent with this heading."""
    return DIRECTIONS[heading], DIRECTIONS[TURN_RIGHT[heading]]


class Motion:
    """Moves and turns by look-up: one row per heading, one column per action; turns move by nothing."""

    def __init__(self, width: int, device: torch.device) -> None:
        headings = range(len(DIRECTIONS))
        self.offset = torch.tensor([_offsets(h, width) for h in headings], device=device)  # (4, 6)
        turned = [[h, h, h, h, TURN_LEFT[h], TURN_RIGHT[h]] for h in headings]
        self.heading = torch.tensor(turned, device=device)  # (4, 6)
        self.blocked = table(blocks_movement, device)  # (CODES,)

    def __call__(self, cells: Tensor, position: Tensor, heading: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Next flat position (N,) and heading (N,) on grids cells (N, H*W)."""
        target = position + self.offset[heading, action]  # (N,)
        blocked = self.blocked[at(cells, target)]
        return torch.where(blocked, position, target), self.heading[heading, action]


def at(cells: Tensor, position: Tensor) -> Tensor:
    """Codes (N,) int64 of the cells at flat positions (N,)."""
    return cells.gather(1, position[:, None])[:, 0].long()


def _offsets(heading: int, width: int) -> list[int]:
    """Change of the flat position for each action."""
    (ahead_y, ahead_x), (right_y, right_x) = looking(heading)
    ahead, right = ahead_y * width + ahead_x, right_y * width + right_x
    return [ahead, -ahead, -right, right, 0, 0]
