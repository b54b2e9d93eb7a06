"""What all temporal priors share: learned values, the tables they are made from, penalty and projection."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from dqn_memory.blocks.priors import PriorConfig

Tables = tuple[Tensor | None, Tensor | None]

# A span of 10 may come back from its softplus an ulp below 10; without slack a hard span would lose a key.
HARD_SLACK = 1e-4
# Below this a width or span is numerically zero: its square underflows in float32 and gradients become NaN.
SMALLEST = 1e-3

PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": lambda span: span.sum(),
    "l1_mean": lambda span: span.mean(),
    "l2": lambda span: span.square().sum(),
    "max": lambda span: span.amax(),
}


def inverse_softplus(value: float) -> float:
    """log(expm1(value)), without overflow for large values."""
    return value + math.log(-math.expm1(-value))


def _softplus_up_to(raw: Tensor, bound: float | None) -> Tensor:
    # Bounded before the softplus, and on the bound the gradient is that of below, so that a value which starts there
    # learns. `clamp` has a gradient of 0 on its bound since torch 2.15.
    top = math.inf if bound is None else inverse_softplus(bound)
    return F.softplus(torch.where(raw > top, top, raw))


class Prior(nn.Module, ABC):
    """Base of all priors: raw parameters, their effective values, the regulariser and the projection.

    Parameters are stored before the softplus: effective = softplus(raw), raw = log(expm1(initial value)).
    """

    learns: ClassVar[tuple[str, ...]] = ()
    # True: future keys get logit 0 instead of -inf. Such a prior gives a scale and no bias.
    future_logit_zero: ClassVar[bool] = False
    distance: Tensor

    def __init__(self, config: PriorConfig, heads: int, max_length: int) -> None:
        super().__init__()
        self.config = config
        self.heads = heads
        self.cap = float(max_length if config.cap is None else config.cap)
        # Integers, because a module cast to bfloat16 must not round its distances.
        self.register_buffer("distance", torch.arange(max_length), persistent=False)
        starts = {"mu": config.mu, "sigma": config.sigma, "span": min(config.span, self.cap)}
        if unknown := [name for name in self.learns if name not in starts]:
            raise ValueError(
                f"prior {config.kind!r} learns {', '.join(unknown)}, but `learns` names mu, sigma and span alone; make "
                "other parameters in __init__ and give their values in learned()"
            )
        self.raw = nn.ParameterDict(
            {name: nn.Parameter(torch.full((heads,), inverse_softplus(starts[name]))) for name in self.learns}
        )

    @property
    def causal(self) -> bool:
        """False when future keys receive weight."""
        return not self.future_logit_zero

    @property
    def fixed_window(self) -> int | None:
        """The w of a prior that is nothing but "0 <= d <= w", not learned; None for all others."""
        return None

    @abstractmethod
    def tables(self, length: int) -> Tables:
        """Scale and bias by distance 0 .. length-1, (H, length) each; None is all ones, or all zeros."""

    def learned(self) -> dict[str, Tensor]:
        """Effective values by name (among mu, sigma, span), each (H,)."""
        values = {"mu": self.mu, "sigma": self.sigma, "span": self.span}
        return {name: values[name]() for name in self.learns}

    def mu(self) -> Tensor:
        """Distance of the preferred key."""  # (H,)
        return _softplus_up_to(self._raw("mu"), self.config.mu_max)

    def sigma(self) -> Tensor:
        """Width around the preferred key."""  # (H,)
        return F.softplus(self._raw("sigma")).clamp(min=SMALLEST)

    def span(self) -> Tensor:
        """Reach of each head, at most the cap."""  # (H,)
        return _softplus_up_to(self._raw("span"), self.cap)

    def regularisation(self) -> Tensor:
        """Weight times the penalty on this layer's spans; 0 without spans or regulariser."""
        if "span" not in self.learns or self.config.regulariser == "none":
            return self.distance.new_zeros((), dtype=torch.get_default_dtype())
        return self.config.weight * PENALTIES[self.config.regulariser](self.span())

    @torch.no_grad()
    def project(self) -> None:
        """Pull spans below `max_norm` and the cap, and mu below its bound: beyond there is no gradient to return by."""
        if "mu" in self.learns and self.config.mu_max is not None:
            self.raw["mu"].clamp_(max=inverse_softplus(self.config.mu_max))
        if "span" in self.learns:
            limit = min(self.cap, self.config.max_norm or math.inf)
            self.raw["span"].clamp_(max=inverse_softplus(limit * (1 - 1e-6)))

    def _raw(self, name: str) -> Tensor:
        raw = self.raw[name]
        return raw.to(torch.promote_types(raw.dtype, torch.float32))

    def _distances(self, length: int) -> Tensor:
        if length > len(self.distance):
            raise ValueError(f"a window of {length} exceeds the {len(self.distance)} this prior is built for")
        return self.distance[:length]

    def _gaussian(self, length: int) -> Tensor:
        """-(d - mu)^2 / (2 sigma^2), the logarithm of an unnormalised Gaussian."""
        deviation = (self._distances(length) - self.mu()[:, None]) / self.sigma()[:, None]
        return -0.5 * deviation.square()  # (H, T)

    def _log_ramp(self, length: int) -> Tensor:
        ramp = self._ramp(length)
        # The clamp keeps log's gradient finite where the ramp is 0; there the -inf is a constant.
        inside = (ramp > 0).detach()
        return torch.where(inside, ramp.clamp(min=1e-30).log(), -math.inf)  # (H, T)

    def _ramp(self, length: int) -> Tensor:
        """clip((R + L - d) / R, 0, 1): 1 up to the span, then falling to 0 over R positions."""
        reach = self.config.ramp + self.span()[:, None] - self._distances(length)
        return (reach / self.config.ramp).clamp(0, 1)  # (H, T)

    def _hard(self, length: int) -> Tensor:
        """Zero up to the span and -inf beyond; the span's task gradient is exactly zero (paper Eq. 4)."""
        span = self.span()[:, None]
        inside = self._distances(length) <= (span + HARD_SLACK).detach()
        return torch.where(inside, 0 * span, -math.inf)  # (H, T)

    def _triangle(self, length: int) -> Tensor:
        """max(0, 1 - d / L)."""
        return F.relu(1 - self._distances(length) / self.span()[:, None].clamp(min=SMALLEST))  # (H, T)
