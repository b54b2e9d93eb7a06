"""The linear recurrence on a CPU as loops over eight numbers side by side: see `simd`, and `linear_scan` for symbols.

A row is processed position by position, so memory is read and written in order and the previous state is still in the
first-level cache. Four complex numbers stand side by side, each as its real and imaginary part: a h is
Re(a) h + Im(a) (i h). Numbers are float32, filled up with zeros to a multiple of eight. A constant decay has the same
address at every position; without resets the address of `keep` is 0.
"""

import torch
from torch import Tensor

from dqn_memory.blocks.kernels import simd as v
from dqn_memory.blocks.kernels.simd import COUNT


def cpu_states(decay: Tensor, drive: Tensor, initial: Tensor, keep: Tensor | None) -> Tensor:
    """As `linear_scan`."""
    pairs, varies = drive.dim() == 4, decay.dim() == drive.dim()
    inputs = [_filled(x, pairs) for x in (decay, drive, initial)]
    states = torch.empty_like(inputs[1])
    sizes = (drive.shape[1], states.shape[2], int(varies), int(pairs))
    v.run_in_threads(_forward, len(drive), 0, sizes, (*inputs, states, v.dense(keep)))
    return _cut(states, drive, pairs)


def cpu_gradients(
    grad: Tensor, states: Tensor, decay: Tensor, initial: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `linear_scan.gradients`; the gradient of a constant decay is a sum over rows, each added up by itself."""
    pairs, varies = grad.dim() == 4, decay.dim() == grad.dim()
    inputs = [_filled(x, pairs) for x in (grad, states, decay, initial)]
    to_drive, to_initial = torch.empty_like(inputs[0]), torch.empty_like(inputs[3])
    to_decay = torch.empty_like(inputs[0]) if varies else torch.empty_like(inputs[3])
    sizes = (grad.shape[1], to_drive.shape[2], int(varies), int(pairs))
    v.run_in_threads(_backward, len(grad), 0, sizes, (*inputs, to_decay, to_drive, to_initial, v.dense(keep)))
    to_decay = to_decay if varies else to_decay.sum(0)
    return _cut(to_decay, decay, pairs), _cut(to_drive, grad, pairs), _cut(to_initial, initial, pairs)


def _filled(x: Tensor, pairs: bool) -> Tensor:
    """Fill up (..., F) or (..., F, 2) to (..., n), n a multiple of eight."""
    return v.padded_to_eight(x.flatten(-2) if pairs else x)


def _cut(flat: Tensor, like: Tensor, pairs: bool) -> Tensor:
    """Undo `_filled`."""
    numbers = 2 * like.shape[-2] if pairs else like.shape[-1]
    return flat[..., :numbers].contiguous().view(like.shape)


@v.compiled
def _product(a, h, pairs):
    """Multiply a h."""
    return v.multiply_add(v.even(a), h, v.odd(a) * v.turn(h)) if pairs else a * h


@v.compiled
def _conjugate_product(a, g, pairs):
    """Multiply conj(a) g."""
    return v.even(a) * g - v.odd(a) * v.turn(g) if pairs else a * g


@v.compiled
def _forward(first, last, scratch, sizes, addresses):
    """Process rows `first` .. `last` - 1."""
    time, width, varies, pairs = sizes
    decay, drive, initial, states, keep = addresses
    for row in range(first, last):
        for t in range(time):
            at = (row * time + t) * width
            source, past = (states, at - width) if t else (initial, row * width)
            step = at if varies else 0
            if v.begins(keep, row * time + t):  # a product with 0 would let NaN pass
                for n in range(0, width, COUNT):
                    v.store(states, at + n, v.load(drive, at + n))
                continue
            for n in range(0, width, COUNT):
                kept = _product(v.load(decay, step + n), v.load(source, past + n), pairs)
                v.store(states, at + n, kept + v.load(drive, at + n))


@v.compiled
def _backward(first, last, scratch, sizes, addresses):
    """Process rows `first` .. `last` - 1 backwards; `to_initial` holds the gradient from later positions."""
    time, width, varies, pairs = sizes
    grad, states, decay, initial, to_decay, to_drive, to_initial, keep = addresses
    for row in range(first, last):
        own = row * width
        for n in range(0, width, COUNT):
            v.store(to_initial, own + n, v.constant(0.0))
            if not varies:
                v.store(to_decay, own + n, v.constant(0.0))
        for back in range(time):
            t = time - 1 - back
            at = (row * time + t) * width
            source, past = (states, at - width) if t else (initial, own)
            step = at if varies else 0
            begins = v.begins(keep, row * time + t)
            for n in range(0, width, COUNT):
                total = v.load(grad, at + n) + v.load(to_initial, own + n)
                v.store(to_drive, at + n, total)
                before = v.load(source, past + n)
                received = _conjugate_product(v.load(decay, step + n), total, pairs)
                if begins:
                    before, received = v.constant(0.0), v.constant(0.0)
                v.store(to_initial, own + n, received)
                product = _conjugate_product(before, total, pairs)
                if varies:
                    v.store(to_decay, at + n, product)
                else:
                    v.store(to_decay, own + n, v.load(to_decay, own + n) + product)
