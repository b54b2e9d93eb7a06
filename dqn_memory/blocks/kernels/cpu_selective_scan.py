"""The selective scan on a CPU as loops over eight channels side by side: see `simd`, and `scan` for the symbols.

torch makes nine passes over a state of B E N numbers at each position. Here a block of eight channels of one row goes
through the whole sequence, with its N states in registers and the first-level cache. The backward pass computes states
and factors again, into scratch memory for one block, and walks back over them. Numbers are float32, and channels are
filled up with zeros to a multiple of eight. Decays are stored as (E/8, N, 8), like the states of a block. Without
resets the address of `keep` is 0.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.selective_scan import Gradients, scan_operator
from dqn_memory.blocks.kernels.simd import COUNT

LOG2_E = math.log2(math.e)
ROWS = 16  # rows that sum their gradients of the decay in order, for any number of threads
# The min of exp2, subtracted again so that exp(-infinity) is 0; numbers above 1e-31 stay the same.
FORGOTTEN = 2.0**v.SMALLEST


def cpu_scan_forward(
    u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor, initial: Tensor, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute outputs y (B, T, E) and the last state (B, E, N); ValueError if the numbers are not float32."""
    if u.dtype != torch.float32:
        raise ValueError(f"the simd backend of mamba computes in float32 alone, not in {u.dtype}; use torch")
    (batch, time, channels), states = u.shape, decay.shape[1]
    inputs = [v.padded_to_eight(u), v.padded_to_eight(delta), _exponent(decay)]
    inputs += [x.detach().contiguous() for x in (write, read, initial)]
    y, last = torch.empty_like(inputs[0]), torch.empty_like(inputs[5])
    sizes = (time, channels, y.shape[2], states)
    v.run_in_threads(_forward, batch, states * COUNT, sizes, (*inputs, y, last, v.dense(keep)))
    return y[..., :channels].contiguous(), last


