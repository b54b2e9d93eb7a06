"""Linear recurrences with a diagonal matrix, forward and backward, real or complex, on any device.

    h_t = keep_t a_t h_{t-1} + b_t

over (B, T, F) numbers, or (B, T, F, 2) if each is complex and stored as its real and imaginary part. Memories call
`linear_scan`, one operator that is opaque to torch.compile. Its backward pass is the same recurrence from the last
position to the first: with g_t the gradient of h_t, those of b_t and a_t are g_t and g_t conj(keep_t h_{t-1}), and
h_{t-1} receives keep_t conj(a_t) g_t.

In torch one pass over time is one product and one sum a position, and moves every number once. On a CPU this is the
fastest form: an associative scan has fewer steps, but moves all (B, T, F) numbers log T times, and memory bounds both.
cpu_linear_scan.py makes the same pass without a call a position, triton_linear_scan.py one kernel for all positions.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from dqn_memory.blocks.kernels.custom_operator import NUMBA, call, operator

TRITON = find_spec("triton") is not None


def linear_scan(decay: Tensor, drive: Tensor, initial: Tensor, keep: Tensor | None = None) -> Tensor:
    """Compute all states h_0 .. h_{T-1}, of the shape of `drive`.

    Args:
        decay: a, (B, T, F), or (F,) if it is the same everywhere.
        drive: b, (B, T, F).
        initial: the state before the first position, (B, F).
        keep: 0 where a position begins an episode, else 1, (B, T); None: no position does.

    For complex numbers the first three have one more dimension, of two. All have the dtype of `drive`, float32 or
    float64.
    """
    return call(_scan, decay, drive, initial, keep)


def mask(reset: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Compute `keep` from `reset` (B, T), which is true where a position begins an episode."""
    return None if reset is None else (~reset).to(dtype)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Multiply complex numbers (..., 2), real and imaginary part, by operations that every runtime has."""
    (real, imaginary), (x, y) = a.unbind(-1), b.unbind(-1)
    return torch.stack((real * x - imaginary * y, real * y + imaginary * x), -1)


def states(decay: Tensor, drive: Tensor, initial: Tensor, keep: Tensor | None) -> Tensor:
    """Compute the states with the fastest kernel for this device."""
    run, _ = _kernel(drive)
    return run(*(x.contiguous() for x in (decay, drive, initial)), keep)


def gradients(
    grad: Tensor, states: Tensor, decay: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of decay, drive and initial from that of the states."""
    _, run = _kernel(grad)
    return run(*(x.contiguous() for x in (grad, states, decay, initial)), keep)


def _kernel(x: Tensor) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor, Tensor]]]:
    """Choose the functions of states and of gradients; numba and triton are imported at first use."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and NUMBA:
        from dqn_memory.blocks.kernels.cpu_linear_scan import cpu_gradients, cpu_states

        return cpu_states, cpu_gradients
    if x.device.type == "cuda" and TRITON:
        from dqn_memory.blocks.kernels.triton_linear_scan import triton_gradients, triton_states

        return triton_states, triton_gradients
    return torch_states, torch_gradients


def torch_states(decay: Tensor, drive: Tensor, initial: Tensor, keep: Tensor | None) -> Tensor:
    """Compute `states` in torch; pairs are viewed as complex numbers."""
    states = drive.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # (T, B, F)
    pairs = drive.dim() == 4
    factors, flat, before = _numbers(pairs, decay, states, initial)
    masks = _masks(keep, drive.shape[1])
    steps = factors.unbind(1) if decay.dim() == drive.dim() else [factors] * len(states)
    for state, step, mask in zip(flat.unbind(0), steps, masks, strict=True):
        before = state.addcmul_(step, before if mask is None else before.masked_fill(mask, 0))
    return states.transpose(0, 1).contiguous()


def torch_gradients(
    grad: Tensor, states: Tensor, decay: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `gradients` in torch."""
    pairs, varies, time = grad.dim() == 4, decay.dim() == grad.dim(), grad.shape[1]
    to_drive, to_decay, carried = grad.clone(), torch.zeros_like(decay), torch.zeros_like(initial)
    factors, changes, to_factors, total, flat, before = _numbers(
        pairs, decay, to_drive, to_decay, carried, states, initial
    )
    masks = list(_masks(keep, time))
    for t in range(time - 1, -1, -1):
        mask, past = masks[t], before if t == 0 else flat[:, t - 1]
        change = changes[:, t].add_(total)
        product = change * (past if mask is None else past.masked_fill(mask, 0)).conj()
        if varies:
            to_factors[:, t] = product
        else:
            to_factors += product.sum(0)
        total.copy_(change * (factors[:, t] if varies else factors).conj())
        if mask is not None:
            total.masked_fill_(mask, 0)
    return to_decay, to_drive, carried


