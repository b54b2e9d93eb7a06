"""Causal attention for short windows on a CPU, forward and backward, from the packed projection.

torch's fused kernel is built for long sequences and wide heads; on small matrices most of its time is overhead. Here
eight queries stand side by side in a register, keys are read one after the other, no query reads a key of its future,
and scores never leave the first-level cache. The backward pass computes the scores again.

Symbols: one head of one sequence has T positions of h units; scores and weights of eight queries are stored as (T, 8).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.operator import call, operator, through
from dqn_memory.blocks.kernels.simd import COUNT

LONGEST = 128  # max positions: above, the fused kernel is as fast
WIDEST = 32  # max units a head: above, the fused kernel is as fast
FEWEST = 16  # min sequences x heads: below, the call costs more than the work
LOWEST = -1e30  # score of a masked key, whose weight becomes 0
LOG2_E = math.log2(math.e)


def attention_is_faster(packed: Tensor, heads: int) -> bool:
    """Tell whether packed queries, keys and values (B, T, 3D) are faster here than in the fused kernel."""
    batch, length, width = packed.shape
    units = width // (3 * heads)
    return (
        packed.dtype == torch.float32
        and length <= LONGEST
        and units % COUNT == 0
        and units <= WIDEST
        and batch * heads >= FEWEST
    )


def cpu_attention(packed: Tensor, heads: int) -> Tensor:
    """Compute causal attention of packed queries, keys and values: (B, T, 3D) -> (B, T, D)."""
    return call(attend, packed, heads)[0]


def attention_forward(packed: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Compute attention (B, T, D), and for the backward pass each query's largest score and 1 / its sum of weights."""
    packed, (out, norms) = packed.detach().contiguous(), _outputs(packed, heads)
    batch, time, width = out.shape
    units = width // heads
    v.run_in_threads(_forward, batch, COUNT * (2 * units + time + 2), packed, time, heads, units, out, norms)
    return out, norms


def attention_backward(grad: Tensor, packed: Tensor, out: Tensor, norms: Tensor) -> Tensor:
    """Compute the gradient of the packed projection, (B, T, 3D)."""
    packed, grad, change = packed.detach().contiguous(), grad.contiguous(), _change(grad, packed, out, norms)
    (batch, time, _), heads = out.shape, norms.shape[1]
    units, arrays = out.shape[2] // heads, (out, norms, grad, change)
    v.run_in_threads(_backward, batch, COUNT * (3 * units + 2 * time), packed, time, heads, units, *arrays)
    return change


