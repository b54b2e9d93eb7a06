"""The gate of GTrXL on a CPU, forward and backward, with one pass over its numbers between two products: see `simd`.

torch makes some thirty passes over all numbers, and copies the parts of a gradient to join them. M rows, D numbers of a
row: x and y (M, D), from_output (3 D, D), from_stream (2 D, D), from_reset (D, D), bias (D,). Gates (M, 3 D) stand in
the order reset, update, candidate. `blocks.gates.GruGate` has the equations.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.cpu_recurrent import _sigmoid, _slope, _tanh
from dqn_memory.blocks.kernels.custom_operator import operator
from dqn_memory.blocks.kernels.simd import COUNT

FEWEST = 1 << 13  # min numbers of x: below, the calls cost more than the work


def gate_is_faster(x: Tensor, y: Tensor, weight: Tensor) -> bool:
    """Tell whether a gate is faster here than in torch."""
    single = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in (x, y, weight))
    return single and x.shape == y.shape and x.numel() >= FEWEST and x.shape[-1] % COUNT == 0


def gate_forward(
    x: Tensor, y: Tensor, from_output: Tensor, from_stream: Tensor, from_reset: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the joined stream (M, D), and for the backward pass the gates (M, 3 D) and r x (M, D)."""
    x, y, width = x.detach().contiguous(), y.detach().contiguous(), x.shape[1]
    gates = F.linear(y, from_output)
    gates[:, : 2 * width].addmm_(x, from_stream.mT)
    joined, kept = torch.empty_like(x), torch.empty_like(x)
    _run(_forward_gates, x, gates, v.dense(bias), kept)
    gates[:, 2 * width :].addmm_(kept, from_reset.mT)
    _run(_forward_join, x, gates, joined)
    return joined, gates, kept


def gate_backward(
    grad: Tensor, gates: Tensor, kept: Tensor, x: Tensor, y: Tensor, from_output: Tensor, from_stream: Tensor,
    from_reset: Tensor, bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of all inputs from that of the joined stream."""
    x, y, width = x.detach().contiguous(), y.detach().contiguous(), x.shape[1]
    change, to_x = torch.empty_like(gates), torch.empty_like(x)
    _run(_backward_join, x, gates, v.dense(grad), change, to_x)
    both, candidate = change[:, : 2 * width], change[:, 2 * width :]
    _run(_backward_gates, x, gates, candidate @ from_reset, change, to_x)
    to_x.addmm_(both, from_stream)
    to_bias = both[:, width:].sum(0).neg_()
    return to_x, change @ from_output, change.mT @ y, both.mT @ x, candidate.mT @ kept, to_bias


def _run(kernel: object, x: Tensor, *arrays: Tensor | None) -> None:
    v.run_in_threads(kernel, len(x), 0, x.shape[1], x, *arrays)


def _outputs(
    x: Tensor, y: Tensor, from_output: Tensor, from_stream: Tensor, from_reset: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    joined = x.new_empty(x.shape)
    return joined, x.new_empty(len(x), len(from_output)), torch.empty_like(joined)


def _gradients(
    grad: Tensor, gates: Tensor, kept: Tensor, x: Tensor, y: Tensor, from_output: Tensor, from_stream: Tensor,
    from_reset: Tensor, bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    first, *others = (each.new_empty(each.shape) for each in (x, y, from_output, from_stream, from_reset, bias))
    return first, others[0], others[1], others[2], others[3], others[4]


def _saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return *outputs[1:], *inputs


def _reference(
    x: Tensor, y: Tensor, from_output: Tensor, from_stream: Tensor, from_reset: Tensor, bias: Tensor
) -> tuple[Tensor]:
    output_r, output_z, output_g = F.linear(y, from_output).chunk(3, -1)
    stream_r, stream_z = F.linear(x, from_stream).chunk(2, -1)
    update = torch.sigmoid(output_z + stream_z - bias)
    candidate = torch.tanh(output_g + F.linear(torch.sigmoid(output_r + stream_r) * x, from_reset))
    return (torch.lerp(x, candidate, update),)


cpu_gate = operator("cpu_gate", gate_forward, gate_backward, (_outputs, _gradients), _reference, _saved)


# ---- kernels: rows `first` .. `last` - 1 -----------------------------------------------------------------------------
@v.compiled
def _forward_gates(first, last, scratch, width, x, gates, bias, kept):
    """Apply the sigmoids of reset and update gate, and compute r x."""
    for row in range(first, last):
        for unit in range(0, width, COUNT):
            here, gate = row * width + unit, 3 * row * width + unit
            reset = _sigmoid(v.load(gates, gate))
            v.store(gates, gate, reset)
            v.store(gates, gate + width, _sigmoid(v.load(gates, gate + width) - v.load(bias, unit)))
            v.store(kept, here, reset * v.load(x, here))


@v.compiled
def _forward_join(first, last, scratch, width, x, gates, joined):
    """Apply the candidate's tanh, and compute x + z (h - x)."""
    for row in range(first, last):
        for unit in range(0, width, COUNT):
            here, gate = row * width + unit, 3 * row * width + unit
            candidate, stream = _tanh(v.load(gates, gate + 2 * width)), v.load(x, here)
            v.store(gates, gate + 2 * width, candidate)
            v.store(joined, here, v.multiply_add(v.load(gates, gate + width), candidate - stream, stream))


@v.compiled
def _backward_join(first, last, scratch, width, x, gates, grad, change, to_x):
    """Compute the gradients before the sigmoid of z and the tanh of h, and that of x along the stream."""
    for row in range(first, last):
        for unit in range(0, width, COUNT):
            here, gate = row * width + unit, 3 * row * width + unit
            update, candidate = v.load(gates, gate + width), v.load(gates, gate + 2 * width)
            given = v.load(grad, here)
            through = given * update
            v.store(change, gate + 2 * width, through * _slope(candidate))
            v.store(change, gate + width, (candidate - v.load(x, here)) * (through - through * update))
            v.store(to_x, here, given - through)


@v.compiled
def _backward_gates(first, last, scratch, width, x, gates, through, change, to_x):
    """Compute the gradient before the sigmoid of r, and add that of x by way of r x."""
    for row in range(first, last):
        for unit in range(0, width, COUNT):
            here, gate = row * width + unit, 3 * row * width + unit
            reset, given = v.load(gates, gate), v.load(through, here)
            passed = given * reset
            v.store(change, gate, v.load(x, here) * (passed - passed * reset))
            v.store(to_x, here, v.load(to_x, here) + passed)
