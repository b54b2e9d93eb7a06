"""The contract of every sequence block, and the one way to look a name up in a registry."""

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
Device = torch.device | str | None
Entry = TypeVar("Entry")


class Block(nn.Module, ABC):
    """Maps a batch of sequences to sequences of the same shape.

    `forward(x[B, T, D], lengths[B] | None) -> y[B, T, D]`. Sequences are left-aligned: positions at or after
    `lengths` are padding and never change an output before it; `lengths=None` means that all T are real.
    A block with `stateful = True` (best a `Memory`) also goes on from a state, by sequences or one position at a time;
    any other block acts by encoding the window again.
    """

    stateful: bool = False
    # True: the output at t never depends on an input after t.
    causal: bool = True
    # True: the output at t depends on the input at t alone.
    pointwise: bool = False
    # True: its first values are part of what it is, and no network draws them anew.
    initialises_itself: bool = False

    @abstractmethod
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D) whose first `lengths` (B,) positions are real; returns (B, T, D)."""

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Compute the output at position `index` (B,) alone, (B, D): equal to `forward`, and cheaper in some blocks."""
        return select(self(x, lengths), index)

    @property
    def supports_prefixes(self) -> bool:
        """True when `at_every_prefix` can be computed."""
        return self.causal

    def at_every_prefix(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode every position as the last of the sequence that ends there: forward(x[:, : t + 1]) at t, (B, T, D)."""
        if not self.causal:
            raise TypeError(f"{type(self).__name__} reads ahead; encode each sequence by itself instead")
        return self(x, lengths)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make the state before the first position: a tuple of tensors, batch first."""
        raise TypeError(f"{type(self).__name__} keeps no state; encode the whole window with forward instead")

    def sequence(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Encode x (B, T, D), all of it real, that follows `state` (None: the initial one).

        Returns the outputs (B, T, D) and the state after them. Where `reset` (B, T) is true a position begins an
        episode: nothing before it reaches an output, a state or a gradient from there on, whatever numbers it holds,
        NaN and infinity among them. Inside an episode a number that is not finite shows: outputs that depend on it are
        not finite either. No output shares memory with the input or with a state. Here: step by step.
        """
        if not self.stateful:
            raise TypeError(f"{type(self).__name__} keeps no state; encode the whole window with forward instead")
        before = self.initial_state(len(x), x.device, x.dtype) if state is None else state
        begins = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device) if reset is None else reset
        return step_by_step(self.step, x, before, begins)

    def step(self, x: Tensor, state: State | None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Encode one position x (B, D) that follows `state` (None: the initial one).

        Rows where `reset` (B,) is true start from the initial state, as in `sequence`.
        """
        raise TypeError(f"{type(self).__name__} keeps no state; encode the whole window with forward instead")

    def regularisation(self) -> Tensor:
        """Compute the scalar to be added to the loss: the sum over the parts that have one, else 0."""
        return penalty(self)

    @torch.no_grad()
    def project(self) -> None:
        """Bring constrained parameters back into their set, in place, after an optimiser step."""
        for part in constrained(self):
            part.project()


class Memory(Block):
    """A causal block with a state. A subclass gives `initial_state`, and `run`, `advance` or both.

    All forms compute the same: forward = sequence from the initial state = steps = chunks of any lengths.

    `run` and `advance` need not care for numbers that are not finite: `sequence`, and `step` where gradients are
    recorded, hand them zeros instead and put NaN on what follows in the same episode (`contained`).
    """

    stateful = True
    features: int | None = None  # D, where `build` made it
    # How many linear maps of the input are multiplied with one another: their product may overflow where x does not.
    degree: int = 1
    # True: the state is recent inputs, and `run` keeps what is not finite to the outputs that read it.
    contains: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.run is Memory.run and cls.advance is Memory.advance:
            raise TypeError(f"{cls.__name__} has neither run nor advance; a memory needs one of them")
        if cls.initial_state is Block.initial_state:
            raise TypeError(f"{cls.__name__} has no initial_state; a memory needs one")

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Compute `sequence`, whose arguments are known to fit."""
        return step_by_step(self.advance, x, state, reset)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Compute `step`, whose arguments are known to fit."""
        y, after = self.run(x[:, None], state, None if reset is None else reset[:, None])
        return y[:, 0], after

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run over x (B, T, D); padding comes last, so no real position can see it."""
        if not torch.compiler.is_exporting() or type(self).advance is Memory.advance:
            return self.sequence(x)[0]
        # beside an `advance`, `run` may have operators of ours, which no file can hold
        return step_by_step(self.advance, x, self.initial_state(x.shape[0], x.device, x.dtype), None)[0]

    def sequence(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """As `Block`; ValueError where the state or the resets are of other shapes."""
        known = self.initial_state(x.shape[0], x.device, x.dtype) if state is None else state
        self._check(x, known, reset, 2)
        if self.contains:
            return separate(x, *self.run(x, known, reset))
        return contained(self.run, x, known, reset, state is not None, self.degree)

    def step(self, x: Tensor, state: State | None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """As `Block`; ValueError where the state or the resets are of other shapes."""
        known = self.initial_state(x.shape[0], x.device, x.dtype) if state is None else state
        self._check(x, known, reset, 1)
        if self.contains or not torch.is_grad_enabled():  # rows do not meet, and no gradient is there to spoil
            return separate(x, *self.advance(x, known, reset))
        return contained(self.advance, x, known, reset, state is not None, self.degree)

    def _check(self, x: Tensor, state: State, reset: Tensor | None, axes: int) -> None:
        name, shape = type(self).__name__, x.shape[:axes]
        if x.dim() != axes + 1 or self.features not in (None, x.shape[-1]):
            form = f"({'B, T' if axes == 2 else 'B'}, {self.features or 'D'})"
            raise ValueError(f"{name}: the input has shape {tuple(x.shape)}; it must be {form}")
        if axes == 2 and not shape[1]:
            raise ValueError(f"{name}: the input has shape {tuple(x.shape)}; a sequence has one position or more")
        if reset is not None and (reset.shape != shape or reset.dtype != torch.bool):
            raise ValueError(f"{name}: reset is {reset.dtype} {tuple(reset.shape)}; it must be bool {tuple(shape)}")
        wanted = self._shapes(shape[0])
        found = [tuple(part.shape) for part in state]
        if found != wanted:
            raise ValueError(f"{name}: the state has shapes {found}; for {shape[0]} rows they must be {wanted}")

    def _shapes(self, batch: int) -> list[tuple[int, ...]]:
        if not hasattr(self, "_form"):
            self._form = [tuple(part.shape[1:]) for part in self.initial_state(1, "meta")]
        return [(batch, *part) for part in self._form]


class Finite(torch.autograd.Function):
    """Put 0 in place of NaN, infinity and what exceeds a limit; a gradient passes as it is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, limit: float) -> Tensor:
        """Map any shape to the same shape."""
        clean = x.nan_to_num(0.0, 0.0, 0.0)
        return clean if limit == math.inf else clean.masked_fill_(clean.abs() > limit, 0)

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
    if torch.compiler.is_exporting():  # no file of a network has more operators than the network
        return run(x, state, reset)
    axes = 1 if x.dim() == 2 or (reset is not None and reset.dim() == 1) else 2
    spoilt = _spread(taint(x, axes, degree), _tainted(state) if given else None, reset)
    before = tuple(finite(part) if part.is_floating_point() else part for part in state) if given else state
    y, after = run(finite(x, degree), before, reset)
    last = spoilt[:, -1] if axes == 2 else spoilt
    return mark(y, spoilt), tuple(mark(part, last) if part.is_floating_point() else part for part in after)


MARGIN = 2.0**6  # for the sums of a linear map


def _limit(x: Tensor, degree: int) -> float:
    """Give the largest number of which `degree` linear maps can be multiplied with one another."""
    return math.inf if degree == 1 else torch.finfo(wide_dtype(x.dtype)).max ** (1 / degree) / MARGIN


def finite(x: Tensor, degree: int = 1) -> Tensor:
    """Put 0 in place of what is not finite, or beyond the limit of its degree; gradients pass as they are."""
    found: Tensor = Finite.apply(x, _limit(x, degree))
    return found


def taint(x: Tensor, axes: int, degree: int = 1) -> Tensor:
    """Give NaN where x, (B, ...) or with two `axes` (B, T, ...), holds what `finite` changes, else 0: (B,) or (B, T)."""
    (x,) = wide(x.detach())
    if degree > 1:
        x = x * (torch.finfo(x.dtype).max / _limit(x, degree))
    return (x - x).flatten(axes).sum(-1) if x.dim() > axes else x - x


def unpadded(x: Tensor, lengths: Tensor | None, degree: int = 1) -> Tensor:
    """Put 0 in place of positions of x (B, T, ...) at or after `lengths` (B,) that hold what is not finite."""
    if lengths is None or not x.is_floating_point():
        return x
    padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    bad = padding & (taint(x, 2, degree) != 0)
    return x.masked_fill(bad.view(*bad.shape, *[1] * (x.dim() - 2)), 0)


def _tainted(state: State) -> Tensor | None:
    found = [taint(part, 1) for part in state if part.is_floating_point()]
    return sum(found[1:], found[0]) if found else None


def _spread(own: Tensor, before: Tensor | None, reset: Tensor | None) -> Tensor:
    """Give NaN from each NaN of `own`, (B, T) or (B,), or of the state before it to the end of the episode, else 0."""
    if own.dim() == 1:
        return own if before is None else own + (before if reset is None else before.masked_fill(reset, 0))
    time = torch.arange(1, own.shape[1] + 1, device=own.device)
    first = torch.zeros_like(time[:1]).sub(1) if before is None else torch.where(before == 0, -1, 0)[:, None]
    newest = torch.where(own == 0, first, time).cummax(1).values  # of all NaN so far; the state's is 0, -1 stands for none
    begun = 0 if reset is None else torch.where(reset, time, 0).cummax(1).values
    return own.new_zeros(()).masked_fill(newest >= begun, math.nan)


def mark(x: Tensor, spoilt: Tensor) -> Tensor:
    """Put NaN on x (B, ...) or (B, T, ...) where `spoilt`, (B,) or (B, T), is NaN: a sum is the fastest way."""
    return x + spoilt.to(x.dtype).reshape(*spoilt.shape, *[1] * (x.dim() - spoilt.dim()))


def separate(x: Tensor, y: Tensor, state: State) -> tuple[Tensor, State]:
    """Copy an output that is the input or a part of the state, so that either may be changed in place."""
    return (y.clone() if y is x or any(y is part for part in state) else y), state


def step_by_step(
    step: Callable[[Tensor, State, Tensor | None], tuple[Tensor, State]], x: Tensor, state: State, reset: Tensor | None
) -> tuple[Tensor, State]:
    """Encode x (B, T, D) one position after the other: the outputs (B, T, D) and the state after them."""
    outputs, resets = [], [None] * x.shape[1] if reset is None else reset.unbind(1)
    for position, begins in zip(x.unbind(1), resets, strict=True):
        y, state = step(position, state, begins)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def fresh(state: State, reset: Tensor | None) -> State:
    """Put rows where `reset` (B,) is true back to zeros."""
    if reset is None:
        return state
    return tuple(zeroed(part, reset.view(-1, *[1] * (part.dim() - 1))) for part in state)


def zeroed(x: Tensor, where: Tensor) -> Tensor:
    """Put 0 where a mask that broadcasts is true, in place of NaN too."""
    large = x.dim() > 2 and x.dtype == torch.float32 and x.device.type == "cpu"
    if not large or torch.is_grad_enabled() or torch.compiler.is_exporting():
        return x.masked_fill(where, 0)
    kept = torch.where(where, 0, -1).int()  # four times as fast
    return (x.view(torch.int32) & kept).view(torch.float32)


def wide_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Give the dtype of a state that is carried over a sequence, and of sums over one: float32 at least."""
    return torch.promote_types(dtype or torch.float32, torch.float32)


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to their `wide_dtype`."""
    return tuple(tensor.to(wide_dtype(tensor.dtype)) for tensor in tensors)


class Tail(nn.Module):
    """What may follow a memory: a projection (DBGFQN Eq. 20; its Algorithm 1 has none), dropout."""

    def __init__(self, width: int, projection: bool, dropout: float) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width) if projection else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (..., D) to (..., D)."""
        return self.dropout(self.projection(hidden))


def constrained(module: nn.Module) -> Iterator[Any]:
    """Find the outermost blocks and priors inside a module, which say what is penalised or constrained in them."""
    for part in module.children():
        yield from [part] if hasattr(type(part), "regularisation") else constrained(part)


def penalty(module: nn.Module) -> Tensor:
    """Sum what the blocks and priors inside a module add to the loss, a scalar."""
    first = next(module.parameters(), None)
    zero = torch.zeros(()) if first is None else first.new_zeros(())
    return sum((part.regularisation() for part in constrained(module)), zero)


def select(x: Tensor, index: Tensor) -> Tensor:
    """Select one position a row: x (B, T, D), index (B,) -> (B, D)."""
    return x[torch.arange(x.shape[0], device=x.device), index]


def lookup(registry: Mapping[str, Entry], name: str, what: str) -> Entry:
    """Look up the entry called `name`; raise ValueError naming the nearest entries when there is none."""
    if name in registry:
        return registry[name]
    near = difflib.get_close_matches(name, registry, n=3) or sorted(registry)
    raise ValueError(f"unknown {what} {name!r}; did you mean {', '.join(near)}?")
