"""RNN, GRU and LSTM over a whole sequence, forward and backward, from any state and with resets, on any device.

torch's own recurrences know no resets, and on a CPU record about ten small operations a position for autograd. Here the
loop over time is inside an opaque operator and its backward pass is written out. One product for all positions gives
the part that does not depend on the previous position. Time comes first, so that a position's numbers lie together. In
float32 on a CPU `cpu_recurrent` runs the loops.

T positions, B rows, D inputs, H units, G gates: x (T, B, D), weight_in (G H, D), weight (G H, H), bias (G H,), states
(B, H). `keep` (T, B, 1) is 0 where a position begins an episode and 1 elsewhere; None: nowhere.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.finite import cast
from dqn_memory.blocks.kernels.custom_operator import NUMBA, call, operator, transformed, without_autocast


def scan(
    cell: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...], reset: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run nn.RNN, nn.GRU or nn.LSTM of one layer over x (B, T, D) from `state`; rows begin anew where `reset` (B, T).

    Returns the outputs (B, T, H) and the state after them, each part (B, H).
    """
    weight_in, weight, bias_in, bias = (getattr(cell, name) for name in WEIGHTS)
    fused = x.device.type != "cpu" and not transformed()
    with without_autocast(x):  # a state carried over a sequence needs more than bfloat16
        state = tuple(part.to(weight.dtype) for part in state)
        if reset is None and (fused or torch.compiler.is_exporting()):  # torch's own
            parts = tuple(part[None] for part in state)
            y, after = cell(x.to(weight.dtype), parts if len(parts) == 2 else parts[0])
            return y, tuple(part[0] for part in (after if len(parts) == 2 else (after,)))
        x = x.to(weight.dtype).transpose(0, 1).contiguous()
        keep = None if reset is None else (~reset.T[:, :, None]).to(weight.dtype)  # (T, B, 1)
        if isinstance(cell, nn.GRU):
            outside, inner = bias.tensor_split((2 * cell.hidden_size,))
            both = bias_in + F.pad(outside, (0, cell.hidden_size))
            hidden, *_ = call(gru_scan, x, weight_in, weight, both, inner, *state, keep)
            return hidden.transpose(0, 1), (hidden[-1],)
        if isinstance(cell, nn.LSTM):
            hidden, last, *_ = call(lstm_scan, x, weight_in, weight, bias_in + bias, *state, keep)
            return hidden.transpose(0, 1), (hidden[-1], last)
        hidden = call(rnn_scan, x, weight_in, weight, bias_in + bias, *state, keep)
        return hidden.transpose(0, 1), (hidden[-1],)


WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
ONE_STEP = {nn.RNN: torch.rnn_tanh_cell, nn.GRU: torch.gru_cell}


