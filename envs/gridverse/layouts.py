"""Initial grids."""

import itertools

import torch
from torch import Tensor

from envs.gridverse.objects import BEACON, COLOURS, EXIT, FLOOR, WALL, pack


def memory(size: int) -> tuple[Tensor, Tensor]:
    """All 24 initial grids of the memory task, codes (24, size*size) int16, and good colours (24,) int64.

    An I-shaped corridor: two exits at the ends of the upper bar, two beacons, both of the good exit's colour,
    at the ends of the lower bar. Row 2p + s is the ordered colour pair p (good, bad) with the good exit on
    the left (s = 0) or on the right.
    """
    pairs = list(itertools.permutations(COLOURS, 2))
    grids = [_corridor(size, good, bad, right) for good, bad in pairs for right in (False, True)]
    goods = torch.tensor([good for good, _ in pairs]).repeat_interleave(2)
    return torch.stack(grids).flatten(1), goods


def _corridor(size: int, good: int, bad: int, right: bool) -> Tensor:
    grid = torch.full((size, size), pack(WALL), dtype=torch.int16)
    grid[1, 2:-2] = grid[-2, 2:-2] = grid[2:-2, size // 2] = pack(FLOOR)
    grid[1, -2 if right else 1] = pack(EXIT, colour=good)
    grid[1, 1 if right else -2] = pack(EXIT, colour=bad)
    grid[-2, 1] = grid[-2, -2] = pack(BEACON, colour=good)
    return grid  # (size, size)
