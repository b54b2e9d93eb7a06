"""Heads and chunk-wise computation, shared by the memories whose state is a matrix.

Inside a chunk of C positions, C x C products take the place of a loop over time. Only the state goes from one chunk to
the next. Two tensors describe every memory's decay:

    weights[i, j]: the share of the write at position j that is left when position i reads; 0 for j > i
    state_weights[i]: the share of the state before the chunk that is left when position i reads

Their last rows, weights[-1, j] and state_weights[-1], are the shares left in the state after the chunk. A reset between
j and i makes weights[i, j] 0. A reset at or before i makes state_weights[i] 0.

B rows, H heads, T positions, C positions of a chunk, d features of a head.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dqn_memory.blocks.block import State

Part = Callable[..., tuple[Tensor, State]]


def head_width(width: int, heads: int) -> int:
    """Divide the width among the heads; ValueError if they do not divide it."""
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


def same_episode(size: int, reset: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Compare the episodes of positions j <= i, and of position i and the state before the chunk.

    Returns bool (B, 1, C, C) and (B, 1, C, 1). Without resets it returns (C, C), and None for all true.
    """
    past = torch.ones(size, size, dtype=torch.bool, device=device).tril()
    if reset is None:
        return past, None
    episode = reset.cumsum(1)[:, None]  # (B, 1, C)
    same = (episode[..., :, None] == episode[..., None, :]) & past
    return same, episode[..., None] == 0


def constant_weights(size: int, reset: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Compute `weights` and `state_weights` of a memory without decay; None stands for all 1."""
    same, first = same_episode(size, reset, like.device)
    return same.to(like.dtype), None if first is None else first.to(like.dtype)


def decay_weights(log_decay: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute `weights` (B, H, C, C) and `state_weights` (B, H, C, 1) from the logarithms (B, H, C) of the decays."""
    weights, state_weights = log_decay_weights(log_decay, reset)
    return weights.exp(), state_weights.exp()


def log_decay_weights(log_decay: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the logarithms of `decay_weights`, -inf where nothing is left.

    The decay of position j acts before its write. Each sum covers one chunk, so it stays small. It covers one episode
    only: across a reset, the gradient of a longer sum would cancel only up to rounding.
    """
    same, first = same_episode(log_decay.shape[-1], reset, log_decay.device)
    total = (log_decay[:, None] @ same.mT.to(log_decay.dtype))[:, 0, ..., None]  # (B, H, C, 1)
    weights = (total - total.mT).masked_fill(~same, -math.inf)
    return weights, total if first is None else total.masked_fill(~first, -math.inf)


def read_chunk(query: Tensor, scores: Tensor, value: Tensor, memory: Tensor, state_weights: Tensor | None) -> Tensor:
    """Read the values of a chunk by its scores (B, H, C, C), and the memory before it (B, H, d, d'): (B, H, C, d')."""
    return scores @ value + weighted(query @ memory, state_weights)


def write_chunk(key: Tensor, value: Tensor, memory: Tensor, weights: Tensor, state_weights: Tensor | None) -> Tensor:
    """Add a chunk's writes k v^T to the memory (B, H, d, d')."""
    left = None if state_weights is None else state_weights[..., -1:, :]
    return weighted(memory, left) + (key * weights[..., -1, :, None]).mT @ value


def weighted(x: Tensor, state_weights: Tensor | None) -> Tensor:
    """Multiply by `state_weights`; None stands for all 1."""
    return x if state_weights is None else x * state_weights


def read_one(query: Tensor, memory: Tensor) -> Tensor:
    """Read at one position: (B, H, d), (B, H, d, d') -> (B, H, d'). A sum is faster than so many small products."""
    return (query[..., None] * memory).sum(-2)


def write_one(key: Tensor, value: Tensor, memory: Tensor) -> Tensor:
    """Add k v^T to the memory: (B, H, d), (B, H, d'), (B, H, d, d')."""
    return torch.addcmul(memory, key[..., None], value[..., None, :])
