"""Custom operators: functions that torch cannot see into, registered together with their gradients."""

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

UNCHANGED = nullcontext()
NUMBA = find_spec("numba") is not None  # without numba the equal forms in torch run


def environment_alone() -> None:
    """Let numba read its settings from the environment alone, and from no file in the working directory.

    Such a file may come from a stranger, and its settings name folders and modules of code. Call this before compiling.
    """
    from numba.core import config

    if getattr(config, "_config_fname", None) not in (None, os.devnull):
        config._config_fname = os.devnull
        config.reload_config()


def operator(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    shapes: tuple[Callable[..., Any], Callable[..., Any]],
    reference: Callable[..., Any],
    save: Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Tensor]] = lambda inputs, outputs: inputs,
    differentiable: int = 1,
    again: Callable[..., Any] | None = None,
) -> Any:
    """Make the operators `name` and `name`_backward, which torch.compile does not look into.

    Args:
        name: in the namespace `dqn_memory`.
        forward: (*inputs) -> output, or a tuple of them. Its annotations are the operator's schema.
        backward: (*gradients of the outputs, *saved) -> gradients of the first inputs; the others have none.
        shapes: the same two for shapes alone: they return empty tensors.
        reference: `forward` in operators of torch, none of them in place, without the outputs that have no gradient.
        save: (inputs, outputs) -> the tensors that `backward` receives. The inputs come last, where `again` is None.
        differentiable: how many of the outputs, the first ones, have a gradient.
        again: `backward` in operators of torch, for second derivatives; None: the gradient of the reference.

    Returns:
        The operator, for `call`.
    """
    run = torch.library.custom_op(f"dqn_memory::{name}", forward, mutates_args=())
    differentiate = torch.library.custom_op(f"dqn_memory::{name}_backward", backward, mutates_args=())
    slow = again or through(reference)
    run.register_fake(shapes[0])
    differentiate.register_fake(shapes[1])

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outputs[differentiable:])
        ctx.save_for_backward(*save(inputs, outputs))
        ctx.shapes, ctx.inputs = [each.shape for each in outputs[:differentiable]], len(inputs)

    def pull(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        changes: tuple[Tensor | None, ...] = ()
        if any(grad is not None for grad in grads):
            known, saved = zip(grads, ctx.shapes, strict=False), ctx.saved_tensors  # which may be read only once
            given = [saved[0].new_zeros(shape) if grad is None else grad.contiguous() for grad, shape in known]
            twice = torch.is_grad_enabled()  # create_graph=True: these gradients may be differentiated in turn
            change = (slow if twice else differentiate)(*given, *saved)
            changes = change if isinstance(change, tuple) else (change,)
            needed = zip(changes, ctx.needs_input_grad, strict=False)  # an input that is None has no gradient
            changes = tuple(each if wanted else None for each, wanted in needed)
        return (*changes, *[None] * (ctx.inputs - len(changes)))

    run.register_autograd(pull, setup_context=keep)
    run.reference = reference  # type: ignore[attr-defined]
    return run


def call(operator: Any, *inputs: Any) -> Any:
    """Call an operator, or its reference if a transform of torch must see its operations."""
    return (operator.reference if transformed() else operator)(*inputs)


def transformed() -> bool:
    """Tell whether a transform of torch.func or forward-mode differentiation is active.

    Most transforms refuse operators of ours, and the forward derivatives of these would be 0.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast on the device of x; `meta` has none."""
    if not torch._C._is_any_autocast_enabled():
        return UNCHANGED
    device = "cpu" if x.device.type == "meta" else x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else UNCHANGED  # far faster


def through(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Make (*gradients of outputs, ..., *inputs) -> gradients of the inputs, which torch can differentiate again."""
    count = len(inspect.signature(reference).parameters)

    def again(*given: Any) -> tuple[Tensor | None, ...]:
        inputs = [each if each is None else each.view_as(each) for each in given[-count:]]  # one may depend on another
        outputs = reference(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        wanted = [each for each in inputs if each is not None and each.requires_grad]
        grads = torch.autograd.grad(outputs, wanted, given[: len(outputs)], create_graph=True, allow_unused=True)
        remaining = iter(grads)
        return tuple(next(remaining) if each is not None and each.requires_grad else None for each in inputs)

    return again
