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
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of the gates (T, B, 4 H), see `recurrent.gru_backward`, and of the initial state.

    Also return the states that each position reads (T, B, H), which are 0 where an episode begins.
    """
    (time, batch, width), before = hidden.shape, torch.empty_like(hidden)
    outputs = hidden.new_empty(time, batch, 4 * width), torch.zeros_like(initial, memory_format=DENSE), before
    inner_first = _packed(weight.roll(width, 0).mT)
    _run(_gru_backward, hidden, inner_first, initial, keep, grad, gates, recurrent, *outputs)
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
    """Add W a to eight rows of `target`, with `numbers` = (inputs, outputs, row strides of source and of target).

    Nothing is added to a row that begins an episode. The inputs of row 0 begin at `source` + `given`, its outputs at
    `target` + `kept`. Four rows and sixteen outputs at once leave each sum in a register, and load less than they
    multiply.
    """
    inputs, outputs, apart, stride = numbers
    for four in range(row, min(row + COUNT, last), 4):
        end = last - 1
        p, q = given + four * apart, given + min(four + 1, end) * apart
        r, s = given + min(four + 2, end) * apart, given + min(four + 3, end) * apart
        index = 0
        for unit in range(0, outputs, 2 * COUNT):
            a = b = c = d = e = f = g = h = v.constant(0.0)
            beside = index + inputs * COUNT if unit + COUNT < outputs else index
            for inner in range(inputs):
                column, other = v.load(weight, index), v.load(weight, beside)
                index += COUNT
                beside += COUNT
                one = v.broadcast(source, p + inner)
                a, e = v.multiply_add(one, column, a), v.multiply_add(one, other, e)
                one = v.broadcast(source, q + inner)
                b, f = v.multiply_add(one, column, b), v.multiply_add(one, other, f)
                one = v.broadcast(source, r + inner)
                c, g = v.multiply_add(one, column, c), v.multiply_add(one, other, g)
                one = v.broadcast(source, s + inner)
                d, h = v.multiply_add(one, column, d), v.multiply_add(one, other, h)
            index = beside
            for element in range(min(4, last - four)):
                at = kept + (four + element) * stride + unit
                if not v.begins(keep, mask + four + element):
                    first = a if element == 0 else (b if element == 1 else (c if element == 2 else d))
                    v.store(target, at, v.load(target, at) + first)
                    if unit + COUNT < outputs:
                        second = e if element == 0 else (f if element == 1 else (g if element == 2 else h))
                        v.store(target, at + COUNT, v.load(target, at + COUNT) + second)


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
            _multiply(row, last, (width, width, width, width), source, past, weight, hidden, own, keep, t * batch)
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
            _multiply(row, last, (width, width, width, width), change, own, weight, total, 0, keep, t * batch)


@v.compiled
def _gru_forward(first, last, scratch, sizes, hidden, weight, inside, initial, keep, gates, recurrent):
    time, batch, width = sizes
    plane = batch * width
    for row in range(first, last, COUNT):
        for t in range(time):
            own, mask = t * plane, t * batch
            source, past = (hidden, own - plane) if t else (initial, 0)
            _multiply(row, last, (width, 2 * width, width, 3 * width), source, past, weight, gates, 3 * own, keep, mask)
            _multiply(row, last, (width, width, width, width), source, past, inside, recurrent, own, keep, mask)
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
    first, last, scratch, sizes, hidden, weight, initial, keep, grad, gates, recurrent, change, total, before
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
                    here, to = own + at + unit, 4 * (own + at) + unit
                    reset, update = v.load(gates, gate + unit), v.load(gates, gate + width + unit)
                    candidate = v.load(gates, gate + 2 * width + unit)
                    gained = v.load(total, at + unit) + v.load(grad, here)
                    through = (gained - gained * update) * _slope(candidate)
                    by_reset = through * v.load(recurrent, here)
                    earlier = _kept(begins, v.load(source, past + at + unit))
                    by_update = gained * (earlier - candidate)
                    v.store(before, here, earlier)
                    v.store(change, to, through * reset)
                    v.store(change, to + width, by_reset * (reset - reset * reset))
                    v.store(change, to + 2 * width, by_update * (update - update * update))
                    v.store(change, to + 3 * width, through)
                    v.store(total, at + unit, _kept(begins, gained * update))
            _multiply(row, last, (3 * width, width, 4 * width, width), change, 4 * own, weight, total, 0, keep, mask)


@v.compiled
def _lstm_forward(first, last, scratch, sizes, hidden, weight, initial, cell, keep, gates, cells):
    time, batch, width = sizes
    plane = batch * width
    for row in range(first, last, COUNT):
        for t in range(time):
            own, mask = t * plane, t * batch
            source, past = (hidden, own - plane) if t else (initial, 0)
            earlier = cells if t else cell
            _multiply(row, last, (width, 4 * width, width, 4 * width), source, past, weight, gates, 4 * own, keep, mask)
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
            _multiply(row, last, (4 * width, width, 4 * width, width), change, 4 * own, weight, total, 0, keep, mask)
