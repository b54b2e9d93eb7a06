"""What a memory or prior that another package registers must keep, tried on random sequences where a network takes it.

A block that reads the future, or whose output is only broadcast to the right shape, trains as if nothing were wrong:
in training its Q-values are others than when it acts. The project's own entries are held to the same by its tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dqn_memory.blocks.block import Block, lookup
from dqn_memory.blocks.memory import MEMORY, Builder

SHIPPED = dict(MEMORY)  # before any plugin
LENGTHS = (1, 4, 6)  # of the rows of a trial; the last is a whole window
TOLERANCE = 1e-4  # of the largest output: in float32 two ways to compute a block round differently


def build_memory(name: str, width: int, dropout: float, projection: bool) -> Block:
    """Build the memory block called `name`; ValueError says what is wrong with the name or with a plugin's block."""
    builder = lookup(MEMORY, name, "memory")
    if SHIPPED.get(name) is not builder:
        check_memory(name, builder, width, projection)
    return builder(width, dropout, projection)


def check_memory(name: str, builder: Builder, width: int = 8, projection: bool = False) -> None:
    """ValueError with the first promise of `Block` that the blocks of a builder do not keep.

    Tried in evaluation mode, in float32, on the GPU where there is one; the global generators stay as they were.
    """
    what = f"memory {name!r}"
    _check_call(what, builder, (width, 0.0, projection), "builder(width, dropout, projection) -> Block")
    with _apart():
        block = builder(width, 0.0, projection)
        if not isinstance(block, Block):
            raise ValueError(f"{what} builds a {type(block).__name__}; it must build a dqn_memory.blocks.Block")
        _Trial(what, _disturbed(block), width).run()


def check_prior(kind: str, build: Callable[[], object], base: type[Any], heads: int, max_length: int) -> None:
    """Raise ValueError where an entry of PRIORS builds no `base` (Prior), or tables that attention cannot use."""
    with _apart():
        _check_tables(f"prior {kind!r}", build(), base, heads, max_length)


@contextmanager
def _apart() -> Iterator[None]:
    """Without gradients, with the global generators put back, and on a device that computes.

    A report on sizes builds its networks on `meta`, where nothing has a value.
    """
    with torch.random.fork_rng(), torch.no_grad(), torch.device(_device()):
        torch.manual_seed(0)  # modules draw from the global generator; the verdict must not depend on where it stands
        yield


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


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


def _check_call(what: str, build: Callable[..., object], arguments: tuple[object, ...], wanted: str) -> None:
    try:
        inspect.signature(build).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{what} must be a {wanted}; calling it so gives: {error}") from None


def _disturbed(block: Block) -> Block:
    """In evaluation mode; parameters that are all zero are drawn, as they would hide what depends on them."""
    for parameter in block.parameters():
        if not parameter.any():
            parameter.normal_(std=0.1)
    return block.to(_device()).eval()


class _Trial:
    """One block, three sequences of unequal lengths and, for each promise, two ways that must agree."""

    def __init__(self, what: str, block: Block, width: int) -> None:
        self.what, self.block = what, block
        device = torch.device(_device())
        generator = torch.Generator(device).manual_seed(0)
        self.x, self.other = torch.randn(2, len(LENGTHS), LENGTHS[-1], width, generator=generator, device=device)
        self.lengths = torch.tensor(LENGTHS, device=device)

    def run(self) -> None:
        """All that holds for every block, then what this one says of itself."""
        y = self.block(self.x)
        if not isinstance(y, Tensor) or y.shape != self.x.shape:
            found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(f"{self.what}: forward of x {tuple(self.x.shape)} must return that shape, not {found}")
        self._check_rows()
        if self.block.causal:
            self._check_causal(y)
        if self.block.pointwise:
            parts = [self.block(self.x[:, t : t + 1]) for t in range(LENGTHS[-1])]
            self._same(torch.cat(parts, 1), y, "it says that it is pointwise, but an output depends on other positions")
        if self.block.supports_prefixes:
            ends = [self.block(self.x[:, : t + 1])[:, t] for t in range(LENGTHS[-1])]
            self._same(
                self.block.at_every_prefix(self.x),
                torch.stack(ends, 1),
                "at_every_prefix differs from forward of each prefix",
            )
        if self.block.stateful:
            self._check_steps()

    def _check_rows(self) -> None:
        padding = torch.arange(LENGTHS[-1], device=self.x.device) >= self.lengths[:, None]  # (B, T)
        padded = torch.where(padding[..., None], self.other, self.x)
        y = self.block(padded, self.lengths)
        for b, length in enumerate(LENGTHS):
            alone = self.block(self.x[b : b + 1, :length])[0]
            self._same(y[b, :length], alone, "an output depends on padding or on other rows of the batch")
        last = torch.stack([y[b, length - 1] for b, length in enumerate(LENGTHS)])
        self._same(self.block.at(padded, self.lengths, self.lengths - 1), last, "at() differs from forward")

    def _check_causal(self, y: Tensor) -> None:
        for t in range(1, LENGTHS[-1]):
            replaced = torch.cat((self.x[:, :t], self.other[:, t:]), 1)
            sentence = (
                "it says that it is causal, but outputs depend on later inputs; `causal` must be False where they may"
            )
            self._same(self.block(replaced)[:, :t], y[:, :t], sentence)

    def _check_steps(self) -> None:
        state = self.block.initial_state(len(LENGTHS), self.x.device)
        again, wanted = 3, self.block(self.x)  # one row begins anew there
        wanted[1, again:] = self.block(self.x[1:2, again:])[0]
        for t in range(LENGTHS[-1]):
            reset = torch.tensor([False, t == again, False], device=self.x.device)
            y, state = self.block.step(self.x[:, t], state, reset)
            self._same(y, wanted[:, t], "step differs from forward, or a reset row does not begin anew")

    def _same(self, found: Tensor, wanted: Tensor, sentence: str) -> None:
        close = TOLERANCE * (1 + wanted.abs().max())
        if found.shape != wanted.shape or not bool(((found - wanted).abs() <= close).all()):
            raise ValueError(f"{self.what}: {sentence} (see dqn_memory.blocks.Block)")
