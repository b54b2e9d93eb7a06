"""A selective scan and its gradient, each as one opaque operator, so that torch.compile does not look into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(u, delta, decay, enter, leave, initial) -> (y, last): u, delta, y (B, T, E), decay (E, N), enter, leave (B, T, N),
states (B, E, N), all of one dtype; no initial state means zeros.

    h_t = exp(delta_t decay) h_{t-1} + (delta_t u_t) enter_t        y_t = leave_t . h_t        last = h_T
"""
Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]
"""(gradient of y, gradient of last, the six inputs) -> gradients of the six inputs, nothing else kept in between."""


def operator(name: str, forward: Forward, backward: Backward) -> Scan:
    """The scan that `forward` and `backward` compute, as operators `name` and `name`_backward."""
    run = torch.library.custom_op(f"dqn_memory::{name}", forward, mutates_args=())
    differentiate = torch.library.custom_op(f"dqn_memory::{name}_backward", backward, mutates_args=())
    run.register_fake(_outputs)
    differentiate.register_fake(_gradients)

    def save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)

    def pull(ctx: Any, grad: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if grad is None and grad_last is None:
            return (None,) * len(inputs)
        grad = torch.zeros_like(inputs[0]) if grad is None else grad
        grad_last = torch.zeros_like(inputs[5]) if grad_last is None else grad_last
        return differentiate(grad.contiguous(), grad_last.contiguous(), *inputs)

    run.register_autograd(pull, setup_context=save)

    # A plain function, because a module that holds it is copied with `copy.deepcopy`.
    def scan(
        u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        start = u.new_zeros(len(u), *decay.shape) if initial is None else initial
        return run(u, delta, decay, enter, leave, start)

    return scan


def _outputs(
    u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), initial.new_empty(initial.shape)


def _gradients(
    grad: Tensor, grad_last: Tensor, u: Tensor, delta: Tensor, decay: Tensor, enter: Tensor, leave: Tensor,
    initial: Tensor,
) -> Gradients:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (u, delta, decay, enter, leave, initial))  # type: ignore[return-value]
