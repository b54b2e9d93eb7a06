"""Positions inside the window: absolute ones added to its embeddings, POSITIONS[name](max_length, width), or rotary."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

ROTARY_BASE = 1e4


class Positions(nn.Module):
    """Add a table: x (B, T, D) -> x + table[:T]; ValueError if T exceeds the rows of the table."""

    table: Tensor  # (K, D)

    def forward(self, x: Tensor) -> Tensor:
        """Add row t to position t."""
        length, rows = x.shape[1], self.table.shape[0]
        if length > rows:
            raise ValueError(f"a window of {length} positions exceeds the {rows} position rows")
        return x + self.table[:length].to(x.dtype)


class Learned(Positions):
    """A trained row per position, starting at zero as in DTQN: K D parameters."""

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(max_length, width))


class Sinusoidal(Positions):
    """Fixed sines and cosines of Vaswani et al. (2017), section 3.5; no parameters."""

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        # In float64, rounded once at the end: angles of late positions lose digits in float32.
        frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(1e4) / width))
        angle = torch.arange(max_length, dtype=torch.float64)[:, None] * frequency  # (K, ceil(D/2))
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width]
        self.register_buffer("table", table.to(torch.get_default_dtype()), persistent=False)


POSITIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "none": lambda max_length, width: nn.Identity(),  # a prior or a recurrence gives the order
}


def rotate(x: Tensor, position: Tensor | None = None) -> Tensor:
    """Turn feature j of the first half with feature j of the second by position * 10000^(-2j / hd).

    Rotary positions of Su et al. (2021): x is (..., T, hd) with hd even; `position` broadcasts to (..., T) and is
    0 .. T-1 if None. Products of turned queries and keys depend on the difference of their positions alone.
    """
    half = x.shape[-1] // 2
    if position is None:
        position = torch.arange(x.shape[-2], device=x.device)
    kind = torch.promote_types(x.dtype, torch.float32)
    frequency = torch.exp(torch.arange(half, device=x.device, dtype=kind) * (-math.log(ROTARY_BASE) / half))
    angle = position[..., None].to(kind) * frequency  # (..., T, hd/2)
    first, second = x.to(kind).split(half, -1)
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1).to(x.dtype)


def rotary_table(length: int, units: int) -> Tensor:
    """Make cosines and signed sines, (T, 2, hd), with which x * cosine + x.roll(hd / 2, -1) * sine is `rotate` of x."""
    half = units // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(ROTARY_BASE) / half))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency  # (T, hd/2)
    cosine, sine = angle.cos(), angle.sin()
    table = torch.stack((torch.cat((cosine, cosine), 1), torch.cat((-sine, sine), 1)), 1)
    return table.to(torch.float32)
