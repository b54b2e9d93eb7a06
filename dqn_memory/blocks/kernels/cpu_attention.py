"""Causal attention for short windows on a CPU, forward and backward, from the packed projection.

torch's fused kernel is built for long sequences and wide heads; on small matrices most of its time is overhead. Here
eight queries stand side by side in a register, keys are read one after the other, no query reads a key that it may not,
and scores never leave the first-level cache. The backward pass computes the scores again.

Symbols: one head of one sequence has T positions of h units, which follow P earlier keys; key P + i is that of position
i, which reads the newest K keys. Scores and weights of eight queries are stored as (keys, 8).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.custom_operator import call, operator, through
from dqn_memory.blocks.kernels.simd import COUNT

LONGEST = 128  # max keys of a query: above, the fused kernel is as fast
WIDEST = 32  # max units a head: above, the fused kernel is as fast
FEWEST = 16  # min sequences x heads: below, the call costs more than the work
LOWEST = -1e30  # score of a masked key, whose weight becomes 0
LOG2_E = math.log2(math.e)


def attention_is_faster(x: Tensor, width: int, heads: int, context: int, rotary: bool = False) -> bool:
    """Tell whether attention to `context` keys, of the rows and dtype of x (B, ...), is faster here than in torch."""
    units = width // heads
    return (
        x.dtype == torch.float32
        and context <= LONGEST
        and units % COUNT == 0
        and (not rotary or units == COUNT or units % (2 * COUNT) == 0)  # a register holds one half of a head, or both
        and units <= WIDEST
        and x.shape[0] * heads >= FEWEST
    )


def cpu_attention(packed: Tensor, heads: int) -> Tensor:
    """Compute causal attention of packed queries, keys and values: (B, T, 3D) -> (B, T, D)."""
    return call(attend, packed, None, None, None, heads)[0]


def streamed_attention(packed: Tensor, past: Tensor, begin: Tensor, table: Tensor | None, heads: int) -> Tensor:
    """Compute attention of packed (B, T, 3D) that follows keys and values `past` (B, K - 1, 2D) -> (B, T, D).

    Position i reads the newest K keys, from number `begin` (B, T) among past and own keys on, which never decreases.
    The table (K - 1 + T, 2, h) of `rotary_table` turns queries and keys.
    """
    return call(attend, packed, past, begin.to(torch.float32), table, heads)[0]


def attention_forward(
    packed: Tensor, past: Tensor | None, begin: Tensor | None, table: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    """Compute attention (B, T, D), and for the backward pass each query's largest score and 1 / its sum of weights."""
    out, norms = _outputs(packed, past, begin, table, heads)
    sizes, arrays = _sizes(norms, past, out.shape), tuple(map(v.dense, (packed, past, begin, table)))
    time, before, context, _, units = sizes
    scratch = COUNT * (3 * units + context + COUNT + 3) + 2 * units * (before + time)
    v.run_in_threads(_forward, len(out), scratch, arrays, sizes, out, norms)
    return out, norms


