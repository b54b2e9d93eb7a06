"""Keep a number that is not finite inside its episode, and away from earlier positions.

One NaN or infinity among the inputs must not change other episodes. A product with 0 does not remove a NaN, and the
gradient of a linear map's weight is a sum of products with every input, padding included. So a block computes with 0 in
place of such a number, and adds NaN afterwards to every output that depends on it.

A check of the inputs takes time. The outermost part checks, and the parts inside it rely on that check.

Shapes: B rows, T positions. A flag is NaN for an input that is not finite, else 0; flags have shape (B, T) or (B,).
"""

import functools
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

State = tuple[Tensor, ...]
MARGIN = 2.0**8  # products stay below the max of a dtype by this factor, so that their sums do not overflow
SMALL = 1e6  # numbers up to this size overflow in no network


# ---- who checks ------------------------------------------------------------------------------------------------------
class _Checked(threading.local):
    """Whether an outer part has checked the inputs of this thread's current call."""

    by_outer_part = False


_checked = _Checked()


def inputs_checked() -> bool:
    """Tell whether an outer part has checked the inputs."""
    return not torch.compiler.is_compiling() and _checked.by_outer_part


def run_checked(run: Callable[..., Any], *inputs: Any) -> Any:
    """Run a function on checked inputs; the parts inside it do not check again."""
    if inputs_checked() or torch.compiler.is_compiling():
        return run(*inputs)
    _checked.by_outer_part = True
    try:
        return run(*inputs)
    finally:
        _checked.by_outer_part = False