def cpu_scan_backward(
    grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor,
    initial: Tensor, keep: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """Compute the gradients of all six inputs from those of y (B, T, E) and of the last state (B, E, N)."""
    (batch, time, channels), states = u.shape, decay.shape[1]
    inputs = [v.padded_to_eight(grad), v.padded_to_eight(u), v.padded_to_eight(delta), _exponent(decay)]
    inputs += [x.detach().contiguous() for x in (write, read, initial, grad_last)]
    padded, groups = inputs[0].shape[2], -(-batch // ROWS)
    to_u, to_delta, to_initial = torch.empty_like(inputs[1]), torch.empty_like(inputs[2]), torch.empty_like(inputs[6])
    to_decay = u.new_zeros(groups, padded // COUNT, states, COUNT)
    to_write, to_read = (u.new_empty(batch, time, states) for _ in range(2))
    outputs = (to_u, to_delta, to_decay, to_write, to_read, to_initial)
    sizes, scratch = (batch, time, channels, padded, states), (4 * time + 2) * states * COUNT
    v.run_in_threads(_backward, groups, scratch, sizes, (*inputs, *outputs, v.dense(keep)))
    whole = to_decay.sum(0).transpose(1, 2).flatten(0, 1)[:channels]
    to_u, to_delta = (x[..., :channels].contiguous() for x in (to_u, to_delta))
    return to_u, to_delta, whole, to_write, to_read, to_initial


def _exponent(decay: Tensor) -> Tensor:
    """Scale A (E, N) by log2(e), since powers are taken of 2, and arrange it as (E/8, N, 8)."""
    filled = F.pad(decay.detach() * LOG2_E, (0, 0, 0, -len(decay) % COUNT))
    return filled.unflatten(0, (-1, COUNT)).transpose(1, 2).contiguous()


@v.compiled
def _power(x):
    """Compute 2^x, which is exactly 0 for very small x."""
    return v.exp2(x) - v.constant(FORGOTTEN)


@v.compiled
def _gather(source, start, here, states, block):
    """Copy N states of `here` channels, one channel after the other, to N rows of eight elements."""
    for at in range(0, states * COUNT, COUNT):
        v.store(block, at, v.constant(0.0))
    for element in range(here):
        for n in range(states):
            v.store_one(block, n * COUNT + element, v.load_one(source, start + element * states + n))


@v.compiled
def _scatter(block, here, states, target, start):
    """Undo `_gather`."""
    for element in range(here):
        for n in range(states):
            v.store_one(target, start + element * states + n, v.load_one(block, n * COUNT + element))


@v.compiled
def _forward(first, last, state, sizes, addresses):
    """Process rows `first` .. `last` - 1; `state` is scratch for N x 8 numbers."""
    time, channels, padded, states = sizes
    u, delta, decay, write, read, initial, y, final, keep = addresses
    for row in range(first, last):
        for block in range(0, padded, COUNT):
            own, here = (row * channels + block) * states, min(COUNT, channels - block)
            _gather(initial, own, here, states, state)
            for t in range(time):
                index, at = (row * time + t) * padded + block, (row * time + t) * states
                step, total = v.load(delta, index), v.constant(0.0)
                push = step * v.load(u, index)
                if v.begins(keep, row * time + t):
                    for at_state in range(0, states * COUNT, COUNT):
                        v.store(state, at_state, v.constant(0.0))
                for n in range(states):
                    kept = _power(step * v.load(decay, block * states + n * COUNT))
                    now = v.multiply_add(kept, v.load(state, n * COUNT), push * v.broadcast(write, at + n))
                    v.store(state, n * COUNT, now)
                    total = v.multiply_add(now, v.broadcast(read, at + n), total)
                v.store(y, index, total)
            _scatter(state, here, states, final, own)


@v.compiled
def _backward(first, last, held, sizes, addresses):
    """Process groups of rows; the scratch at `held` has room for states, factors, two sums and a gradient."""
    batch, time, channels, padded, states = sizes
    plane = states * COUNT
    kept = held + 4 * (time + 1) * plane
    into = kept + 4 * time * plane
    out = into + 4 * time * plane
    change = out + 4 * time * plane
    for row in range(first * ROWS, min(last * ROWS, batch)):
        for at in range(0, 2 * time * plane, COUNT):
            v.store(into, at, v.constant(0.0))
        for block in range(0, padded, COUNT):
            own, here = (row * channels + block) * states, min(COUNT, channels - block)
            _gather(addresses[6], own, here, states, held)
            _gather(addresses[7], own, here, states, change)
            _record(row, block, sizes, addresses, held, kept)
            _walk_back(row, block, sizes, addresses, (held, kept, into, out, change))
            _scatter(change, here, states, addresses[13], own)
        for at in range(time * states):
            v.store_one(addresses[11], row * time * states + at, _sum(into, at * COUNT))
            v.store_one(addresses[12], row * time * states + at, _sum(out, at * COUNT))


@v.compiled
def _record(row, block, sizes, addresses, held, kept):
    """Write the states h_0 .. h_{T-1} after h_{-1}, and the factors keep_t exp(dt_t A), of a block of channels."""
    _, time, _, padded, states = sizes
    u, delta, decay, write, keep = addresses[1], addresses[2], addresses[3], addresses[4], addresses[14]
    plane = states * COUNT
    for t in range(time):
        index, at = (row * time + t) * padded + block, (row * time + t) * states
        step = v.load(delta, index)
        push, begins = step * v.load(u, index), v.begins(keep, row * time + t)
        for n in range(states):
            here = t * plane + n * COUNT
            factor = _power(step * v.load(decay, block * states + n * COUNT))
            past = v.load(held, here)
            if begins:
                factor, past = v.constant(0.0), v.constant(0.0)
            v.store(kept, here, factor)
            v.store(held, here + plane, v.multiply_add(factor, past, push * v.broadcast(write, at + n)))


@v.compiled
def _walk_back(row, block, sizes, addresses, scratch):
    """Go back: with g the gradient of h_t, a_t its factor, the exponent gets g a_t h_{t-1} and h_{t-1} gets g a_t."""
    _, time, _, padded, states = sizes
    grad, u, delta, decay, write, read, _, _, to_u, to_delta, to_decay, _, _, _, keep = addresses
    held, kept, into, out, change = scratch
    plane, own, nothing = states * COUNT, (row // ROWS * padded + block) * states, v.constant(0.0)
    for back in range(time):
        t = time - 1 - back
        index, at = (row * time + t) * padded + block, (row * time + t) * states
        given, step, source = v.load(grad, index), v.load(delta, index), v.load(u, index)
        push, to_push, to_exponent = step * source, nothing, nothing
        begins = v.begins(keep, row * time + t)
        for n in range(states):
            element = n * COUNT
            here = t * plane + element
            total = v.multiply_add(given, v.broadcast(read, at + n), v.load(change, element))
            v.store(out, here, v.multiply_add(given, v.load(held, here + plane), v.load(out, here)))
            v.store(into, here, v.multiply_add(total, push, v.load(into, here)))
            to_push = v.multiply_add(total, v.broadcast(write, at + n), to_push)
            total = total * v.load(kept, here)
            work = total * v.load(held, here)
            if begins:
                total, work = nothing, nothing
            v.store(change, element, total)
            v.store(to_decay, own + element, v.multiply_add(work, step, v.load(to_decay, own + element)))
            to_exponent = v.multiply_add(work, v.load(decay, block * states + element), to_exponent)
        v.store(to_u, index, to_push * step)
        v.store(to_delta, index, to_exponent * v.constant(1 / LOG2_E) + to_push * source)


@v.compiled
def _sum(source, at):
    """Sum eight numbers."""
    total = np.float32(0)
    for element in range(COUNT):
        total += v.load_one(source, at + element)
    return total


scan_simd = scan_operator("cpu_scan", cpu_scan_forward, cpu_scan_backward, "scan_simd")
