"""GELU in its tanh form on a CPU, forward and backward, as one pass over eight numbers side by side: see `lanes`.

With u = sqrt(2/pi) (x + 0.044715 x^3), x (1 + tanh u) / 2 = x / (1 + e^-2u) (Hendrycks & Gimpel 2016): one power of two
and one division, where a library's tanh takes a third of a small transformer's update. Nothing cancels on the left.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.kernels.simd import (
    COUNT,
    add,
    compiled,
    divide,
    fill,
    in_parts,
    larger,
    load,
    multiply,
    multiply_add,
    power_of_two,
    store,
    subtract,
)

FEWEST = 1 << 15  # numbers below which calling costs more than the work
CUBE = 0.044715
SLOPE = 2 * math.sqrt(2 / math.pi)  # of 2u at 0
LOG2_E = math.log2(math.e)
EDGE = 10.0


class Gelu(nn.Module):
    """x Phi(x), Phi by tanh, elementwise and on any device: torch's, or this module's loops where they are faster."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return lane_gelu(x) if is_faster(x) else F.gelu(x, approximate="tanh")


def is_faster(x: Tensor) -> bool:
    """Whether numbers x are faster here than in torch."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() >= FEWEST and x.numel() % COUNT == 0


@torch.library.custom_op("dqn_memory::lane_gelu", mutates_args=())
def lane_gelu(x: Tensor) -> Tensor:
    """GELU of float32 numbers, a multiple of eight of them."""
    x = x.detach().contiguous()
    y = torch.empty_like(x)
    in_parts(_forward, x.numel() // COUNT, 0, x.data_ptr(), y.data_ptr())
    return y


@torch.library.custom_op("dqn_memory::lane_gelu_backward", mutates_args=())
def lane_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of x."""
    x, grad = x.detach().contiguous(), grad.contiguous()
    change = torch.empty_like(x)
    in_parts(_backward, x.numel() // COUNT, 0, x.data_ptr(), grad.data_ptr(), change.data_ptr())
    return change


@lane_gelu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@lane_gelu_backward.register_fake
def _(grad: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> Tensor:
    change: Tensor = lane_gelu_backward(grad, *ctx.saved_tensors)
    return change


lane_gelu.register_autograd(_gradient, setup_context=_save)


@compiled
def _bounded(x):
    """Within -10 .. 10, outside of which the share is 0 or 1 in float32; squares of larger numbers may overflow."""
    low = larger(x, fill(np.float32(-EDGE)))
    return subtract(fill(np.float32(0)), larger(subtract(fill(np.float32(0)), low), fill(np.float32(-EDGE))))


@compiled
def _fading(x, square):
    """e^-2u."""
    bend = multiply_add(square, fill(np.float32(-SLOPE * CUBE * LOG2_E)), fill(np.float32(-SLOPE * LOG2_E)))
    return power_of_two(multiply(x, bend))


@compiled
def _forward(first, last, room, x, y):
    """Eights `first` .. `last` - 1."""
    one = fill(np.float32(1))
    for at in range(first * COUNT, last * COUNT, COUNT):
        value = load(x, at)
        bounded = _bounded(value)
        store(y, at, divide(value, add(one, _fading(bounded, multiply(bounded, bounded)))))


@compiled
def _backward(first, last, room, x, grad, change):
    """With f = e^-2u and s = 1 / (1 + f): dy/dx = s + x s f s d(2u)/dx."""
    one = fill(np.float32(1))
    for at in range(first * COUNT, last * COUNT, COUNT):
        value = _bounded(load(x, at))
        square = multiply(value, value)
        fading = _fading(value, square)
        share = divide(one, add(one, fading))
        bend = multiply_add(square, fill(np.float32(3 * SLOPE * CUBE)), fill(np.float32(SLOPE)))
        rest = multiply(share, multiply(fading, share))
        slope = multiply_add(multiply(value, bend), rest, share)
        store(change, at, multiply(load(grad, at), slope))
