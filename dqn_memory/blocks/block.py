"""The contract of every sequence block, and the one way to look a name up in a registry."""

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dqn_memory.blocks.finite import cast, check_positions, contained, unchecked, unshared
from dqn_memory.blocks.finite import wide as wide
from dqn_memory.blocks.finite import wide_dtype as wide_dtype

State = tuple[Tensor, ...]
Device = torch.device | str | None
Entry = TypeVar("Entry")
OURS = __name__.partition(".")[0]
METHODS = {"forward", "at", "newest", "at_every_prefix", "sequence", "step", "run", "advance"}


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
    # How many linear maps of the input are multiplied with one another: their product may overflow where x does not.
    degree: int = 1
    # True: the block sets its own initial values, and a network does not draw them again.
    initialises_itself: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.partition(".")[0] != OURS:
            for name, method in list(vars(cls).items()):
                if name in METHODS and inspect.isfunction(method):
                    setattr(cls, name, unchecked(method))

    @abstractmethod
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode x (B, T, D) whose first `lengths` (B,) positions are real; returns (B, T, D)."""

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Compute the output at position `index` (B,) alone, (B, D): equal to `forward`, and cheaper in some blocks."""
        return select(self(x, lengths), index)

    def newest(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the output at the last real position alone, (B, D): `at`, or less if no later one can be read."""
        return self.at(x, lengths, last(x, lengths))

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

        Returns the outputs (B, T, D) and the state after them. A position begins an episode where `reset` (B, T) is
        true. Earlier positions then reach no later output, state or gradient, even if they hold NaN or infinity. Within
        an episode, outputs that depend on a number that is not finite are not finite either. No output shares memory
        with the input or with a state. This base form calls `step` at every position.
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

    `run` and `advance` may assume finite numbers. `sequence` replaces other numbers by zeros and sets the later outputs
    of their episode to NaN (see `contained`); `step` does the same if gradients are recorded.
    """

    stateful = True
    features: int | None = None  # D, set by `build`
    # True: the state is the recent inputs, and `run` itself spoils only the outputs that read a bad number.
    contains: bool = False
    time_first = False  # whether `run` is fastest if x (B, T, D) lies in memory as (T, B, D)
    _form: list[torch.Size] | None = None  # shapes of a state's parts, without the batch

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.run is Memory.run and cls.advance is Memory.advance:
            raise TypeError(f"{cls.__name__} has neither run nor advance; a memory needs one of them")
        if cls.initial_state is Block.initial_state:
            raise TypeError(f"{cls.__name__} has no initial_state; a memory needs one")

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Compute `sequence`; the shapes of its arguments are checked."""
        return step_by_step(self.advance, x, state, reset)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Compute `step`; the shapes of its arguments are checked."""
        y, after = self.run(x[:, None], state, None if reset is None else reset[:, None])
        return y[:, 0], after

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run over x (B, T, D); padding comes last, so no real position can see it."""
        if not torch.compiler.is_exporting() or type(self).advance is Memory.advance:
            return self.sequence(x)[0]
        # `run` may use operators of ours, which no exported file can contain; `advance` does not
        return step_by_step(self.advance, x, self.initial_state(x.shape[0], x.device, x.dtype), None)[0]

    def sequence(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """As `Block`; ValueError if the state or the resets have other shapes."""
        known = self.initial_state(x.shape[0], x.device, x.dtype) if state is None else state
        self._check(x, known, reset, 2)
        if self.contains:
            return unshared(x, *self.run(x, known, reset))
        return contained(self.run, x, known, reset, state is not None, self.degree)

    def step(self, x: Tensor, state: State | None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """As `Block`; ValueError if the state or the resets have other shapes."""
        known = self.initial_state(x.shape[0], x.device, x.dtype) if state is None else state
        self._check(x, known, reset, 1)
        if self.contains or not torch.is_grad_enabled():  # rows are independent, and there is no gradient to spoil
            return unshared(x, *self.advance(x, known, reset))
        return contained(self.advance, x, known, reset, state is not None, self.degree)

    def _check(self, x: Tensor, state: State, reset: Tensor | None, axes: int) -> None:
        shape = x.shape
        if len(shape) != axes + 1 or self.features not in (None, shape[-1]):
            form = f"({'B, T' if axes == 2 else 'B'}, {self.features or 'D'})"
            raise ValueError(f"{type(self).__name__}: the input has shape {tuple(shape)}; it must be {form}")
        if axes == 2:
            check_positions(x)
        if reset is not None and (reset.shape != shape[:axes] or reset.dtype != torch.bool):
            given = f"{reset.dtype} {tuple(reset.shape)}"
            raise ValueError(f"{type(self).__name__}: reset is {given}; it must be bool {tuple(shape[:axes])}")
        if self._form is None:
            self._form = [part.shape[1:] for part in self.initial_state(1, "meta")]
        rows = shape[0]
        if [part.shape for part in state] != [(rows, *part) for part in self._form]:
            shapes, expected = [tuple(part.shape) for part in state], [(rows, *part) for part in self._form]
            raise ValueError(
                f"{type(self).__name__}: the state has shapes {shapes}; for {rows} rows they must be {expected}"
            )


def by_position(run: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """Apply a function of single positions to parts (B, T, ...) in the order in which memory holds their positions.

    A linear map copies an input whose positions do not follow one another. Recurrences give outputs (B, T, D) that lie
    in memory as (T, B, D).
    """
    first = parts[0]
    if first.dim() < 3 or first.is_contiguous() or not first.transpose(0, 1).is_contiguous():
        return run(*parts)
    return run(*(part.transpose(0, 1) for part in parts)).transpose(0, 1)


def step_by_step(
    step: Callable[[Tensor, State, Tensor | None], tuple[Tensor, State]], x: Tensor, state: State, reset: Tensor | None
) -> tuple[Tensor, State]:
    """Encode x (B, T, D) position by position; returns the outputs (B, T, D) and the state after them."""
    outputs, resets = [], [None] * x.shape[1] if reset is None else reset.unbind(1)
    for position, begins in zip(x.unbind(1), resets, strict=True):
        y, state = step(position, state, begins)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def fresh(state: State, reset: Tensor | None) -> State:
    """Set the rows of a state to zero where `reset` (B,) is true."""
    if reset is None:
        return state
    return tuple(part.masked_fill(reset.view(-1, *[1] * (part.dim() - 1)), 0) for part in state)


def carried(state: State, x: Tensor) -> State:
    """Convert a state to the dtype in which sums over inputs x are computed."""
    dtype = wide_dtype(x.dtype)
    return tuple(cast(part, dtype) for part in state)


class Tail(nn.Module):
    """An optional projection after a memory (DBGFQN Eq. 20; its Algorithm 1 has none), then dropout."""

    def __init__(self, width: int, projection: bool, dropout: float) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width) if projection else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (..., D) to (..., D)."""
        return self.dropout(self.projection(hidden))


def constrained(module: nn.Module) -> Iterator[Any]:
    """Iterate over the outermost blocks and priors inside a module."""
    for part in module.children():
        yield from [part] if hasattr(type(part), "regularisation") else constrained(part)


def penalty(module: nn.Module) -> Tensor:
    """Sum the regularisation of the blocks and priors inside a module, a scalar."""
    first = next(module.parameters(), None)
    zero = torch.zeros(()) if first is None else first.new_zeros(())
    return sum((part.regularisation() for part in constrained(module)), zero)


def select(x: Tensor, index: Tensor) -> Tensor:
    """Select one position a row: x (B, T, D), index (B,) -> (B, D)."""
    return x[torch.arange(x.shape[0], device=x.device), index]


def last(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Give the last real position of each row of x (B, T, ...): (B,)."""
    return x.new_full(x.shape[:1], x.shape[1] - 1, dtype=torch.int64) if lengths is None else lengths - 1


def lookup(registry: Mapping[str, Entry], name: str, what: str) -> Entry:
    """Look up the entry called `name`; raise ValueError naming the nearest entries when there is none."""
    if name in registry:
        return registry[name]
    near = difflib.get_close_matches(name, registry, n=3) or sorted(registry)
    raise ValueError(f"unknown {what} {name!r}; did you mean {', '.join(near)}?")


def refuse_replaced(registry: Mapping[str, Any], shipped: Mapping[str, Any], name: str, what: str) -> None:
    """Raise ValueError if a plugin has put an entry of its own under a name of the suite."""
    if name in shipped and registry[name] is not shipped[name]:
        raise ValueError(f"the plugin's {what} {name!r} has the name of one of the suite's; give it another name")
