"""The selective scan on a CPU as loops over eight channels side by side: see `elements`, and `scan` for the symbols.

What torch does in nine passes over a state of B E N numbers at each position happens here in registers and the
first-level cache: a block of eight channels of one row goes through the whole sequence, its N states beside it. The
backward pass computes states and factors anew, into scratch memory for one block, and walks back over them. Numbers are
float32; channels that do not fill the last block are zeros. Decays lie as (E/8, N, 8), like the states of a block.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dqn_memory.blocks.kernels.scan import Gradients, operator
from dqn_memory.blocks.kernels.simd import (
    COUNT,
    SMALLEST,
    add,
    broadcast,
    compiled,
    constant,
    exp2,
    get,
    load,
    multiply,
    multiply_add,
    put,
    run_in_threads,
    store,
    subtract,
)

LOG2_E = math.log2(math.e)
ROWS = 16  # that add up their gradient of the decay one after the other, however many threads there are
FORGOTTEN = 2.0**SMALLEST  # what stands for exp(-infinity); taken away again, which changes no number above 1e-31


def forward(
    u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute outputs y (B, T, E) and the last state (B, E, N); raise ValueError where the numbers are not float32."""
    _check(u)
    batch, time, channels = u.shape
    inputs = [_filled(u), _filled(delta), _exponent(decay), *(x.detach().contiguous() for x in (enter, leave, initial))]
    y, last = torch.empty_like(inputs[0]), torch.empty_like(inputs[5])
    addresses = tuple(part.data_ptr() for part in (*inputs, y, last))
    run_in_threads(_forward, batch, decay.shape[1] * COUNT, (time, channels, y.shape[2], decay.shape[1]), addresses)
    return y[..., :channels].contiguous(), last


