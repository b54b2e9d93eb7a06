"""How a function that torch knows nothing about, and its gradient, become operators of torch."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

NUMBA = find_spec("numba") is not None  # without it the forms in torch run, which compute the same


def operator(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    shapes: tuple[Callable[..., Any], Callable[..., Any]],
    save: Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Tensor]] = lambda inputs, outputs: inputs,
    differentiable: int = 1,
) -> Any:
    """Make the operators `name` and `name`_backward, which torch.compile does not look into.

    Args:
        name: in the namespace `dqn_memory`.
        forward: (*inputs) -> output, or a tuple of them. Its annotations are the operator's schema.
        backward: (*gradients of the outputs, *saved) -> gradients of the first inputs; the others have none.
        shapes: the same two without their arithmetic: empty tensors of the results' shapes.
        save: (inputs, outputs) -> the tensors that `backward` receives.
        differentiable: how many of the outputs, the first ones, have a gradient.
    """
    run = torch.library.custom_op(f"dqn_memory::{name}", forward, mutates_args=())
    differentiate = torch.library.custom_op(f"dqn_memory::{name}_backward", backward, mutates_args=())
    run.register_fake(shapes[0])
    differentiate.register_fake(shapes[1])

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outputs[differentiable:])
        ctx.save_for_backward(*save(inputs, outputs))
        ctx.shapes, ctx.inputs = [each.shape for each in outputs[:differentiable]], len(inputs)

    def pull(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found: tuple[Tensor | None, ...] = ()
        if any(grad is not None for grad in grads):
            known = zip(grads, ctx.shapes, strict=False)
            like: Tensor = ctx.saved_tensors[0]
            given = [like.new_zeros(shape) if grad is None else grad.contiguous() for grad, shape in known]
            change = differentiate(*given, *ctx.saved_tensors)
            found = change if isinstance(change, tuple) else (change,)
            needed = zip(found, ctx.needs_input_grad, strict=False)  # an input that is None has no gradient
            found = tuple(each if wanted else None for each, wanted in needed)
        return (*found, *[None] * (ctx.inputs - len(found)))

    run.register_autograd(pull, setup_context=keep)
    return run
