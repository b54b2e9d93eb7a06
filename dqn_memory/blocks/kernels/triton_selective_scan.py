"""The selective scan as Triton kernels: one program walks a block of channels of one row through all of time.

The state of a block stays in registers. Numbers are read once and computed in their own dtype, float32 or float64. The
kernels return sums over channels and rows in parts that torch adds up, so that a result never depends on the order in
which programs finish. The import needs triton. A run needs an accelerator or, in tests, Triton's interpreter
(TRITON_INTERPRET=1 before the import).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dqn_memory.blocks.kernels.selective_scan import Gradients, scan_operator

BLOCK = 32  # channels of a program


def jit(function: Callable) -> Any:
    """Compile a kernel when it first runs."""
    return triton.jit(function)


@jit
def scan_kernel(  # type: ignore[no-untyped-def]
    u, delta, decay, write, read, initial, keep, y, last, tape, time, channels,
    STATES: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, RESETS: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """Write y and the last state; with RECORD write only the states h_{-1} .. h_{T-1}, to tape (B, T + 1, E, N)."""
    row, e, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    here, real = e < channels, n < STATES
    both = here[:, None] & real[None, :]
    cell = e[:, None] * STATES + n[None, :]  # of (E, N)
    rate = tl.load(decay + cell, both, other=0.0)
    state = tl.load(initial + row * channels * STATES + cell, both, other=0.0)
    for t in range(time):
        at_channel, at_state = (row * time + t) * channels + e, (row * time + t) * STATES + n
        step = tl.load(delta + at_channel, here, other=0.0)
        push = step * tl.load(u + at_channel, here, other=0.0)
        into = tl.load(write + at_state, real, other=0.0)
        if RECORD:
            tl.store(tape + (row * (time + 1) + t) * channels * STATES + cell, state, both)
        if RESETS:
            state = tl.where(tl.load(keep + row * time + t) != 0, state, 0.0)  # a product with 0 would let NaN pass
        state = tl.exp(step[:, None] * rate) * state + push[:, None] * into[None, :]
        if not RECORD:
            out = tl.load(read + at_state, real, other=0.0)
            tl.store(y + at_channel, tl.sum(state * out[None, :], 1), here)
    if RECORD:
        tl.store(tape + (row * (time + 1) + time) * channels * STATES + cell, state, both)
    else:
        tl.store(last + row * channels * STATES + cell, state, both)


@jit
def scan_back_kernel(  # type: ignore[no-untyped-def]
    grad, grad_last, u, delta, decay, write, read, keep, tape, to_u, to_delta, to_decay, to_write, to_read,
    to_initial, time, channels, rows,
    STATES: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, RESETS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients: `to_x` is that of x. `to_decay` (B, E, N) has one part for each row.

    `to_write` and `to_read` have one for each block.
    """
    row, e, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    here, real = e < channels, n < STATES
    both = here[:, None] & real[None, :]
    cell = e[:, None] * STATES + n[None, :]  # of (E, N)
    part = (tl.program_id(1) * rows + row) * time  # first position in the parts of a block
    rate = tl.load(decay + cell, both, other=0.0)
    total = tl.load(grad_last + row * channels * STATES + cell, both, other=0.0)  # gradient of the state
    of_rate = tl.zeros_like(total)
    state = tl.load(tape + (row * (time + 1) + time) * channels * STATES + cell, both, other=0.0)
    for back in range(time):
        t = time - 1 - back
        at_channel, at_state, index = (
            (row * time + t) * channels + e,
            (row * time + t) * STATES + n,
            (part + t) * STATES + n,
        )
        of_y = tl.load(grad + at_channel, here, other=0.0)
        step, value = tl.load(delta + at_channel, here, other=0.0), tl.load(u + at_channel, here, other=0.0)
        into, out = tl.load(write + at_state, real, other=0.0), tl.load(read + at_state, real, other=0.0)
        before = tl.load(tape + (row * (time + 1) + t) * channels * STATES + cell, both, other=0.0)
        total += of_y[:, None] * out[None, :]
        tl.store(to_read + index, tl.sum(of_y[:, None] * state, 0), real)
        tl.store(to_write + index, tl.sum((step * value)[:, None] * total, 0), real)
        driven = tl.sum(total * into[None, :], 1)
        total *= tl.exp(step[:, None] * rate)
        exponent = total * before
        if RESETS:
            goes_on = tl.load(keep + row * time + t) != 0
            total, exponent = tl.where(goes_on, total, 0.0), tl.where(goes_on, exponent, 0.0)
        tl.store(to_u + at_channel, driven * step, here)
        tl.store(to_delta + at_channel, driven * value + tl.sum(exponent * rate, 1), here)
        of_rate += exponent * step[:, None]
        state = before
    tl.store(to_decay + row * channels * STATES + cell, of_rate, both)
    tl.store(to_initial + row * channels * STATES + cell, total, both)


def _sizes(u: Tensor, decay: Tensor, keep: Tensor | None) -> tuple[tuple[int, int], dict[str, Any]]:
    """Compute the grid and the constants."""
    states = decay.shape[1]
    padded = triton.next_power_of_2(states)
    constants = {"STATES": states, "PADDED": padded, "BLOCK": BLOCK, "RESETS": keep is not None}
    return (len(u), triton.cdiv(u.shape[2], BLOCK)), constants


def masks(like: Tensor, keep: Tensor | None) -> Tensor:
    """Give the masks (B, T); without resets any tensor, which no kernel reads."""
    return like if keep is None else keep.to(like.dtype).contiguous()


def triton_scan_forward(
    u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor, initial: Tensor, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute outputs y (B, T, E) and the last state (B, E, N)."""
    inputs = [x.contiguous() for x in (u, delta, decay, write, read, initial)]
    grid, constants = _sizes(u, decay, keep)
    y, last = torch.empty_like(inputs[0]), torch.empty_like(inputs[5])
    scan_kernel[grid](*inputs, masks(u, keep), y, last, last, u.shape[1], u.shape[2], **constants, RECORD=False)
    return y, last


def triton_scan_backward(
    grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor,
    initial: Tensor, keep: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """Compute the gradients of all six inputs; the states are computed again, not stored by the forward pass."""
    inputs = [x.contiguous() for x in (u, delta, decay, write, read, initial)]
    (rows, parts), constants = _sizes(u, decay, keep)
    time, channels = u.shape[1:]
    tape, begins = u.new_empty(rows, time + 1, *decay.shape), masks(u, keep)
    scan_kernel[rows, parts](*inputs, begins, tape, tape, tape, time, channels, **constants, RECORD=True)
    to_u, to_delta, to_initial = (torch.empty_like(inputs[index]) for index in (0, 1, 5))
    to_decay = u.new_empty(rows, *decay.shape)
    to_write, to_read = u.new_empty(2, parts, *write.shape)
    scan_back_kernel[rows, parts](
        grad, grad_last, *inputs[:5], begins, tape, to_u, to_delta, to_decay, to_write, to_read, to_initial, time,
        channels, rows, **constants,
    )  # fmt: skip
    return to_u, to_delta, to_decay.sum(0), to_write.sum(0), to_read.sum(0), to_initial


scan_triton = scan_operator("selective_scan_triton", triton_scan_forward, triton_scan_backward, "scan_triton")
