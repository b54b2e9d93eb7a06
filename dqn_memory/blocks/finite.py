"""What keeps a number that is not finite where it is: inside its episode, and behind what comes before it.

A product with 0 does not clear a NaN or an infinity, least of all the many products behind a gradient: that of a linear
map's weight multiplies every input, of other episodes and of padding too. So a block reads 0 in place of such numbers,
and NaN is put on all outputs that depend on them.
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
MARGIN = 2.0**8  # of a product, for sums of several
SMALL = 1e6  # numbers up to this size overflow in no network


class Trust(threading.local):
    """Whether this thread runs a part of something whose inputs were looked at: then no part looks again."""

    given = False


_trust = Trust()


def trusted() -> bool:
    """Tell whether inputs were looked at by what stands around."""
    return not torch.compiler.is_compiling() and _trust.given


def trusting(run: Callable[..., Any], *inputs: Any) -> Any:
    """Run something whose inputs are finite, so that no part of it has to look at them again."""
    if trusted() or torch.compiler.is_compiling():
        return run(*inputs)
    _trust.given = True
    try:
        return run(*inputs)
    finally:
        _trust.given = False


def distrusting(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of others' code, which may hand any numbers to parts of ours: these look for themselves."""

    @functools.wraps(run)
    def apart(*inputs: Any, **options: Any) -> Any:
        if not trusted():
            return run(*inputs, **options)
        _trust.given = False
        try:
            return run(*inputs, **options)
        finally:
            _trust.given = True

    return apart


