"""Causal attention for short windows on a CPU, forward and backward, from the packed projection.

A fused kernel is built for long sequences and wide heads, and products of small matrices spend their time on everything
but arithmetic. Here eight queries stand side by side in a register, keys are read one after the other, no query reads a
key of its future, and scores never leave the first-level cache. The backward pass computes them anew.

Symbols: one head of one sequence has T positions of h units; scores and weights of eight queries are kept as (T, 8).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels.simd import (
    COUNT,
    add,
    broadcast,
    compiled,
    constant,
    exp2,
    get,
    load,
    maximum,
    multiply,
    multiply_add,
    put,
    replace_from,
    run_in_threads,
    store,
    subtract,
)

LONGEST = 128  # positions above which the fused kernel is as fast
WIDEST = 32  # units a head above which it is
FEWEST = 16  # sequences x heads below which calling costs more than the work
LOWEST = -1e30  # a score that no softmax sees

LOG2_E = math.log2(math.e)


def is_faster(packed: Tensor, heads: int) -> bool:
    """Whether packed queries, keys and values (B, T, 3D) are faster here than in the fused kernel."""
    batch, length, width = packed.shape
    units = width // (3 * heads)
    return (
        packed.device.type == "cpu"
        and packed.dtype == torch.float32
        and length <= LONGEST
        and units % COUNT == 0
        and units <= WIDEST
        and batch * heads >= FEWEST
    )


def cpu_attention(packed: Tensor, heads: int) -> Tensor:
    """Causal attention of packed queries, keys and values (B, T, 3D) -> (B, T, D)."""
    out: Tensor = attend(packed, heads)[0]
    return out


@torch.library.custom_op("dqn_memory::cpu_attention", mutates_args=())
def attend(packed: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention (B, T, D), and log2 of each softmax's denominator, (B, H, T), for the backward pass."""
    packed = packed.detach().contiguous()
    batch, time, width = packed.shape
    units, out = width // (3 * heads), packed.new_empty(batch, time, width // 3)
    norms = packed.new_empty(batch, heads, time)
    scratch = COUNT * (2 * units + time + 2)
    run_in_threads(_forward, batch, scratch, packed.data_ptr(), time, heads, units, out.data_ptr(), norms.data_ptr())
    return out, norms


