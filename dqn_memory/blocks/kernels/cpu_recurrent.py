"""The loops of `recurrent` over time on a CPU, as loops over eight float32 numbers: see `simd`.

A position's products are small: at 16 rows and 64 units they take less time than a call of torch. Here one kernel
computes all positions of eight rows, so that their states and the weights stay in a core's cache, and applies the gates
directly after the products. All arrays are addresses; without resets that of `keep` is 0.
"""

import math

import torch
from torch import Tensor

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.simd import COUNT

LOG2_E = math.log2(math.e)
DENSE = torch.contiguous_format  # of a kernel's outputs; `simd.dense` copies inputs of another format
SMALLEST = -87.0  # min argument of a sigmoid, which is 1e-38 there


def fits(weight: Tensor) -> bool:
    """Tell whether a recurrence with this recurrent weight (G H, H) can be computed here."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.shape[1] % COUNT == 0


def rnn_loop(hidden: Tensor, weight: Tensor, initial: Tensor, keep: Tensor | None) -> None:
    """Turn `hidden`, which is W_in x + b (T, B, H), into the states."""
    _run(_rnn_forward, hidden, _packed(weight), initial, keep)


def rnn_loop_backward(grad: Tensor, hidden: Tensor, weight: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the gradients of W_in x + b (T, B, H) and of the initial state."""
    change, total = torch.empty_like(hidden), torch.zeros_like(hidden[0])
    _run(_rnn_backward, hidden, _packed(weight.mT), keep, grad, change, total)
    return change, total


def gru_loop(
    gates: Tensor, hidden: Tensor, recurrent: Tensor, weight: Tensor, initial: Tensor, keep: Tensor | None
) -> None:
    """Turn `gates`, W_in x + b (T, B, 3 H), and `recurrent`, b_n, into the outputs of `recurrent.gru_forward`."""
    both, candidate = weight.tensor_split((2 * hidden.shape[2],))
    _run(_gru_forward, hidden, _packed(both), _packed(candidate), initial, keep, gates, recurrent)


