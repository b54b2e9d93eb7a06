"""The two loops of a GRU over time on a CPU, as loops over eight elements: see `gru_scan`, whose symbols these are.

At 32 rows and 64 units the products of one position take less time than calling them. Here three rows meet the weights
of three gates at once, and their gates are computed where the products end. All arrays are addresses.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dqn_memory.blocks.kernels.simd import (
    COUNT,
    add,
    broadcast,
    compiled,
    constant,
    divide,
    exp2,
    load,
    maximum,
    multiply,
    multiply_add,
    run_in_threads,
    store,
    subtract,
)

LOG2_E = math.log2(math.e)
SMALLEST = -87.0  # a sigmoid of less is 1e-38


def is_faster(weight: Tensor) -> bool:
    """Whether recurrent weights (G, 3H, H) can be used here."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[2] % COUNT == 0


def forward(given: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `gru_scan`: (G, B, T, 3, H), (G, 3H, H), (G, H) -> hidden, gates (T, 3, G, B, H), recurrent (T, G, B, H)."""
    directions, batch, time, _, width = given.shape
    given, bias = given.contiguous(), bias.contiguous()
    packed = weight.view(directions, 3, -1, COUNT, width).permute(0, 2, 4, 1, 3).contiguous()  # (G, H/8, H, 3, 8)
    hidden = given.new_empty(time, directions, batch, width)
    gates, recurrent = given.new_empty(time, 3, directions, batch, width), torch.empty_like(hidden)
    addresses = (tensor.data_ptr() for tensor in (given, packed, bias, hidden, gates, recurrent))
    run_in_threads(_forward, batch, 0, directions, batch, time, width, *addresses)
    return hidden, gates, recurrent


def backward(total: Tensor, change: Tensor, gates: Tensor, weight: Tensor) -> None:
    """In index, from the last position: gradients of states (T, G, B, H) and of the gates (T, G, B, 3, H)."""
    time, directions, batch, width = total.shape
    packed = weight.view(directions, 3 * width, -1, COUNT).transpose(1, 2).contiguous()  # (G, H/8, 3H, 8)
    addresses = (tensor.data_ptr() for tensor in (total, change, gates, packed))
    run_in_threads(_backward, batch, 0, directions, batch, time, width, *addresses)


@compiled
def _forward(first, last, scratch, directions, batch, time, width, given, weight, bias, hidden, gates, recurrent):
    """Rows `first` .. `last` - 1 of all directions; where three rows are too many, the last is computed again."""
    for direction in range(directions):
        for step in range(time):
            for unit in range(0, width, COUNT):
                for row in range(first, last, 3):
                    _three_rows(
                        row, last, step, direction, unit, directions, batch, time, width,
                        given, weight, bias, hidden, gates, recurrent,
                    )  # fmt: skip


@compiled
def _three_rows(
    row, last, step, direction, unit, directions, batch, time, width, given, weight, bias, hidden, gates, recurrent
):
    """Eight units of three rows at one position: nine sums, which leaves registers for what they are made of."""
    plane = directions * batch * width  # numbers of one position's states
    states = step * plane + direction * batch * width
    p, q, r = row, min(row + 1, last - 1), min(row + 2, last - 1)
    a = b = c = d = e = f = g = h = i = constant(np.float32(0))
    if step:
        before, index = states - plane, (direction * width + unit) * 3 * width
        for inner in range(width):
            reset, update = load(weight, index), load(weight, index + COUNT)
            candidate = load(weight, index + 2 * COUNT)
            index += 3 * COUNT
            state = broadcast(hidden, before + p * width + inner)
            a, b, c = multiply_add(state, reset, a), multiply_add(state, update, b), multiply_add(state, candidate, c)
            state = broadcast(hidden, before + q * width + inner)
            d, e, f = multiply_add(state, reset, d), multiply_add(state, update, e), multiply_add(state, candidate, f)
            state = broadcast(hidden, before + r * width + inner)
            g, h, i = multiply_add(state, reset, g), multiply_add(state, update, h), multiply_add(state, candidate, i)
    offset = load(bias, direction * width + unit)
    for element in range(min(3, last - row)):
        which = row + element
        to_reset = a if element == 0 else (d if element == 1 else g)
        to_update = b if element == 0 else (e if element == 1 else h)
        inside = c if element == 0 else (f if element == 1 else i)
        source = ((direction * batch + which) * time + step) * 3 * width + unit
        target = states + which * width + unit
        gate = 2 * step * plane + target  # in gates (T, 3, G, B, H)
        inside = add(inside, offset)
        to_reset = _sigmoid(add(to_reset, load(given, source)))
        to_update = _sigmoid(add(to_update, load(given, source + width)))
        new = _tanh(multiply_add(to_reset, inside, load(given, source + 2 * width)))
        store(gates, gate, to_reset)
        store(gates, gate + plane, to_update)
        store(gates, gate + 2 * plane, new)
        store(recurrent, target, inside)
        old = load(hidden, target - plane) if step else constant(np.float32(0))
        store(hidden, target, multiply_add(to_update, subtract(old, new), new))


@compiled
def _backward(first, last, scratch, directions, batch, time, width, total, change, gates, weight):
    """Rows `first` .. `last` - 1: change *= total; total of the step before += z total + change W."""
    plane = directions * batch * width
    for direction in range(directions):
        for back in range(time):
            step = time - 1 - back
            for row in range(first, last):
                state = step * plane + (direction * batch + row) * width
                for part in range(3):
                    for unit in range(0, width, COUNT):
                        index = 3 * state + part * width + unit
                        store(change, index, multiply(load(change, index), load(total, state + unit)))
            for unit in range(0, width if step else 0, COUNT):
                for row in range(first, last, COUNT):
                    _eight_rows(
                        row, last, step, direction, unit, directions, batch, width, total, change, gates, weight
                    )


@compiled
def _eight_rows(row, last, step, direction, unit, directions, batch, width, total, change, gates, weight):
    """Eight units of eight rows at one position; rows after the last one are computed but not kept."""
    plane = directions * batch * width
    own, gates_width = step * plane + direction * batch * width, 3 * width
    p, q = 3 * own + row * gates_width, 3 * own + min(row + 1, last - 1) * gates_width
    r, s = 3 * own + min(row + 2, last - 1) * gates_width, 3 * own + min(row + 3, last - 1) * gates_width
    t, u = 3 * own + min(row + 4, last - 1) * gates_width, 3 * own + min(row + 5, last - 1) * gates_width
    v, w = 3 * own + min(row + 6, last - 1) * gates_width, 3 * own + min(row + 7, last - 1) * gates_width
    a = b = c = d = e = f = g = h = constant(np.float32(0))
    index = (direction * width + unit) * gates_width
    for inner in range(gates_width):
        column = load(weight, index)
        index += COUNT
        a, b = (
            multiply_add(broadcast(change, p + inner), column, a),
            multiply_add(broadcast(change, q + inner), column, b),
        )
        c, d = (
            multiply_add(broadcast(change, r + inner), column, c),
            multiply_add(broadcast(change, s + inner), column, d),
        )
        e, f = (
            multiply_add(broadcast(change, t + inner), column, e),
            multiply_add(broadcast(change, u + inner), column, f),
        )
        g, h = (
            multiply_add(broadcast(change, v + inner), column, g),
            multiply_add(broadcast(change, w + inner), column, h),
        )
    for element in range(min(COUNT, last - row)):
        low = a if element == 0 else (b if element == 1 else (c if element == 2 else d))
        high = e if element == 4 else (f if element == 5 else (g if element == 6 else h))
        state = own + (row + element) * width + unit
        gained = multiply_add(
            load(total, state), load(gates, 2 * step * plane + plane + state), low if element < 4 else high
        )
        store(total, state - plane, add(load(total, state - plane), gained))


@compiled
def _sigmoid(x):
    """1 / (1 + e^-x)."""
    falling = exp2(multiply(maximum(x, constant(np.float32(SMALLEST))), constant(np.float32(-LOG2_E))))
    one = constant(np.float32(1))
    return divide(one, add(one, falling))


@compiled
def _tanh(x):
    """2 sigmoid(2 x) - 1."""
    twice = _sigmoid(add(x, x))
    return subtract(add(twice, twice), constant(np.float32(1)))
