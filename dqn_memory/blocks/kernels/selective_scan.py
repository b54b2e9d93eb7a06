"""The selective scan of Mamba-1 (Gu & Dao 2023, Algorithm 2), forward and backward, on any device, in torch alone.

    h_t = exp(dt_t A) h_{t-1} + (dt_t u_t) B_t        y_t = C_t . h_t

with E inner channels and N states a channel. A mixer calls `selective_scan`. A `Scan` computes the recurrence:
`scan_torch` here is the tested reference; the three files `..._selective_scan.py` are faster, and select.py chooses. A
scan and its gradient are one opaque operator each, so that torch.compile does not look into them.

`scan_torch` makes one pass over time in each direction, which carries only the state. On a CPU this is several times as
fast as associative scans, which move (B, T, E, N) numbers log T times. It is as much faster than a loop that autograd
records, whose backward pass fills a (B, T, E, N) gradient at every position. Three things make the passes fast.
Channels are the last dimension of the state, (B, N, E), so every product runs along memory. A block of rows small
enough for a core's cache goes through the whole sequence before the next one begins. Nothing of size (B, T, E, N) is
stored for the backward pass: it computes the states of a block again, into the same memory.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from dqn_memory.blocks.kernels import custom_operator as operators

Scan = Callable[..., tuple[Tensor, Tensor]]
"""(u, delta, decay, write, read, initial, keep=None) -> (y, last): u, delta, y (B, T, E), decay (E, N), write, read
(B, T, N), states (B, E, N), keep (B, T), all of one dtype. An initial state of None means zeros. `keep` is 0 where a
position begins an episode and 1 elsewhere; None means 1.

    h_t = keep_t exp(delta_t decay) h_{t-1} + (delta_t u_t) write_t        y_t = read_t . h_t        last = h_T
"""
Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], Gradients]
"""(gradient of y, gradient of last, the seven inputs) -> gradients of the first six."""


def scan_operator(name: str, forward: Forward, backward: Backward, known_as: str) -> Scan:
    """Make the scan `known_as` that `forward` and `backward` compute, as operators `name` and `name`_backward."""
    run = operators.operator(name, forward, backward, (_outputs, _gradients), _reference, differentiable=2)

    # A plain function, because a module that holds it is copied with `copy.deepcopy`.
    def scan(
        u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor, initial: Tensor | None,
        keep: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        start = u.new_zeros(len(u), *decay.shape) if initial is None else initial
        return operators.call(run, u, delta, decay, write, read, start, keep)

    # The name of its variable in the module, so that a network can be pickled.
    scan.__module__, scan.__qualname__ = forward.__module__, known_as
    return scan


def _outputs(
    u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor, initial: Tensor, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), initial.new_empty(initial.shape)


def _gradients(
    grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor,
    initial: Tensor, keep: Tensor | None = None,
) -> Gradients:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (u, delta, decay, write, read, initial))  # type: ignore[return-value]


def _reference(
    u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the scan in operators of torch that it can transform and differentiate twice."""
    state, outputs, pushes = initial, [], delta * u
    for t in range(u.shape[1]):
        state = state if keep is None else state.masked_fill((keep[:, t] == 0)[:, None, None], 0)
        state = torch.exp(delta[:, t, :, None] * decay) * state + pushes[:, t, :, None] * write[:, t, None]
        outputs.append((state * read[:, t, None]).sum(-1))
    return torch.stack(outputs, 1), state


BLOCK = 1 << 16  # numbers of a block's state; 256 KiB in float32, half of a usual second-level cache