def _numbers(pairs: bool, *tensors: Tensor) -> list[Tensor]:
    """View pairs as complex numbers."""
    return [torch.view_as_complex(tensor) for tensor in tensors] if pairs else list(tensors)


def _masks(keep: Tensor | None, time: int) -> Any:
    """Make a mask (B, 1) a position, true where an episode begins; a product with 0 would let NaN pass."""
    return [None] * time if keep is None else (keep == 0)[..., None].unbind(1)


def _states(decay: Tensor, drive: Tensor, initial: Tensor, keep: Tensor | None) -> Tensor:
    return drive.new_empty(drive.shape)


def _gradients(
    grad: Tensor, states: Tensor, decay: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return decay.new_empty(decay.shape), grad.new_empty(grad.shape), initial.new_empty(initial.shape)


def _reference(decay: Tensor, drive: Tensor, initial: Tensor, keep: Tensor | None) -> Tensor:
    """Compute all states in operators of torch that it can transform."""
    pairs, varies, state, states = drive.dim() == 4, decay.dim() == drive.dim(), initial, []
    for t, push in enumerate(drive.unbind(1)):
        factor = decay[:, t] if varies else decay
        before = state if keep is None else state.masked_fill(_broadcast(keep[:, t] == 0, state), 0)
        state = (multiply(factor, before) if pairs else factor * before) + push
        states.append(state)
    return torch.stack(states, 1)


def _again(grad: Tensor, states: Tensor, decay: Tensor, initial: Tensor, keep: Tensor | None) -> tuple[Tensor, ...]:
    """Compute `gradients` in operators of torch that it can differentiate; this does not need `drive`."""
    pairs, varies, changes, total = grad.dim() == 4, decay.dim() == grad.dim(), [], torch.zeros_like(initial)
    before = torch.cat((initial[:, None], states[:, :-1]), 1)
    factor, mask = _conjugate(decay, pairs), None if keep is None else _broadcast(keep == 0, grad)
    for t in range(grad.shape[1] - 1, -1, -1):
        changes.append(grad[:, t] + total)
        here = factor[:, t] if varies else factor
        total = multiply(here, changes[-1]) if pairs else here * changes[-1]
        total = total if mask is None else total.masked_fill(mask[:, t], 0)
    change = torch.stack(changes[::-1], 1)
    before = _conjugate(before if mask is None else before.masked_fill(mask, 0), pairs)
    product = multiply(before, change) if pairs else before * change
    return product if varies else product.sum((0, 1)), change, total


def _broadcast(mask: Tensor, like: Tensor) -> Tensor:
    return mask.view(*mask.shape, *[1] * (like.dim() - mask.dim()))


def _conjugate(x: Tensor, pairs: bool) -> Tensor:
    return x * x.new_tensor((1, -1)) if pairs else x


_scan = operator(
    "linear_scan", states, gradients, (_states, _gradients), _reference,
    lambda inputs, outputs: (outputs[0], inputs[0], inputs[2], inputs[3]), again=_again,
)  # fmt: skip
