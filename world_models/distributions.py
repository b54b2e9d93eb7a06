"""Value transforms, two-hot codes, mixed and grouped categoricals, and their divergences.

Expectations, logarithms and inverse transforms are computed in float32 or wider, whatever the network's precision.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

SLOPE = 1e-3  # epsilon of the value transform: makes its inverse Lipschitz
UNIMIX = 0.01  # share of the uniform distribution in a mixed categorical
FLOOR = 1e-6  # added to both sides of the group divergence, as in UniZero


def upcast(x: Tensor) -> Tensor:
    """Convert to float32; wider floats do not change."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def value_transform(x: Tensor) -> Tensor:
    """Compute h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018), elementwise.

    The difference is written as a quotient, which loses no digits near 0.
    """
    x = upcast(x)
    size = x.abs()
    return x.sign() * size / ((size + 1).sqrt() + 1) + SLOPE * x


def inverse_value_transform(y: Tensor) -> Tensor:
    """Solve h(x) = y for x, elementwise."""
    y = upcast(y)
    size = y.abs()
    root = 2 * (size + 1 + SLOPE) / (1 + (1 + 4 * SLOPE * (size + 1 + SLOPE)).sqrt())  # sqrt(|x| + 1)
    return y.sign() * (root.square() - 1)


def symlog(x: Tensor) -> Tensor:
    """Compute sign(x) log(1 + |x|) (Hafner et al. 2023)."""
    x = upcast(x)
    return x.sign() * x.abs().log1p()


def symexp(y: Tensor) -> Tensor:
    """Invert symlog."""
    y = upcast(y)
    return y.sign() * y.abs().expm1()


def two_hot(x: Tensor, low: float, high: float, bins: int) -> Tensor:
    """Encode x, clamped, as weights on `bins` evenly spaced points of [low, high] with mean x: (...) -> (..., bins).

    Only the two neighbours of x get weight; if x is a point, it gets all weight.
    """
    step = (high - low) / (bins - 1)
    position = (upcast(x).clamp(low, high) - low) / step  # in bins
    points = torch.arange(bins, device=x.device, dtype=position.dtype)
    return F.relu(1 - (position[..., None] - points).abs())


def expectation(logits: Tensor, low: float, high: float) -> Tensor:
    """Average evenly spaced points of [low, high] under the softmax: (..., bins) -> (...)."""
    logits = upcast(logits)
    points = torch.linspace(low, high, logits.shape[-1], device=logits.device, dtype=logits.dtype)
    return (logits.softmax(-1) * points).sum(-1)


@dataclass(frozen=True)
class TwoHotCode:
    """A code of scalars: two-hot distributions of their transform, on `bins` evenly spaced points of [low, high]."""

    low: float
    high: float
    bins: int
    transform: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]

    def encode(self, x: Tensor) -> Tensor:
        """Encode (...) -> (..., bins); values outside the range of the points are clamped."""
        return two_hot(self.transform(x), self.low, self.high, self.bins)

    def decode(self, logits: Tensor) -> Tensor:
        """Decode (..., bins) -> (...): invert the expectation, in float32 or wider (bfloat16 is 1 to 3 % off)."""
        return self.inverse(expectation(logits, self.low, self.high))


def value_code(size: int = 50) -> TwoHotCode:
    """Make the code of h(x) on the integers -size .. size (MuZero, appendix F)."""
    return TwoHotCode(-size, size, 2 * size + 1, value_transform, inverse_value_transform)


def symlog_code(bins: int = 255) -> TwoHotCode:
    """Make the code of symlog(x) on `bins` points of [-20, 20] (Hafner et al. 2023)."""
    return TwoHotCode(-20.0, 20.0, bins, symlog, symexp)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Average x over the positions of a mask of the same shape; 0 if it has none."""
    return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Compute -sum target log softmax(logits) over the last dimension: (..., K), (..., K) -> (...)."""
    return -(target * upcast(logits).log_softmax(-1)).sum(-1)


def entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of softmax(logits) in nats: (..., K) -> (...)."""
    logs = upcast(logits).log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Compute KL(p || q) of log-probabilities (..., G, C), in nats, summed over the categoricals: (...)."""
    return (p.exp() * (p - q)).sum((-2, -1))


def unimix(logits: Tensor) -> Tensor:
    """Compute log-probabilities of a categorical mixed with 1 % of the uniform one (Hafner et al. 2023)."""
    probabilities = upcast(logits).softmax(-1)
    return ((1 - UNIMIX) * probabilities + UNIMIX / logits.shape[-1]).log()


def simnorm(x: Tensor, group: int = 8) -> Tensor:
    """Compute the softmax in each group of `group` neighbours (Hansen et al. 2024): (..., D) -> (..., D)."""
    return upcast(x).unflatten(-1, (-1, group)).softmax(-1).flatten(-2)


def group_kl(prediction: Tensor, target: Tensor, group: int = 8) -> Tensor:
    """Compute KL(target || prediction) of each group of probabilities, averaged over groups: (..., D) -> (...).

    Both have 1e-6 added and are not renormalised, as in UniZero.
    """
    p, q = upcast(target) + FLOOR, upcast(prediction) + FLOOR
    return (p * (p.log() - q.log())).unflatten(-1, (-1, group)).sum(-1).mean(-1)
