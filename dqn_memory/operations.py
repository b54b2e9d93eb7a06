"""Counting the floating-point operations that a piece of work really asks for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import dqn_memory.blocks.kernels.cpu_attention
import dqn_memory.blocks.kernels.gru  # registers operators that are counted below
import dqn_memory.blocks.kernels.scan  # noqa: F401


def gigaflop(work: Callable[[], object]) -> float:
    """Billions of operations of the matrix products in one call of `work`, two for each multiply-add.

    Attention is counted as its two products over all K x K scores, future keys included. Not counted: look-ups,
    biases, activations, softmax, LayerNorm, the optimiser.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the counter speaks of modules that it does not know
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=_OPERATORS) as counter:
            work()
    return counter.get_total_flops() / 1e9


def _attention(packed: torch.Size, heads: int, *others: Any, **keywords: Any) -> int:
    """Packed (B, T, 3D): every query meets every key, every weight every value."""
    batch, time, width = packed
    return 2 * 2 * batch * time * time * (width // 3)


def _attention_backward(grad: torch.Size, *others: Any, **keywords: Any) -> int:
    """Gradient (B, T, D): those of weights, values, queries and keys. Scores that are computed anew are not counted."""
    batch, time, width = grad
    return 2 * 4 * batch * time * time * width


def _scan(gates: torch.Size, *others: Any, **keywords: Any) -> int:
    """Gates (G, B, T, 3, H): at every position the state meets a matrix (H, 3H)."""
    directions, batch, time, parts, width = gates
    return 2 * directions * batch * time * parts * width * width


def _scan_backward(grad: torch.Size, *others: Any, **keywords: Any) -> int:
    """Hidden (T, G, B, H): the gradient meets the matrix (3H, H) on its way back, and the states once more."""
    time, directions, batch, width = grad
    return 2 * 2 * time * directions * batch * 3 * width * width


def _selective_scan(u: torch.Size, delta: torch.Size, decay: torch.Size, *others: Any, **keywords: Any) -> int:
    """Three multiply-adds for every state (B, T, E, N): decay, enter, leave."""
    batch, time, channels = u
    return 2 * 3 * batch * time * channels * decay[1]


def _selective_scan_backward(grad: torch.Size, last: torch.Size, *others: Any, **keywords: Any) -> int:
    """Eight multiply-adds for every state: two each for what decays, enters and leaves, two for the gradient."""
    batch, time, channels = grad
    return 2 * 8 * batch * time * channels * last[2]


_OPERATORS = {
    torch.ops.dqn_memory.cpu_attention: _attention,
    torch.ops.dqn_memory.cpu_attention_backward: _attention_backward,
    torch.ops.dqn_memory.gru_scan: _scan,
    torch.ops.dqn_memory.gru_scan_backward: _scan_backward,
    torch.ops.dqn_memory.selective_scan: _selective_scan,
    torch.ops.dqn_memory.selective_scan_backward: _selective_scan_backward,
}
