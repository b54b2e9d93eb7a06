"""Memories whose state is a matrix, forward and backward on a CPU, as loops over eight values side by side: see `simd`.

In torch the chunk-wise form makes a hundred passes over all numbers. The state of a head is small: here it stays in the
first-level cache, and one kernel goes position by position, from the linear maps of x to the input of the last one. The
backward pass computes the states of CHUNK positions again, from one of the states that the forward pass kept.

B rows, T positions, H heads of d = D / H features. maps (B, T, 3 D + H) holds linear maps for q, k, v and b; with a
decay (2, H), which is A and c of `delta.GatedDeltaNet`, maps (B, T, 4 D + 2 H) holds those for a and the gate too.
States (B, H, d, d) are S^T: key by value. `keep` (B, T) is 0 where a position begins an episode; None: nowhere.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.delta import EPSILON, SMALLEST, delta_torch
from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.cpu_recurrent import LOG2_E, _sigmoid
from dqn_memory.blocks.kernels.cpu_selective_scan import _power
from dqn_memory.blocks.kernels.custom_operator import operator
from dqn_memory.blocks.kernels.simd import COUNT

CHUNK = 16  # positions from one kept state to the next
ZERO = np.float32(0)


def fits_delta(maps: Tensor, head: int) -> bool:
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


def _sizes(maps: Tensor, initial: Tensor) -> tuple[Any, ...]:
    """Give T, H, a tuple with a number for each eight features of a head, and the width of maps.

    The length of a tuple is known when a kernel is compiled, so that its loops over a head are unrolled.
    """
    heads, head = initial.shape[1:3]
    return maps.shape[1], heads, (0,) * (head // COUNT), maps.shape[2]


def _scratch(head: int) -> int:
    """Count the numbers of `_places`."""
    return 10 * CHUNK * head + 6 * CHUNK * COUNT + 2 * CHUNK + 2 * head * COUNT + (CHUNK + 1) * head**2


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


# ---- kernels: rows `first` .. `last` - 1; `here` is the first of `count` positions of one head -----------------------
@v.compiled
def _places(scratch, blocks):
    """Divide scratch memory for one chunk of one head into arrays, most of them with a row for each position.

    They hold, in this order: q, k, v (3, C, d); the sigmoids in them (3, C, d); 1 / |q| and 1 / |k| (2, C, 8); b, a,
    softplus(W_a x + c) and its slope (4, C, 8), each number eight times; what a write adds less its factor b (C, d);
    S q, later its gradient (C, d); the gradients of q and k (2, C, d); those of b and log a (2, C); eight summands of
    each number of q and k (2, d, 8); states (C + 1, d, d).
    """
    rows, eight = 4 * CHUNK * COUNT * len(blocks), 4 * CHUNK * COUNT
    sigmoids = scratch + 3 * rows
    lengths = sigmoids + 3 * rows
    rates = lengths + 2 * eight
    missing = rates + 4 * eight
    read = missing + rows
    to_given = read + rows
    to_rates = to_given + 2 * rows
    sums = to_rates + 8 * CHUNK
    states = sums + 8 * COUNT * COUNT * len(blocks)
    return scratch, sigmoids, lengths, rates, missing, read, to_given, to_rates, sums, states


@v.compiled
def _forward(first, last, scratch, sizes, arrays):
    time, heads, blocks, _ = sizes
    maps, scale, decay, initial, keep, y, final, kept = arrays
    places, plane = _places(scratch, blocks), (COUNT * len(blocks)) ** 2
    for row in range(first, last):
        own = 4 * row * heads * plane
        _copy(initial + own, final + own, heads * plane)
        for start in range(0, time, CHUNK):
            here, count = row * time + start, min(CHUNK, time - start)
            if start:
                chunk = row * ((time - 1) // CHUNK) + start // CHUNK - 1
                _copy(final + own, kept + 4 * chunk * heads * plane, heads * plane)
            for which in range(heads):
                _prepare(here, count, which, sizes, maps, decay, places)
                _recur(here, count, blocks, keep, final + own + 4 * which * plane, 0, places)
                _finish(here, count, which, sizes, maps, scale, decay, places, y)


@v.compiled
def _backward(first, last, scratch, sizes, arrays):
    time, heads, blocks, _ = sizes
    maps, scale, decay, initial, keep, grad, kept, to_maps, to_scale, to_decay, to_initial = arrays
    places, plane, chunks = _places(scratch, blocks), (COUNT * len(blocks)) ** 2, (time - 1) // CHUNK
    for row in range(first, last):
        small = to_scale + 4 * row * COUNT * len(blocks), to_decay + 8 * row * heads
        for chunk in range(chunks, -1, -1):
            here, count = row * time + chunk * CHUNK, min(CHUNK, time - chunk * CHUNK)
            source, at = (kept, row * chunks + chunk - 1) if chunk else (initial, row)
            for which in range(heads):
                change = to_initial + 4 * (row * heads + which) * plane
                _copy(source + 4 * (at * heads + which) * plane, places[9], plane)
                _prepare(here, count, which, sizes, maps, decay, places)
                _recur(here, count, blocks, keep, places[9], plane, places)
                _finish_back(here, count, which, sizes, maps, scale, decay, places, grad, to_maps, small[0])
                _recur_back(here, count, blocks, keep, change, places)
                _prepare_back(here, count, which, sizes, maps, decay, places, to_maps, small[1])


@v.compiled
def _copy(source, target, count):
    for at in range(0, count, COUNT):
        v.store(target, at, v.load(source, at))


@v.compiled
def _clear(target, count):
    for at in range(0, count, COUNT):
        v.store(target, at, v.constant(0.0))


@v.compiled
def _dot(x, at_x, y, at_y, blocks):
    """Multiply two vectors of a head; all eight elements are the product."""
    total = v.constant(0.0)
    for unit in range(0, COUNT * len(blocks), COUNT):
        total = v.multiply_add(v.load(x, at_x + unit), v.load(y, at_y + unit), total)
    return v.total(total)


@v.compiled
def _prepare(here, count, which, sizes, maps, decay, places):
    """Compute q, k, v, b and a; without a decay, a is 1."""
    _, heads, blocks, width = sizes
    given, sigmoids, lengths, rates = places[0], places[1], places[2], places[3]
    head, one = COUNT * len(blocks), v.constant(1.0)
    for t in range(count):
        for part in range(3):
            source, to = (here + t) * width + (part * heads + which) * head, (part * CHUNK + t) * head
            for unit in range(0, head, COUNT):
                x = v.load(maps, source + unit)
                sigmoid = _sigmoid(x)
                v.store(sigmoids, to + unit, sigmoid)
                v.store(given, to + unit, x * sigmoid)
            if part < 2:
                inverse = one / v.root(_dot(given, to, given, to, blocks) + v.constant(SMALLEST))
                v.store(lengths, (part * CHUNK + t) * COUNT, inverse)
                for unit in range(0, head, COUNT):
                    v.store(given, to + unit, v.load(given, to + unit) * inverse)
        number, share = (here + t) * width + 3 * heads * head + which, one
        v.store(rates, t * COUNT, _sigmoid(v.broadcast(maps, number)))
        if decay:
            x = v.load_one(maps, number + heads) + v.load_one(decay, heads + which)
            step = v.constant(max(x, ZERO) + math.log1p(math.exp(-abs(x))))  # softplus
            share = _power(v.constant(-LOG2_E) * v.broadcast(decay, which) * step)
            v.store(rates, (2 * CHUNK + t) * COUNT, step)
            v.store(rates, (3 * CHUNK + t) * COUNT, _sigmoid(v.constant(x)))
        v.store(rates, (CHUNK + t) * COUNT, share)


@v.compiled
def _recur(here, count, blocks, keep, memory, stride, places):
    """Read and write: the state before position t lies t `stride` after `memory`, and the state after it next."""
    given, rates, missing, read, head = places[0], places[3], places[4], places[5], COUNT * len(blocks)
    for t in range(count):
        before, after, query, key = memory, memory + 4 * stride, t * head, (CHUNK + t) * head
        memory = after
        if v.begins(keep, here + t):  # a product with 0 would let NaN pass
            _clear(before, head * head)
        rate, share = v.load(rates, t * COUNT), v.load(rates, (CHUNK + t) * COUNT)
        both = _dot(given, query, given, key, blocks)
        for unit in range(0, head, COUNT):
            known = next_known = found = next_found = v.constant(0.0)  # no sum waits for the one before it
            for n in range(0, head, 2):
                held, next_held = v.load(before, n * head + unit), v.load(before, (n + 1) * head + unit)
                known = v.multiply_add(v.broadcast(given, key + n), held, known)
                found = v.multiply_add(v.broadcast(given, query + n), held, found)
                next_known = v.multiply_add(v.broadcast(given, key + n + 1), next_held, next_known)
                next_found = v.multiply_add(v.broadcast(given, query + n + 1), next_held, next_found)
            miss = v.load(given, (2 * CHUNK + t) * head + unit) - share * (known + next_known)
            written = rate * miss
            v.store(missing, t * head + unit, miss)
            v.store(read, t * head + unit, v.multiply_add(both, written, share * (found + next_found)))
            for n in range(head):
                held = share * v.load(before, n * head + unit)
                v.store(after, n * head + unit, v.multiply_add(v.broadcast(given, key + n), written, held))


@v.compiled
def _inverse(read, at, blocks):
    """Compute 1 / sqrt(mean square + epsilon) of S q."""
    mean = _dot(read, at, read, at, blocks) * v.constant(1 / (COUNT * len(blocks)))
    return v.constant(1.0) / v.root(mean + v.constant(EPSILON))


@v.compiled
def _finish(here, count, which, sizes, maps, scale, decay, places, y):
    """Divide S q by the root of its mean square, scale and gate it."""
    _, heads, blocks, width = sizes
    read, head = places[5], COUNT * len(blocks)
    for t in range(count):
        inverse, target = _inverse(read, t * head, blocks), ((here + t) * heads + which) * head
        gate = (here + t) * width + (3 * heads + which) * head + 2 * heads
        for unit in range(0, head, COUNT):
            value = v.load(read, t * head + unit) * inverse * v.load(scale, unit)
            if decay:
                x = v.load(maps, gate + unit)
                value = value * x * _sigmoid(x)
            v.store(y, target + unit, value)


@v.compiled
def _silu_slope(x, sigmoid):
    return sigmoid * (v.constant(1.0) + x - x * sigmoid)


@v.compiled
def _finish_back(here, count, which, sizes, maps, scale, decay, places, grad, to_maps, to_scale):
    """Turn S q into its gradient, and compute those of the gate and of the scale."""
    _, heads, blocks, width = sizes
    read, passed, head = places[5], places[6], COUNT * len(blocks)
    for t in range(count):
        inverse, source = _inverse(read, t * head, blocks), ((here + t) * heads + which) * head
        gate, along = (here + t) * width + (3 * heads + which) * head + 2 * heads, v.constant(0.0)
        for unit in range(0, head, COUNT):
            value, given = v.load(read, t * head + unit) * inverse, v.load(grad, source + unit)
            if decay:
                x = v.load(maps, gate + unit)
                sigmoid = _sigmoid(x)
                v.store(to_maps, gate + unit, given * value * v.load(scale, unit) * _silu_slope(x, sigmoid))
                given = given * x * sigmoid
            v.store(to_scale, unit, v.multiply_add(given, value, v.load(to_scale, unit)))
            given = given * v.load(scale, unit)
            v.store(passed, t * head + unit, given)
            along = v.multiply_add(given, value, along)
        along = v.total(along) * v.constant(1 / head)
        for unit in range(0, head, COUNT):
            value = v.load(read, t * head + unit) * inverse
            v.store(read, t * head + unit, inverse * (v.load(passed, t * head + unit) - value * along))


@v.compiled
def _recur_back(here, count, blocks, keep, change, places):
    """Compute the gradients of q, k, b, log a and, in its place, v, from that of S q; `change` is that of the state."""
    given, missing, to_read, head = places[0], places[4], places[5], COUNT * len(blocks)
    to_given, to_rates, sums = places[6], places[7], places[8]
    for t in range(count - 1, -1, -1):
        before, query, key = places[9] + 4 * t * head * head, t * head, (CHUNK + t) * head
        rate, share = v.load(places[3], t * COUNT), v.load(places[3], (CHUNK + t) * COUNT)
        both, to_rate = _dot(given, query, given, key, blocks), v.constant(0.0)
        reads_own = _dot(to_read, query, missing, query, blocks) * rate
        for unit in range(0, head, COUNT):
            received, next_received = both * v.load(to_read, query + unit), v.constant(0.0)
            for n in range(0, head, 2):
                total, next_total = v.load(change, n * head + unit), v.load(change, (n + 1) * head + unit)
                received = v.multiply_add(v.broadcast(given, key + n), total, received)
                next_received = v.multiply_add(v.broadcast(given, key + n + 1), next_total, next_received)
            received = received + next_received
            to_rate = v.multiply_add(received, v.load(missing, query + unit), to_rate)
            v.store(given, CHUNK * head + key + unit, rate * received)
        to_left = v.constant(0.0)
        for n in range(head):
            q, removed = v.broadcast(given, query + n), v.constant(0.0) - v.broadcast(given, key + n)
            to_query = to_key = to_removal = v.constant(0.0)
            for unit in range(0, head, COUNT):
                held, out = v.load(before, n * head + unit), v.load(to_read, query + unit)
                passed = v.load(given, CHUNK * head + key + unit)
                total = v.multiply_add(q, out, v.load(change, n * head + unit))
                to_query = v.multiply_add(held, out, to_query)
                to_key = v.multiply_add(total, v.load(missing, query + unit), to_key)
                to_removal = v.multiply_add(held, passed, to_removal)
                total = v.multiply_add(removed, passed, total)
                to_left = v.multiply_add(total, held, to_left)
                v.store(change, n * head + unit, share * total)
            v.store(sums, n * COUNT, share * to_query)
            v.store(sums, (head + n) * COUNT, rate * to_key - share * to_removal)
        for unit in range(0, head, COUNT):
            own = reads_own * v.load(given, key + unit)
            v.store(to_given, query + unit, own + v.row_sums(sums, unit * COUNT))
            v.store(to_given, key + unit, v.row_sums(sums, (head + unit) * COUNT))
        v.store_one(to_rates, t, v.first(v.total(to_rate)))
        v.store_one(to_rates, CHUNK + t, v.first(v.total(to_left) * share))
        if v.begins(keep, here + t):
            _clear(change, head * head)


@v.compiled
def _prepare_back(here, count, which, sizes, maps, decay, places, to_maps, to_decay):
    """Compute the gradients of the linear maps for q, k, v, b and a, and those of A and c."""
    _, heads, blocks, width = sizes
    given, sigmoids, rates, to_rates, head = places[0], places[1], places[3], places[7], COUNT * len(blocks)
    for t in range(count):
        for part in range(3):
            source, at = (here + t) * width + (part * heads + which) * head, (part * CHUNK + t) * head
            change, inverse, along = given, v.constant(1.0), v.constant(0.0)
            if part < 2:
                change, inverse = places[6], v.load(places[2], (part * CHUNK + t) * COUNT)
                along = _dot(change, at, given, at, blocks)
            for unit in range(0, head, COUNT):
                passed = inverse * (v.load(change, at + unit) - along * v.load(given, at + unit))
                slope = _silu_slope(v.load(maps, source + unit), v.load(sigmoids, at + unit))
                v.store(to_maps, source + unit, passed * slope)
        number, rate = (here + t) * width + 3 * heads * head + which, v.load_one(rates, t * COUNT)
        v.store_one(to_maps, number, v.load_one(to_rates, t) * (rate - rate * rate))
        if decay:
            step, slope = v.load_one(rates, (2 * CHUNK + t) * COUNT), v.load_one(rates, (3 * CHUNK + t) * COUNT)
            to_step = -v.load_one(to_rates, CHUNK + t)
            v.store_one(to_decay, which, v.load_one(to_decay, which) + to_step * step)
            to_step *= v.load_one(decay, which) * slope
            v.store_one(to_maps, number + heads, to_step)
            v.store_one(to_decay, heads + which, v.load_one(to_decay, heads + which) + to_step)