def unchecked(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's function; blocks that it calls check their inputs, because it may hand them any numbers."""

    @functools.wraps(run)
    def wrapped(*inputs: Any, **options: Any) -> Any:
        if not inputs_checked():
            return run(*inputs, **options)
        _checked.by_outer_part = False
        try:
            return run(*inputs, **options)
        finally:
            _checked.by_outer_part = True

    return wrapped


# ---- dtypes ----------------------------------------------------------------------------------------------------------
def wide_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Choose the dtype of carried states and of sums over a sequence: float32 at least."""
    return torch.float32 if dtype in (None, torch.float32) else torch.promote_types(dtype, torch.float32)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor of another dtype; the comparison is faster than a conversion that does nothing."""
    return x if x.dtype == dtype else x.to(dtype)


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to their `wide_dtype`."""
    return tuple([x if x.dtype == torch.float32 else x.to(wide_dtype(x.dtype)) for x in tensors])


# ---- runs whose bad inputs stay contained ----------------------------------------------------------------------------
def contained(
    run: Callable[[Tensor, State, Tensor | None], tuple[Tensor, State]],
    x: Tensor,
    state: State,
    reset: Tensor | None,
    check_state: bool = True,
    degree: int = 1,
) -> tuple[Tensor, State]:
    """Run over x, (B, T, ...) or one position (B, D); a bad input spoils only later positions of its episode.

    Args:
        run: (x, state, reset) -> (outputs, state after them).
        x: inputs.
        state: the state before them.
        reset: true where a position begins an episode; None: nowhere.
        check_state: whether the state may hold numbers that are not finite.
        degree: how many numbers `run` multiplies with one another. Numbers whose product overflows count as bad.
    """
    if torch.compiler.is_exporting() or inputs_checked():  # an exported file has the network's operators alone
        return run(x, state, reset)
    axes = 1 if x.dim() == 2 or (reset is not None and reset.dim() == 1) else 2
    if axes == 2:
        check_positions(x)
    if are_small(x, *state if check_state else ()):
        return unshared(x, *run_checked(run, x, state, reset))
    if are_finite(x, degree, state if check_state else ()):
        return unshared(x, *run(x, state, reset))
    flags = _until_episode_ends(bad_flags(x, axes, degree), _state_flags(state, degree) if check_state else None, reset)
    clean_state = tuple(finite(part, min(degree, 2)) for part in state) if check_state else state
    clean = finite(x, degree), clean_state, reset
    # On a CPU bad inputs are rare, and inner parts may check again. On an accelerator this path is the usual one.
    y, after = run(*clean) if x.device.type == "cpu" else run_checked(run, *clean)
    last = flags[:, -1] if axes == 2 else flags
    return add_flags(y, flags), tuple(add_flags(part, last) if part.is_floating_point() else part for part in after)


def contained_window(
    run: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    lengths: Tensor | None,
    causal: bool,
    degree: int = 1,
) -> Tensor:
    """Run over a window x (B, T, ...); a bad input reaches no output before it.

    Without causality a bad input reaches all outputs of its row, but none if it is padding.
    """
    check_positions(x)
    if are_small(x):
        return run_checked(run, x, lengths)
    if not causal:
        return run(clear_padding(x, lengths, degree), lengths)
    return contained(lambda x, state, reset: (run(x, lengths), ()), x, (), None, False, degree)[0]


def contained_at(
    run: Callable[[Tensor, Tensor | None, Tensor], Tensor],
    x: Tensor,
    lengths: Tensor | None,
    index: Tensor,
    causal: bool,
    degree: int = 1,
) -> Tensor:
    """Run as `contained_window`, for the output (B, D) at position `index` (B,) alone."""
    check_positions(x)
    if are_small(x):
        return run_checked(run, x, lengths, index)
    if not causal:
        return run(clear_padding(x, lengths, degree), lengths, index)
    if torch.compiler.is_exporting() or are_finite(x, degree):
        return run(x, lengths, index)
    flags = _until_episode_ends(bad_flags(x, 2, degree), None, None)
    return add_flags(run(finite(x, degree), lengths, index), flags.gather(1, index[:, None])[:, 0])


def contained_rows(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run over independent rows x (..., D); a bad row spoils no gradient of the others."""
    if not torch.is_grad_enabled() or torch.compiler.is_exporting() or are_small(x) or are_finite(x):
        return run(x)
    return add_flags(run(finite(x)), bad_flags(x, x.dim() - 1))


def contained_layers(
    run: Callable[[Tensor, list[Any] | None, Tensor | None], tuple[Tensor, list[Any]]],
    observation: Tensor,
    state: list[Any] | None,
    reset: Tensor | None,
    degree: int,
) -> tuple[Tensor, list[Any]]:
    """Run as `contained`, with a list of states, one a layer."""
    sizes = [len(each) for each in state or ()]

    def split(parts: State) -> list[Any]:
        ends = itertools.accumulate(sizes)
        return [parts[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def flat(observation: Tensor, before: State, reset: Tensor | None) -> tuple[Tensor, State]:
        x, after = run(observation, None if state is None else split(before), reset)
        sizes[:] = [len(each) for each in after]
        return x, tuple(itertools.chain.from_iterable(after))

    before = tuple(itertools.chain(*state or ()))
    x, after = contained(flat, observation, before, reset, state is not None, degree)
    return x, split(after)


# ---- checks ----------------------------------------------------------------------------------------------------------
def are_small(*parts: Tensor) -> bool:
    """Tell whether all numbers are at most SMALL; False also if a CPU would have to wait for the answer."""
    if inputs_checked():
        return True
    floats = [part.detach() for part in parts if part.is_floating_point() and part.numel()]
    if torch.compiler.is_compiling() or any(part.device.type != "cpu" for part in floats):
        return False
    try:  # the Euclidean norm bounds the largest number, and is far faster to compute
        return all(float(torch.linalg.vector_norm(part)) <= SMALL for part in floats)
    except RuntimeError:  # under vmap, and for tensors without data
        return False


def are_finite(x: Tensor, degree: int = 1, state: State = ()) -> bool:
    """Tell whether `finite` would change nothing; False also if a CPU would have to wait for the answer."""
    if inputs_checked():
        return True
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return bool(sum([bad_flags(part, 0, min(degree, 2)) for part in state], bad_flags(x, 0, degree)) == 0)
    except RuntimeError:  # under vmap, and for tensors without data
        return False


def check_positions(x: Tensor) -> None:
    """Raise ValueError if x (B, T, ...) has no position."""
    if not x.shape[1]:
        raise ValueError(f"the input has shape {tuple(x.shape)}; a sequence has one position or more")


# ---- numbers and flags -----------------------------------------------------------------------------------------------
class _Finite(torch.autograd.Function):
    """Replace NaN, infinity and numbers beyond a limit by 0; gradients and tangents pass unchanged."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, limit: float) -> Tensor:
        return torch.where(x.abs() <= limit, x, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.clone()


def _limit(x: Tensor, degree: int) -> float:
    """Compute the size up to which `degree` numbers can be multiplied with one another."""
    return (torch.finfo(wide_dtype(x.dtype)).max / MARGIN) ** (1 / degree)


def finite(x: Tensor, degree: int = 1) -> Tensor:
    """Replace numbers that are not finite, or too large for their degree, by 0; gradients pass unchanged."""
    if not x.is_floating_point():
        return x
    limit = min(_limit(x, degree), torch.finfo(x.dtype).max)  # float16 holds less than float32
    if torch.compiler.is_compiling():  # the compiler cannot read a function with a `jvp`
        return torch.where(x.abs() <= limit, x, 0.0)
    clean: Tensor = _Finite.apply(x, limit)
    return clean


def bad_flags(x: Tensor, axes: int, degree: int = 1) -> Tensor:
    """Flag the entries of the first `axes` dimensions in which `finite` changes a number: (B,), (B, T) or ()."""
    if not x.is_floating_point():
        return torch.zeros(x.shape[:axes], device=x.device)
    (x,) = wide(x.detach())
    x = x * (torch.finfo(x.dtype).max / _limit(x, degree))
    return (x - x).flatten(axes).sum(-1) if x.dim() > axes else x - x


def _state_flags(state: State, degree: int) -> Tensor | None:
    flags = [bad_flags(part, 1, min(degree, 2)) for part in state if part.is_floating_point()]
    return sum(flags[1:], flags[0]) if flags else None


def _until_episode_ends(flags: Tensor, state_flags: Tensor | None, reset: Tensor | None) -> Tensor:
    """Repeat each flag, and that of the state before the inputs, at all later positions of its episode."""
    if flags.dim() == 1:
        if state_flags is None:
            return flags
        return flags + (state_flags if reset is None else state_flags.masked_fill(reset, 0))
    time = torch.arange(1, flags.shape[1] + 1, device=flags.device)
    # the position of the newest flag so far: 0 is the state, -1 stands for no flag
    none_yet = torch.zeros_like(time[:1]).sub(1)
    before = none_yet if state_flags is None else torch.where(state_flags == 0, -1, 0)[:, None]
    newest = torch.where(flags == 0, before, time).cummax(1).values
    begun = 0 if reset is None else torch.where(reset, time, 0).cummax(1).values
    return flags.new_zeros(()).masked_fill(newest >= begun, math.nan)


def add_flags(x: Tensor, flags: Tensor) -> Tensor:
    """Make x (B, ...) or (B, T, ...) NaN where `flags` are; a sum is fastest."""
    return x + flags.to(x.dtype).reshape(*flags.shape, *[1] * (x.dim() - flags.dim()))


def clear_padding(x: Tensor, lengths: Tensor | None, degree: int = 1) -> Tensor:
    """Replace positions of x (B, T, ...) at or after `lengths` (B,) by 0 where they hold a bad number."""
    if lengths is None or not x.is_floating_point() or are_small(x) or are_finite(x, degree):
        return x
    padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    bad = padding & (bad_flags(x, 2, degree) != 0)
    return x.masked_fill(bad.view(*bad.shape, *[1] * (x.dim() - 2)), 0)


def unshared(x: Tensor, y: Tensor, state: State) -> tuple[Tensor, State]:
    """Copy an output that shares memory with the input or the state, so that each can be changed in place."""
    if inputs_checked():  # the outer part copies
        return y, state
    others = (x, *state)
    if torch.compiler.is_compiling():
        shared = any(y is each for each in others)
    else:
        try:
            place = y.untyped_storage().data_ptr()
            shared = any(place == each.untyped_storage().data_ptr() for each in others)
        except RuntimeError:  # tensors without data
            shared = True
    return (y.clone() if shared else y), state