def wide_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Give the dtype of a state that is carried over a sequence, and of sums over one: float32 at least."""
    return torch.float32 if dtype in (None, torch.float32) else torch.promote_types(dtype, torch.float32)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor where it has another dtype; to ask first is faster than a conversion that does nothing."""
    return x if x.dtype == dtype else x.to(dtype)


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to their `wide_dtype`."""
    return tuple([x if x.dtype == torch.float32 else x.to(wide_dtype(x.dtype)) for x in tensors])


class Finite(torch.autograd.Function):
    """Put 0 in place of NaN, infinity and what exceeds a limit; a gradient passes as it is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, limit: float) -> Tensor:
        """Map any shape to the same shape."""
        return torch.where(x.abs() <= limit, x, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Pass a gradient of any order on."""
        return grad, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        """Pass a tangent on."""
        return tangent.clone()


def contained(
    run: Callable[[Tensor, State, Tensor | None], tuple[Tensor, State]],
    x: Tensor,
    state: State,
    reset: Tensor | None,
    given: bool = True,
    degree: int = 1,
) -> tuple[Tensor, State]:
    """Run over x, (B, T, ...) or one position (B, D), so that what is not finite stays inside its episode.

    A product with 0 does not clear a NaN, least of all the many products behind a gradient. So `run` reads 0 in its
    place, and the outputs that follow it in the episode, and the state, become NaN afterwards. Of `degree` numbers that
    `run` multiplies with one another, those whose product overflows count as not finite. `given`: a state may be such.
    """
    if torch.compiler.is_exporting() or trusted():  # no file of a network has more operators than the network
        return run(x, state, reset)
    axes = 1 if x.dim() == 2 or (reset is not None and reset.dim() == 1) else 2
    if axes == 2:
        check_positions(x)
    if are_small(x, *state if given else ()):
        return separate(x, *trusting(run, x, state, reset))
    if are_finite(x, degree, state if given else ()):
        return separate(x, *run(x, state, reset))
    spoilt = _spread(taint(x, axes, degree), _tainted(state, degree) if given else None, reset)
    known = finite(x, degree), tuple(finite(part, min(degree, 2)) for part in state) if given else state, reset
    # on a CPU this is rare, and each part may look for itself; elsewhere every look takes time
    y, after = run(*known) if x.device.type == "cpu" else trusting(run, *known)
    last = spoilt[:, -1] if axes == 2 else spoilt
    return mark(y, spoilt), tuple(mark(part, last) if part.is_floating_point() else part for part in after)


def contained_window(
    run: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    lengths: Tensor | None,
    causal: bool,
    degree: int = 1,
) -> Tensor:
    """Run over a window x (B, T, ...), so that what is not finite reaches no output before it.

    Where outputs depend on later inputs it reaches all outputs, from a real position, and none, from padding.
    """
    check_positions(x)
    if are_small(x):
        return trusting(run, x, lengths)
    if not causal:
        return run(unpadded(x, lengths, degree), lengths)
    return contained(lambda x, state, reset: (run(x, lengths), ()), x, (), None, False, degree)[0]


def contained_at(
    run: Callable[[Tensor, Tensor | None, Tensor], Tensor],
    x: Tensor,
    lengths: Tensor | None,
    index: Tensor,
    causal: bool,
    degree: int = 1,
) -> Tensor:
    """Run over x (B, T, ...) for the output (B, D) at position `index` (B,) alone, as `contained_window`."""
    check_positions(x)
    if are_small(x):
        return trusting(run, x, lengths, index)
    if not causal:
        return run(unpadded(x, lengths, degree), lengths, index)
    if torch.compiler.is_exporting() or are_finite(x, degree):
        return run(x, lengths, index)
    spoilt = _spread(taint(x, 2, degree), None, None)
    return mark(run(finite(x, degree), lengths, index), spoilt.gather(1, index[:, None])[:, 0])


def contained_rows(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run over rows x (..., D), of which none knows of another; one that is not finite spoils no gradient of others."""
    if not torch.is_grad_enabled() or torch.compiler.is_exporting() or are_small(x) or are_finite(x):
        return run(x)
    return mark(run(finite(x)), taint(x, x.dim() - 1))


def are_small(*parts: Tensor) -> bool:
    """Tell whether no number is above SMALL or none at all, where that can be told at once; integers are small."""
    if trusted():
        return True
    found = [part.detach() for part in parts if part.is_floating_point() and part.numel()]
    if torch.compiler.is_compiling() or any(part.device.type != "cpu" for part in found):
        return False
    try:  # no number is above the root of the sum of squares, which is far faster to compute than the largest
        return all(float(torch.linalg.vector_norm(part)) <= SMALL for part in found)
    except RuntimeError:  # of vmap, and of tensors without numbers
        return False


def are_finite(x: Tensor, degree: int = 1, state: State = ()) -> bool:
    """Tell whether `finite` changes nothing, where that can be told at once: on a CPU, outside of a trace."""
    if trusted():
        return True
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return bool(sum([taint(part, 0, min(degree, 2)) for part in state], taint(x, 0, degree)) == 0)
    except RuntimeError:  # of vmap, and of tensors without numbers
        return False


def separate(x: Tensor, y: Tensor, state: State) -> tuple[Tensor, State]:
    """Copy an output that lies where the input or a part of the state does, so that each may be changed in place."""
    if trusted():  # what stands around does so for the whole
        return y, state
    known = (x, *state)
    if torch.compiler.is_compiling():
        shared = any(y is each for each in known)
    else:
        try:
            place = y.untyped_storage().data_ptr()
            shared = any(place == each.untyped_storage().data_ptr() for each in known)
        except RuntimeError:  # of tensors without numbers
            shared = True
    return (y.clone() if shared else y), state


def check_positions(x: Tensor) -> None:
    """Raise ValueError where x (B, T, ...) has no position."""
    if not x.shape[1]:
        raise ValueError(f"the input has shape {tuple(x.shape)}; a sequence has one position or more")


def _limit(x: Tensor, degree: int) -> float:
    """Give the largest number of which `degree` linear maps can be multiplied with one another."""
    return (torch.finfo(wide_dtype(x.dtype)).max / MARGIN) ** (1 / degree)


def finite(x: Tensor, degree: int = 1) -> Tensor:
    """Put 0 in place of what is not finite, or beyond the limit of its degree; gradients pass as they are."""
    if not x.is_floating_point():
        return x
    limit = min(_limit(x, degree), torch.finfo(x.dtype).max)  # a half cannot hold more
    if torch.compiler.is_compiling():  # the compiler reads no function with a rule of its own for tangents
        return torch.where(x.abs() <= limit, x, 0.0)
    found: Tensor = Finite.apply(x, limit)
    return found


def taint(x: Tensor, axes: int, degree: int = 1) -> Tensor:
    """Give NaN where x, (B, ...), or (B, T, ...) with 2 `axes`, holds what `finite` changes, else 0: (B,) or (B, T)."""
    if not x.is_floating_point():
        return torch.zeros(x.shape[:axes], device=x.device)
    (x,) = wide(x.detach())
    x = x * (torch.finfo(x.dtype).max / _limit(x, degree))
    return (x - x).flatten(axes).sum(-1) if x.dim() > axes else x - x


def unpadded(x: Tensor, lengths: Tensor | None, degree: int = 1) -> Tensor:
    """Put 0 in place of positions of x (B, T, ...) at or after `lengths` (B,) that hold what is not finite."""
    if lengths is None or not x.is_floating_point() or are_small(x) or are_finite(x, degree):
        return x
    padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    bad = padding & (taint(x, 2, degree) != 0)
    return x.masked_fill(bad.view(*bad.shape, *[1] * (x.dim() - 2)), 0)


def _tainted(state: State, degree: int) -> Tensor | None:
    found = [taint(part, 1, min(degree, 2)) for part in state if part.is_floating_point()]
    return sum(found[1:], found[0]) if found else None


def _spread(own: Tensor, before: Tensor | None, reset: Tensor | None) -> Tensor:
    """Give NaN from each NaN of `own`, (B, T) or (B,), or of the state before it to the end of the episode, else 0."""
    if own.dim() == 1:
        return own if before is None else own + (before if reset is None else before.masked_fill(reset, 0))
    time = torch.arange(1, own.shape[1] + 1, device=own.device)
    first = torch.zeros_like(time[:1]).sub(1) if before is None else torch.where(before == 0, -1, 0)[:, None]
    newest = (
        torch.where(own == 0, first, time).cummax(1).values
    )  # of all NaN so far; the state's is 0, -1 stands for none
    begun = 0 if reset is None else torch.where(reset, time, 0).cummax(1).values
    return own.new_zeros(()).masked_fill(newest >= begun, math.nan)


def mark(x: Tensor, spoilt: Tensor) -> Tensor:
    """Put NaN on x (B, ...) or (B, T, ...) where `spoilt`, (B,) or (B, T), is NaN: a sum is the fastest way."""
    return x + spoilt.to(x.dtype).reshape(*spoilt.shape, *[1] * (x.dim() - spoilt.dim()))


def contained_layers(
    run: Callable[[Tensor, list[Any] | None, Tensor | None], tuple[Tensor, list[Any]]],
    observation: Tensor,
    state: list[Any] | None,
    reset: Tensor | None,
    degree: int,
) -> tuple[Tensor, list[Any]]:
    """Run as `contained`; the state is a list of those of all layers."""
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
