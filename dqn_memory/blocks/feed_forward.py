"""Position-wise blocks: no memory of their own, the transformer's usual second sublayer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import Block, select


class Pointwise(Block):
    """The same layers at every position."""

    pointwise = True

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Transform every position of x (B, T, D) by itself."""
        # Of three dimensions, a Linear's output is a view, and autograd copies a view that is changed in place.
        return self.layers(x.flatten(0, 1)).view_as(x)  # (B, T, D)

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Transform position `index` (B,) of x (B, T, D) alone: (B, D)."""
        return self.layers(select(x, index))


class FeedForward(Pointwise):
    """Linear(D, kD), ReLU, Linear(kD, D), dropout: DTQN's second sublayer, 2 k D^2 + (k + 1) D parameters.

    `activation` takes the place of the ReLU.
    """

    def __init__(
        self, width: int, multiple: int = 4, dropout: float = 0.0, activation: nn.Module | None = None
    ) -> None:
        middle = nn.ReLU(inplace=True) if activation is None else activation
        inner = multiple * width
        super().__init__(nn.Linear(width, inner), middle, nn.Linear(inner, width), nn.Dropout(dropout))


class LinearMap(Pointwise):
    """One Linear(D, D): D^2 + D parameters (the ablation of the DBGFQN paper's first research question)."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(width, width), nn.Dropout(dropout))


class Gelu(nn.Module):
    """x Phi(x) with Phi in its tanh form, elementwise: torch's, or on a CPU the faster loops of kernels/cpu_gelu."""

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same shape."""
        if x.device.type == "cpu":
            from dqn_memory.blocks.kernels import cpu_gelu  # at first use: it loads numba

            if cpu_gelu.is_faster(x):
                return cpu_gelu.cpu_gelu(x)
        return F.gelu(x, approximate="tanh")