@attend.register_fake
def _(packed: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, time, width = packed.shape
    return packed.new_empty(batch, time, width // 3), packed.new_empty(batch, heads, time)


@torch.library.custom_op("dqn_memory::cpu_attention_backward", mutates_args=())
def attend_backward(grad: Tensor, packed: Tensor, out: Tensor, norms: Tensor) -> Tensor:
    """Gradient of the packed projection, (B, T, 3D)."""
    packed, grad = packed.detach().contiguous(), grad.contiguous()
    batch, heads, time = norms.shape
    units, change = packed.shape[2] // (3 * heads), torch.empty_like(packed)
    scratch = COUNT * (3 * units + 2 * time + 2)
    addresses = (tensor.data_ptr() for tensor in (out, norms, grad, change))
    run_in_threads(_backward, batch, scratch, packed.data_ptr(), time, heads, units, *addresses)
    return change


@attend_backward.register_fake
def _(grad: Tensor, packed: Tensor, out: Tensor, norms: Tensor) -> Tensor:
    return torch.empty_like(packed, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], *output)


def _gradient(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, None]:
    return None if grad is None else attend_backward(grad, *ctx.saved_tensors), None


attend.register_autograd(_gradient, setup_context=_save)


@compiled
def _forward(first, last, query, packed, time, heads, units, out, norms):
    """Sequences `first` .. `last` - 1; all arrays are addresses, `query` that of the scratch for what is computed."""
    width, scale = heads * units, np.float32(LOG2_E / math.sqrt(units))
    mixed = query + 4 * units * COUNT
    scores = mixed + 4 * units * COUNT
    ends = scores + 4 * time * COUNT
    for row in range(first, last):
        for head in range(heads):
            start = row * time * 3 * width + head * units  # of the first query
            for block in range(0, time, COUNT):
                here, keys = min(COUNT, time - block), min(block + COUNT, time)
                _transpose(packed, start + block * 3 * width, 3 * width, here, units, scale, query)
                _products(query, units, packed, start + width, 3 * width, keys, constant(np.float32(0)), scores)
                _softmax(scores, block, keys, ends)
                _mix(scores, packed, start + 2 * width, 3 * width, keys, units, mixed)
                for element in range(here):
                    at, total = (row * time + block + element) * width + head * units, get(ends, COUNT + element)
                    for unit in range(units):
                        put(out, at + unit, get(mixed, unit * COUNT + element) / total)
                    norm = get(ends, element) + np.float32(math.log2(total))
                    put(norms, (row * heads + head) * time + block + element, norm)


@compiled
def _backward(first, last, query, packed, time, heads, units, out, norms, grad, change):
    """Go from the gradient of `out` to that of `packed`; the last queries come first, as they read all keys."""
    width, scale, natural = heads * units, np.float32(LOG2_E / math.sqrt(units)), np.float32(1 / math.sqrt(units))
    given = query + 4 * units * COUNT
    mixed = given + 4 * units * COUNT
    scores = mixed + 4 * units * COUNT
    slopes = scores + 4 * time * COUNT
    ends = slopes + 4 * time * COUNT
    for row in range(first, last):
        for head in range(heads):
            start = row * time * 3 * width + head * units
            for block in range((time - 1) // COUNT * COUNT, -1, -COUNT):
                here, keys = min(COUNT, time - block), min(block + COUNT, time)
                own, whole = start + block * 3 * width, (row * time + block) * width + head * units
                store(
                    ends, 0, constant(np.float32(0))
                )  # elements after the last position have scores and slopes of zero
                store(ends, COUNT, constant(np.float32(0)))
                for element in range(here):
                    at, total = whole + element * width, np.float32(0)
                    for unit in range(units):
                        total -= get(out, at + unit) * get(grad, at + unit)
                    put(ends, element, get(norms, (row * heads + head) * time + block + element))
                    put(ends, COUNT + element, total)
                _transpose(packed, own, 3 * width, here, units, scale, query)
                _transpose(grad, whole, width, here, units, np.float32(1), given)
                _products(query, units, packed, start + width, 3 * width, keys, constant(np.float32(0)), scores)
                _products(given, units, packed, start + 2 * width, 3 * width, keys, load(ends, COUNT), slopes)
                _weights(scores, slopes, block, keys, load(ends, 0))
                _mix(slopes, packed, start + width, 3 * width, keys, units, mixed)
                for element in range(here):
                    for unit in range(units):
                        put(change, own + element * 3 * width + unit, natural * get(mixed, unit * COUNT + element))
                _rows(packed, own, 3 * width, here, units, natural, query)
                _rows(grad, whole, width, here, units, np.float32(1), given)
                _add_outer(slopes, query, keys, units, keys == time, change, start + width, 3 * width)
                _add_outer(scores, given, keys, units, keys == time, change, start + 2 * width, 3 * width)


@compiled
def _transpose(source, start, stride, here, units, scale, transposed):
    """Eight rows of h units as h rows of eight elements; elements after the last position are zero."""
    for element in range(here):
        for unit in range(units):
            put(transposed, unit * COUNT + element, get(source, start + element * stride + unit) * scale)
    for element in range(here, COUNT):
        for unit in range(units):
            put(transposed, unit * COUNT + element, np.float32(0))


@compiled
def _rows(source, start, stride, here, units, scale, rows):
    """Eight rows of h units, one after the other; rows after the last position are zero."""
    factor = constant(scale)
    for element in range(COUNT):
        for unit in range(0, units, COUNT):
            row = (
                multiply(load(source, start + element * stride + unit), factor)
                if element < here
                else constant(np.float32(0))
            )
            store(rows, element * units + unit, row)


@compiled
def _products(transposed, units, source, start, stride, keys, first, scores):
    """scores[j] = first + the eight products with row j of the source."""
    for unit in range(0, units, COUNT):
        at = unit * COUNT
        a, b, c, d = (
            load(transposed, at),
            load(transposed, at + 8),
            load(transposed, at + 16),
            load(transposed, at + 24),
        )
        e, f, g, h = (
            load(transposed, at + 32),
            load(transposed, at + 40),
            load(transposed, at + 48),
            load(transposed, at + 56),
        )
        for key in range(keys):
            index = start + key * stride + unit
            even = first if unit == 0 else load(scores, key * COUNT)
            even = multiply_add(a, broadcast(source, index), even)
            even = multiply_add(b, broadcast(source, index + 1), even)
            even = multiply_add(c, broadcast(source, index + 2), even)
            even = multiply_add(d, broadcast(source, index + 3), even)
            even = multiply_add(e, broadcast(source, index + 4), even)
            even = multiply_add(f, broadcast(source, index + 5), even)
            even = multiply_add(g, broadcast(source, index + 6), even)
            even = multiply_add(h, broadcast(source, index + 7), even)
            store(scores, key * COUNT, even)


@compiled
def _softmax(scores, block, keys, ends):
    """Scores become 2^(score - largest); `ends` holds the largest score and the sum of each element."""
    lowest = constant(np.float32(LOWEST))
    top = lowest
    for key in range(keys):
        score = load(scores, key * COUNT)
        if key > block:  # a key in the future of the first elements
            score = replace_from(key - block, score, lowest)
            store(scores, key * COUNT, score)
        top = maximum(top, score)
    total = constant(np.float32(0))
    for key in range(keys):
        weight = exp2(subtract(load(scores, key * COUNT), top))
        if key > block:
            weight = replace_from(key - block, weight, constant(np.float32(0)))
        store(scores, key * COUNT, weight)
        total = add(total, weight)
    store(ends, 0, top)
    store(ends, COUNT, total)


@compiled
def _weights(scores, slopes, block, keys, norm):
    """Scores become weights, and slopes, which hold d(weight) - its mean, become d(score)."""
    for key in range(keys):
        weight = exp2(subtract(load(scores, key * COUNT), norm))
        if key > block:
            weight = replace_from(key - block, weight, constant(np.float32(0)))
        store(scores, key * COUNT, weight)
        store(slopes, key * COUNT, multiply(load(slopes, key * COUNT), weight))


@compiled
def _mix(weights, source, start, stride, keys, units, mixed):
    """mixed[u] = sum over j of weights[j] times unit u of the source's row j."""
    for unit in range(0, units, COUNT):
        a = b = c = d = e = f = g = h = constant(np.float32(0))
        for key in range(keys):
            index, weight = start + key * stride + unit, load(weights, key * COUNT)
            a = multiply_add(weight, broadcast(source, index), a)
            b = multiply_add(weight, broadcast(source, index + 1), b)
            c = multiply_add(weight, broadcast(source, index + 2), c)
            d = multiply_add(weight, broadcast(source, index + 3), d)
            e = multiply_add(weight, broadcast(source, index + 4), e)
            f = multiply_add(weight, broadcast(source, index + 5), f)
            g = multiply_add(weight, broadcast(source, index + 6), g)
            h = multiply_add(weight, broadcast(source, index + 7), h)
        at = unit * COUNT
        store(mixed, at, a), store(mixed, at + 8, b), store(mixed, at + 16, c), store(mixed, at + 24, d)
        store(mixed, at + 32, e), store(mixed, at + 40, f), store(mixed, at + 48, g), store(mixed, at + 56, h)


@compiled
def _add_outer(weights, rows, keys, units, fresh, change, start, stride):
    """Add to row j of the change the sum over eight queries of weights[j] times the query's row (fresh: from 0)."""
    for unit in range(0, units, COUNT):
        a, b = load(rows, unit), load(rows, units + unit)
        c, d = load(rows, 2 * units + unit), load(rows, 3 * units + unit)
        e, f = load(rows, 4 * units + unit), load(rows, 5 * units + unit)
        g, h = load(rows, 6 * units + unit), load(rows, 7 * units + unit)
        for key in range(keys):
            index, at = start + key * stride + unit, key * COUNT
            total = constant(np.float32(0)) if fresh else load(change, index)
            total = multiply_add(a, broadcast(weights, at), total)
            total = multiply_add(b, broadcast(weights, at + 1), total)
            total = multiply_add(c, broadcast(weights, at + 2), total)
            total = multiply_add(d, broadcast(weights, at + 3), total)
            total = multiply_add(e, broadcast(weights, at + 4), total)
            total = multiply_add(f, broadcast(weights, at + 5), total)
            total = multiply_add(g, broadcast(weights, at + 6), total)
            total = multiply_add(h, broadcast(weights, at + 7), total)
            store(change, index, total)
