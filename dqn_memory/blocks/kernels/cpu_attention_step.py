"""Attention of one query a row to keys and values that earlier steps computed, on a CPU.

Eight keys stand side by side in a register for the scores, and eight units of a value for their mixture. A key is
turned by the number of its place, which stays, so that a step computes the keys and values of one position alone.

Symbols: B rows, K keys at most, P = K - 1 of them before a step; H heads of h units, D in all.
"""

import math
import operator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.cpu_attention import LOG2_E, LOWEST, turn_row
from dqn_memory.blocks.kernels.simd import COUNT
from dqn_memory.blocks.positions import rotary_table

ROOM = 256  # steps that a cache serves


class KeyValueCache:
    """Keys (B, H, h, K) and values (B, H, K, h) of the last inputs; place p is in column p modulo K of them."""

    def __init__(self, past: Tensor, project: nn.Linear, heads: int, rotary: bool) -> None:
        """Compute keys and values of past inputs (B, P, D)."""
        batch, self.place, width = past.shape
        self.end, self.weights = self.place + ROOM, (project.weight.clone(), project.bias.clone())
        self.sizes = heads, width // heads, self.place + 1
        self.table = rotary_table(self.end, width // heads) if rotary else None
        self.keys = past.new_empty(batch * width * (self.place + 1) + COUNT)  # a register may reach beyond the last key
        self.values = torch.empty_like(self.keys)
        packed = v.dense(F.linear(past, project.weight[width:], project.bias[width:]))
        cache = self.keys, self.values
        v.run_in_threads(_fill, batch, width // heads, packed, self.place, self.table, self.sizes, *cache)

    def follow(self, state: tuple[Tensor, ...]) -> None:
        """Note the state that these keys and values belong to."""
        self.state, self.versions = state, [part._version for part in state]

    def serves(self, state: tuple[Tensor, ...], project: nn.Linear) -> bool:
        """Tell whether the state is the one noted, unchanged, with the same weights, and there is room for a step."""
        return (
            all(map(operator.is_, self.state, state))
            and self.versions == [part._version for part in state]
            and self.place < self.end
            and all(map(torch.equal, self.weights, (project.weight, project.bias)))
        )

    def step(self, packed: Tensor, seen: Tensor) -> Tensor:
        """Append keys and values of packed (B, 3D), and attend to the newest `seen` (B,) of them -> (B, D)."""
        _, units, size = self.sizes
        out, scratch = packed.new_empty(len(packed), packed.shape[1] // 3), 2 * units + size + 2 * COUNT
        given = packed, seen.to(torch.float32), self.place, self.table, self.sizes, self.keys, self.values
        v.run_in_threads(_step, len(out), scratch, *given, out)
        self.place += 1
        return out


@v.compiled
def _fill(first, last, turned, past, count, table, sizes, keys, values):
    """Write past keys and values (B, P, 2D) of rows `first` .. `last` - 1 to a cache."""
    heads, units, _ = sizes
    width = heads * units
    for row in range(first, last):
        for place in range(count):
            at = (row * count + place) * 2 * width
            _append(turned, past, at, at + width, row, place, table, sizes, keys, values)


@v.compiled
def _append(turned, source, key, value, row, place, table, sizes, keys, values):
    """Write keys and values of all heads, which begin at two places of the source, to a place of a cache."""
    heads, units, size = sizes
    column, one = place % size, np.float32(1)
    for head in range(heads):
        start = (row * heads + head) * units * size
        turn_row(source, key + head * units, units, table, place, one, one, turned, 0)
        for unit in range(units):
            v.store_one(keys, start + unit * size + column, v.load_one(turned, unit))
        for unit in range(0, units, COUNT):
            v.store(values, start + column * units + unit, v.load(source, value + head * units + unit))


@v.compiled
def _step(first, last, query, packed, seen, place, table, sizes, keys, values, out):
    """Attend for rows `first` .. `last` - 1. The keys of a row are those from one column on, then those from 0 on."""
    heads, units, size = sizes
    width, scale = heads * units, np.float32(LOG2_E / math.sqrt(units))
    mixed = query + 4 * units
    scores = mixed + 4 * units
    for row in range(first, last):
        at, count = row * 3 * width, int(v.load_one(seen, row))
        _append(mixed, packed, at + width, at + 2 * width, row, place, table, sizes, keys, values)
        column = (place + 1 - count) % size
        older = min(count, size - column)
        for head in range(heads):
            turn_row(packed, at + head * units, units, table, place, scale, scale, query, 0)
            start, to = (row * heads + head) * units * size, row * width + head * units
            _scores(query, units, keys, start + column, size, older, scores)
            _scores(query, units, keys, start, size, count - older, scores + 4 * older)
            v.store(scores, count, v.constant(LOWEST))
            share = v.constant(np.float32(1) / _softmax(scores, count, mixed))
            _mix(scores, values, start + column * units, older, units, share, True, out, to)
            _mix(scores + 4 * older, values, start, count - older, units, share, False, out, to)


@v.compiled
def _scores(query, units, keys, start, stride, count, scores):
    """Write the products of a query with keys that stand side by side."""
    for key in range(0, count, COUNT):
        score = v.constant(0.0)
        for unit in range(units):
            score = v.multiply_add(v.broadcast(query, unit), v.load(keys, start + unit * stride + key), score)
        v.store(scores, key, score)


@v.compiled
def _softmax(scores, count, eight):
    """Replace each score by 2^(score - max), and give the sum of them."""
    highest = v.constant(LOWEST)
    for key in range(0, count, COUNT):
        highest = v.maximum(highest, v.load(scores, key))
    v.store(eight, 0, highest)
    top = v.load_one(eight, 0)
    for element in range(1, COUNT):
        top = max(top, v.load_one(eight, element))
    sums = v.constant(0.0)
    for key in range(0, count, COUNT):
        weight = v.exp2(v.load(scores, key) - v.constant(top))
        v.store(scores, key, weight)
        sums = sums + weight
    v.store(eight, 0, sums)
    total = v.load_one(eight, 0)
    for element in range(1, COUNT):
        total += v.load_one(eight, element)
    return total


@v.compiled
def _mix(weights, values, start, count, units, share, fresh, out, to):
    """Write the sum over rows of values times their weights times the share; without `fresh` add it."""
    whole = count - count % 4
    for unit in range(0, units, COUNT):
        a = b = c = d = v.constant(0.0)
        for key in range(0, whole, 4):
            at = start + key * units + unit
            a = v.multiply_add(v.broadcast(weights, key), v.load(values, at), a)
            b = v.multiply_add(v.broadcast(weights, key + 1), v.load(values, at + units), b)
            c = v.multiply_add(v.broadcast(weights, key + 2), v.load(values, at + 2 * units), c)
            d = v.multiply_add(v.broadcast(weights, key + 3), v.load(values, at + 3 * units), d)
        for key in range(whole, count):
            a = v.multiply_add(v.broadcast(weights, key), v.load(values, start + key * units + unit), a)
        before = v.constant(0.0) if fresh else v.load(out, to + unit)
        v.store(out, to + unit, v.multiply_add(a + b + (c + d), share, before))