def _blocks(decay: Tensor, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Split tensors (B, ...) into blocks of rows; on an accelerator, whose caches work otherwise, into one block."""
    rows = max(1, BLOCK // decay.numel()) if decay.device.type == "cpu" else len(tensors[0])
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def torch_scan_forward(
    u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor, initial: Tensor, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute outputs y (B, T, E) and the last state (B, E, N)."""
    across = decay.mT.contiguous()  # (N, E)
    masks = [] if keep is None else [keep]
    parts = [_forward_block(across, *block) for block in _blocks(decay, u, delta, write, read, initial, *masks)]
    y, last = (torch.cat(part) for part in zip(*parts, strict=True))
    return y, last


def _forward_block(
    decay: Tensor, u: Tensor, delta: Tensor, write: Tensor, read: Tensor, initial: Tensor, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    rows, time, channels = u.shape
    y = u.new_empty(time, rows, 1, channels)
    state = initial.mT.clone(memory_format=torch.contiguous_format)  # (R, N, E)
    kept = torch.empty_like(state)
    # Every view is made before the loop, where it would cost as much as the arithmetic.
    steps, pushes, outs = (x.unsqueeze(2).unbind(1) for x in (delta, u * delta, read))  # (R, 1, E), (R, 1, N)
    columns = (steps, pushes, write.unsqueeze(3).unbind(1), outs, y, _columns(keep, time))
    for step, push, into, out, y_t, mask in zip(*columns, strict=True):
        torch.mul(step, decay, out=kept).exp_()
        _clear(state, mask)
        state.mul_(kept).addcmul_(push, into)
        torch.bmm(out, state, out=y_t)
    return y.squeeze(2).transpose(0, 1), state.mT


def _columns(keep: Tensor | None, time: int) -> Iterable[Tensor | None]:
    """Make a bit mask (R, 1, 1) a position: no bits where an episode begins, else all."""
    if keep is None:
        return [None] * time
    bits = torch.int64 if keep.dtype == torch.float64 else torch.int32
    return torch.where(keep == 0, 0, -1).to(bits)[..., None, None].unbind(1)


def _clear(state: Tensor, mask: Tensor | None) -> None:
    """Set rows that begin an episode to 0, as fast as by a product, which would let NaN pass."""
    if mask is not None:
        state.view(mask.dtype).bitwise_and_(mask)


def torch_scan_backward(
    grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, decay: Tensor, write: Tensor, read: Tensor,
    initial: Tensor, keep: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """Compute the gradients of all six inputs from those of y (B, T, E) and of the last state (B, E, N)."""
    across, tape = decay.mT.contiguous(), None
    parts = []
    masks = [] if keep is None else [keep]
    for block in _blocks(decay, grad, grad_last, u, delta, write, read, initial, *masks):
        if tape is None:  # the first block is the largest
            tape = u.new_empty(2, u.shape[1] + 1, len(block[0]), *across.shape)
        parts.append(_backward_block(across, tape[:, :, : len(block[0])], *block))
    to_u, to_delta, to_decay, to_write, to_read, to_initial = zip(*parts, strict=True)
    whole = torch.stack(to_decay).sum(0).mT.contiguous()
    return torch.cat(to_u), torch.cat(to_delta), whole, torch.cat(to_write), torch.cat(to_read), torch.cat(to_initial)


def _record(
    decay: Tensor, tape: Tensor, u: Tensor, delta: Tensor, write: Tensor, initial: Tensor, keep: Tensor | None
) -> None:
    """Write the states h_{-1} .. h_{T-1} into tape[0] (T + 1, R, N, E), the factors exp(dt_t A) into tape[1]."""
    states, factors = (part.unbind(0) for part in tape)
    states[0].copy_(initial.mT)
    steps, pushes = (x.unsqueeze(2).unbind(1) for x in (delta, u * delta))  # (R, 1, E)
    columns = (steps, pushes, write.unsqueeze(3).unbind(1), _columns(keep, u.shape[1]))
    for t, (step, push, into, mask) in enumerate(zip(*columns, strict=True)):
        kept = torch.mul(step, decay, out=factors[t]).exp_()
        torch.mul(kept, states[t], out=states[t + 1])
        _clear(states[t + 1], mask)
        states[t + 1].addcmul_(push, into)


def _backward_block(
    decay: Tensor, tape: Tensor, grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, write: Tensor,
    read: Tensor, initial: Tensor, keep: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Go back: with g the gradient of h_t, a_t its factor, the exponent gets g a_t h_{t-1} and h_{t-1} gets g a_t."""
    _record(decay, tape, u, delta, write, initial, keep)
    states, factors = (part.unbind(0) for part in tape)
    total = grad_last.mT.clone(memory_format=torch.contiguous_format)  # (R, N, E), of the state, carried back
    work, to_decay = torch.empty_like(total), torch.zeros_like(total)
    to_driven, to_delta = u.new_empty(2, u.shape[1], len(u), 1, u.shape[2])
    to_write, to_read = u.new_empty(2, u.shape[1], len(u), len(decay), 1)
    grads, steps, intos = (x.unsqueeze(2).unbind(1) for x in (grad, delta, write))  # (R, 1, E), (R, 1, N)
    columns, driven, outs = (x.unsqueeze(3).unbind(1) for x in (grad, u * delta, read))  # (R, E, 1), (R, N, 1)
    masks = list(_columns(keep, u.shape[1]))
    for t in range(u.shape[1] - 1, -1, -1):
        total.addcmul_(grads[t], outs[t])
        torch.bmm(states[t + 1], columns[t], out=to_read[t])
        torch.bmm(total, driven[t], out=to_write[t])
        torch.bmm(intos[t], total, out=to_driven[t])
        torch.mul(total.mul_(factors[t]), states[t], out=work)
        _clear(total, masks[t])
        _clear(work, masks[t])
        to_decay.addcmul_(work, steps[t])
        torch.sum(work.mul_(decay), 1, keepdim=True, out=to_delta[t])
    to_driven, to_delta = (x.squeeze(2).transpose(0, 1) for x in (to_driven, to_delta))  # (R, T, E)
    to_write, to_read = (x.squeeze(3).transpose(0, 1) for x in (to_write, to_read))  # (R, T, N)
    to_delta = torch.addcmul(to_delta, to_driven, u)
    return to_driven * delta, to_delta, to_decay.sum(0), to_write, to_read, total.mT


scan_torch = scan_operator("selective_scan", torch_scan_forward, torch_scan_backward, "scan_torch")


def selective_scan(
    u: Tensor,
    delta: Tensor,
    decay: Tensor,
    write: Tensor,
    read: Tensor,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    delta_bias: Tensor | None = None,
    softplus: bool = True,
    initial: Tensor | None = None,
    keep: Tensor | None = None,
    core: Scan = scan_torch,
) -> tuple[Tensor, Tensor]:
    """Compute the outputs (B, T, E) and the last state (B, E, N) of a selective scan.

    Args:
        u: input, (B, T, E).
        delta: step size before bias and softplus, (B, T, E).
        decay: A, negative, (E, N).
        write: B, (B, T, N).
        read: C, (B, T, N).
        skip: D, (E,), adds D u to the output.
        gate: z, (B, T, E), multiplies the output by silu(z).
        delta_bias: added to the step size, (E,).
        softplus: whether the step size passes through softplus.
        initial: state before the first position, (B, E, N); None: zeros.
        keep: 0 where a position begins an episode, else 1, (B, T); None: no position does.
        core: the scan that computes the recurrence; a mixer has its own in `Mamba.core`.

    Everything is computed in float32, or in the decay's dtype if that is wider. Autocast does not change this, because
    a state that is carried over a sequence needs the precision. Outputs have the dtype of `u`.
    """
    with operators.without_autocast(u):
        dtype = torch.promote_types(decay.dtype, torch.float32)
        upcast, step = u.to(dtype), delta.to(dtype)
        step = step if delta_bias is None else step + delta_bias.to(dtype)
        step = F.softplus(step) if softplus else step
        before = None if initial is None else initial.to(dtype)
        masks = [] if keep is None else [keep.to(dtype)]
        y, last = core(upcast, step, decay.to(dtype), write.to(dtype), read.to(dtype), before, *masks)
        y = y if skip is None else y + skip.to(dtype) * upcast
        y = y if gate is None else y * F.silu(gate.to(dtype))
    return y.to(u.dtype), last