def step(cell: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Run one position x (B, D); return the state after it, whose first part is the output."""
    if transformed():  # torch.func cannot see into a cell of torch's
        return scan(cell, x[:, None], state, None)[1]
    weights: list[Tensor] = [getattr(cell, name) for name in WEIGHTS]
    dtype = weights[0].dtype
    x, before = cast(x, dtype), [cast(part, dtype) for part in state]
    with without_autocast(x):  # as in `scan`
        if isinstance(cell, nn.LSTM):
            return tuple(torch.lstm_cell(x, before, *weights))
        return (ONE_STEP[type(cell)](x, before[0], *weights),)


def reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse every sequence of x (B, T, D) inside its length; padding stays at the end."""
    if lengths is None:
        return x.flip(1)
    time = torch.arange(x.shape[1], device=lengths.device)
    mirrored = lengths[:, None] - 1 - time
    index = torch.where(mirrored >= 0, mirrored, time)  # (B, T)
    return x.gather(1, index[:, :, None].expand_as(x))


# ---- shared parts ----------------------------------------------------------------------------------------------------
def _fast(weight: Tensor) -> Any:
    """Import the loops over eight numbers if they can be used: the import loads numba."""
    if NUMBA and weight.device.type == "cpu":
        from dqn_memory.blocks.kernels import cpu_recurrent

        return cpu_recurrent if cpu_recurrent.fits(weight) else None
    return None


def previous(states: Tensor, initial: Tensor, keep: Tensor | None) -> Tensor:
    """Shift states (T, B, H) to those that each position reads, (T, B, H)."""
    shifted = torch.cat((initial[None], states[:-1]))
    return shifted if keep is None else shifted.masked_fill_(keep == 0, 0)


def _kept(state: Tensor, keep: Tensor | None, t: int) -> Tensor:
    """Set rows that begin an episode to 0; a product with 0 would let NaN pass."""
    return state if keep is None else state.masked_fill(keep[t] == 0, 0)


def _tanh(x: Tensor) -> Tensor:
    """Compute tanh(x) = 2 sigmoid(2 x) - 1 in place: torch's sigmoid is three times as fast as its tanh."""
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def _outside(change: Tensor, x: Tensor, weight_in: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of x, weight_in and bias from that of all gates (T, B, G H)."""
    flat = change.flatten(0, 1)
    return (flat @ weight_in).view_as(x), flat.mT @ x.flatten(0, 1), flat.sum(0)


def _inside(change: Tensor, before: Tensor) -> Tensor:
    """Compute the gradient of the recurrent weight."""
    return change.flatten(0, 1).mT @ before.flatten(0, 1)


# ---- tanh RNN --------------------------------------------------------------------------------------------------------
def rnn_forward(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, keep: Tensor | None
) -> Tensor:
    """Compute h_t = tanh(W_in x_t + b + W h_{t-1}), (T, B, H)."""
    hidden = F.linear(x, weight_in, bias)
    if fast := _fast(weight):
        fast.rnn_loop(hidden, weight, initial, keep)
        return hidden
    state, across = initial, weight.mT
    for t, value in enumerate(hidden.unbind(0)):
        state = value.addmm_(_kept(state, keep, t), across).tanh_()
    return hidden


def rnn_backward(
    grad: Tensor, hidden: Tensor, x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of x, weight_in, weight, bias and initial from that of hidden (T, B, H)."""
    if fast := _fast(weight):
        change, total = fast.rnn_loop_backward(grad, hidden, weight, keep)
    else:
        change, total = 1 - hidden.square(), torch.zeros_like(initial)
        for t in range(len(hidden) - 1, -1, -1):
            change[t].mul_(total.add_(grad[t]))
            total = _kept(change[t] @ weight, keep, t)
    to_x, to_weight_in, to_bias = _outside(change, x, weight_in)
    return to_x, to_weight_in, _inside(change, previous(hidden, initial, keep)), to_bias, total


def _rnn_output(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, keep: Tensor | None
) -> Tensor:
    return x.new_empty(*x.shape[:2], len(weight))


def _rnn_gradients(
    grad: Tensor, hidden: Tensor, x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    like = torch.empty_like
    return like(x), like(weight_in), like(weight), weight.new_empty(len(weight)), like(initial)


def _rnn_saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return outputs[0], *inputs


def _rnn_reference(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, keep: Tensor | None
) -> Tensor:
    state, hidden = initial, []
    for t, value in enumerate(F.linear(x, weight_in, bias).unbind(0)):
        state = torch.tanh(value + _kept(state, keep, t) @ weight.mT)
        hidden.append(state)
    return torch.stack(hidden)


rnn_scan = operator("rnn_scan", rnn_forward, rnn_backward, (_rnn_output, _rnn_gradients), _rnn_reference, _rnn_saved)


# ---- GRU -------------------------------------------------------------------------------------------------------------
def gru_forward(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, inner: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute hidden (T, B, H), and for the backward pass the gates (T, B, 3 H) and W_n h_{t-1} + b_n (T, B, H).

    Gates stand in torch's order: reset, update, candidate. `inner` (H,) is the candidate's recurrent bias b_n, which
    the reset gate multiplies; all other biases are in `bias`.
    """
    gates, width = F.linear(x, weight_in, bias), initial.shape[1]
    hidden, recurrent = (gates.new_empty(*x.shape[:2], width) for _ in range(2))
    if fast := _fast(weight):
        recurrent.copy_(inner)
        fast.gru_loop(gates, hidden, recurrent, weight, initial, keep)
        return hidden, gates, recurrent
    state, across = initial, weight.mT
    outer, inside = across[:, : 2 * width].contiguous(), across[:, 2 * width :].contiguous()
    for t, gate in enumerate(gates.unbind(0)):
        state = _kept(state, keep, t)
        both, candidate = gate[:, : 2 * width], gate[:, 2 * width :]
        reset, update = both.addmm_(state, outer).sigmoid_().split(width, 1)
        torch.addmm(inner, state, inside, out=recurrent[t])
        _tanh(candidate.addcmul_(reset, recurrent[t]))
        state = torch.lerp(candidate, state, update, out=hidden[t])
    return hidden, gates, recurrent


def gru_backward(
    grad: Tensor, hidden: Tensor, gates: Tensor, recurrent: Tensor, x: Tensor, weight_in: Tensor, weight: Tensor,
    bias: Tensor, inner: Tensor, initial: Tensor, keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of x, weight_in, weight, bias, inner and initial from that of hidden (T, B, H).

    Those of the gates (T, B, 4 H) stand in the order W_n h_{t-1} + b_n, reset, update, candidate: the first three are
    those of W h_{t-1}, the last three those of W_in x, whose candidate enters outside the reset.
    """
    width = initial.shape[1]
    if fast := _fast(weight):
        change, total, before = fast.gru_loop_backward(grad, hidden, gates, recurrent, weight, initial, keep)
    else:
        before = previous(hidden, initial, keep)
        change, total = _gru_steps_back(grad, before, gates, recurrent, weight, keep)
    to_weight, to_inner = _inside(change[..., : 3 * width], before).roll(-width, 0), change[..., :width].sum((0, 1))
    to_x, to_weight_in, to_bias = _outside(change[..., width:], x, weight_in)
    return to_x, to_weight_in, to_weight, to_bias, to_inner, total


def _gru_steps_back(
    grad: Tensor, before: Tensor, gates: Tensor, recurrent: Tensor, weight: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the gates (T, B, 4 H), as in `gru_backward`, and of the initial state."""
    change, candidates, width = torch.empty_like(gates), torch.empty_like(recurrent), recurrent.shape[2]
    total = torch.zeros_like(before[0])
    for t in range(len(before) - 1, -1, -1):
        reset, update, candidate = gates[t].split(width, 1)
        to_reset, to_update, to_inside = change[t].split(width, 1)
        total.add_(grad[t])
        through = torch.addcmul(total, total, update, value=-1)  # d (1 - z)
        torch.addcmul(through, through, candidate.square(), value=-1, out=candidates[t])
        torch.mul(candidates[t], recurrent[t], out=to_reset)
        torch.mul(total, before[t] - candidate, out=to_update)
        torch.mul(candidates[t], reset, out=to_inside)
        both = gates[t, :, : 2 * width]
        change[t, :, : 2 * width].mul_(torch.addcmul(both, both, both, value=-1))
        total = _kept(total.mul_(update).addmm_(change[t], weight), keep, t)
    return torch.cat((change[..., 2 * width :], change[..., : 2 * width], candidates), 2), total


def _gru_outputs(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, inner: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = x.new_empty(*x.shape[:2], initial.shape[1])
    return hidden, x.new_empty(*x.shape[:2], len(weight)), torch.empty_like(hidden)


def _gru_gradients(
    grad: Tensor, hidden: Tensor, gates: Tensor, recurrent: Tensor, x: Tensor, weight_in: Tensor, weight: Tensor,
    bias: Tensor, inner: Tensor, initial: Tensor, keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    like, of = torch.empty_like, weight.new_empty
    return like(x), like(weight_in), like(weight), of(len(weight)), of(weight.shape[1]), like(initial)


def _gru_saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return *outputs, *inputs


def _gru_reference(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, inner: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor]:
    width, state, hidden = initial.shape[-1], initial, []
    for t, gate in enumerate(F.linear(x, weight_in, bias).unbind(0)):
        state = _kept(state, keep, t)
        both, inside = (state @ weight.mT).tensor_split((2 * width,), -1)
        reset, update = (gate[..., : 2 * width] + both).sigmoid().chunk(2, -1)
        candidate = torch.tanh(gate[..., 2 * width :] + reset * (inside + inner))
        state = candidate + update * (state - candidate)
        hidden.append(state)
    return (torch.stack(hidden),)


gru_scan = operator("gru_scan", gru_forward, gru_backward, (_gru_outputs, _gru_gradients), _gru_reference, _gru_saved)


# ---- LSTM ------------------------------------------------------------------------------------------------------------
def lstm_forward(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, cell: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute hidden (T, B, H) and the last cell (B, H), and for the backward pass all cells and the gates (T, B, 4 H).

    Gates stand in torch's order: input, forget, candidate, output.
    """
    gates = F.linear(x, weight_in, bias)
    width = initial.shape[1]
    hidden, cells = (gates.new_empty(*x.shape[:2], width) for _ in range(2))
    if fast := _fast(weight):
        fast.lstm_loop(gates, hidden, cells, weight, initial, cell, keep)
        return hidden, cells[-1].clone(), cells, gates
    state, across = initial, weight.mT
    for t, gate in enumerate(gates.unbind(0)):
        state, cell = _kept(state, keep, t), _kept(cell, keep, t)
        enter, forget, candidate, out = gate.addmm_(state, across).split(width, 1)
        candidate.mul_(2)  # as in _tanh, so that one sigmoid serves all four
        gate.sigmoid_()
        candidate.mul_(2).sub_(1)
        cell = torch.mul(forget, cell, out=cells[t]).addcmul_(enter, candidate)
        state = _tanh(hidden[t].copy_(cell)).mul_(out)
    return hidden, cells[-1].clone(), cells, gates


def lstm_backward(
    grad: Tensor, grad_last: Tensor, hidden: Tensor, cells: Tensor, gates: Tensor, x: Tensor, weight_in: Tensor,
    weight: Tensor, bias: Tensor, initial: Tensor, cell: Tensor, keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of x, weight_in, weight, bias, initial and cell from those of hidden and the last cell.

    With d and e the gradients of h_t and c_t, e += d o (1 - tanh(c_t)^2); a sigmoid's slope is s (1 - s).
    """
    if fast := _fast(weight):
        change, total, carried = fast.lstm_loop_backward(grad, grad_last, cells, gates, weight, cell, keep)
    else:
        change, total, carried = _lstm_steps_back(grad, grad_last, cells, gates, weight, cell, keep)
    to_x, to_weight_in, to_bias = _outside(change, x, weight_in)
    return to_x, to_weight_in, _inside(change, previous(hidden, initial, keep)), to_bias, total, carried


def _lstm_steps_back(
    grad: Tensor, grad_last: Tensor, cells: Tensor, gates: Tensor, weight: Tensor, cell: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of W_in x + b (T, B, 4 H), of the initial state and of the initial cell."""
    change, width = torch.empty_like(gates), cell.shape[1]
    total, carried, past = torch.zeros_like(cell), grad_last.clone(), previous(cells, cell, keep)
    for t in range(len(cells) - 1, -1, -1):
        enter, forget, candidate, out = gates[t].split(width, 1)
        to_enter, to_forget, to_candidate, to_out = change[t].split(width, 1)
        total.add_(grad[t])
        squashed = _tanh(cells[t].clone())
        carried.addcmul_(total * out, 1 - squashed.square())
        torch.mul(carried, candidate, out=to_enter)
        torch.mul(carried, past[t], out=to_forget)
        torch.mul(carried, enter, out=to_candidate)
        torch.mul(total, squashed, out=to_out)
        slope = gates[t] * (1 - gates[t])
        slope.narrow(1, 2 * width, width).copy_(1 - candidate.square())
        change[t].mul_(slope)
        total, carried = _kept(change[t] @ weight, keep, t), _kept(carried.mul_(forget), keep, t)
    return change, total, carried


def _lstm_outputs(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, cell: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden = x.new_empty(*x.shape[:2], initial.shape[1])
    return hidden, torch.empty_like(initial), torch.empty_like(hidden), x.new_empty(*x.shape[:2], len(weight))


def _lstm_gradients(
    grad: Tensor, grad_last: Tensor, hidden: Tensor, cells: Tensor, gates: Tensor, x: Tensor, weight_in: Tensor,
    weight: Tensor, bias: Tensor, initial: Tensor, cell: Tensor, keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    like = torch.empty_like
    return like(x), like(weight_in), like(weight), weight.new_empty(len(weight)), like(initial), like(cell)


def _lstm_saved(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return outputs[0], *outputs[2:], *inputs


def _lstm_reference(
    x: Tensor, weight_in: Tensor, weight: Tensor, bias: Tensor, initial: Tensor, cell: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    state, hidden = initial, []
    for t, gate in enumerate(F.linear(x, weight_in, bias).unbind(0)):
        enter, forget, candidate, out = (gate + _kept(state, keep, t) @ weight.mT).chunk(4, -1)
        cell = forget.sigmoid() * _kept(cell, keep, t) + enter.sigmoid() * candidate.tanh()
        state = out.sigmoid() * cell.tanh()
        hidden.append(state)
    return torch.stack(hidden), cell


lstm_scan = operator(
    "lstm_scan", lstm_forward, lstm_backward, (_lstm_outputs, _lstm_gradients), _lstm_reference, _lstm_saved, 2
)