def _outputs(packed: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, time, width = packed.shape
    return packed.new_empty(batch, time, width // 3), packed.new_empty(batch, heads, -(-time // COUNT), 2, COUNT)


def _change(grad: Tensor, packed: Tensor, out: Tensor, norms: Tensor) -> Tensor:
    return torch.empty_like(packed, memory_format=torch.contiguous_format)


def _saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return inputs[0], *outputs


def _reference(packed: Tensor, heads: int) -> tuple[Tensor]:
    """Compute the attention in operators of torch that it can transform and differentiate twice."""
    query, key, value = packed.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, H, T, h)
    future = torch.ones(packed.shape[1], packed.shape[1], dtype=torch.bool, device=packed.device).triu(1)
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(future, -math.inf)
    return ((scores.softmax(-1) @ value).transpose(1, 2).flatten(2),)


def _again(grad: Tensor, packed: Tensor, out: Tensor, norms: Tensor) -> Any:
    return through(lambda packed: _reference(packed, norms.shape[1]))(grad, packed)


attend = operator(
    "cpu_attention", attention_forward, attention_backward, (_outputs, _change), _reference, _saved, again=_again
)


@v.compiled
def _forward(first, last, query, packed, time, heads, units, out, norms):
    """Process sequences `first` .. `last` - 1. All arrays are addresses; scratch memory begins at `query`."""
    width, scale, nothing = heads * units, np.float32(LOG2_E / math.sqrt(units)), v.constant(0.0)
    mixed = query + 4 * units * COUNT
    scores = mixed + 4 * units * COUNT
    ends, norm = scores + 4 * time * COUNT, first * heads * ((time + COUNT - 1) // COUNT) * 2 * COUNT
    for row in range(first, last):
        for head in range(heads):
            start = row * time * 3 * width + head * units  # of the first query
            for block in range(0, time, COUNT):
                here, keys = min(COUNT, time - block), min(block + COUNT, time)
                _transpose(packed, start + block * 3 * width, 3 * width, here, units, scale, query)
                _products(query, units, packed + 4 * (start + width), 3 * width, keys, nothing, scores)
                _softmax(scores, block, keys, ends)
                share = v.constant(1.0) / v.load(ends, COUNT)
                v.store(norms, norm, v.load(ends, 0)), v.store(norms, norm + COUNT, share)
                norm += 2 * COUNT
                _mix(scores, packed, start + 2 * width, 3 * width, keys, units, share, mixed)
                _write(mixed, units, here, out, (row * time + block) * width + head * units, width)


@v.compiled
def _backward(first, last, query, packed, time, heads, units, out, norms, grad, change):
    """Compute the gradient of `packed` from that of `out`; the last queries come first, as they read all keys."""
    width, scale, natural = heads * units, np.float32(LOG2_E / math.sqrt(units)), np.float32(1 / math.sqrt(units))
    nothing, given = v.constant(0.0), query + 4 * units * COUNT
    mixed = given + 4 * units * COUNT
    scores = mixed + 4 * units * COUNT
    slopes = scores + 4 * time * COUNT
    norm = last * heads * ((time + COUNT - 1) // COUNT) * 2 * COUNT
    for row in range(last - 1, first - 1, -1):
        for head in range(heads - 1, -1, -1):
            start = row * time * 3 * width + head * units
            for block in range((time - 1) // COUNT * COUNT, -1, -COUNT):
                here, keys = min(COUNT, time - block), min(block + COUNT, time)
                own, whole = start + block * 3 * width, (row * time + block) * width + head * units
                norm -= 2 * COUNT
                _transpose(packed, own, 3 * width, here, units, scale, query)
                _transpose(grad, whole, width, here, units, np.float32(1), given)
                _transpose(out, whole, width, here, units, np.float32(-1), mixed)
                mean = nothing
                for unit in range(units):
                    mean = v.multiply_add(v.load(mixed, unit * COUNT), v.load(given, unit * COUNT), mean)
                _products(query, units, packed + 4 * (start + width), 3 * width, keys, nothing, scores)
                _products(given, units, packed + 4 * (start + 2 * width), 3 * width, keys, mean, slopes)
                _weights(scores, slopes, block, keys, v.load(norms, norm), v.load(norms, norm + COUNT))
                _mix(slopes, packed, start + width, 3 * width, keys, units, v.constant(natural), mixed)
                _write(mixed, units, here, change, own, 3 * width)
                _rows(packed, own, 3 * width, here, units, natural, query)
                _rows(grad, whole, width, here, units, np.float32(1), given)
                _add_outer(slopes, query, keys, units, keys == time, change + 4 * (start + width), 3 * width)
                _add_outer(scores, given, keys, units, keys == time, change + 4 * (start + 2 * width), 3 * width)


@v.compiled
def _transpose(source, start, stride, here, units, scale, transposed):
    """Write eight rows of h units as h rows of eight elements; elements after the last position are zero."""
    factor = v.constant(scale)
    for unit in range(0, units, COUNT):
        block = transposed + 4 * unit * COUNT
        for element in range(COUNT):
            row = v.load(source, start + element * stride + unit) * factor if element < here else v.constant(0.0)
            v.store(block, element * COUNT, row)
        _turn(block)


@v.compiled
def _write(mixed, units, here, target, start, stride):
    """Write h rows of eight elements as eight rows of h units; the h rows are lost."""
    for unit in range(0, units, COUNT):
        block = mixed + 4 * unit * COUNT
        _turn(block)
        for element in range(here):
            v.store(target, start + element * stride + unit, v.load(block, element * COUNT))


@v.compiled
def _turn(block):
    """Transpose eight rows of eight numbers in place."""
    a, b, c, d = v.load(block, 0), v.load(block, 8), v.load(block, 16), v.load(block, 24)
    e, f, g, h = v.load(block, 32), v.load(block, 40), v.load(block, 48), v.load(block, 56)
    a, b, c, d, e, f, g, h = v.transpose(a, b, c, d, e, f, g, h)
    v.store(block, 0, a), v.store(block, 8, b), v.store(block, 16, c), v.store(block, 24, d)
    v.store(block, 32, e), v.store(block, 40, f), v.store(block, 48, g), v.store(block, 56, h)


@v.compiled
def _rows(source, start, stride, here, units, scale, rows):
    """Write eight rows of h units one after the other; rows after the last position are zero."""
    factor = v.constant(scale)
    for element in range(COUNT):
        for unit in range(0, units, COUNT):
            row = v.constant(0.0)
            if element < here:
                row = v.load(source, start + element * stride + unit) * factor
            v.store(rows, element * units + unit, row)


@v.compiled
def _add_products(vectors, apart, factors, factor_stride, keys, first, fresh, sums, stride):
    """Add to sums[j] eight vectors, `apart` from one another, times eight numbers of row j of the factors.

    With `fresh`, the sums begin at `first`.
    """
    a, b, c = v.load(vectors, 0), v.load(vectors, apart), v.load(vectors, 2 * apart)
    d, e, f = v.load(vectors, 3 * apart), v.load(vectors, 4 * apart), v.load(vectors, 5 * apart)
    g, h = v.load(vectors, 6 * apart), v.load(vectors, 7 * apart)
    for key in range(keys):
        index, at = key * factor_stride, key * stride
        total = first if fresh else v.load(sums, at)
        total = v.multiply_add(a, v.broadcast(factors, index), total)
        total = v.multiply_add(b, v.broadcast(factors, index + 1), total)
        total = v.multiply_add(c, v.broadcast(factors, index + 2), total)
        total = v.multiply_add(d, v.broadcast(factors, index + 3), total)
        total = v.multiply_add(e, v.broadcast(factors, index + 4), total)
        total = v.multiply_add(f, v.broadcast(factors, index + 5), total)
        total = v.multiply_add(g, v.broadcast(factors, index + 6), total)
        total = v.multiply_add(h, v.broadcast(factors, index + 7), total)
        v.store(sums, at, total)


@v.compiled
def _products(transposed, units, source, stride, keys, first, scores):
    """Set scores[j] to `first` plus the eight products with row j of the source."""
    for unit in range(0, units, COUNT):
        columns = transposed + 4 * unit * COUNT
        _add_products(columns, COUNT, source + 4 * unit, stride, keys, first, unit == 0, scores, COUNT)


@v.compiled
def _add_outer(weights, rows, keys, units, fresh, change, stride):
    """Add to row j of the change the sum over eight queries of weights[j] times the query's row (fresh: from 0)."""
    for unit in range(0, units, COUNT):
        _add_products(rows + 4 * unit, units, weights, COUNT, keys, v.constant(0.0), fresh, change + 4 * unit, stride)


@v.compiled
def _softmax(scores, block, keys, ends):
    """Replace scores by 2^(score - max); write the max score and the sum of each element to `ends`."""
    lowest = v.constant(LOWEST)
    top = lowest
    for key in range(keys):
        score = v.load(scores, key * COUNT)
        if key > block:  # a key in the future of the first elements
            score = v.replace_from(key - block, score, lowest)
            v.store(scores, key * COUNT, score)
        top = v.maximum(top, score)
    total = v.constant(0.0)
    for key in range(keys):
        weight = v.exp2(v.load(scores, key * COUNT) - top)
        if key > block:
            weight = v.replace_from(key - block, weight, v.constant(0.0))
        v.store(scores, key * COUNT, weight)
        total = total + weight
    v.store(ends, 0, top)
    v.store(ends, COUNT, total)


@v.compiled
def _weights(scores, slopes, block, keys, top, share):
    """Replace scores by weights, and slopes, which hold d(weight) less its mean, by d(score)."""
    for key in range(keys):
        weight = v.exp2(v.load(scores, key * COUNT) - top) * share
        if key > block:
            weight = v.replace_from(key - block, weight, v.constant(0.0))
        v.store(scores, key * COUNT, weight)
        v.store(slopes, key * COUNT, v.load(slopes, key * COUNT) * weight)


@v.compiled
def _mix(weights, source, start, stride, keys, units, factor, mixed):
    """Set mixed[u] to the sum over j of weights[j] times unit u of the source's row j, times a factor."""
    for unit in range(0, units, COUNT):
        a = b = c = d = e = f = g = h = v.constant(0.0)
        for key in range(keys):
            index, weight = start + key * stride + unit, v.load(weights, key * COUNT)
            a = v.multiply_add(weight, v.broadcast(source, index), a)
            b = v.multiply_add(weight, v.broadcast(source, index + 1), b)
            c = v.multiply_add(weight, v.broadcast(source, index + 2), c)
            d = v.multiply_add(weight, v.broadcast(source, index + 3), d)
            e = v.multiply_add(weight, v.broadcast(source, index + 4), e)
            f = v.multiply_add(weight, v.broadcast(source, index + 5), f)
            g = v.multiply_add(weight, v.broadcast(source, index + 6), g)
            h = v.multiply_add(weight, v.broadcast(source, index + 7), h)
        at = unit * COUNT
        v.store(mixed, at, a * factor), v.store(mixed, at + 8, b * factor), v.store(mixed, at + 16, c * factor)
        v.store(mixed, at + 24, d * factor), v.store(mixed, at + 32, e * factor), v.store(mixed, at + 40, f * factor)
        v.store(mixed, at + 48, g * factor), v.store(mixed, at + 56, h * factor)
