"""The check of memories and priors that another package registers, on random sequences, when a network is built.

A block that reads the future, or whose output only broadcasts to the right shape, would train without an error, but
its Q-values in training would differ from those in acting. The project's own entries pass the same check in its tests.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dqn_memory.blocks.block import Block, State

LENGTHS = (1, 24, 48)  # lengths of the rows of a trial; the last one fills the window
TIME = LENGTHS[-1]
TOLERANCE = 1e-4  # relative to the largest output: in float32 the forms of a block round differently


class BrokenPromise(ValueError):
    """A block breaks a promise; the message is one sentence."""


def check_memory(name: str, builder: Callable[..., object], width: int = 8, projection: bool = False) -> None:
    """Check the blocks of a builder in evaluation mode, in float32, on the GPU if there is one.

    The state of the global generators does not change.

    Raises:
        BrokenPromise: a block breaks a promise of `Block`; the message says the first one.
        RuntimeError: the block's own code raised a ValueError, which is the cause.
    """
    what, wanted = f"memory {name!r}", "builder(width, dropout, projection) -> Block"
    try:
        inspect.signature(builder).bind(width, 0.0, projection)
    except TypeError as error:
        raise ValueError(f"{what} must be a {wanted}; calling it so gives: {error}") from None
    with _apart() as device:
        block = builder(width, 0.0, projection)
        if not isinstance(block, Block):
            raise ValueError(f"{what} builds a {type(block).__name__}; it must build a dqn_memory.blocks.Block")
        for parameter in block.parameters():
            if not parameter.any():  # zeros would hide the outputs that depend on them
                parameter.normal_(std=0.1)
        try:
            for sentence, found, expected in _promises(what, block.to(device).eval(), width, device):
                close = TOLERANCE * (1 + expected.abs().max())
                if found.shape != expected.shape or not ((found - expected).abs() <= close).all():
                    raise BrokenPromise(f"{what}: {sentence} (see dqn_memory.blocks.Block)")
        except BrokenPromise:
            raise
        except ValueError as error:  # raised by the block's own code: its author needs the traceback
            shape = (len(LENGTHS), TIME, width)
            raise RuntimeError(f"{what} fails on random sequences x {shape}: {error}") from error


def check_prior(kind: str, build: Callable[[], object], base: type[Any], heads: int, max_length: int) -> None:
    """Raise ValueError if an entry of PRIORS builds no `base` (Prior), or tables that attention cannot use."""
    with _apart():
        _check_tables(f"prior {kind!r}", build(), base, heads, max_length)


@contextmanager
def _apart() -> Iterator[torch.device]:
    """Disable gradients, restore the global generators afterwards, and use a device on which tensors have values.

    The size report builds its networks on `meta`, where they have none.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(), torch.no_grad(), device:
        torch.manual_seed(0)  # modules draw from the global generator; the verdict must not depend on its state
        yield device


