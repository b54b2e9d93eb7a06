"""What memories whose state is a matrix share: heads, and a sequence read and written chunk by chunk.

Inside a chunk of C positions, C x C products take the place of a loop over time; only the state goes from one chunk to
the next. Three numbers say how far a write reaches, whatever the memory's decay is:

    pair[i, j]: how much of the write at position j is left when position i reads; 0 for j > i
    enter[i]: how much of the state before the chunk is left when position i reads
    pair[-1, j], enter[-1]: the same for the state after the chunk

A reset between j and i makes pair[i, j] 0, and one at or before i makes enter[i] 0: both are masks.

B rows, H heads, T positions, C positions of a chunk, d features of a head.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dqn_memory.blocks.block import State, fresh

Part = Callable[..., tuple[Tensor, State]]


def head_width(width: int, heads: int) -> int:
    """Divide the width among the heads; ValueError where that cannot be."""
    if heads < 1 or width % heads:
        raise ValueError(f"heads is {heads}, which does not divide the width {width}")
    return width // heads


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Separate the heads, before time and contiguous: (B, T, n) -> (B, H, T, n / H)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous()


def join_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: (B, H, T, d) -> (B, T, H d)."""
    return x.transpose(1, 2).flatten(2)


def in_chunks(
    part: Part, size: int, inputs: Sequence[Tensor], state: State, reset: Tensor | None
) -> tuple[Tensor, State]:
    """Run `part` over chunks of `size` positions of the inputs (B, H, T, ...), from state to state.

    `part(*inputs of a chunk, state, reset of it (B, C) | None)` returns outputs (B, H, C, d) and the state after them.
    """
    pieces = list(zip(*(tensor.split(size, 2) for tensor in inputs), strict=True))
    resets: Sequence[Tensor | None] = [None] * len(pieces) if reset is None else reset.split(size, 1)
    outputs = []
    for piece, begins in zip(pieces, resets, strict=True):
        y, state = part(*piece, state, begins)
        outputs.append(y)
    return torch.cat(outputs, 2), state


def reach(size: int, reset: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Tell which writes j <= i are of the episode of position i, and where the state before the chunk is.

    Bool (B, 1, C, C) and (B, 1, C, 1); without resets (C, C), and None for: everywhere.
    """
    past = torch.ones(size, size, dtype=torch.bool, device=device).tril()
    if reset is None:
        return past, None
    episode = reset.cumsum(1)[:, None]  # (B, 1, C)
    same = (episode[..., :, None] == episode[..., None, :]) & past
    return same, episode[..., None] == 0


def lasting(size: int, reset: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Give `pair` and `enter` of a memory that does not decay; None: all 1."""
    same, first = reach(size, reset, like.device)
    return same.to(like.dtype), None if first is None else first.to(like.dtype)


def decaying(log_decay: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give `pair` (B, H, C, C) and `enter` (B, H, C, 1) for the logarithms (B, H, C) of each position's decay."""
    pair, enter = log_decaying(log_decay, reset)
    return pair.exp(), enter.exp()


def log_decaying(log_decay: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give the logarithms of `decaying`, -inf where nothing is left.

    Position j's own decay acts before it writes. Sums are of one chunk and of no later one, so they stay small, and of
    one episode, so that no gradient crosses a reset: through a sum of all it would cancel but for rounding.
    """
    same, first = reach(log_decay.shape[-1], reset, log_decay.device)
    total = (log_decay[:, None] @ same.mT.to(log_decay.dtype))[:, 0, ..., None]  # (B, H, C, 1)
    pair = (total - total.mT).masked_fill(~same, -math.inf)
    return pair, total if first is None else total.masked_fill(~first, -math.inf)


def read(query: Tensor, scores: Tensor, value: Tensor, memory: Tensor, enter: Tensor | None) -> Tensor:
    """Read the values of a chunk by its scores (B, H, C, C), and the memory before it (B, H, d, d'): (B, H, C, d')."""
    return scores @ value + kept(query @ memory, enter)


def write(key: Tensor, value: Tensor, memory: Tensor, pair: Tensor, enter: Tensor | None) -> Tensor:
    """Add a chunk's writes k v^T to the memory (B, H, d, d')."""
    return kept(memory, enter if enter is None else enter[..., -1:, :]) + (key * pair[..., -1, :, None]).mT @ value


def kept(x: Tensor, enter: Tensor | None) -> Tensor:
    """Multiply by `enter`, where it is not 1 everywhere."""
    return x if enter is None else x * enter


def read_one(query: Tensor, memory: Tensor) -> Tensor:
    """Read at one position: (B, H, d), (B, H, d, d') -> (B, H, d'). A sum is faster than so many small products."""
    return (query[..., None] * memory).sum(-2)


def write_one(key: Tensor, value: Tensor, memory: Tensor) -> Tensor:
    """Add k v^T to the memory: (B, H, d), (B, H, d'), (B, H, d, d')."""
    return torch.addcmul(memory, key[..., None], value[..., None, :])


def restart(memory: Tensor, reset: Tensor | None) -> Tensor:
    """Put rows of the memory (B, H, d, d') where `reset` (B,) is true back to zeros."""
    return fresh((memory,), reset)[0]
