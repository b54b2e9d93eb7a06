"""The whole state of a grid as numbers, for agents from which nothing is hidden."""

from __future__ import annotations

import torch
from torch import Tensor

from envs.gridverse.encodings import states
from envs.gridverse.objects import BOX, CODES, COLOURS, DIRECTIONS, HIDDEN, KINDS, pack
from envs.gridverse.rules import looking
from envs.gridverse.scene import Scene
from envs.numpy_backend import beside, gather, integers, take
from envs.spaces import MultiDiscrete


class Whole:
    """A grid of H x W cells around the agent, and what no cell shows: S S + 5 numbers, S the longer side.

    Cells are shown as the agent's own view shows them, turned so that it looks at the first row, with itself in the
    middle (row and column S // 2); what lies beyond an edge comes in again at the opposite one, so that every cell is
    there once. A cell is the number of its object with type, status, colour and contents, the same in every task.
    Behind them stand the agent's row, column and heading, the object in its hand, and the colour of the good exit (0
    without one). Different scenes have different numbers.
    """

    runs_on_numpy = True

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        codes = [pack(kind, status, hue) for kind in KINDS if kind != BOX for status in range(states(kind))
                 for hue in (0, *COLOURS)]  # fmt: skip
        codes += range(pack(BOX), pack(BOX + 1))  # a box is told by its contents
        numbers = torch.zeros(CODES, dtype=torch.int64)
        numbers[codes] = torch.arange(len(codes))
        side, self.cells = max(height, width), height * width
        self.numbers = numbers.to(device)
        self.order = _order(height, width).to(device)  # (H*W * 4, S*S), by position and heading
        self.outside = numbers[pack(HIDDEN)].to(device)  # fills the shorter side
        self.width, self.headings = torch.tensor([width, len(DIRECTIONS)], device=device).unbind()
        sizes = [height, width, len(DIRECTIONS), len(codes), len(COLOURS) + 1]
        self.space = MultiDiscrete([len(codes)] * side**2 + sizes)

    def __call__(self, scene: Scene) -> Tensor:
        """The numbers (N, S*S + 5) int64 of N scenes."""
        cells = take(self.numbers, integers(scene.cells).reshape(-1)).reshape(-1, self.cells)
        y, x, held = scene.position // self.width, scene.position % self.width, take(self.numbers, scene.held)
        cells = beside([cells, (y * 0 + self.outside)[:, None]])
        around = gather(cells, take(self.order, scene.position * self.headings + scene.heading))
        whole: Tensor = beside([around, *(each[:, None] for each in (y, x, scene.heading, held, scene.good))])
        return whole


def _order(height: int, width: int) -> Tensor:
    """Which cell (H*W for none) is shown where, (H*W * 4, S*S): a torus of S x S turned around the agent."""
    side = max(height, width)
    place = torch.arange(side * side)
    ahead, aside = side // 2 - place // side, place % side - side // 2  # (S*S,) steps from the agent
    position = torch.arange(height * width)[:, None]
    turned = []
    for heading in range(len(DIRECTIONS)):
        (ahead_y, ahead_x), (right_y, right_x) = looking(heading)
        y = (position // width + ahead * ahead_y + aside * right_y) % side  # (H*W, S*S)
        x = (position % width + ahead * ahead_x + aside * right_x) % side
        turned.append(torch.where((y < height) & (x < width), y * width + x, height * width))
    return torch.stack(turned, 1).flatten(0, 1)