def _check_tables(what: str, prior: Any, base: type[Any], heads: int, max_length: int) -> None:
    if not isinstance(prior, base):
        raise ValueError(f"{what} builds a {type(prior).__name__}; it must build a dqn_memory.blocks.Prior")
    for length in {max_length, max(1, max_length // 2)}:
        tables = prior.tables(length)
        if not (isinstance(tables, tuple) and len(tables) == 2):
            raise ValueError(f"{what}: tables(length) must return (scale, bias), not {type(tables).__name__}")
        for name, table in zip(("scale", "bias"), tables, strict=True):
            if table is not None:
                _check_table(f"{what}: the {name} of tables({length})", table, (heads, length))
        if prior.future_logit_zero and (tables[0] is None or tables[1] is not None):
            raise ValueError(f"{what} has future_logit_zero; it must give a scale and no bias")


def _check_table(what: str, table: Any, shape: tuple[int, int]) -> None:
    if not isinstance(table, Tensor) or tuple(table.shape) != shape or not table.is_floating_point():
        found = f"{table.dtype} {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(f"{what} must be None or floating-point numbers (heads, length) = {shape}, not {found}")
    if not table[:, 0].isfinite().all() or table.isnan().any() or (table == torch.inf).any():
        raise ValueError(f"{what} must be finite at distance 0, where the first query has its only key, and never +inf")


def _promises(what: str, block: Block, width: int, device: torch.device) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (error sentence, actual, expected) for every promise, on three sequences of unequal lengths."""
    generator, lengths = torch.Generator(device).manual_seed(0), torch.tensor(LENGTHS, device=device)
    x, other = torch.randn(2, len(LENGTHS), TIME, width, generator=generator, device=device)
    y = block(x)
    if not isinstance(y, Tensor) or y.shape != x.shape:
        found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise BrokenPromise(f"{what}: forward of x {tuple(x.shape)} must return that shape, not {found}")
    if not y.isfinite().all():
        raise BrokenPromise(f"{what}: an output of forward is not finite, but all inputs are")
    yield "forward gives other outputs for equal inputs in evaluation mode", block(x), y
    for b in range(len(LENGTHS)):
        yield "an output depends on other rows of the batch", y[b], block(x[b : b + 1])[0]
    for t in (1, 3, TIME // 2, TIME - 1) if block.causal else ():
        sentence = (
            "it says that it is causal, but outputs depend on later inputs; `causal` must be False where they may"
        )
        yield sentence, block(torch.cat((x[:, :t], other[:, t:]), 1))[:, :t], y[:, :t]
    padding = torch.arange(TIME, device=device) >= lengths[:, None]  # (B, T)
    padded = torch.where(padding[..., None], other, x)
    rows = block(padded, lengths)
    for b, length in enumerate(LENGTHS):
        yield "an output depends on padding", rows[b, :length], block(x[b : b + 1, :length])[0]
    last = torch.stack([rows[b, length - 1] for b, length in enumerate(LENGTHS)])
    yield "at() differs from forward", block.at(padded, lengths, lengths - 1), last
    yield "newest() differs from forward", block.newest(padded, lengths), last
    if block.pointwise:
        parts = torch.cat([block(x[:, t : t + 1]) for t in range(TIME)], 1)
        yield "it says that it is pointwise, but an output depends on other positions", parts, y
    if block.supports_prefixes:
        ends = torch.stack([block(x[:, : t + 1])[:, t] for t in range(TIME)], 1)
        yield "at_every_prefix differs from forward of each prefix", block.at_every_prefix(x), ends
    if block.stateful:
        yield from _promises_of_states(what, block, torch.cat((x, other, x, other), 1))


def _promises_of_states(what: str, block: Block, x: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the same for steps, and for sequences that go on from a state and have resets inside."""
    never = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    state = block.initial_state(len(x), x.device)
    if not _is_state(state, len(x)):
        raise BrokenPromise(f"{what}: initial_state must return a tuple of tensors with the batch as first axis")
    form = [(part.shape, part.dtype) for part in state]
    again, wanted = 3, block(x[:, :TIME])  # row 1 begins a new episode at this position
    wanted[1, again:] = block(x[1:2, again:TIME])[0]
    for t in range(TIME):
        reset = never[:, t].clone()
        reset[1] = t == again
        result = block.step(x[:, t], state, reset)
        if not (isinstance(result, tuple) and len(result) == 2 and _is_state(result[1], len(x))):
            raise BrokenPromise(f"{what}: a step must return the output and a tuple of tensors, the state after it")
        now, state = result
        if (new_form := [(part.shape, part.dtype) for part in state]) != form:
            raise BrokenPromise(f"{what}: a step changes the form of the state from {form} to {new_form}")
        yield "step differs from forward, or a reset row does not begin anew", now, wanted[:, t]
    yield from _clears(block, x, state)

    rest, resets = x[:, TIME:], never[:, TIME:].clone()  # (B, S, D), (B, S)
    resets[0, 0] = resets[1, again] = resets[1, TIME] = True
    outputs, steps = [], state
    for t in range(rest.shape[1]):
        now, steps = block.step(rest[:, t], steps, resets[:, t])
        outputs.append(now)
    y, after = block.sequence(rest, state, resets)
    yield "sequence from a state, with resets inside, differs from its steps", y, torch.stack(outputs, 1)
    sentence = "the state that sequence returns is not that of its steps"
    yield sentence, block.step(x[:, 0], after, never[:, 0])[0], block.step(x[:, 0], steps, never[:, 0])[0]


def _is_state(state: object, batch: int) -> bool:
    """Whether this is a tuple of tensors whose first axis is the batch."""
    return isinstance(state, tuple) and all(isinstance(each, Tensor) and each.shape[:1] == (batch,) for each in state)


def _clears(block: Block, x: Tensor, state: State) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the same for a reset after a state of NaN."""
    begins, first = torch.ones(len(x), dtype=torch.bool, device=x.device), block(x[:, :1])[:, 0]
    lost = tuple(part.new_full(part.shape, torch.nan) if part.is_floating_point() else part for part in state)
    sentence = "a reset does not clear NaN from the state of {}; a product with 0 does not either, masked_fill does"
    yield sentence.format("step"), block.step(x[:, 0], lost, begins)[0], first
    yield sentence.format("sequence"), block.sequence(x[:, :1], lost, begins[:, None])[0][:, 0], first
