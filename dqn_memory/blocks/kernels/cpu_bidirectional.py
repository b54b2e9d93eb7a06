"""GRUs over padded sequences on a CPU, over time and against it, forward and backward, as loops over eight numbers.

`recurrent` runs one direction, with time first: two directions copy their input there, reverse it inside its length and
turn their outputs back. Here sequences lie as they came. One product gives the inputs' part of the gates of all
directions, and the loop itself knows which position comes next, so nothing is copied.

B rows, T positions, D inputs, H units, N directions (1: over time; 2: and against it): x (B, T, D), weight_in
(N 3 H, D), weight (N 3 H, H), bias (N 3 H,), inner (N H,), as in `recurrent`; lengths (B,) in float32. Gates
(B, T, N 3 H) stand in the order reset, update, candidate. In either direction padding comes after all real positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.cpu_recurrent import _packed, _sigmoid, _slope, _tanh
from dqn_memory.blocks.kernels.custom_operator import operator
from dqn_memory.blocks.kernels.recurrent import WEIGHTS, gru_scan, reverse
from dqn_memory.blocks.kernels.simd import COUNT

LINE = 16  # numbers of a cache line
CACHED = 320_000  # numbers that stay in a core's second-level cache


def fits_both(x: Tensor, cell: nn.RNNBase) -> bool:
    """Tell whether this recurrence can run over x here."""
    single = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (x, *cell.parameters()))
    return single and isinstance(cell, nn.GRU) and cell.hidden_size % COUNT == 0


def gru(x: Tensor, lengths: Tensor | None, *cells: nn.GRU) -> Tensor:
    """Run the first cell over time, and a second one against it, over x (B, T, D): (B, T, N H)."""
    size, time = 2 * cells[0].hidden_size, x.shape[1]
    weight_in, weight, bias, last = ([getattr(cell, name) for cell in cells] for name in WEIGHTS)
    inner = torch.cat([each[size:] for each in last])
    bias = [each + F.pad(other[:size], (0, size // 2)) for each, other in zip(bias, last, strict=True)]
    weights = torch.cat(weight_in), torch.cat(weight), torch.cat(bias), inner
    ends = x.new_full((len(x),), time) if lengths is None else lengths.clamp(max=time).to(x.dtype)
    hidden: Tensor = bidirectional_scan(x, *weights, ends)[0]
    return hidden


def scan_forward(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, inner: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute hidden (B, T, N H) from zero states, and for the backward pass the gates and W_n h_{t-1} + b_n."""
    gates = F.linear(x, weight_in, bias)
    hidden, recurrent = (x.new_empty(*x.shape[:2], len(inner)) for _ in range(2))
    _run(_forward, hidden, weight.shape[1], _packed(weight), v.dense(inner), v.dense(lengths), gates, recurrent)
    return hidden, gates, recurrent


