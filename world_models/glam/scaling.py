"""How far imagined returns spread, so that one entropy weight serves games of any score."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from world_models.distributions import wide

LOW, HIGH = 0.05, 0.95  # the percentiles between which returns are measured


def percentile(x: Tensor, share: float) -> Tensor:
    """The int(share n)-th smallest of all n entries, and the smallest where that is none: a number of x itself."""
    x = x.flatten()
    return x.kthvalue(max(int(share * x.numel()), 1)).values


class ReturnScale(nn.Module):
    """max(1, S), S = moving 95th minus moving 5th percentile of the returns (Hafner et al. 2023, eq. 11).

    Both averages start at 0 and are not corrected for it, as in the code of STORM and GLAM; they are buffers, so that
    a checkpoint has them.
    """

    low: Tensor
    high: Tensor

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        for name in ("low", "high"):
            self.register_buffer(name, torch.zeros(()))

    @torch.no_grad()
    def update(self, returns: Tensor) -> Tensor:
        """Take in returns of any shape; gives the scale after it, a scalar of at least 1."""
        returns = wide(returns)
        for average, share in ((self.low, LOW), (self.high, HIGH)):
            average.lerp_(percentile(returns, share).to(average.dtype), 1 - self.decay)
        return self.value

    @property
    def value(self) -> Tensor:
        """The scale as it stands, a scalar."""
        return (self.high - self.low).clamp(min=1.0)
