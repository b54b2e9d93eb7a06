"""Temporal priors: preferences of attention among the distances between query and key.

A prior gives two tables by distance, `(scale, bias)`; attention computes softmax(scale * S + bias). All learned values
are per head. The papers' numbering: "thesis" is the attention thesis, "paper" is Learning to Focus.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import lookup, refuse_replaced
from dqn_memory.blocks.contract import check_prior

Tables = tuple[Tensor | None, Tensor | None]  # (scale, bias), each (H, T) or None

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
    # Clamp before the softplus. At the bound keep the gradient, so that a value initialised there can learn:
    # `torch.clamp` has a gradient of 0 on its bound since torch 2.15.
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
        self.cap = float(max_length if config.max_span is None else config.max_span)
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

    @abstractmethod
    def tables(self, length: int) -> Tables:
        """Compute scale and bias by distance 0 .. length-1, (H, length) each; None is all ones, or all zeros."""

    def learned(self) -> dict[str, Tensor]:
        """Compute the effective values by name (among mu, sigma, span), each (H,)."""
        return {name: getattr(self, name)() for name in self.learns}

    def mu(self) -> Tensor:
        """Compute the distance of the preferred key."""  # (H,)
        return _softplus_up_to(self._raw("mu"), self.config.mu_max)

    def sigma(self) -> Tensor:
        """Compute the width around the preferred key."""  # (H,)
        return F.softplus(self._raw("sigma")).clamp(min=SMALLEST)

    def span(self) -> Tensor:
        """Compute the span of each head, at most the cap."""  # (H,)
        return _softplus_up_to(self._raw("span"), self.cap)

    def regularisation(self) -> Tensor:
        """Compute weight times penalty on this layer's spans; 0 without spans or regulariser."""
        if "span" not in self.learns or self.config.regulariser == "none":
            return self.distance.new_zeros((), dtype=torch.get_default_dtype())
        return self.config.regulariser_weight * PENALTIES[self.config.regulariser](self.span())

    @torch.no_grad()
    def project(self) -> None:
        """Clamp spans to `max_norm` and the cap, and mu to its bound: beyond them the gradient is 0."""
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

    def _local(self, length: int) -> Tensor:
        """Zero up to the window w and -inf beyond."""
        inside = self._distances(length) <= self.config.local_window
        bias = torch.zeros(length, device=inside.device).masked_fill(~inside, -math.inf)
        return bias.expand(self.heads, length)

    def _triangle(self, length: int) -> Tensor:
        """max(0, 1 - d / L)."""
        return F.relu(1 - self._distances(length) / self.span()[:, None].clamp(min=SMALLEST))  # (H, T)


@dataclass(frozen=True)
class PriorConfig:
    """A temporal prior and its initial values, the same in every head.

    `mu`, `sigma` and `span` (L) are positive and learned per head and layer; `ramp` (R), `local_window` (w) and
    `max_span` are fixed. `max_span=None` caps spans at the context length. `regulariser` acts on the spans with factor
    `regulariser_weight` (lambda); `max_norm` is the constraint span <= c. A world model penalises the spans of all
    layers together, a Q-network adds up the penalties of its layers.
    """

    # "Learning to Focus" has mu 6 without a bound, span 6 (10 beside a Gaussian), ramp 3, max_span 20 tokens and l1
    # with lambda 0.025. Its thesis and released code have mu_max 20. The main branch of the released code has mu 2,
    # span 2 and lambda 0; other branches have l1_mean with 0.0025 or 0.025. The released code never reads its max_span,
    # and its 3 is no ramp but a warm-up of the penalty over 3 updates, which has no flag here.

    kind: str = "causal"
    """Temporal prior of attention, a name of the prior table such as causal, local, gaussian or adaptive."""
    mu: float = 6.0
    """Preferred distance of a Gaussian prior at the start, in positions (of UniZero, tokens: two a step)."""
    mu_max: float | None = None
    """Max preferred distance (None: no bound)."""
    sigma: float = 1.0
    """Width of a Gaussian prior at the start, in positions."""
    span: float = 10.0
    """Span L of an adaptive prior at the start, in positions."""
    ramp: float = 3.0
    """Positions R over which a soft span fades out."""
    max_span: float | None = None
    """Max span (None: the context length)."""
    local_window: int = 10
    """Distance w up to which the local prior looks back."""
    regulariser: Literal["l1", "l1_mean", "l2", "max", "none"] = "none"
    """Penalty on the spans: their sum (l1), their mean (l1_mean), the sum of their squares (l2) or their max."""
    regulariser_weight: float = 0.0
    """Factor lambda of the penalty on the spans."""
    max_norm: float | None = None
    """Bound c to which spans (not gradients) are projected after each update (None: no bound)."""

    def build(self, heads: int, max_length: int) -> Prior:
        """Build a prior of `heads` heads for windows of at most `max_length`; ValueError for a wrong value."""
        self._check()
        build = lookup(PRIORS, self.kind, "prior")
        refuse_replaced(PRIORS, SHIPPED, self.kind, "prior")
        if self.kind not in SHIPPED:
            check_prior(self.kind, lambda: build(self, heads, max_length), Prior, heads, max_length)
        return build(self, heads, max_length)

    def _check(self) -> None:
        for name in ("mu", "sigma", "span", "ramp", "max_span", "max_norm", "mu_max"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"prior {name} is {value}; it must be a positive finite number")
        if self.local_window < 0:
            raise ValueError(f"prior local_window is {self.local_window}; it must be 0 or more")
        if self.regulariser not in (*PENALTIES, "none"):
            raise ValueError(f"prior regulariser is {self.regulariser!r}; it must be {', '.join(PENALTIES)} or none")


