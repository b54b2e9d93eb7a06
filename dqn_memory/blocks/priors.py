"""Temporal priors: what attention expects of a key, as a function of its distance alone.

A prior gives two tables `(scale, bias)` of shape (H, T), by distance d = query - key = 0 .. T-1, and
attention takes the softmax of `scale * S + bias` over the keys. Distances are positions of the window:
environment steps in the Q-learning core, tokens (two per step) in a world model.

Published texts and code compute some of these differently, so each form has a name of its own. "Paper" is
"Learning to Focus", "thesis" the thesis behind it, "released" the code that came with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from dqn_memory.blocks.block import lookup
from dqn_memory.blocks.contract import check_prior
from dqn_memory.blocks.prior_base import PENALTIES, Prior, Tables


@dataclass(frozen=True)
class PriorConfig:
    """Which prior, and where its learned values start (the same in every head).

    `mu`, `sigma` and `span` (L) are positive and learned per head and layer; `ramp` (R), `window` (w) and
    `cap` are fixed. `cap=None` caps spans at the context length. `regulariser` acts on the spans with factor
    `weight` (lambda; 0.025 in the paper); `max_norm` is the constraint span <= c.
    """

    kind: str = "causal"
    """Temporal prior of attention, a name of the prior table such as causal, local, gaussian or adaptive."""
    mu: float = 6.0
    """Where a Gaussian prior starts: the preferred distance, in steps of the window (6 in the paper, which is the
    default; 2 on the main branch of the released code)."""
    mu_max: float | None = None
    """Largest preferred distance (None: none, as in "Learning to Focus"; its thesis and released code have 20)."""
    sigma: float = 1.0
    """Its width at the start, in steps."""
    span: float = 10.0
    """Span L of an adaptive prior at the start, in steps (in the paper 6, and 10 beside a Gaussian; 2 on the main
    branch of the released code)."""
    ramp: float = 3.0
    """Steps over which a soft span fades out (R: 3 in the paper; the released code uses that number for something else,
    a warm-up of the penalty over 3 updates, which has no flag)."""
    cap: float | None = None
    """Largest span (None: the context length, the paper's 20 tokens; the released code never reads its bound)."""
    window: int = 10
    """Distance w up to which the local prior looks back."""
    regulariser: Literal["l1", "l1_mean", "l2", "max", "none"] = "none"
    """Penalty on the spans: their sum (l1, the paper's), their mean (l1_mean, that of the released branches), the sum
    of their squares, or the largest. A world model takes it over all layers, a Q-network adds up its layers' own."""
    weight: float = 0.0
    """Factor lambda of the penalty (0.025 in the paper; 0 on the released main branch, 0.0025 or 0.025 on others)."""
    max_norm: float | None = None
    """Bound c to which spans are projected after each step (None: no bound)."""

    def build(self, heads: int, max_length: int) -> Prior:
        """A prior of `heads` heads for windows of at most `max_length`; ValueError says what is wrong."""
        self._check()
        build = lookup(PRIORS, self.kind, "prior")
        if SHIPPED.get(self.kind) is not build:
            check_prior(self.kind, lambda: build(self, heads, max_length), heads, max_length)
        return build(self, heads, max_length)

    def _check(self) -> None:
        for name in ("mu", "sigma", "span", "ramp", "cap", "max_norm", "mu_max"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"prior {name} is {value}; it must be a positive finite number")
        if self.window < 0:
            raise ValueError(f"prior window is {self.window}; it must be 0 or more")
        if self.regulariser not in (*PENALTIES, "none"):
            raise ValueError(f"prior regulariser is {self.regulariser!r}; it must be {', '.join(PENALTIES)} or none")


class Causal(Prior):
    """No preference among the past: plain causal attention."""

    def tables(self, length: int) -> Tables:
        """No tables at all."""
        return None, None


class Local(Prior):
    """Keeps 0 <= d <= w (thesis Eq. 5, made causal)."""

    @property
    def fixed_window(self) -> int | None:
        """As configured."""
        return self.config.window

    def tables(self, length: int) -> Tables:
        """Bias 0 inside the window and -inf outside."""
        inside = self._distances(length) <= self.config.window
        bias = torch.zeros(length, device=inside.device).masked_fill(~inside, -math.inf)
        return None, bias.expand(self.heads, length)


class Adaptive(Prior):
    """Weights proportional to m(d) exp(S), m the ramp of thesis Eq. 6 (Sukhbaatar et al. 2019): trainable."""

    learns = ("span",)

    def tables(self, length: int) -> Tables:
        """Bias log m(d)."""
        return None, self._log_ramp(length)


class AdaptiveHard(Prior):
    """Keeps d <= L (paper Eq. 4-5); only a regulariser can move the span."""

    learns = ("span",)

    def tables(self, length: int) -> Tables:
        """Bias 0 up to the span and -inf beyond."""
        return None, self._hard(length)


class Gaussian(Prior):
    """Adds -(d - mu)^2 / (2 sigma^2) to the scores (paper Eq. 7-8)."""

    learns = ("mu", "sigma")

    def tables(self, length: int) -> Tables:
        """Bias: the logarithm of the Gaussian."""
        return None, self._gaussian(length)


class GaussianAdaptive(Prior):
    """Gaussian bias plus the logarithm of the ramp: paper Eq. 9 with a span that can be trained."""

    learns = ("mu", "sigma", "span")

    def tables(self, length: int) -> Tables:
        """Bias: both logarithms added."""
        return None, self._gaussian(length) + self._log_ramp(length)


class GaussianAdaptiveHard(Prior):
    """Gaussian bias and a hard span, exactly paper Eq. 9."""

    learns = ("mu", "sigma", "span")

    def tables(self, length: int) -> Tables:
        """Bias: the logarithm of the Gaussian, -inf beyond the span."""
        return None, self._gaussian(length) + self._hard(length)


class AdaptiveRampGate(Prior):
    """Multiplies the scores by the ramp (thesis Eq. 6 taken literally); causal.

    Past keys beyond the span get logit 0, which is not "masked": they share the weight that is left.
    """

    learns = ("span",)

    def tables(self, length: int) -> Tables:
        """Scale m(d)."""
        return self._ramp(length), None


class GaussianGate(Prior):
    """Multiplies the scores by exp(-(d - mu)^2 / (2 sigma^2)) (thesis Eq. 8, the released form); causal."""

    learns = ("mu", "sigma")

    def tables(self, length: int) -> Tables:
        """Scale: the Gaussian."""
        return self._gaussian(length).exp(), None


class AdaptiveGate(Prior):
    """Multiplies the scores by max(0, 1 - d/L) and leaves future keys at logit 0, as released; NOT causal."""

    learns = ("span",)
    future_logit_zero = True

    def tables(self, length: int) -> Tables:
        """Scale: the triangle."""
        return self._triangle(length), None


class GaussianAdaptiveGate(Prior):
    """Triangle times Gaussian on the scores, future keys at logit 0, as released; NOT causal."""

    learns = ("mu", "sigma", "span")
    future_logit_zero = True

    def tables(self, length: int) -> Tables:
        """Scale: the product."""
        return self._triangle(length) * self._gaussian(length).exp(), None


PRIORS: dict[str, type[Prior]] = {
    "causal": Causal,
    "local": Local,
    "adaptive": Adaptive,
    "adaptive_hard": AdaptiveHard,
    "gaussian": Gaussian,
    "gaussian_adaptive": GaussianAdaptive,
    "gaussian_adaptive_hard": GaussianAdaptiveHard,
    "adaptive_ramp_gate": AdaptiveRampGate,
    "gaussian_gate": GaussianGate,
    "adaptive_gate": AdaptiveGate,
    "gaussian_adaptive_gate": GaussianAdaptiveGate,
}
SHIPPED = dict(PRIORS)  # before any plugin
