"""The selective scan of the public CUDA extension. Importing this module needs mamba_ssm and its compiled kernel.

The kernel starts from zero, gives no gradient to the last state, computes in float32 alone and has no resets. This
module adds the initial state and the gradient, so that the kernel is a `Scan` like any other. It refuses float64, which
the extension would silently round. torch's scan computes sequences with resets: cutting a batch at the resets of each
row would make its shapes depend on data.
"""

from __future__ import annotations

from typing import Any

import selective_scan_cuda  # noqa: F401  # without it mamba_ssm imports, and fails when it is called
import torch
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
from torch import Tensor

from dqn_memory.blocks.kernels.custom_operator import transformed
from dqn_memory.blocks.kernels.selective_scan import scan_torch


def scan_mamba_ssm(
    u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor, initial: Tensor | None,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `scan.Scan`; ValueError for anything but float32."""
    if decay.dtype != torch.float32:
        raise ValueError(f"the mamba_ssm backend computes in float32 alone, not in {decay.dtype}; use torch or triton")
    if keep is not None or transformed():
        return scan_torch(u, delta, decay, write, read, initial, keep)
    time_last = [x.mT.contiguous() for x in (u, delta, write, read)]  # (B, E, T), (B, N, T)
    y, last = selective_scan_fn(*time_last[:2], decay, *time_last[2:], return_last_state=True)
    y, last = Once.apply(y.mT), Once.apply(LastState.apply(last.detach(), u, delta, decay, write))
    return (y, last) if initial is None else _add_past(y, last, delta, decay, read, initial)


def _add_past(
    y: Tensor, last: Tensor, delta: Tensor, decay: Tensor, read: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """Add the remains of an initial state to the result from zero: the recurrence is linear."""
    left = torch.exp(delta.cumsum(1).unsqueeze(3) * decay) * initial.unsqueeze(1)  # (B, T, E, N)
    return y + (left @ read.unsqueeze(3)).squeeze(3), last + left[:, -1]


class Once(torch.autograd.Function):
    """Pass the input through; refuse second derivatives, in which the kernel's part would be missing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the mamba_ssm backend has no second derivatives (create_graph=True); use torch or triton"
            )
        return grad


class LastState(torch.autograd.Function):
    """Pass the last state through, with the gradient of the recurrence that led to it."""

    @staticmethod
    def forward(ctx: Any, last: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return last.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            u, delta, decay, write = inputs
            _, last = scan_torch(u, delta, decay, write, torch.zeros_like(write), None)
        return None, *torch.autograd.grad(last, inputs, grad)