def backward(
    grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor,
    initial: Tensor,
) -> Gradients:  # fmt: skip
    """Gradients of all six inputs from those of y (B, T, E) and of the last state (B, E, N)."""
    (batch, time, channels), states = u.shape, decay.shape[1]
    inputs = [_filled(grad), _filled(u), _filled(delta), _exponent(decay)]
    inputs += [x.detach().contiguous() for x in (enter, leave, initial, grad_last)]
    padded, groups = inputs[0].shape[2], -(-batch // ROWS)
    to_u, to_delta, to_initial = torch.empty_like(inputs[1]), torch.empty_like(inputs[2]), torch.empty_like(inputs[6])
    to_decay = u.new_zeros(groups, padded // COUNT, states, COUNT)
    to_enter, to_leave = (u.new_empty(batch, time, states) for _ in range(2))
    outputs = (to_u, to_delta, to_decay, to_enter, to_leave, to_initial)
    addresses = tuple(part.data_ptr() for part in (*inputs, *outputs))
    scratch = (4 * time + 2) * states * COUNT
    run_in_threads(_backward, groups, scratch, (batch, time, channels, padded, states), addresses)
    whole = to_decay.sum(0).transpose(1, 2).flatten(0, 1)[:channels]
    to_u, to_delta = (x[..., :channels].contiguous() for x in (to_u, to_delta))
    return to_u, to_delta, whole, to_enter, to_leave, to_initial


def _check(u: Tensor) -> None:
    if u.dtype != torch.float32:
        raise ValueError(f"the simd backend of mamba computes in float32 alone, not in {u.dtype}; use torch")


def _filled(x: Tensor) -> Tensor:
    """(B, T, E) with zero channels up to a multiple of eight."""
    missing = -x.shape[2] % COUNT
    return F.pad(x.detach(), (0, missing)) if missing else x.detach().contiguous()


def _exponent(decay: Tensor) -> Tensor:
    """Scale A (E, N) by log2(e), since powers are taken of 2, and arrange it as (E/8, N, 8)."""
    filled = F.pad(decay.detach() * LOG2_E, (0, 0, 0, -len(decay) % COUNT))
    return filled.unflatten(0, (-1, COUNT)).transpose(1, 2).contiguous()


@compiled
def _power(x):
    """2^x, and exactly 0 where it is next to nothing."""
    return subtract(exp2(x), constant(np.float32(FORGOTTEN)))


@compiled
def _gather(source, start, here, states, block):
    """N states of `here` channels, one channel after the other, to N rows of eight elements."""
    for at in range(0, states * COUNT, COUNT):
        store(block, at, constant(np.float32(0)))
    for element in range(here):
        for n in range(states):
            put(block, n * COUNT + element, get(source, start + element * states + n))


@compiled
def _scatter(block, here, states, target, start):
    """Undo `_gather`."""
    for element in range(here):
        for n in range(states):
            put(target, start + element * states + n, get(block, n * COUNT + element))


@compiled
def _forward(first, last, state, sizes, addresses):
    """Rows `first` .. `last` - 1; `state` is scratch for N x 8 numbers."""
    time, channels, padded, states = sizes
    u, delta, decay, enter, leave, initial, y, final = addresses
    for row in range(first, last):
        for block in range(0, padded, COUNT):
            own, here = (row * channels + block) * states, min(COUNT, channels - block)
            _gather(initial, own, here, states, state)
            for t in range(time):
                index, at = (row * time + t) * padded + block, (row * time + t) * states
                step, total = load(delta, index), constant(np.float32(0))
                push = multiply(step, load(u, index))
                for n in range(states):
                    kept = _power(multiply(step, load(decay, block * states + n * COUNT)))
                    driven = multiply(push, broadcast(enter, at + n))
                    now = multiply_add(kept, load(state, n * COUNT), driven)
                    store(state, n * COUNT, now)
                    total = multiply_add(now, broadcast(leave, at + n), total)
                store(y, index, total)
            _scatter(state, here, states, final, own)


@compiled
def _backward(first, last, held, sizes, addresses):
    """Go back over groups of rows; `scratch` holds states, factors, two sums and a gradient."""
    batch, time, channels, padded, states = sizes
    plane = states * COUNT
    kept = held + 4 * (time + 1) * plane
    into = kept + 4 * time * plane
    out = into + 4 * time * plane
    change = out + 4 * time * plane
    for row in range(first * ROWS, min(last * ROWS, batch)):
        for at in range(0, 2 * time * plane, COUNT):
            store(into, at, constant(np.float32(0)))
        for block in range(0, padded, COUNT):
            own, here = (row * channels + block) * states, min(COUNT, channels - block)
            _gather(addresses[6], own, here, states, held)
            _gather(addresses[7], own, here, states, change)
            _record(row, block, sizes, addresses, held, kept)
            _walk_back(row, block, sizes, addresses, (held, kept, into, out, change))
            _scatter(change, here, states, addresses[13], own)
        for at in range(time * states):
            put(addresses[11], row * time * states + at, _sum(into, at * COUNT))
            put(addresses[12], row * time * states + at, _sum(out, at * COUNT))


@compiled
def _record(row, block, sizes, addresses, held, kept):
    """States h_0 .. h_{T-1} after h_{-1}, and factors exp(dt_t A), of a block of channels."""
    _, time, _, padded, states = sizes
    u, delta, decay, enter = addresses[1], addresses[2], addresses[3], addresses[4]
    plane = states * COUNT
    for t in range(time):
        index, at = (row * time + t) * padded + block, (row * time + t) * states
        step = load(delta, index)
        push = multiply(step, load(u, index))
        for n in range(states):
            here = t * plane + n * COUNT
            factor = _power(multiply(step, load(decay, block * states + n * COUNT)))
            store(kept, here, factor)
            driven = multiply(push, broadcast(enter, at + n))
            store(held, here + plane, multiply_add(factor, load(held, here), driven))


@compiled
def _walk_back(row, block, sizes, addresses, scratch):
    """With g the gradient of h_t, a_t = exp(dt_t A): the exponent receives g a_t h_{t-1} and h_{t-1} receives g a_t."""
    _, time, _, padded, states = sizes
    grad, u, delta, decay, enter, leave, _, _, to_u, to_delta, to_decay, _, _, _ = addresses
    held, kept, into, out, change = scratch
    plane, own, nothing = states * COUNT, (row // ROWS * padded + block) * states, constant(np.float32(0))
    for back in range(time):
        t = time - 1 - back
        index, at = (row * time + t) * padded + block, (row * time + t) * states
        given, step, source = load(grad, index), load(delta, index), load(u, index)
        push, to_push, to_exponent = multiply(step, source), nothing, nothing
        for n in range(states):
            element = n * COUNT
            here = t * plane + element
            total = multiply_add(given, broadcast(leave, at + n), load(change, element))
            store(out, here, multiply_add(given, load(held, here + plane), load(out, here)))
            store(into, here, multiply_add(total, push, load(into, here)))
            to_push = multiply_add(total, broadcast(enter, at + n), to_push)
            total = multiply(total, load(kept, here))
            store(change, element, total)
            work = multiply(total, load(held, here))
            store(to_decay, own + element, multiply_add(work, step, load(to_decay, own + element)))
            to_exponent = multiply_add(work, load(decay, block * states + element), to_exponent)
        store(to_u, index, multiply(to_push, step))
        natural = multiply(to_exponent, constant(np.float32(1 / LOG2_E)))
        store(to_delta, index, add(natural, multiply(to_push, source)))


@compiled
def _sum(source, at):
    """Of eight numbers."""
    total = np.float32(0)
    for element in range(COUNT):
        total += get(source, at + element)
    return total


scan_simd = operator("cpu_scan", forward, backward)
