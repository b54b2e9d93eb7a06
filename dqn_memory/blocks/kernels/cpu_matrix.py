"""Memories whose state is a matrix, on a CPU, forward and backward, as loops over eight values side by side: see `simd`.

In torch the chunk-wise form makes a hundred passes over all numbers. The state of a head is small: here it stays in the
first-level cache, and one kernel goes position by position, from the linear maps of x to the input of the last one. The
backward pass computes the states of CHUNK positions again, from one of the states that the forward pass kept.

B rows, T positions, H heads of d = D / H features. maps (B, T, 3 D + H) holds linear maps for q, k, v and b; with a
decay (2, H), which is A and c of `delta.GatedDeltaNet`, maps (B, T, 4 D + 2 H) holds those for a and the gate too.
States (B, H, d, d) are S^T: key by value. `keep` (B, T) is 0 where a position begins an episode; None: nowhere.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.delta import EPSILON, SMALLEST, delta_torch
from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.cpu_recurrent import _sigmoid
from dqn_memory.blocks.kernels.operator import operator
from dqn_memory.blocks.kernels.simd import COUNT

CHUNK = 16  # positions from one kept state to the next


def fits(maps: Tensor, head: int) -> bool:
    """Tell whether heads of this width can be computed here from these maps."""
    return maps.device.type == "cpu" and maps.dtype == torch.float32 and head % COUNT == 0


def delta_forward(
    maps: Tensor, scale: Tensor, decay: Tensor | None, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute y (B, T, D), the last state, and the states before each chunk but the first (B, n, H, d, d)."""
    outputs = _outputs(maps, scale, decay, initial, reset)
    arrays = *map(v.dense, (maps, scale, decay, initial, _mask(reset))), *outputs
    v.run_in_threads(_forward, len(maps), _scratch(len(scale)), _sizes(maps, initial), arrays)
    return outputs


