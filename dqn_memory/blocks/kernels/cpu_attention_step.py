"""Attention of one query a row to keys and values that earlier steps computed, on a CPU.

Eight keys stand side by side in a register for the scores, and eight units of a value for their mixture. A key is turned
by its place in the cache, which does not change, so that a step computes the keys and values of one position alone.
"""

import math

import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.cpu_attention import LOG2_E, LOWEST, turn
from dqn_memory.blocks.kernels.simd import COUNT

ROOM = 64  # steps that a cache serves


class KeyCache:
    """Keys and values of the last inputs of B rows, to which each step appends its own."""

    def __init__(self, past: Tensor, table: Tensor | None, heads: int) -> None:
        """Begin with keys and values `past` (B, P, 2D); the table (P + ROOM, 2, h) turns keys and queries."""
        batch, self.place, width = past.shape
        self.table, self.heads, self.units = table, heads, width // (2 * heads)
        self.end = self.place + ROOM
        # A register of keys may reach beyond the last one.
        self.keys = past.new_empty(batch, heads, self.units, self.end + COUNT)
        self.values = past.new_empty(batch, heads, self.end, self.units)
        sizes = heads, self.units, self.end
        v.run_in_threads(_fill, batch, self.units, past, self.place, table, sizes, self.keys, self.values)

    @property
    def full(self) -> bool:
        """Tell whether there is no place for another step."""
        return self.place == self.end

    def step(self, packed: Tensor, seen: Tensor) -> Tensor:
        """Append keys and values of packed (B, 3D), and attend to the newest `seen` (B,) of them -> (B, D)."""
        out, place = packed.new_empty(len(packed), self.heads * self.units), self.place
        sizes, cache = (self.heads, self.units, self.end), (self.keys, self.values)
        scratch = 2 * self.units + COUNT + self.end + COUNT
        v.run_in_threads(_step, len(out), scratch, packed, seen.float(), place, self.table, sizes, *cache, out)
        self.place += 1
        return out


@v.compiled
def _fill(first, last, turned, past, count, table, sizes, keys, values):
    """Write past keys and values (B, P, 2D) of sequences `first` .. `last` - 1 to a cache."""
    heads, units, _ = sizes
    width = heads * units
    for row in range(first, last):
        for place in range(count):
            at = (row * count + place) * 2 * width
            _append(turned, past, at, at + width, row, place, table, sizes, keys, values)


@v.compiled
def _append(turned, source, key, value, row, place, table, sizes, keys, values):
    """Write keys and values of all heads, at two places of the source, to a place of a row of a cache."""
    heads, units, end = sizes
    one = np.float32(1)
    for head in range(heads):
        turn(source, key + head * units, units, table, place, one, one, turned, 0)
        for unit in range(units):
            at = ((row * heads + head) * units + unit) * (end + COUNT) + place
            v.store_one(keys, at, v.load_one(turned, unit))
        to = ((row * heads + head) * end + place) * units
        for unit in range(0, units, COUNT):
            v.store(values, to + unit, v.load(source, value + head * units + unit))


@v.compiled
def _step(first, last, query, packed, seen, place, table, sizes, keys, values, out):
    """Process rows `first` .. `last` - 1."""
    heads, units, end = sizes
    width, scale = heads * units, np.float32(LOG2_E / math.sqrt(units))
    turned = query + 4 * units
    ends = turned + 4 * units
    scores = ends + 4 * COUNT
    for row in range(first, last):
        start, count = row * 3 * width, int(v.load_one(seen, row))
        oldest = place + 1 - count
        _append(turned, packed, start + width, start + 2 * width, row, place, table, sizes, keys, values)
        for head in range(heads):
            turn(packed, start + head * units, units, table, place, scale, scale, query, 0)
            number = row * heads + head
            total = _softmax(query, keys, number * units * (end + COUNT) + oldest, end + COUNT, count, units, scores, ends)
            _mix(scores, values, (number * end + oldest) * units, count, units, total, out, row * width + head * units)


@v.compiled
def _softmax(query, keys, start, stride, count, units, scores, ends):
    """Write 2^(score - max) of each key, and give their sum."""
    highest = v.constant(LOWEST)
    for key in range(0, count, COUNT):
        score = v.constant(0.0)
        for unit in range(units):
            score = v.multiply_add(v.broadcast(query, unit), v.load(keys, start + unit * stride + key), score)
        if key + COUNT > count:
            score = v.replace_from(count - key, v.constant(LOWEST), score)
        v.store(scores, key, score)
        highest = v.maximum(highest, score)
    v.store(ends, 0, highest)
    top = v.load_one(ends, 0)
    for element in range(1, COUNT):
        top = max(top, v.load_one(ends, element))
    sums = v.constant(0.0)
    for key in range(0, count, COUNT):
        weight = v.exp2(v.load(scores, key) - v.constant(top))
        if key + COUNT > count:
            weight = v.replace_from(count - key, v.constant(0.0), weight)
        v.store(scores, key, weight)
        sums = sums + weight
    v.store(ends, 0, sums)
    total = v.load_one(ends, 0)
    for element in range(1, COUNT):
        total += v.load_one(ends, element)
    return total


@v.compiled
def _mix(weights, values, start, count, units, total, out, to):
    """Write the sum over keys of weights[j] / total times row j of the values."""
    share = v.constant(np.float32(1) / total)
    for unit in range(0, units, COUNT):
        a = b = c = d = v.constant(0.0)
        at, whole = start + unit, count - count % 4
        for key in range(0, whole, 4):
            a = v.multiply_add(v.broadcast(weights, key), v.load(values, at + key * units), a)
            b = v.multiply_add(v.broadcast(weights, key + 1), v.load(values, at + (key + 1) * units), b)
            c = v.multiply_add(v.broadcast(weights, key + 2), v.load(values, at + (key + 2) * units), c)
            d = v.multiply_add(v.broadcast(weights, key + 3), v.load(values, at + (key + 3) * units), d)
        for key in range(whole, count):
            a = v.multiply_add(v.broadcast(weights, key), v.load(values, at + key * units), a)
        v.store(out, to + unit, (a + b + (c + d)) * share)