def gru_loop_backward(
    grad: Tensor, hidden: Tensor, gates: Tensor, recurrent: Tensor, weight: Tensor, initial: Tensor,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of W h_{t-1} + b (T, B, 3 H), of the candidates' input and of the initial state.

    Also return the states that each position reads (T, B, H), which are 0 where an episode begins.
    """
    change, candidates, before = torch.empty_like(gates), torch.empty_like(hidden), torch.empty_like(hidden)
    outputs = (change, candidates, torch.zeros_like(initial, memory_format=DENSE), before)
    _run(_gru_backward, hidden, _packed(weight.mT), initial, keep, grad, gates, recurrent, *outputs)
    return outputs


def lstm_loop(
    gates: Tensor, hidden: Tensor, cells: Tensor, weight: Tensor, initial: Tensor, cell: Tensor, keep: Tensor | None
) -> None:
    """Turn `gates`, W_in x + b (T, B, 4 H), into the gates, and write hidden and cells (T, B, H)."""
    _run(_lstm_forward, hidden, _packed(weight), initial, cell, keep, gates, cells)


def lstm_loop_backward(
    grad: Tensor, grad_last: Tensor, cells: Tensor, gates: Tensor, weight: Tensor, cell: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of W_in x + b (T, B, 4 H), of the initial state and of the initial cell."""
    change, total = torch.empty_like(gates), torch.zeros_like(cell, memory_format=DENSE)
    carried = grad_last.clone(memory_format=DENSE)
    _run(_lstm_backward, cells, _packed(weight.mT), cell, keep, grad, gates, change, total, carried)
    return change, total, carried


def _packed(weight: Tensor) -> Tensor:
    """Pack (n, m) -> (n / 8, m, 8): eight outputs side by side for each input."""
    return weight.detach().unflatten(0, (-1, COUNT)).transpose(1, 2).contiguous()


def _run(kernel: object, states: Tensor, *arrays: Tensor | None) -> None:
    time, batch, width = states.shape
    v.run_in_threads(kernel, batch, 0, (time, batch, width), states, *map(v.dense, arrays))


# ---- kernels: rows `first` .. `last` - 1, eight at a time ------------------------------------------------------------
@v.compiled
def _multiply(row, last, numbers, source, given, weight, target, kept, keep, mask):
    """Add W a to eight rows of `target`, with `numbers` = (inputs, outputs, row stride of target).

    Nothing is added to a row that begins an episode. The inputs of row 0 begin at `source` + `given`, its outputs at
    `target` + `kept`. Rows after the last one are computed but not written.
    """
    inputs, outputs, stride = numbers
    end = last - 1
    p, q = given + row * inputs, given + min(row + 1, end) * inputs
    r, s = given + min(row + 2, end) * inputs, given + min(row + 3, end) * inputs
    t, u = given + min(row + 4, end) * inputs, given + min(row + 5, end) * inputs
    x, y = given + min(row + 6, end) * inputs, given + min(row + 7, end) * inputs
    index = 0
    for unit in range(0, outputs, COUNT):
        a = b = c = d = e = f = g = h = v.constant(0.0)
        for inner in range(inputs):
            column = v.load(weight, index)
            index += COUNT
            a = v.multiply_add(v.broadcast(source, p + inner), column, a)
            b = v.multiply_add(v.broadcast(source, q + inner), column, b)
            c = v.multiply_add(v.broadcast(source, r + inner), column, c)
            d = v.multiply_add(v.broadcast(source, s + inner), column, d)
            e = v.multiply_add(v.broadcast(source, t + inner), column, e)
            f = v.multiply_add(v.broadcast(source, u + inner), column, f)
            g = v.multiply_add(v.broadcast(source, x + inner), column, g)
            h = v.multiply_add(v.broadcast(source, y + inner), column, h)
        for element in range(min(COUNT, last - row)):
            low = a if element == 0 else (b if element == 1 else (c if element == 2 else d))
            high = e if element == 4 else (f if element == 5 else (g if element == 6 else h))
            found, at = (low if element < 4 else high), kept + (row + element) * stride + unit
            if not v.begins(keep, mask + row + element):
                v.store(target, at, v.load(target, at) + found)


@v.compiled
def _sigmoid(x):
    """Compute 1 / (1 + e^-x)."""
    one = v.constant(1.0)
    return one / (one + v.exp2(v.maximum(x, v.constant(SMALLEST)) * v.constant(-LOG2_E)))


@v.compiled
def _tanh(x):
    """Compute tanh(x) = 2 sigmoid(2 x) - 1."""
    twice = _sigmoid(x + x)
    return twice + twice - v.constant(1.0)


@v.compiled
def _slope(x):
    """Compute 1 - x^2, the slope of a tanh whose value is x."""
    return v.constant(1.0) - x * x


@v.compiled
def _kept(begins, x):
    """Give 0 if a row begins an episode, else x; a product with 0 would let NaN pass."""
    return v.constant(0.0) if begins else x


@v.compiled
def _rnn_forward(first, last, scratch, sizes, hidden, weight, initial, keep):
    time, batch, width = sizes
    plane = batch * width
    for row in range(first, last, COUNT):
        for t in range(time):
            own = t * plane
            source, past = (hidden, own - plane) if t else (initial, 0)
            _multiply(row, last, (width, width, width), source, past, weight, hidden, own, keep, t * batch)
            for at in range(own + row * width, own + min(row + COUNT, last) * width, COUNT):
                v.store(hidden, at, _tanh(v.load(hidden, at)))


@v.compiled
def _rnn_backward(first, last, scratch, sizes, hidden, weight, keep, grad, change, total):
    time, batch, width = sizes
    for row in range(first, last, COUNT):
        for t in range(time - 1, -1, -1):
            own = t * batch * width
            for at in range(row * width, min(row + COUNT, last) * width, COUNT):
                gained = v.load(total, at) + v.load(grad, own + at)
                v.store(change, own + at, gained * _slope(v.load(hidden, own + at)))
                v.store(total, at, v.constant(0.0))
            _multiply(row, last, (width, width, width), change, own, weight, total, 0, keep, t * batch)


@v.compiled
def _gru_forward(first, last, scratch, sizes, hidden, weight, inside, initial, keep, gates, recurrent):
    time, batch, width = sizes
    plane = batch * width
    for row in range(first, last, COUNT):
        for t in range(time):
            own, mask = t * plane, t * batch
            source, past = (hidden, own - plane) if t else (initial, 0)
            _multiply(row, last, (width, 2 * width, 3 * width), source, past, weight, gates, 3 * own, keep, mask)
            _multiply(row, last, (width, width, width), source, past, inside, recurrent, own, keep, mask)
            for which in range(row, min(row + COUNT, last)):
                begins, gate, at = v.begins(keep, mask + which), 3 * (own + which * width), which * width
                for unit in range(0, width, COUNT):
                    reset = _sigmoid(v.load(gates, gate + unit))
                    update = _sigmoid(v.load(gates, gate + width + unit))
                    candidate = v.load(gates, gate + 2 * width + unit)
                    candidate = _tanh(v.multiply_add(reset, v.load(recurrent, own + at + unit), candidate))
                    v.store(gates, gate + unit, reset)
                    v.store(gates, gate + width + unit, update)
                    v.store(gates, gate + 2 * width + unit, candidate)
                    before = _kept(begins, v.load(source, past + at + unit))
                    v.store(hidden, own + at + unit, v.multiply_add(update, before - candidate, candidate))


@v.compiled
def _gru_backward(
    first,
    last,
    scratch,
    sizes,
    hidden,
    weight,
    initial,
    keep,
    grad,
    gates,
    recurrent,
    change,
    candidates,
    total,
    before,
):
    time, batch, width = sizes
    plane = batch * width
    for row in range(first, last, COUNT):
        for t in range(time - 1, -1, -1):
            own, mask = t * plane, t * batch
            source, past = (hidden, own - plane) if t else (initial, 0)
            for which in range(row, min(row + COUNT, last)):
                begins, gate, at = v.begins(keep, mask + which), 3 * (own + which * width), which * width
                for unit in range(0, width, COUNT):
                    here = own + at + unit
                    reset, update = v.load(gates, gate + unit), v.load(gates, gate + width + unit)
                    candidate = v.load(gates, gate + 2 * width + unit)
                    gained = v.load(total, at + unit) + v.load(grad, here)
                    through = (gained - gained * update) * _slope(candidate)
                    by_reset = through * v.load(recurrent, here)
                    earlier = _kept(begins, v.load(source, past + at + unit))
                    by_update = gained * (earlier - candidate)
                    v.store(before, here, earlier)
                    v.store(candidates, here, through)
                    v.store(change, gate + unit, by_reset * (reset - reset * reset))
                    v.store(change, gate + width + unit, by_update * (update - update * update))
                    v.store(change, gate + 2 * width + unit, through * reset)
                    v.store(total, at + unit, _kept(begins, gained * update))
            _multiply(row, last, (3 * width, width, width), change, 3 * own, weight, total, 0, keep, mask)


@v.compiled
def _lstm_forward(first, last, scratch, sizes, hidden, weight, initial, cell, keep, gates, cells):
    time, batch, width = sizes
    plane = batch * width
    for row in range(first, last, COUNT):
        for t in range(time):
            own, mask = t * plane, t * batch
            source, past = (hidden, own - plane) if t else (initial, 0)
            earlier = cells if t else cell
            _multiply(row, last, (width, 4 * width, 4 * width), source, past, weight, gates, 4 * own, keep, mask)
            for which in range(row, min(row + COUNT, last)):
                begins, gate, at = v.begins(keep, mask + which), 4 * (own + which * width), which * width
                for unit in range(0, width, COUNT):
                    enter = _sigmoid(v.load(gates, gate + unit))
                    forget = _sigmoid(v.load(gates, gate + width + unit))
                    candidate = _tanh(v.load(gates, gate + 2 * width + unit))
                    out = _sigmoid(v.load(gates, gate + 3 * width + unit))
                    v.store(gates, gate + unit, enter)
                    v.store(gates, gate + width + unit, forget)
                    v.store(gates, gate + 2 * width + unit, candidate)
                    v.store(gates, gate + 3 * width + unit, out)
                    before = _kept(begins, v.load(earlier, past + at + unit))
                    held = v.multiply_add(forget, before, enter * candidate)
                    v.store(cells, own + at + unit, held)
                    v.store(hidden, own + at + unit, out * _tanh(held))


@v.compiled
def _lstm_backward(first, last, scratch, sizes, cells, weight, cell, keep, grad, gates, change, total, carried):
    time, batch, width = sizes
    plane = batch * width
    for row in range(first, last, COUNT):
        for t in range(time - 1, -1, -1):
            own, mask = t * plane, t * batch
            earlier, past = (cells, own - plane) if t else (cell, 0)
            for which in range(row, min(row + COUNT, last)):
                begins, gate, at = v.begins(keep, mask + which), 4 * (own + which * width), which * width
                for unit in range(0, width, COUNT):
                    here = own + at + unit
                    enter, forget = v.load(gates, gate + unit), v.load(gates, gate + width + unit)
                    candidate, out = v.load(gates, gate + 2 * width + unit), v.load(gates, gate + 3 * width + unit)
                    gained = v.load(total, at + unit) + v.load(grad, here)
                    squashed = _tanh(v.load(cells, here))
                    held = v.multiply_add(gained * out, _slope(squashed), v.load(carried, at + unit))
                    by_forget = held * _kept(begins, v.load(earlier, past + at + unit))
                    v.store(change, gate + unit, held * candidate * (enter - enter * enter))
                    v.store(change, gate + width + unit, by_forget * (forget - forget * forget))
                    v.store(change, gate + 2 * width + unit, held * enter * _slope(candidate))
                    v.store(change, gate + 3 * width + unit, gained * squashed * (out - out * out))
                    v.store(carried, at + unit, _kept(begins, held * forget))
                    v.store(total, at + unit, v.constant(0.0))
            _multiply(row, last, (4 * width, width, width), change, 4 * own, weight, total, 0, keep, mask)
