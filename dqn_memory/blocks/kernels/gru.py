"""A GRU over a whole sequence on the CPU, forward and backward, several directions at once.

`nn.GRU` on a CPU runs every direction by itself and records about ten small operations per position for
autograd; its backward pass is four fifths of the cost. Here the directions share every operation, a position
takes eight forward and three backward, and what does not depend on the previous position is done once for the
whole sequence. In float32 even these few cost more than their arithmetic; there `cpu_gru` does both loops. The
loop over time is inherent; it stays inside two opaque operators, so that torch.compile does not unroll it. An
accelerator runs `nn.GRU` as one fused kernel and needs none of this.

Symbols as elsewhere, with G directions and H units per direction. Gates stand in the order of nn.GRU: reset,
update, candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.kernels.operator import NUMBA, operator

NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def scan(cells: Sequence[nn.GRU], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run one-layer GRUs of the same size from zero, each over its own (B, T, D); return their outputs (B, T, H)."""
    # (G, 3H, D), (G, 3H, H), (G, 3H), (G, 3H)
    weight_in, weight, bias_in, bias = (torch.stack([getattr(cell, name) for cell in cells]) for name in NAMES)
    width = cells[0].hidden_size
    with torch.autocast("cpu", enabled=False):  # a state carried over a sequence needs more than bfloat16
        x = torch.stack(list(inputs)).to(weight.dtype)  # (G, B, T, D)
        # Reset and update add both biases; the candidate's recurrent bias stands inside the reset product.
        offset = bias_in + F.pad(bias[:, : 2 * width], (0, width))
        gates = torch.baddbmm(offset[:, None], x.flatten(1, 2), weight_in.mT)
        gates = gates.view(*x.shape[:3], 3, width)
        hidden, _, _ = gru_scan(gates, weight, bias[:, 2 * width :])
    return [part.transpose(0, 1) for part in hidden.unbind(1)]


def forward(gates: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recurrence over the input's share of the gates (G, B, T, 3, H).

    `weight` is the recurrent weight (G, 3H, H), `bias` the candidate's recurrent bias (G, H).

    Returns hidden (T, G, B, H), the three gates (T, 3, G, B, H), and the recurrent part of the candidate
    (T, G, B, H); the last two are for the backward pass.
    """
    if NUMBA:
        from dqn_memory.blocks.kernels import cpu_gru  # at first use: it loads numba

        if cpu_gru.is_faster(weight):
            outputs = _outputs(gates, weight, bias)
            cpu_gru.forward(gates, weight, bias, outputs)
            return outputs
    gates = gates.permute(2, 3, 0, 1, 4).clone(memory_format=torch.contiguous_format)  # (T, 3, G, B, H)
    # tanh(a) = 2 sigmoid(2a) - 1, and torch's sigmoid is three times as fast as its tanh.
    gates[:, 2].mul_(2)
    # a clone: where all of it is one position, the expanded bias is already contiguous and would be written to
    recurrent = bias[:, None].expand_as(gates[:, 0]).clone(memory_format=torch.contiguous_format)
    hidden = torch.empty_like(recurrent)
    to_reset, to_update, to_candidate = (part.contiguous() for part in weight.mT.chunk(3, dim=-1))
    state = torch.zeros_like(hidden[0])  # (G, B, H)
    minus_one = torch.full_like(state, -1)
    # Every view is made before the loop, where it would cost as much as the arithmetic.
    views = (gates[:, :2], *gates.unbind(1), recurrent, hidden)
    for both, reset, update, candidate, part, following in zip(*(v.unbind(0) for v in views), strict=True):
        reset.baddbmm_(state, to_reset)
        update.baddbmm_(state, to_update)
        part.baddbmm_(state, to_candidate)
        both.sigmoid_()
        candidate.addcmul_(reset, part, value=2).sigmoid_()
        torch.add(minus_one, candidate, alpha=2, out=candidate)
        state = torch.lerp(candidate, state, update, out=following)
    return hidden, gates, recurrent


def _outputs(gates: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    directions, batch, time, _, width = gates.shape
    hidden = gates.new_empty(time, directions, batch, width)
    return hidden, gates.new_empty(time, 3, directions, batch, width), torch.empty_like(hidden)


def backward(
    grad: Tensor, hidden: Tensor, gates: Tensor, recurrent: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gates (G, B, T, 3, H), weight (G, 3H, H), bias (G, H) from that of hidden (T, G, B, H).

    With d the gradient of h_t, those of the three pre-activations are d times factors known beforehand, so one
    step back is: multiply, d_{t-1} += z d, d_{t-1} += (gradients) W.
    """
    before = torch.cat((torch.zeros_like(hidden[:1]), hidden[:-1]))
    change, inner = _factors(before, gates, recurrent)
    total = grad.clone(memory_format=torch.contiguous_format)
    if NUMBA:
        from dqn_memory.blocks.kernels import cpu_gru  # at first use: it loads numba

    if NUMBA and cpu_gru.is_faster(weight):
        cpu_gru.backward(total, change, gates, weight)
    else:
        _steps_back(total, change, gates, weight)
    to_gates = change.permute(1, 2, 0, 3, 4).contiguous()  # (G, B, T, 3, H)
    to_weight = to_gates.flatten(1, 2).flatten(2).mT @ before.permute(1, 2, 0, 3).flatten(1, 2)
    to_bias = to_gates[:, :, :, 2].sum((1, 2))
    # So far the candidate's row is the gradient of its recurrent part; the input enters outside the reset.
    to_gates[:, :, :, 2] = total.mul_(inner).permute(1, 2, 0, 3)
    return to_gates, to_weight, to_bias


def _steps_back(total: Tensor, change: Tensor, gates: Tensor, weight: Tensor) -> None:
    """Loop from the last position to the first, in place; see `backward`."""
    totals, updates, steps = total.unbind(0), gates[:, 1].unbind(0), range(len(total) - 1, -1, -1)
    columns, changes, flat = (v.unbind(0) for v in (total.unsqueeze(3), change, change.flatten(3)))
    for t in steps:
        changes[t].mul_(columns[t])
        if t:
            totals[t - 1].addcmul_(totals[t], updates[t]).baddbmm_(flat[t], weight)


def _factors(before: Tensor, gates: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes of h_t by reset, update and recurrent candidate, (T, G, B, 3, H), and by candidate (T, G, B, H)."""
    reset, update, candidate = gates.unbind(1)  # each (T, G, B, H)
    inner = (1 - candidate.square()).mul_(1 - update)
    by_candidate = inner * reset
    by_reset = (1 - reset).mul_(by_candidate).mul_(recurrent)
    by_update = (1 - update).mul_(update).mul_(before - candidate)
    return torch.stack((by_reset, by_update, by_candidate), dim=3), inner


def _changes(
    grad: Tensor, hidden: Tensor, gates: Tensor, recurrent: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    time, directions, batch, width = hidden.shape
    to_gates = hidden.new_empty(directions, batch, time, 3, width)
    return to_gates, torch.empty_like(weight), hidden.new_empty(directions, width)


def _saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return *outputs, inputs[1]


gru_scan = operator("gru_scan", forward, backward, (_outputs, _changes), _saved)