def delta_backward(
    grad: Tensor, grad_last: Tensor, kept: Tensor, maps: Tensor, scale: Tensor, decay: Tensor | None, initial: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of maps, scale, decay and initial from those of y and of the last state."""
    (batch, heads), to_maps = initial.shape[:2], maps.new_empty(maps.shape)
    to_initial = grad_last.clone(memory_format=torch.contiguous_format)
    to_scale, to_decay = maps.new_zeros(batch, len(scale)), maps.new_zeros(batch, 2, heads)  # for any number of threads
    arrays = *map(v.dense, (maps, scale, decay, initial, _mask(reset), grad)), kept
    outputs = to_maps, to_scale, to_decay, to_initial
    v.run_in_threads(_backward, batch, _scratch(len(scale)), _sizes(maps, initial), (*arrays, *outputs))
    return to_maps, to_scale.sum(0), to_decay.sum(0), to_initial


def _mask(reset: Tensor | None) -> Tensor | None:
    """Compute `keep`, which is 0 where a position begins an episode and 1 elsewhere."""
    return None if reset is None else (~reset).float()


def _sizes(maps: Tensor, initial: Tensor) -> tuple[int, ...]:
    return maps.shape[1], *initial.shape[1:3], maps.shape[2]


def _scratch(head: int) -> int:
    """Count the numbers of `_places`."""
    return (2 * CHUNK + 1) * head * 4 + 4 * CHUNK * COUNT + (CHUNK + 1) * head**2 + 2 * COUNT * head + 3 * head


def _outputs(
    maps: Tensor, scale: Tensor, decay: Tensor | None, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, time), (_, heads, head, _) = maps.shape[:2], initial.shape
    kept = maps.new_empty(batch, (time - 1) // CHUNK, heads, head, head)
    return maps.new_empty(batch, time, heads * head), maps.new_empty(initial.shape), kept


def _gradients(
    grad: Tensor, grad_last: Tensor, kept: Tensor, maps: Tensor, scale: Tensor, decay: Tensor | None, initial: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    new = maps.new_empty
    return new(maps.shape), new(scale.shape), new(2, initial.shape[1]), new(initial.shape)


def _saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return outputs[2], *inputs


cpu_delta = operator(
    "cpu_delta", delta_forward, delta_backward, (_outputs, _gradients), delta_torch, _saved, differentiable=2
)


# ---- kernels: rows `first` .. `last` - 1, head by head, a chunk of positions at a time --------------------------------
@v.compiled
def _places(scratch, head):
    """Divide scratch memory: addresses of arrays that hold a row for each position of a chunk, and of others.

    In this order: q, k and v (3, C, d); the sigmoids in them (3, C, d); 1 / |q| and 1 / |k| (2, C, 8); b, a (C, 8)
    each, the same number eight times; what a write adds less b (C, d); S q (C, d); states (C + 1, d, d); gradients of
    S q, v, q and k, (d,) each but for rows of eight summands, (d, 8) each, of the last two.
    """
    rows, eight = 4 * CHUNK * head, 4 * CHUNK * COUNT
    sigmoids = scratch + 3 * rows
    lengths = sigmoids + 3 * rows
    rates = lengths + 2 * eight
    left = rates + eight
    missing = left + eight
    read = missing + rows
    states = read + rows
    to_read = states + 4 * (CHUNK + 1) * head * head
    to_value = to_read + 4 * head
    to_query = to_value + 4 * head
    return scratch, sigmoids, lengths, rates, left, missing, read, states, to_read, to_value, to_query


@v.compiled
def _forward(first, last, scratch, sizes, arrays):
    time, heads, head, _ = sizes
    maps, scale, decay, initial, keep, y, final, kept = arrays
    places, plane = _places(scratch, head), head * head
    for row in range(first, last):
        for which in range(heads):
            own = row * heads + which
            memory = final + 4 * own * plane
            _copy(initial + 4 * own * plane, memory, plane)
            for start in range(0, time, CHUNK):
                if start:
                    chunk = row * ((time - 1) // CHUNK) + start // CHUNK - 1
                    _copy(memory, kept + 4 * (chunk * heads + which) * plane, plane)
                here, count = row * time + start, min(CHUNK, time - start)
                _prepare(here, count, which, sizes, maps, decay, places)
                _recur(here, count, head, keep, memory, 0, places)
                for t in range(count):
                    _finish(here + t, t, which, sizes, maps, scale, decay, places, y)


@v.compiled
def _backward(first, last, scratch, sizes, arrays):
    time, heads, head, _ = sizes
    maps, scale, decay, initial, keep, grad, kept, to_maps, to_scale, to_decay, to_initial = arrays
    places, plane, chunks = _places(scratch, head), head * head, (time - 1) // CHUNK
    states = places[7]
    for row in range(first, last):
        for which in range(heads):
            own = row * heads + which
            change = to_initial + 4 * own * plane
            for chunk in range(chunks, -1, -1):
                before = kept + 4 * ((row * chunks + chunk - 1) * heads + which) * plane
                _copy(before if chunk else initial + 4 * own * plane, states, plane)
                start = chunk * CHUNK
                here, count = row * time + start, min(CHUNK, time - start)
                _prepare(here, count, which, sizes, maps, decay, places)
                _recur(here, count, head, keep, states, plane, places)
                for t in range(count - 1, -1, -1):
                    tensors = maps, scale, decay, grad, to_maps, to_scale + 4 * row * head, to_decay + 8 * row * heads
                    _finish_back(here + t, t, which, sizes, tensors, places)
                    to_rate, to_left = _recur_back(t, head, change, places)
                    _prepare_back(here + t, t, which, sizes, tensors, places, to_rate, to_left)
                    if v.begins(keep, here + t):
                        _clear(change, plane)


@v.compiled
def _copy(source, target, count):
    for at in range(0, count, COUNT):
        v.store(target, at, v.load(source, at))


@v.compiled
def _clear(target, count):
    for at in range(0, count, COUNT):
        v.store(target, at, v.constant(0.0))


@v.compiled
def _step(maps, number, decay, heads, which):
    """Compute softplus(W_a x + c) and its argument."""
    x = v.load_one(maps, number) + v.load_one(decay, heads + which)
    return max(x, np.float32(0)) + math.log1p(math.exp(-abs(x))), x


@v.compiled
def _prepare(here, count, which, sizes, maps, decay, places):
    """Compute q, k, v, b and a of the positions of a chunk from `here` on."""
    _, heads, head, width = sizes
    given, sigmoids, lengths, rates, left = places[0], places[1], places[2], places[3], places[4]
    one = v.constant(1.0)
    for t in range(count):
        for part in range(3):
            source, to = (here + t) * width + (part * heads + which) * head, (part * CHUNK + t) * head
            squares = v.constant(0.0)
            for unit in range(0, head, COUNT):
                x = v.load(maps, source + unit)
                sigmoid = _sigmoid(x)
                x = x * sigmoid
                squares = v.multiply_add(x, x, squares)
                v.store(sigmoids, to + unit, sigmoid)
                v.store(given, to + unit, x)
            if part < 2:
                inverse = one / v.root(v.total(squares) + v.constant(SMALLEST))
                v.store(lengths, (part * CHUNK + t) * COUNT, inverse)
                for unit in range(0, head, COUNT):
                    v.store(given, to + unit, v.load(given, to + unit) * inverse)
        number = (here + t) * width + 3 * heads * head + which
        v.store(rates, t * COUNT, _sigmoid(v.broadcast(maps, number)))
        share = np.float32(1)
        if decay:
            share = np.float32(math.exp(-v.load_one(decay, which) * _step(maps, number + heads, decay, heads, which)[0]))
        v.store(left, t * COUNT, v.constant(share))


@v.compiled
def _recur(here, count, head, keep, memory, stride, places):
    """Go through a chunk: the state before position t lies t `stride` after `memory`, and the state after it next."""
    plane = CHUNK * head
    given, rates, left, missing, read = places[0], places[3], places[4], places[5], places[6]
    for t in range(count):
        before, after, query, key = memory, memory + 4 * stride, t * head, plane + t * head
        memory = after
        if v.begins(keep, here + t):  # a product with 0 would let NaN pass
            _clear(before, head * head)
        rate, share = v.load(rates, t * COUNT), v.load(left, t * COUNT)
        both = v.constant(0.0)
        for unit in range(0, head, COUNT):
            both = v.multiply_add(v.load(given, query + unit), v.load(given, key + unit), both)
        both = v.total(both)
        for unit in range(0, head, COUNT):
            known = known_too = found = found_too = v.constant(0.0)  # two sums each, which do not wait for each other
            for n in range(0, head, 2):
                here_, next_ = v.load(before, n * head + unit), v.load(before, (n + 1) * head + unit)
                known = v.multiply_add(v.broadcast(given, key + n), here_, known)
                found = v.multiply_add(v.broadcast(given, query + n), here_, found)
                known_too = v.multiply_add(v.broadcast(given, key + n + 1), next_, known_too)
                found_too = v.multiply_add(v.broadcast(given, query + n + 1), next_, found_too)
            miss = v.load(given, plane + key + unit) - share * (known + known_too)
            written = rate * miss
            v.store(missing, t * head + unit, miss)
            v.store(read, t * head + unit, v.multiply_add(both, written, share * (found + found_too)))
            for n in range(head):
                kept = share * v.load(before, n * head + unit)
                v.store(after, n * head + unit, v.multiply_add(v.broadcast(given, key + n), written, kept))


@v.compiled
def _finish(at, t, which, sizes, maps, scale, decay, places, y):
    """Divide S q by the root of its mean square, scale and gate it."""
    _, heads, head, width = sizes
    read, gate = places[6], at * width + (3 * heads + which) * head + 2 * heads
    inverse, target = _inverse(read, t, head), (at * heads + which) * head
    for unit in range(0, head, COUNT):
        value = v.load(read, t * head + unit) * inverse * v.load(scale, unit)
        if decay:
            x = v.load(maps, gate + unit)
            value = value * x * _sigmoid(x)
        v.store(y, target + unit, value)


@v.compiled
def _inverse(read, t, head):
    """Compute 1 / sqrt(mean square + epsilon) of S q."""
    squares = v.constant(0.0)
    for unit in range(0, head, COUNT):
        x = v.load(read, t * head + unit)
        squares = v.multiply_add(x, x, squares)
    return v.constant(1.0) / v.root(v.total(squares) * v.constant(1 / head) + v.constant(EPSILON))


@v.compiled
def _silu_slope(x, sigmoid):
    return sigmoid * (v.constant(1.0) + x - x * sigmoid)


@v.compiled
def _finish_back(at, t, which, sizes, tensors, places):
    """Compute the gradients of S q, of the gate and of the scale."""
    _, heads, head, width = sizes
    maps, scale, decay, grad, to_maps, to_scale, _ = tensors
    read, to_read, gate = places[6], places[8], at * width + (3 * heads + which) * head + 2 * heads
    inverse, source, along = _inverse(read, t, head), (at * heads + which) * head, v.constant(0.0)
    for unit in range(0, head, COUNT):
        value, given = v.load(read, t * head + unit) * inverse, v.load(grad, source + unit)
        if decay:
            x = v.load(maps, gate + unit)
            sigmoid = _sigmoid(x)
            v.store(to_maps, gate + unit, given * value * v.load(scale, unit) * _silu_slope(x, sigmoid))
            given = given * x * sigmoid
        v.store(to_scale, unit, v.multiply_add(given, value, v.load(to_scale, unit)))
        given = given * v.load(scale, unit)
        v.store(to_read, unit, given)
        along = v.multiply_add(given, value, along)
    along = v.total(along) * v.constant(1 / head) * inverse
    for unit in range(0, head, COUNT):
        value = v.load(read, t * head + unit) * along
        v.store(to_read, unit, inverse * (v.load(to_read, unit) - value))


@v.compiled
def _recur_back(t, head, change, places):
    """Turn the gradient of the state after position t into that of the state before; return those of b and log a."""
    given, missing, states, to_read, to_value, sums = places[0], places[5], places[7], places[8], places[9], places[10]
    before, query, key = states + 4 * t * head * head, t * head, (CHUNK + t) * head
    rate, share = v.load(places[3], t * COUNT), v.load(places[4], t * COUNT)
    both = to_rate = reads_own = to_left = v.constant(0.0)
    for unit in range(0, head, COUNT):
        both = v.multiply_add(v.load(given, query + unit), v.load(given, key + unit), both)
    both = v.total(both)
    for unit in range(0, head, COUNT):
        out, miss = v.load(to_read, unit), v.load(missing, t * head + unit)
        received = both * out
        for n in range(head):
            received = v.multiply_add(v.broadcast(given, key + n), v.load(change, n * head + unit), received)
        to_rate = v.multiply_add(received, miss, to_rate)
        reads_own = v.multiply_add(out, miss, reads_own)
        v.store(to_value, unit, rate * received)
    reads_own = v.total(reads_own) * rate
    for n in range(head):
        q, k = v.broadcast(given, query + n), v.broadcast(given, key + n)
        to_query = to_key = v.constant(0.0)
        for unit in range(0, head, COUNT):
            out, passed = v.load(to_read, unit), v.load(to_value, unit)
            total = v.multiply_add(q, out, v.load(change, n * head + unit))
            held = share * v.load(before, n * head + unit)
            to_query = v.multiply_add(held, out, to_query)
            to_key = v.multiply_add(total, rate * v.load(missing, t * head + unit), to_key) - held * passed
            total = total - k * passed
            to_left = v.multiply_add(total, held, to_left)
            v.store(change, n * head + unit, share * total)
        v.store(sums, n * COUNT, to_query)
        v.store(sums, (head + n) * COUNT, to_key)
    for unit in range(0, head, COUNT):
        own = v.multiply_add(reads_own, v.load(given, key + unit), v.row_sums(sums, unit * COUNT))
        v.store(sums, unit, own)  # below the rows that are still to be summed
        v.store(sums, head * COUNT + unit, v.row_sums(sums, (head + unit) * COUNT))
    return v.total(to_rate), v.total(to_left)


@v.compiled
def _prepare_back(at, t, which, sizes, tensors, places, to_rate, to_left):
    """Compute the gradients of the linear maps for q, k, v, b and a, and those of A and c."""
    _, heads, head, width = sizes
    maps, _, decay, _, to_maps, _, to_decay = tensors
    given, sigmoids, lengths, sums = places[0], places[1], places[2], places[10]
    for part in range(3):
        source, here = at * width + (part * heads + which) * head, (part * CHUNK + t) * head
        change = places[9] if part == 2 else sums + 4 * part * head * COUNT
        inverse, along = v.constant(1.0), v.constant(0.0)
        if part < 2:
            inverse = v.load(lengths, (part * CHUNK + t) * COUNT)
            for unit in range(0, head, COUNT):
                along = v.multiply_add(v.load(change, unit), v.load(given, here + unit), along)
            along = v.total(along)
        for unit in range(0, head, COUNT):
            passed = inverse * (v.load(change, unit) - along * v.load(given, here + unit))
            slope = _silu_slope(v.load(maps, source + unit), v.load(sigmoids, here + unit))
            v.store(to_maps, source + unit, passed * slope)
    number, rate = at * width + 3 * heads * head + which, v.load(places[3], t * COUNT)
    v.store_one(to_maps, number, v.first(to_rate * (rate - rate * rate)))
    if decay:
        step, x = _step(maps, number + heads, decay, heads, which)
        change = -v.first(to_left)
        v.store_one(to_decay, which, v.load_one(to_decay, which) + change * step)
        change *= v.load_one(decay, which) * v.first(_sigmoid(v.constant(x)))
        v.store_one(to_maps, number + heads, change)
        v.store_one(to_decay, heads + which, v.load_one(to_decay, heads + which) + change)
