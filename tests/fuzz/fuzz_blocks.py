"""Blocks that get random numbers, finite or not, of random dtypes, sizes, resets, chunks and lengths."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dqn_memory.blocks import MEMORY, PRIORS, LayerConfig, PriorConfig, build
from dqn_memory.blocks.block import Block, State
from dqn_memory.runs.errors import UserError

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
# 6e4, which a half can hold, overflows in linear maps of halves.
SPECIAL = (math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, 1e3, 0.0, -0.0, 1e-45)
WIDTH = 8


@dataclass(frozen=True)
class Given:
    """What a block gets."""

    name: str  # of a memory, or "layer", "window"
    dtype: torch.dtype
    rows: int
    time: int
    seed: int


def drawn(draw: random.Random) -> Given:
    """Choose a block, a dtype and sizes, 0 among them."""
    name, rows = draw.choice([*MEMORY, "layer", "window"]), draw.choice((0, 1, 2, 3))
    return Given(name, draw.choice(DTYPES), rows, draw.choice((0, 1, 2, 5, 9)), draw.getrandbits(32))


def made(given: Given, draw: random.Random) -> Block:
    """Make the block."""
    torch.manual_seed(given.seed)
    if given.name in MEMORY:
        return build(given.name, WIDTH).to(given.dtype)
    layer = {"heads": 2, "gate": draw.choice(("gru", "residual")), "order": draw.choice(("post", "identity"))}
    if given.name == "layer":
        memory = draw.choice(("gru", "lru", "mlstm", "mamba", "frame_stack", "none"))
        config = LayerConfig(memory=memory, attention=memory == "none", streamed=True, **layer)
    else:
        prior = PriorConfig(kind=draw.choice(list(PRIORS)), mu=1.6, span=2.3, local_window=2)
        config = LayerConfig(memory=draw.choice(("gru", "bigru", "feedforward_x2", "none")), prior=prior, **layer)
    return config.build(WIDTH, 12).to(given.dtype)


def inputs(given: Given, draw: random.Random) -> tuple[Tensor, Tensor]:
    """Draw numbers of which some are special, and resets."""
    x = torch.randn(given.rows, given.time, WIDTH).to(given.dtype)
    for _ in range(draw.choice((0, 1, 3)) if x.numel() else 0):
        at = tuple(draw.randrange(size) for size in x.shape)
        x[at] = draw.choice(
            [number for number in SPECIAL if abs(number) <= torch.finfo(x.dtype).max or number != number]
        )
    return x, torch.rand(given.rows, given.time) < 0.3


def given_to(given: Given) -> Callable[[], None]:
    """Give the numbers to the block, by all of its forms."""

    def case() -> None:
        draw = random.Random(given.seed)
        block = made(given, draw).eval()
        x, reset = inputs(given, draw)
        try:
            if block.stateful:
                carried(block, x, reset, draw)
            padded(block, x, draw)
        except ValueError as error:
            assert not given.time, error
            raise UserError(str(error)) from error

    return case


def carried(block: Block, x: Tensor, reset: Tensor, draw: random.Random) -> None:
    """Compare what follows the last reset of each row with the same from a fresh state, by values and gradients."""
    rows, time = x.shape[:2]
    state: State = block.initial_state(rows, dtype=x.dtype)
    if draw.random() < 0.5 and rows * time:
        state = tuple(part + math.nan if part.is_floating_point() else part for part in state)
        reset[:, 0] |= draw.random() < 0.5
    x = x.requires_grad_()
    form = draw.choice(("sequence", "chunks", "steps"))
    ends = sorted(draw.sample(range(1, time), min(2, time - 1))) if form == "chunks" and time > 1 else []
    y, after = run(block, x, state, reset, range(1, time) if form == "steps" else ends, form == "steps")
    assert y.shape == x.shape and y.dtype == x.dtype, (y.shape, y.dtype)
    for row in range(rows):
        starts = reset[row].nonzero()[:, 0].tolist()
        if not starts or not x[row, starts[-1] :].isfinite().all() or x[row, starts[-1] :].abs().max() > 100:
            continue
        begin = starts[-1]
        fresh = block.sequence(x[row : row + 1, begin:])[0]
        close(y[row : row + 1, begin:], fresh, f"{form} after a reset at {begin}")
        wanted = [x, *block.parameters()]
        found, expected = (torch.autograd.grad(each.float().sum(), wanted, materialize_grads=True, retain_graph=True)
                           for each in (y[row, begin:], fresh))  # fmt: skip
        assert (found[0][row, :begin] == 0).all(), "a gradient crosses a reset"
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs, f"gradient of {form}")
    kept = [part.clone() for part in after]
    with torch.no_grad():
        y.add_(1)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(after, kept, strict=True)), "shared memory"


def run(block: Block, x: Tensor, state: State, reset: Tensor, ends: Any, single: bool) -> tuple[Tensor, State]:
    """Run over chunks that end at `ends`, or over steps."""
    parts = []
    for begin, end in zip((0, *ends), (*ends, x.shape[1]), strict=True):
        if single and x.shape[1]:
            y, state = block.step(x[:, begin], state, reset[:, begin])
            parts.append(y[:, None])
        else:
            y, state = block.sequence(x[:, begin:end], state, reset[:, begin:end])
            parts.append(y)
    return torch.cat(parts, 1), state


def padded(block: Block, x: Tensor, draw: random.Random) -> None:
    """Compare real positions, and their gradients, with those of the same rows before finite padding."""
    rows, time = x.shape[:2]
    lengths = torch.tensor([draw.randint(1, max(1, time)) for _ in range(rows)], dtype=torch.int64)
    padding = (torch.arange(time) >= lengths[:, None])[..., None]
    real = torch.where(padding, 0, x.detach().float().nan_to_num(0, 0, 0).clamp(-10, 10)).to(x.dtype)
    found = []
    for numbers in (real, torch.where(padding, draw.choice((math.nan, math.inf)), real).to(x.dtype)):
        numbers = numbers.detach().requires_grad_()
        y = block(numbers, lengths).masked_fill(padding, 0)
        wanted = [numbers, *block.parameters()]
        found.append([y, *torch.autograd.grad(y.float().sum(), wanted, materialize_grads=True)])
    for ours, theirs in zip(*found, strict=True):
        close(theirs, ours, "padding")


def close(ours: Tensor, known: Tensor, what: str) -> None:
    """Raise AssertionError where numbers differ by more than their precision."""
    tolerance = {torch.float64: 1e-8, torch.float32: 1e-3}.get(ours.dtype, 0.1)
    if known.numel():
        off = (ours.double() - known.double()).detach().abs().max()
        assert off <= tolerance * max(1.0, float(known.detach().double().abs().max())), f"{what}: off by {float(off)}"


class BlockTarget:
    """As the targets of `fuzz_targets`, but of no file."""

    def case(self, seed: int, folder: Path) -> Callable[[], None]:
        """Make the case of a seed."""
        return given_to(drawn(random.Random(seed)))


BLOCK_TARGETS = {"block inputs": BlockTarget()}