def attention_backward(
    grad: Tensor, packed: Tensor, past: Tensor | None, begin: Tensor | None, table: Tensor | None, out: Tensor,
    norms: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of the packed projection, (B, T, 3D), and of past keys and values, (B, P, 2D)."""
    changes = _changes(grad, packed, past)
    sizes, arrays = _sizes(norms, past, out.shape), tuple(map(v.dense, (packed, past, begin, table)))
    time, before, context, _, units = sizes
    scratch = COUNT * (5 * units + 2 * (context + COUNT) + 1) + 4 * units * (before + time)
    v.run_in_threads(_backward, len(out), scratch, arrays, sizes, out, norms, grad.contiguous(), changes)
    return changes


def _sizes(norms: Tensor, past: Tensor | None, shape: torch.Size) -> tuple[int, ...]:
    """List T, P, K, H and h."""
    (_, time, width), heads = shape, norms.shape[1]
    before = 0 if past is None else past.shape[1]
    return time, before, time if past is None else before + 1, heads, width // heads


def _outputs(packed: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    heads = others[-1]
    batch, time, width = packed.shape
    return packed.new_empty(batch, time, width // 3), packed.new_empty(batch, heads, -(-time // COUNT), 2, COUNT)


def _changes(grad: Tensor, packed: Tensor, past: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    dense = torch.contiguous_format
    before = packed.new_empty(0) if past is None else torch.empty_like(past, memory_format=dense)
    return torch.empty_like(packed, memory_format=dense), before


def _saved(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> tuple[Any, ...]:
    return *inputs[:4], *outputs


def _reference(
    packed: Tensor, past: Tensor | None, begin: Tensor | None, table: Tensor | None, heads: int
) -> tuple[Tensor]:
    """Compute the attention in operators of torch that it can transform and differentiate twice."""
    query, key, value = packed.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, H, T, h)
    if past is not None:
        earlier = past.unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
        key, value = torch.cat((earlier[0], key), 2), torch.cat((earlier[1], value), 2)
    before = key.shape[2] - query.shape[2]
    if table is not None:
        query, key = (
            each * cosine + each.roll(each.shape[-1] // 2, -1) * sine
            for each, (cosine, sine) in ((query, table[before:].unbind(1)), (key, table.unbind(1)))
        )
    place = torch.arange(key.shape[2], device=packed.device)
    distance = place[before:, None] - place  # (T, P + T)
    hidden = (distance < 0) | (distance > (len(place) if past is None else before))
    if begin is not None:
        hidden = (hidden | (place < begin[..., None]))[:, None]  # (B, 1, T, P + T)
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(hidden, -math.inf)
    return ((scores.softmax(-1) @ value).transpose(1, 2).flatten(2),)


def _again(grad: Tensor, packed: Tensor, past: Tensor | None, *rest: Any) -> Any:
    begin, table, _, norms = rest
    return through(lambda packed, past: _reference(packed, past, begin, table, norms.shape[1]))(grad, packed, past)


attend = operator(
    "cpu_attention", attention_forward, attention_backward, (_outputs, _changes), _reference, _saved, again=_again
)


@v.compiled
def _forward(first, last, query, arrays, sizes, out, norms):
    """Process sequences `first` .. `last` - 1. All arrays are addresses; scratch memory begins at `query`."""
    packed, _, begin, table = arrays
    time, before, _, heads, units = sizes
    width, scale, nothing = heads * units, np.float32(LOG2_E / math.sqrt(units)), v.constant(0.0)
    mixed = query + 4 * units * COUNT
    rows = mixed + 4 * units * COUNT
    ends = rows + 4 * units * COUNT
    keys = ends + 4 * 3 * COUNT
    values = keys + 4 * units * (before + time)
    scores = values + 4 * units * (before + time)
    for row in range(first, last):
        for head in range(heads):
            own_keys, own_values, stride = _gather(arrays, sizes, row, head, keys, values)
            for block in range(0, time, COUNT):
                here, top = min(COUNT, time - block), before + block
                start, full = _lowest(begin, row * time, block, here, sizes, ends + 4 * 2 * COUNT)
                count, low = min(top + COUNT, before + time) - start, v.load(ends, 2 * COUNT)
                own = (row * time + block) * 3 * width + head * units
                if table:
                    _rows(packed, own, 3 * width, here, units, table, top, scale, rows)
                    _transpose(rows, 0, units, here, units, np.float32(1), query)
                else:
                    _transpose(packed, own, 3 * width, here, units, scale, query)
                _products(query, units, own_keys + 4 * start * stride, stride, count, nothing, scores)
                _softmax(scores, start, top, count, full, low, ends)
                share = v.constant(1.0) / v.load(ends, COUNT)
                norm = ((row * heads + head) * ((time + COUNT - 1) // COUNT) + block // COUNT) * 2 * COUNT
                v.store(norms, norm, v.load(ends, 0)), v.store(norms, norm + COUNT, share)
                _mix(scores, own_values, start * stride, stride, count, units, share, mixed)
                _write(mixed, units, here, out, (row * time + block) * width + head * units, width)


@v.compiled
def _backward(first, last, query, arrays, sizes, out, norms, grad, changes):
    """Compute the gradients of `packed` and `past` from that of `out`."""
    packed, _, begin, table = arrays
    time, before, context, heads, units = sizes
    total, width, one = before + time, heads * units, np.float32(1)
    natural = np.float32(1 / math.sqrt(units))
    given = query + 4 * units * COUNT
    mixed = given + 4 * units * COUNT
    rows = mixed + 4 * units * COUNT
    others = rows + 4 * units * COUNT
    lows = others + 4 * units * COUNT
    keys = lows + 4 * COUNT
    values = keys + 4 * units * total
    key_changes = values + 4 * units * total
    value_changes = key_changes + 4 * units * total
    scores = value_changes + 4 * units * total
    slopes = scores + 4 * (context + COUNT) * COUNT
    for row in range(first, last):
        for head in range(heads):
            own_keys, own_values, stride = _gather(arrays, sizes, row, head, keys, values)
            to_keys, to_values = key_changes, value_changes
            if stride != units:  # keys and values lie in `packed` alone, and so do their gradients
                to_keys = changes[0] + 4 * ((row * time * 3 + 1) * width + head * units)
                to_values = to_keys + 4 * width
            for index in range(total):
                for unit in range(0, units, COUNT):
                    v.store(to_keys, index * stride + unit, v.constant(0.0))
                    v.store(to_values, index * stride + unit, v.constant(0.0))
            for block in range(0, time, COUNT):
                here, top = min(COUNT, time - block), before + block
                start, full = _lowest(begin, row * time, block, here, sizes, lows)
                count, low = min(top + COUNT, total) - start, v.load(lows, 0)
                norm = ((row * heads + head) * ((time + COUNT - 1) // COUNT) + block // COUNT) * 2 * COUNT
                own = (row * time + block) * 3 * width + head * units
                whole = (row * time + block) * width + head * units
                _rows(packed, own, 3 * width, here, units, table, top, natural, rows)
                _rows(grad, whole, width, here, units, 0, 0, one, others)
                _transpose(rows, 0, units, here, units, np.float32(LOG2_E), query)
                _transpose(others, 0, units, here, units, one, given)
                _transpose(out, whole, width, here, units, -one, mixed)
                mean = v.constant(0.0)  # less the sum of each query's outputs times their gradients
                for unit in range(units):
                    mean = v.multiply_add(v.load(mixed, unit * COUNT), v.load(given, unit * COUNT), mean)
                _products(query, units, own_keys + 4 * start * stride, stride, count, v.constant(0.0), scores)
                _products(given, units, own_values + 4 * start * stride, stride, count, mean, slopes)
                _weights(scores, slopes, start, top, count, full, low, v.load(norms, norm), v.load(norms, norm + COUNT))
                _add_outer(slopes, rows, count, units, to_keys + 4 * start * stride, stride)
                _add_outer(scores, others, count, units, to_values + 4 * start * stride, stride)
                _mix(slopes, own_keys, start * stride, stride, count, units, v.constant(natural), mixed)
                if table:
                    _write(mixed, units, here, rows, 0, units)
                    for element in range(here):
                        at = own + element * 3 * width
                        turn_row(rows, element * units, units, table, top + element, -one, one, changes[0], at)
                else:
                    _write(mixed, units, here, changes[0], own, 3 * width)
            if stride == units:
                _scatter(changes, table, sizes, row, head, key_changes, value_changes)


@v.compiled
def _gather(arrays, sizes, row, head, keys, values):
    """Copy keys, turned by their positions, and values of one head, each (P + T, h); give their places and stride.

    Without past or table they are read where they are.
    """
    packed, past, _, table = arrays
    time, before, _, heads, units = sizes
    width, one = heads * units, np.float32(1)
    if not (past or table):
        own = packed + 4 * ((row * time * 3 + 1) * width + head * units)
        return own, own + 4 * width, 3 * width
    for key in range(before + time):
        source, at = past, (row * before + key) * 2 * width + head * units
        if key >= before:
            source, at = packed, (row * time + key - before) * 3 * width + width + head * units
        turn_row(source, at, units, table, key, one, one, keys, key * units)
        turn_row(source, at + width, units, 0, 0, one, one, values, key * units)
    return keys, values, units


@v.compiled
def _scatter(changes, table, sizes, row, head, key_changes, value_changes):
    """Write the gradients of keys, turned back, and of values to where `_gather` read keys and values."""
    time, before, _, heads, units = sizes
    width, one = heads * units, np.float32(1)
    for key in range(before + time):
        to, at = changes[1], (row * before + key) * 2 * width + head * units
        if key >= before:
            to, at = changes[0], (row * time + key - before) * 3 * width + width + head * units
        turn_row(key_changes, key * units, units, table, key, -one, one, to, at)
        turn_row(value_changes, key * units, units, 0, 0, one, one, to, at + width)


@v.compiled
def turn_row(source, start, units, table, position, direction, factor, turned, to):
    """Write a row of h units times `factor`; with a table turned by its position, or back if `direction` is negative.

    `direction` is plus or minus `factor`.
    """
    ahead, size = v.constant(direction), v.constant(factor)
    for unit in range(0, units, COUNT):
        row = v.load(source, start + unit)
        result = row * size
        if table:
            at = 2 * units * position + unit
            other = v.swap(row) if units == COUNT else v.load(source, start + (unit + units // 2) % units)
            result = v.multiply_add(result, v.load(table, at), other * v.load(table, at + units) * ahead)
        v.store(turned, to + unit, result)


@v.compiled
def _lowest(begin, start, block, here, sizes, lows):
    """Write the number of the first key of each of eight queries; give that of the first query, and of the last one."""
    _, before, context, _, _ = sizes
    if not begin and before + block + here <= context:
        return 0, 0
    for element in range(COUNT):
        index = block + min(element, here - 1)
        low = max(0, before + index + 1 - context)
        if begin:
            low = max(low, int(v.load_one(begin, start + index)))
        v.store_one(lows, element, np.float32(low))
    return int(v.load_one(lows, 0)), int(v.load_one(lows, COUNT - 1))


@v.compiled
def _transpose(source, start, stride, here, units, scale, transposed):
    """Write eight rows of h units as h rows of eight elements; elements after the last position are zero."""
    factor = v.constant(scale)
    for unit in range(0, units, COUNT):
        block = transposed + 4 * unit * COUNT
        for element in range(COUNT):
            row = v.load(source, start + element * stride + unit) * factor if element < here else v.constant(0.0)
            v.store(block, element * COUNT, row)
        _transpose_block(block)


@v.compiled
def _write(mixed, units, here, target, start, stride):
    """Write h rows of eight elements as eight rows of h units; the h rows are lost."""
    for unit in range(0, units, COUNT):
        block = mixed + 4 * unit * COUNT
        _transpose_block(block)
        for element in range(here):
            v.store(target, start + element * stride + unit, v.load(block, element * COUNT))


@v.compiled
def _transpose_block(block):
    """Transpose eight rows of eight numbers in place."""
    a, b, c, d = v.load(block, 0), v.load(block, 8), v.load(block, 16), v.load(block, 24)
    e, f, g, h = v.load(block, 32), v.load(block, 40), v.load(block, 48), v.load(block, 56)
    a, b, c, d, e, f, g, h = v.transpose(a, b, c, d, e, f, g, h)
    v.store(block, 0, a), v.store(block, 8, b), v.store(block, 16, c), v.store(block, 24, d)
    v.store(block, 32, e), v.store(block, 40, f), v.store(block, 48, g), v.store(block, 56, h)


@v.compiled
def _rows(source, start, stride, here, units, table, position, factor, rows):
    """Write eight rows of h units, turned by their positions, times a factor; rows after the last one are zero."""
    for element in range(here):
        at = start + element * stride
        turn_row(source, at, units, table, position + element, factor, factor, rows, element * units)
    for index in range(here * units, COUNT * units, COUNT):
        v.store(rows, index, v.constant(0.0))


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
def _add_outer(weights, rows, keys, units, change, stride):
    """Add to row j of the change the sum over eight queries of weights[j] times the query's row."""
    for unit in range(0, units, COUNT):
        vectors, to = rows + 4 * unit, change + 4 * unit
        _add_products(vectors, units, weights, COUNT, keys, v.constant(0.0), False, to, stride)


@v.compiled
def _seen(value, key, top, full, low, other):
    """Take `value` where a query reads a key, else `other`: after `top` and before `full` not all queries do."""
    if key > top:
        value = v.replace_from(key - top, value, other)
    if key < full:
        value = v.where_at_least(v.constant(np.float32(key)), low, value, other)
    return value


@v.compiled
def _softmax(scores, start, top, keys, full, low, ends):
    """Replace scores by 2^(score - max); write the max score and the sum of each element to `ends`."""
    highest = v.constant(LOWEST)
    for key in range(keys):
        score = _seen(v.load(scores, key * COUNT), start + key, top, full, low, v.constant(LOWEST))
        v.store(scores, key * COUNT, score)
        highest = v.maximum(highest, score)
    total = v.constant(0.0)
    for key in range(keys):
        weight = v.exp2(v.load(scores, key * COUNT) - highest)
        weight = _seen(weight, start + key, top, full, low, v.constant(0.0))
        v.store(scores, key * COUNT, weight)
        total = total + weight
    v.store(ends, 0, highest)
    v.store(ends, COUNT, total)


@v.compiled
def _weights(scores, slopes, start, top, keys, full, low, highest, share):
    """Replace scores by weights, and slopes, which hold d(weight) less its mean, by d(score)."""
    for key in range(keys):
        weight = v.exp2(v.load(scores, key * COUNT) - highest) * share
        weight = _seen(weight, start + key, top, full, low, v.constant(0.0))
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