def scan_backward(
    grad: Tensor, hidden: Tensor, gates: Tensor, recurrent: Tensor, x: Tensor, weight_in: Tensor, weight: Tensor,
    bias: Tensor, inner: Tensor, lengths: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of all inputs but the lengths from that of hidden (B, T, N H), a few rows at a time."""
    x, width, count = x.contiguous(), weight.shape[1], _rows(x, weight)
    across = torch.cat([_packed(each.mT).flatten() for each in weight.split(3 * width)])
    to_x, sums = torch.empty_like(x), [torch.zeros_like(each) for each in (weight_in, weight, bias, inner)]
    buffers = [torch.empty_like(each[:count]) for each in (gates, hidden, hidden)]
    arrays = (x, to_x, hidden, lengths.contiguous(), grad.contiguous(), gates, recurrent)
    for rows, to_rows, part, *others in zip(*(each.split(count) for each in arrays), strict=True):
        _run(_backward, part, width, across, *others, *buffers)
        change, inside, before = (each[: len(rows)].flatten(0, 1) for each in buffers)
        torch.mm(change, weight_in, out=to_rows.flatten(0, 1))
        sums[0].addmm_(change.mT, rows.flatten(0, 1))
        for first in range(0, len(inner), width):
            start, read = 3 * first, before[:, first : first + width]
            sums[1][start : start + 2 * width].addmm_(change[:, start : start + 2 * width].mT, read)
            sums[1][start + 2 * width : start + 3 * width].addmm_(inside[:, first : first + width].mT, read)
        sums[2].add_(change.sum(0))
        sums[3].add_(inside.sum(0))
    return to_x, sums[0], sums[1], sums[2], sums[3]


def _rows(x: Tensor, weight: Tensor) -> int:
    """Choose how many rows have gates that fit into the second-level cache of each thread."""
    return COUNT * max(1, CACHED // (x.shape[1] * len(weight) * COUNT)) * torch.get_num_threads()


def _run(kernel: object, hidden: Tensor, width: int, *arrays: Tensor | None) -> None:
    batch, time, units = hidden.shape
    v.run_in_threads(kernel, batch, 5 * COUNT * width, (time, width, units // width), hidden, *arrays)


def _outputs(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, inner: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = x.new_empty(*x.shape[:2], len(inner))
    return hidden, x.new_empty(*x.shape[:2], len(weight)), torch.empty_like(hidden)


def _gradients(grad: Tensor, hidden: Tensor, gates: Tensor, recurrent: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in inputs[:-1])


def _saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return *outputs, *inputs


def _reference(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, inner: Tensor, lengths: Tensor
) -> tuple[Tensor]:
    outputs, real, weights = [], lengths.long(), (weight_in, weight, bias, inner)
    for number, own in enumerate(zip(*(each.chunk(len(inner) // weight.shape[1]) for each in weights), strict=True)):
        given = (reverse(x, real) if number else x).transpose(0, 1)
        hidden = gru_scan.reference(given, *own, x.new_zeros(len(x), weight.shape[1]), None)[0].transpose(0, 1)
        outputs.append(reverse(hidden, real) if number else hidden)
    return (torch.cat(outputs, -1),)


bidirectional_scan = operator(
    "cpu_bidirectional", scan_forward, scan_backward, (_outputs, _gradients), _reference, _saved
)


# ---- kernels: rows `first` .. `last` - 1, eight at a time; their states stand in scratch memory ----------------------
@v.compiled
def _products(source, weight, at, inputs, outputs, target):
    """Set eight rows of `outputs` numbers to W times eight rows of `inputs` numbers; W begins at `weight` + `at`."""
    index = at
    for unit in range(0, outputs, COUNT):
        a = b = c = d = e = f = g = h = v.constant(0.0)
        for inner in range(inputs):
            column = v.load(weight, index)
            index += COUNT
            a = v.multiply_add(v.broadcast(source, inner), column, a)
            b = v.multiply_add(v.broadcast(source, inner + inputs), column, b)
            c = v.multiply_add(v.broadcast(source, inner + 2 * inputs), column, c)
            d = v.multiply_add(v.broadcast(source, inner + 3 * inputs), column, d)
            e = v.multiply_add(v.broadcast(source, inner + 4 * inputs), column, e)
            f = v.multiply_add(v.broadcast(source, inner + 5 * inputs), column, f)
            g = v.multiply_add(v.broadcast(source, inner + 6 * inputs), column, g)
            h = v.multiply_add(v.broadcast(source, inner + 7 * inputs), column, h)
        v.store(target, unit, a), v.store(target, unit + outputs, b), v.store(target, unit + 2 * outputs, c)
        v.store(target, unit + 3 * outputs, d), v.store(target, unit + 4 * outputs, e)
        v.store(target, unit + 5 * outputs, f), v.store(target, unit + 6 * outputs, g)
        v.store(target, unit + 7 * outputs, h)


@v.compiled
def _place(lengths, row, time, step, against):
    """Give the position that a direction reads at a step, counted over all rows."""
    length = int(v.load_one(lengths, row))
    return row * time + (length - 1 - step if against and step < length else step)


@v.compiled
def _soon(gates, place, sizes, skip):
    """Load the gates of a direction at its next position: sequences lie too far apart for a processor to foresee it."""
    _, width, directions = sizes
    for line in range(0, 3 * width, LINE):
        v.prefetch(gates, 3 * (place * directions * width + skip) + line)


@v.compiled
def _cleared(target, numbers):
    for at in range(0, numbers, COUNT):
        v.store(target, at, v.constant(0.0))


@v.compiled
def _forward(first, last, state, sizes, hidden, weight, inner, lengths, gates, recurrent):
    time, width, directions = sizes
    sums = state + 4 * COUNT * width
    for row in range(first, last, COUNT):
        for direction in range(directions):
            skip = direction * width
            _cleared(state, COUNT * width)
            for step in range(time):
                _products(state, weight, 3 * skip * width, width, 3 * width, sums)
                for which in range(min(COUNT, last - row)):
                    place = _place(lengths, row + which, time, step, direction)
                    to, gate = place * directions * width + skip, 3 * (place * directions * width + skip)
                    _soon(gates, _place(lengths, row + which, time, min(step + 1, time - 1), direction), sizes, skip)
                    own, total = which * width, 3 * which * width
                    for unit in range(0, width, COUNT):
                        reset = _sigmoid(v.load(gates, gate + unit) + v.load(sums, total + unit))
                        update = _sigmoid(v.load(gates, gate + width + unit) + v.load(sums, total + width + unit))
                        inside = v.load(sums, total + 2 * width + unit) + v.load(inner, skip + unit)
                        candidate = _tanh(v.multiply_add(reset, inside, v.load(gates, gate + 2 * width + unit)))
                        v.store(gates, gate + unit, reset)
                        v.store(gates, gate + width + unit, update)
                        v.store(gates, gate + 2 * width + unit, candidate)
                        v.store(recurrent, to + unit, inside)
                        after = v.multiply_add(update, v.load(state, own + unit) - candidate, candidate)
                        v.store(state, own + unit, after)
                        v.store(hidden, to + unit, after)


@v.compiled
def _backward(first, last, total, sizes, hidden, weight, lengths, grad, gates, recurrent, change, inside, before):
    """Compute the gradients of the gates' inputs, that of W_n h_{t-1}, and the states that positions read."""
    time, width, directions = sizes
    back = total + 4 * COUNT * width
    own = back + 4 * COUNT * width
    nothing = v.constant(0.0)
    for row in range(first, last, COUNT):
        for direction in range(directions):
            skip = direction * width
            _cleared(total, 5 * COUNT * width)
            for step in range(time - 1, -1, -1):
                for which in range(min(COUNT, last - row)):
                    place = _place(lengths, row + which, time, step, direction) * directions * width + skip
                    past = _place(lengths, row + which, time, max(step - 1, 0), direction)
                    _soon(gates, past, sizes, skip)
                    past = past * directions * width + skip
                    for unit in range(0, width, COUNT):
                        here, gate, at = place + unit, 3 * place + unit, which * width + unit
                        reset, update = v.load(gates, gate), v.load(gates, gate + width)
                        candidate = v.load(gates, gate + 2 * width)
                        earlier = v.load(hidden, past + unit) if step else nothing
                        gained = v.load(total, at) + v.load(back, at) + v.load(grad, here)
                        through = (gained - gained * update) * _slope(candidate)
                        to_inside, by_reset = through * reset, through * v.load(recurrent, here)
                        to_reset = by_reset * (reset - reset * reset)
                        to_update = gained * (earlier - candidate) * (update - update * update)
                        v.store(change, gate, to_reset)
                        v.store(change, gate + width, to_update)
                        v.store(change, gate + 2 * width, through)
                        v.store(inside, here, to_inside)
                        v.store(before, here, earlier)
                        v.store(total, at, gained * update)
                        first_gate = 3 * which * width + unit
                        v.store(own, first_gate, to_reset)
                        v.store(own, first_gate + width, to_update)
                        v.store(own, first_gate + 2 * width, to_inside)
                _products(own, weight, 3 * skip * width, 3 * width, width, back)
