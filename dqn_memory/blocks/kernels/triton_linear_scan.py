"""The linear recurrence as Triton kernels: one program walks a block of numbers of one row through all of time.

Symbols as in `linear_scan`. The state of a block stays in registers, for complex numbers as its two parts. Every number
is read once, in its own dtype, float32 or float64. The kernel returns the gradient of a constant decay in one part a
row, which torch adds up. The import needs triton. A run needs an accelerator or, in tests, Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dqn_memory.blocks.kernels.triton_selective_scan import jit, masks

BLOCK = 64  # numbers of a program


@jit
def linear_scan_kernel(  # type: ignore[no-untyped-def]
    decay, drive, initial, keep, states, time, width,
    VARIES: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write all states; of complex numbers the imaginary part follows the real one."""
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here, each = n < width, 2 if PAIRS else 1
    at = row * time * width * each + n * each
    real = tl.load(initial + (row * width + n) * each, here, other=0.0)
    imaginary = tl.load(initial + (row * width + n) * each + 1, here, other=0.0) if PAIRS else real
    step = at if VARIES else n * each + row * 0
    for t in range(time):
        if RESETS:
            mask = tl.load(keep + row * time + t) != 0  # a product with 0 would let NaN pass
            real = tl.where(mask, real, 0.0)
            imaginary = tl.where(mask, imaginary, 0.0)
        factor = tl.load(decay + step, here, other=0.0)
        if PAIRS:
            other = tl.load(decay + step + 1, here, other=0.0)
            following = factor * real - other * imaginary
            imaginary = factor * imaginary + other * real + tl.load(drive + at + 1, here, other=0.0)
            real = following + tl.load(drive + at, here, other=0.0)
            tl.store(states + at + 1, imaginary, here)
        else:
            real = factor * real + tl.load(drive + at, here, other=0.0)
        tl.store(states + at, real, here)
        at += width * each
        if VARIES:
            step += width * each


@jit
def linear_scan_back_kernel(  # type: ignore[no-untyped-def]
    grad, states, decay, initial, keep, to_decay, to_drive, to_initial, time, width,
    VARIES: tl.constexpr, PAIRS: tl.constexpr, RESETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients; `to_decay` is (B, T, F) or, for a constant decay, (B, F)."""
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here, each = n < width, 2 if PAIRS else 1
    own = (row * width + n) * each
    real = tl.zeros_like(tl.load(initial + own, here, other=0.0))  # gradient of the state from later positions
    imaginary = tl.zeros_like(real)
    sum_real, sum_imaginary = tl.zeros_like(real), tl.zeros_like(real)
    for back in range(time):
        t = time - 1 - back
        at = (row * time + t) * width * each + n * each
        step = at if VARIES else n * each + row * 0
        past = initial + own if t == 0 else states + at - width * each
        real += tl.load(grad + at, here, other=0.0)
        goes_on = here
        if RESETS:
            goes_on = n < tl.where(tl.load(keep + row * time + t) != 0, width, 0)
        before, factor = tl.load(past, goes_on, other=0.0), tl.load(decay + step, here, other=0.0)
        tl.store(to_drive + at, real, here)
        if PAIRS:
            imaginary += tl.load(grad + at + 1, here, other=0.0)
            tl.store(to_drive + at + 1, imaginary, here)
            beside = tl.load(past + 1, goes_on, other=0.0)
            product = before * real + beside * imaginary
            turned = before * imaginary - beside * real
            other = tl.load(decay + step + 1, here, other=0.0)
            received = factor * real + other * imaginary
            imaginary = tl.where(goes_on, factor * imaginary - other * real, 0.0)
            real = tl.where(goes_on, received, 0.0)
        else:
            product = before * real
            turned = product
            real = tl.where(goes_on, factor * real, 0.0)
        if VARIES:
            tl.store(to_decay + at, product, here)
            if PAIRS:
                tl.store(to_decay + at + 1, turned, here)
        else:
            sum_real += product
            sum_imaginary += turned
    tl.store(to_initial + own, real, here)
    if not VARIES:
        tl.store(to_decay + own, sum_real, here)
    if PAIRS:
        tl.store(to_initial + own + 1, imaginary, here)
        if not VARIES:
            tl.store(to_decay + own + 1, sum_imaginary, here)


def _sizes(decay: Tensor, drive: Tensor, keep: Tensor | None) -> tuple[tuple[int, int], dict[str, Any]]:
    """Compute the grid and the constants."""
    constants = {"VARIES": decay.dim() == drive.dim(), "PAIRS": drive.dim() == 4, "RESETS": keep is not None}
    return (len(drive), triton.cdiv(drive.shape[2], BLOCK)), constants | {"BLOCK": BLOCK}


def triton_states(decay: Tensor, drive: Tensor, initial: Tensor, keep: Tensor | None) -> Tensor:
    """As `linear_scan`."""
    grid, constants = _sizes(decay, drive, keep)
    states = torch.empty_like(drive)
    linear_scan_kernel[grid](decay, drive, initial, masks(drive, keep), states, *drive.shape[1:3], **constants)
    return states


def triton_gradients(
    grad: Tensor, states: Tensor, decay: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `linear_scan.gradients`."""
    grid, constants = _sizes(decay, grad, keep)
    to_drive, to_initial = torch.empty_like(grad), torch.empty_like(initial)
    to_decay = torch.empty_like(grad if constants["VARIES"] else initial)
    linear_scan_back_kernel[grid](
        grad, states, decay, initial, masks(grad, keep), to_decay, to_drive, to_initial, *grad.shape[1:3], **constants
    )
    return to_decay if constants["VARIES"] else to_decay.sum(0), to_drive, to_initial
