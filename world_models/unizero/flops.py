"""Operations of the transformer: as the paper's Table 3 counts them, and all of them.

The paper's numbers are those of torch's profiler for one pass over 16 tokens, batch 1, without encoder and
heads. That profiler counts linear maps, matrix products, additions and multiplications, and nothing else:
subtractions, divisions, powers, exponentials, softmax, LayerNorm, GELU and masks are free. So a prior's cost
depends on how its formula is spelled. The spellings below are run on tensors without storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dqn_memory.blocks import Attention
from world_models.unizero.layers import AttentionLayer, AttentionStack

TOKENS = 16  # the only length with which the published number can be made
RAMP = 3.0
aten = torch.ops.aten

# What one output element costs where it is not one operation: maximum, exponential, sum and division of a
# softmax; mean, difference, square, sum, root, quotient, scale and shift of a LayerNorm.
ELEMENT_COST = {"_softmax": 4, "native_layer_norm": 8}
GRU_SCAN = "dqn_memory::gru_scan"  # beside its products: five sums, three squashings, two products a unit
GRU_COST = 10
CREATED = {"arange", "zeros", "ones", "full", "empty"}
MOVED = {"slice", "select", "where", "masked_fill", "clone", "copy_", "_to_copy", "cat", "stack"}


@dataclass(frozen=True)
class Form:
    """One way of writing a prior down: scores (H, T, T), distances (T, T), parameters (H, 1, 1) -> logits."""

    prior: str  # its name in the table of priors
    source: str  # released, equation or this project
    formula: str
    logits: Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]


def _causal(scores: Tensor, distance: Tensor) -> Tensor:
    return scores.masked_fill(distance < 0, -math.inf)


def _bump(distance: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    return (distance - p["mu"]).pow(2) / (2 * p["sigma"].pow(2))


def _triangle(distance: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    return (1 - distance / p["span"]).clamp(min=0).masked_fill(distance < 0, 0.0)


def _ramp(distance: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    return ((RAMP + p["span"] - distance) / RAMP).clamp(0, 1)


def _outside(distance: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    return (distance < 0) | (distance > p["span"])


FORMS = (
    Form("causal", "equation", "S", lambda s, d, p: _causal(s, d)),
    Form("adaptive_gate", "released", "S * tri", lambda s, d, p: s * _triangle(d, p)),
    Form("adaptive_hard", "equation 4", "S masked", lambda s, d, p: s.masked_fill(_outside(d, p), -math.inf)),
    Form("adaptive_ramp_gate", "thesis 6", "S * m", lambda s, d, p: _causal(s * _ramp(d, p), d)),
    Form("adaptive", "thesis 6", "S + log m", lambda s, d, p: _causal(s + _ramp(d, p).log(), d)),
    Form("gaussian_gate", "released", "S * exp(-e)", lambda s, d, p: _causal(s * (-_bump(d, p)).exp(), d)),
    Form("gaussian", "equation 8", "S - e", lambda s, d, p: _causal(s - _bump(d, p), d)),
    Form("gaussian", "equation 8", "S + (-e)", lambda s, d, p: _causal(s + -_bump(d, p), d)),
    Form("gaussian", "equation 8", "S + (-1/2) ((d - mu) / sigma)^2",
         lambda s, d, p: _causal(s + -0.5 * ((d - p["mu"]) / p["sigma"]).pow(2), d)),
    Form("gaussian_adaptive_gate", "released", "S * (tri * exp(-e))",
         lambda s, d, p: s * (_triangle(d, p) * (-_bump(d, p)).exp())),
    Form("gaussian_adaptive_hard", "equation 9", "S - e, masked",
         lambda s, d, p: (s - _bump(d, p)).masked_fill(_outside(d, p), -math.inf)),
    Form("gaussian_adaptive_hard", "equation 9", "S + (-e), masked",
         lambda s, d, p: (s + -_bump(d, p)).masked_fill(_outside(d, p), -math.inf)),
    Form("gaussian_adaptive_hard", "equation 9", "S + (-1/2) ((d - mu) / sigma)^2, masked",
         lambda s, d, p: (s + -0.5 * ((d - p["mu"]) / p["sigma"]).pow(2)).masked_fill(_outside(d, p), -math.inf)),
)  # fmt: skip


def plain_forward(stack: AttentionStack, x: Tensor, form: Form) -> Tensor:
    """The stack on x (1, T, D) in elementary operations, with every prior evaluated at all T x T pairs."""
    tokens = x[0]
    for layer in stack.attention_layers():
        tokens = tokens + _plain_attention(layer.attention, layer.norms[0](tokens), form)
        tokens = tokens + _plain_feed_forward(layer, layer.norms[1](tokens))
    return stack.norm(tokens)[None]


def _plain_attention(block: Attention, x: Tensor, form: Form) -> Tensor:
    time, heads = len(x), block.heads
    query, key, value = block.project_in(x).view(time, 3, heads, -1).permute(1, 2, 0, 3)  # (H, T, hd)
    place = torch.arange(time, device=x.device)
    parameters = {name: torch.ones(heads, 1, 1, device=x.device, dtype=x.dtype) for name in ("mu", "sigma", "span")}
    scores = torch.bmm(query, key.mT) * (1 / math.sqrt(query.shape[-1]))  # (H, T, T)
    weights = form.logits(scores, (place[:, None] - place).to(x.dtype), parameters).softmax(-1)
    return block.project_out(torch.bmm(weights, value).transpose(0, 1).reshape(time, -1))


def _plain_feed_forward(layer: AttentionLayer, x: Tensor) -> Tensor:
    first, _, last, _ = layer.feed_forward.layers
    return last(F.gelu(first(x), approximate="tanh"))


class Counter(TorchDispatchMode):
    """Adds up the operations of everything that runs inside: `published` by the profiler's rule, `total` all."""

    def __init__(self) -> None:
        super().__init__()
        self.published = 0
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        products = _products(name, args, out)
        self.published += products or (_elements(out) if name in ("add", "mul") else 0)
        if products:
            extra = {"addmm": 1, GRU_SCAN: GRU_COST}.get(name, 0)  # a bias is added
            self.total += products + extra * _elements(out)
        elif not (func.is_view or name in CREATED | MOVED):
            self.total += ELEMENT_COST.get(name, 1) * _elements(out)
        return out


def _products(name: str, args: Any, out: Any) -> int:
    """Two for each multiply-add of a matrix product or convolution: output elements times what each one sums over."""
    if name in ("addmm", "baddbmm"):
        return 2 * out.numel() * args[1].shape[-1]
    if name in ("mm", "bmm"):
        return 2 * out.numel() * args[0].shape[-1]
    if name == "convolution":
        return 2 * out.numel() * args[1][0].numel()
    if name == GRU_SCAN:  # every position's state meets a matrix (H, 3H)
        return 2 * out[0].numel() * args[1].shape[1]
    return 0


def _elements(out: Any) -> int:
    first = out[0] if isinstance(out, tuple | list) else out
    return first.numel() if isinstance(first, Tensor) and first.is_floating_point() else 0


def count(stack: AttentionStack, form: Form, tokens: int = TOKENS) -> Counter:
    """Operations of one plain pass over `tokens` tokens."""
    weight = stack.norm.weight
    with torch.no_grad(), Counter() as counter:
        plain_forward(stack, torch.empty(1, tokens, len(weight), device=weight.device, dtype=weight.dtype), form)
    return counter
