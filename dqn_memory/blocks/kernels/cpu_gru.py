"""The two loops of a GRU over time on a CPU, as loops over eight elements: see `gru_scan`, whose symbols these are.

At 32 rows and 64 units the products of one position take less time than calling them. Here three rows meet the weights
of three gates at once, and their gates are computed where the products end. All arrays are addresses.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.simd import COUNT

LOG2_E = math.log2(math.e)
SMALLEST = -87.0  # a sigmoid of less is 1e-38


def is_faster(weight: Tensor) -> bool:
    """Whether recurrent weights (G, 3H, H) can be used here."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[2] % COUNT == 0


def forward(given: Tensor, weight: Tensor, bias: Tensor, outputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """As `gru_scan`: (G, B, T, 3, H), (G, 3H, H), (G, H) -> hidden, gates (T, 3, G, B, H), recurrent (T, G, B, H)."""
    directions, batch, time, _, width = given.shape
    given, bias = given.contiguous(), bias.contiguous()
    packed = weight.view(directions, 3, -1, COUNT, width).permute(0, 2, 4, 1, 3).contiguous()  # (G, H/8, H, 3, 8)
    v.run_in_threads(_forward, batch, 0, (directions, batch, time, width), given, packed, bias, *outputs)


def backward(total: Tensor, change: Tensor, gates: Tensor, weight: Tensor) -> None:
    """In place, from the last position: gradients of states (T, G, B, H) and of the gates (T, G, B, 3, H)."""
    time, directions, batch, width = total.shape
    packed = weight.view(directions, 3 * width, -1, COUNT).transpose(1, 2).contiguous()  # (G, H/8, 3H, 8)
    v.run_in_threads(_backward, batch, 0, (directions, batch, time, width), total, change, gates, packed)


@v.compiled
def _forward(first, last, scratch, sizes, given, weight, bias, hidden, gates, recurrent):
    """Rows `first` .. `last` - 1 of all directions; where three rows are too many, the last is computed again."""
    directions, _, time, width = sizes
    arrays = (given, weight, bias, hidden, gates, recurrent)
    for direction in range(directions):
        for step in range(time):
            for unit in range(0, width, COUNT):
                for row in range(first, last, 3):
                    _three_rows(row, last, step, direction, unit, sizes, arrays)


@v.compiled
def _three_rows(row, last, step, direction, unit, sizes, arrays):
    """Eight units of three rows at one position: nine sums, which leaves registers for what they are made of."""
    directions, batch, time, width = sizes
    given, weight, bias, hidden, gates, recurrent = arrays
    plane = directions * batch * width  # numbers of one position's states
    states = step * plane + direction * batch * width
    p, q, r = row, min(row + 1, last - 1), min(row + 2, last - 1)
    a = b = c = d = e = f = g = h = i = v.constant(0.0)
    if step:
        before, index = states - plane, (direction * width + unit) * 3 * width
        for inner in range(width):
            reset, update = v.load(weight, index), v.load(weight, index + COUNT)
            new = v.load(weight, index + 2 * COUNT)
            index += 3 * COUNT
            state = v.broadcast(hidden, before + p * width + inner)
            a, b, c = v.multiply_add(state, reset, a), v.multiply_add(state, update, b), v.multiply_add(state, new, c)
            state = v.broadcast(hidden, before + q * width + inner)
            d, e, f = v.multiply_add(state, reset, d), v.multiply_add(state, update, e), v.multiply_add(state, new, f)
            state = v.broadcast(hidden, before + r * width + inner)
            g, h, i = v.multiply_add(state, reset, g), v.multiply_add(state, update, h), v.multiply_add(state, new, i)
    offset = v.load(bias, direction * width + unit)
    for element in range(min(3, last - row)):
        which = row + element
        reset = a if element == 0 else (d if element == 1 else g)
        update = b if element == 0 else (e if element == 1 else h)
        inside = offset + (c if element == 0 else (f if element == 1 else i))
        source = ((direction * batch + which) * time + step) * 3 * width + unit
        target = states + which * width + unit
        gate = 2 * step * plane + target  # in gates (T, 3, G, B, H)
        reset = _sigmoid(reset + v.load(given, source))
        update = _sigmoid(update + v.load(given, source + width))
        new = _tanh(v.multiply_add(reset, inside, v.load(given, source + 2 * width)))
        v.store(gates, gate, reset)
        v.store(gates, gate + plane, update)
        v.store(gates, gate + 2 * plane, new)
        v.store(recurrent, target, inside)
        old = v.load(hidden, target - plane) if step else v.constant(0.0)
        v.store(hidden, target, v.multiply_add(update, old - new, new))


@v.compiled
def _backward(first, last, scratch, sizes, total, change, gates, weight):
    """Rows `first` .. `last` - 1: change *= total; total of the step before += z total + change W."""
    directions, batch, time, width = sizes
    plane = directions * batch * width
    arrays = (total, change, gates, weight)
    for direction in range(directions):
        for back in range(time):
            step = time - 1 - back
            for row in range(first, last):
                state = step * plane + (direction * batch + row) * width
                for part in range(3):
                    for unit in range(0, width, COUNT):
                        index = 3 * state + part * width + unit
                        v.store(change, index, v.load(change, index) * v.load(total, state + unit))
            for unit in range(0, width if step else 0, COUNT):
                for row in range(first, last, COUNT):
                    _eight_rows(row, last, step, direction, unit, sizes, arrays)


@v.compiled
def _eight_rows(row, last, step, direction, unit, sizes, arrays):
    """Eight units of eight rows at one position; rows after the last one are computed but not kept."""
    directions, batch, _, width = sizes
    total, change, gates, weight = arrays
    plane = directions * batch * width
    own, across = step * plane + direction * batch * width, 3 * width
    start, end = 3 * own, last - 1
    p, q = start + row * across, start + min(row + 1, end) * across
    r, s = start + min(row + 2, end) * across, start + min(row + 3, end) * across
    t, u = start + min(row + 4, end) * across, start + min(row + 5, end) * across
    x, y = start + min(row + 6, end) * across, start + min(row + 7, end) * across
    a = b = c = d = e = f = g = h = v.constant(0.0)
    index = (direction * width + unit) * across
    for inner in range(across):
        column = v.load(weight, index)
        index += COUNT
        a = v.multiply_add(v.broadcast(change, p + inner), column, a)
        b = v.multiply_add(v.broadcast(change, q + inner), column, b)
        c = v.multiply_add(v.broadcast(change, r + inner), column, c)
        d = v.multiply_add(v.broadcast(change, s + inner), column, d)
        e = v.multiply_add(v.broadcast(change, t + inner), column, e)
        f = v.multiply_add(v.broadcast(change, u + inner), column, f)
        g = v.multiply_add(v.broadcast(change, x + inner), column, g)
        h = v.multiply_add(v.broadcast(change, y + inner), column, h)
    for element in range(min(COUNT, last - row)):
        low = a if element == 0 else (b if element == 1 else (c if element == 2 else d))
        high = e if element == 4 else (f if element == 5 else (g if element == 6 else h))
        state = own + (row + element) * width + unit
        update = v.load(gates, 2 * step * plane + plane + state)
        gained = v.multiply_add(v.load(total, state), update, low if element < 4 else high)
        v.store(total, state - plane, v.load(total, state - plane) + gained)


@v.compiled
def _sigmoid(x):
    """1 / (1 + e^-x)."""
    one = v.constant(1.0)
    return one / (one + v.exp2(v.maximum(x, v.constant(SMALLEST)) * v.constant(-LOG2_E)))


@v.compiled
def _tanh(x):
    """2 sigmoid(2 x) - 1."""
    twice = _sigmoid(x + x)
    return twice + twice - v.constant(1.0)
