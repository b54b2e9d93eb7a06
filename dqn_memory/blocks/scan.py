"""The selective scan of Mamba-1 (Gu & Dao 2023, Algorithm 2), forward and backward, on any device.

    h_t = exp(dt_t A) h_{t-1} + (dt_t u_t) B_t        y_t = C_t . h_t

One pass over time in each direction, with the state as the only thing that is carried: on a CPU this is several times
as fast as associative scans, which move (B, T, E, N) numbers log T times, and as a loop that autograd records, whose
backward pass fills a whole (B, T, E, N) gradient at every position. The loop stays inside two opaque operators, so
that torch.compile does not unroll it.

Symbols as elsewhere, with E inner channels and N states a channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


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

    Everything is computed in float32, or wider where the decay is: under autocast too, because a state that is carried
    over a sequence needs it. Outputs have the dtype of `u`.
    """
    with torch.autocast(u.device.type, enabled=False):
        dtype = torch.promote_types(decay.dtype, torch.float32)
        wide, step = u.to(dtype), delta.to(dtype)
        step = step if delta_bias is None else step + delta_bias.to(dtype)
        step = F.softplus(step) if softplus else step
        before = decay.new_zeros(len(u), *decay.shape, dtype=dtype) if initial is None else initial.to(dtype)
        y, last, _ = scan_states(wide, step, decay.to(dtype), enter.to(dtype), leave.to(dtype), before)
        y = y if skip is None else y + skip.to(dtype) * wide
        y = y if gate is None else y * F.silu(gate.to(dtype))
    return y.to(u.dtype), last


@torch.library.custom_op("dqn_memory::selective_scan", mutates_args=())
def scan_states(
    u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Y (B, T, E), the last state (B, E, N), and the states after every position (T, B, E, N) for the backward pass."""
    batch, time, channels = u.shape
    states = u.new_empty(time, batch, channels, decay.shape[1])
    y = u.new_empty(time, batch, channels)
    driven = u * delta  # (B, T, E)
    state = initial
    # Every view is made before the loop, where it would cost as much as the arithmetic.
    views = (delta.unsqueeze(3), driven.unsqueeze(3), enter.unsqueeze(2), leave.unsqueeze(3))
    for t, (step, push, into, out) in enumerate(zip(*(v.unbind(1) for v in views), strict=True)):
        after = torch.mul(step, decay, out=states[t]).exp_().mul_(state)  # (B, E, N)
        state = after.addcmul_(push, into)
        torch.bmm(state, out, out=y[t].unsqueeze(2))
    return y.transpose(0, 1).contiguous(), state.clone(), states


@scan_states.register_fake
def _(
    u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return u.new_empty(u.shape), initial.new_empty(initial.shape), u.new_empty(u.shape[1], *initial.shape)


@torch.library.custom_op("dqn_memory::selective_scan_backward", mutates_args=())
def scan_backward(
    grad: Tensor,
    grad_last: Tensor,
    u: Tensor,
    delta: Tensor,
    decay: Tensor,
    enter: Tensor,
    leave: Tensor,
    initial: Tensor,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all six inputs from those of y (B, T, E) and of the last state (B, E, N).

    With g the gradient of h_t and a_t = exp(dt_t A): the exponent receives g a_t h_{t-1}, and h_{t-1} receives g a_t.
    """
    total = grad_last.clone(memory_format=torch.contiguous_format)  # (B, E, N), of the state, carried back
    to_driven, to_delta = u.new_empty(u.shape), u.new_empty(u.shape)
    to_enter, to_leave = enter.new_empty(enter.shape), leave.new_empty(leave.shape)
    to_decay = decay.new_zeros(decay.shape)
    driven = u * delta
    for t in range(u.shape[1] - 1, -1, -1):
        before = states[t - 1] if t else initial
        total.addcmul_(grad[:, t, :, None], leave[:, t, None])
        to_leave[:, t] = torch.bmm(grad[:, t, None], states[t])[:, 0]
        to_enter[:, t] = torch.bmm(driven[:, t, None], total)[:, 0]
        to_driven[:, t] = torch.bmm(total, enter[:, t, :, None])[..., 0]
        total.mul_(torch.mul(delta[:, t, :, None], decay).exp_())
        exponent = total * before  # (B, E, N)
        to_delta[:, t] = torch.einsum("ben,en->be", exponent, decay)
        to_decay += torch.einsum("ben,be->en", exponent, delta[:, t])
    to_delta.addcmul_(to_driven, u)
    return to_driven.mul_(delta), to_delta, to_decay, to_enter, to_leave, total


@scan_backward.register_fake
def _(
    grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor,
    initial: Tensor, states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (u, delta, decay, enter, leave, initial))  # type: ignore[return-value]


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, output[2])


def _backward(ctx: Any, grad: Tensor | None, grad_last: Tensor | None, unused: None) -> tuple[Tensor | None, ...]:
    *inputs, states = ctx.saved_tensors
    if grad is None and grad_last is None:
        return (None,) * 6
    grad = torch.zeros_like(inputs[0]) if grad is None else grad.contiguous()
    grad_last = torch.zeros_like(inputs[5]) if grad_last is None else grad_last
    return scan_backward(grad, grad_last, *inputs, states)


scan_states.register_autograd(_backward, setup_context=_save)