Table = Callable[[Any, int], Tensor]  # a method of Prior: by distance, (H, T)


def _form(
    about: str,
    learns: tuple[str, ...] = (),
    scale: Table | None = None,
    bias: Table | None = None,
    future_logit_zero: bool = False,
) -> type[Prior]:
    """Make a class of priors from its docstring, the names that it learns and its two tables."""

    class Form(Prior):
        def tables(self, length: int) -> Tables:
            return None if scale is None else scale(self, length), None if bias is None else bias(self, length)

    Form.__doc__, Form.learns, Form.future_logit_zero = about, learns, future_logit_zero
    return Form


PRIORS: dict[str, type[Prior]] = {
    "causal": _form("No preference among the past: plain causal attention."),
    "local": _form("Keeps 0 <= d <= w (thesis Eq. 5, made causal).", bias=Prior._local),
    "adaptive": _form(
        "Weights proportional to m(d) exp(S), m the ramp of thesis Eq. 6 (Sukhbaatar et al. 2019): trainable.",
        ("span",),
        bias=Prior._log_ramp,
    ),
    "adaptive_hard": _form(
        "Keeps d <= L (paper Eq. 4-5); only a regulariser can move the span.", ("span",), bias=Prior._hard
    ),
    "gaussian": _form(
        "Adds -(d - mu)^2 / (2 sigma^2) to the scores (paper Eq. 7-8).", ("mu", "sigma"), bias=Prior._gaussian
    ),
    "gaussian_adaptive": _form(
        "Gaussian bias plus the logarithm of the ramp: paper Eq. 9 with a span that can be trained.",
        ("mu", "sigma", "span"),
        bias=lambda prior, length: prior._gaussian(length) + prior._log_ramp(length),
    ),
    "gaussian_adaptive_hard": _form(
        "Gaussian bias and a hard span, exactly paper Eq. 9.",
        ("mu", "sigma", "span"),
        bias=lambda prior, length: prior._gaussian(length) + prior._hard(length),
    ),
    # Past keys beyond the span get logit 0, which is not "masked": they share the weight that is left.
    "adaptive_ramp_gate": _form(
        "Multiplies the scores by the ramp (thesis Eq. 6 taken literally); causal.", ("span",), scale=Prior._ramp
    ),
    "gaussian_gate": _form(
        "Multiplies the scores by exp(-(d - mu)^2 / (2 sigma^2)) (thesis Eq. 8, the released form); causal.",
        ("mu", "sigma"),
        scale=lambda prior, length: prior._gaussian(length).exp(),
    ),
    "adaptive_gate": _form(
        "Multiplies the scores by max(0, 1 - d/L) and leaves future keys at logit 0, as released; NOT causal.",
        ("span",),
        scale=Prior._triangle,
        future_logit_zero=True,
    ),
    "gaussian_adaptive_gate": _form(
        "Triangle times Gaussian on the scores, future keys at logit 0, as released; NOT causal.",
        ("mu", "sigma", "span"),
        scale=lambda prior, length: prior._triangle(length) * prior._gaussian(length).exp(),
        future_logit_zero=True,
    ),
}
for _name, _class in PRIORS.items():
    _class.__name__ = _class.__qualname__ = _name  # as a network prints it
SHIPPED = dict(PRIORS)  # before any plugin
globals().update(SHIPPED)  # where pickle looks for the class of a prior
