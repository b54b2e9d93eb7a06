"""The selective scan of Mamba-1 (Gu & Dao 2023, Algorithm 2), forward and backward, on any device.

    h_t = exp(dt_t A) h_{t-1} + (dt_t u_t) B_t        y_t = C_t . h_t

Symbols as elsewhere, with E inner channels and N states a channel. What runs along time is a `Scan` (scan_operator.py):
scan_torch.py everywhere, scan_lanes.py on a CPU, scan_triton.py and scan_mamba_ssm.py on accelerators;
scan_backends.py chooses.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dqn_memory.blocks.kernels.scan_operator import Scan
from dqn_memory.blocks.kernels.scan_torch import scan_torch


def selective_scan(
    u: Tensor,
    delta: Tensor,
    decay: Tensor,
    enter: Tensor,
    leave: Tensor,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    delta_bias: Tensor | None = None,
    softplus: bool = True,
    initial: Tensor | None = None,
    core: Scan = scan_torch,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, E) and last state (B, E, N) of a selective scan.

    Args:
        u: input, (B, T, E).
        delta: step size before bias and softplus, (B, T, E).
        decay: A, negative, (E, N).
        enter: B, (B, T, N).
        leave: C, (B, T, N).
        skip: D, (E,), adds D u to the output.
        gate: z, (B, T, E), multiplies the output by silu(z).
        delta_bias: added to the step size, (E,).
        softplus: whether the step size passes through softplus.
        initial: state before the first position, (B, E, N); zeros where it is None.
        core: what computes the recurrence; a mixer's own is `Mamba.core`.

    Everything is computed in float32, or wider where the decay is: under autocast too, because a state that is carried
    over a sequence needs it. Outputs have the dtype of `u`.
    """
    with torch.autocast(u.device.type, enabled=False):
        dtype = torch.promote_types(decay.dtype, torch.float32)
        wide, step = u.to(dtype), delta.to(dtype)
        step = step if delta_bias is None else step + delta_bias.to(dtype)
        step = F.softplus(step) if softplus else step
        before = None if initial is None else initial.to(dtype)
        y, last = core(wide, step, decay.to(dtype), enter.to(dtype), leave.to(dtype), before)
        y = y if skip is None else y + skip.to(dtype) * wide
        y = y if gate is None else y * F.silu(gate.to(dtype))
    return y.to(u.dtype), last
