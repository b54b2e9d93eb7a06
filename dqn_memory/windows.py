"""The windows that the decisions of an episode were made from, as acting feeds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dqn_memory.acting import ActingMode, ActingState
from dqn_memory.network import QNetwork

TOKENS = 2**15  # observations that go through a network at once


@dataclass(frozen=True)
class Windows:
    """B left-aligned windows of at most S steps; behind the real ones stands padding."""

    observation: Tensor  # (B, S, ...)
    previous_action: Tensor  # (B, S), A where there is none
    lengths: Tensor  # (B,) real steps
    place: Tensor  # (B,) the one of them whose Q is asked for; the last one where a decision is made

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, rows: slice) -> Windows:
        """Some of the windows."""
        return Windows(self.observation[rows], self.previous_action[rows], self.lengths[rows], self.place[rows])


def reach(network: QNetwork, length: int, state: ActingState) -> int:
    """How many observations acting remembers in an episode of that length: K, or all where a state is carried."""
    return length if state == "episode" else min(network.config.context, length)


def windows(
    network: QNetwork, observation: Tensor, previous_action: Tensor, ends: Tensor, size: int, acting: ActingMode
) -> Windows:
    """The last `size` steps up to each of the steps `ends` (B,) of one episode (T, ...), (T,).

    `padded` acting feeds K steps, whatever the window holds.
    """
    width = network.config.context if acting == "padded" else size
    first = (ends + 1 - size).clamp(min=0)  # (B,)
    index = first[:, None] + torch.arange(width, device=ends.device)  # (B, S)
    real, index = index <= ends[:, None], index.clamp(max=len(observation) - 1)
    wide = real.reshape(*real.shape, *[1] * (observation.dim() - 1))
    seen = torch.where(wide, observation[index], network.spec.padding).to(observation.dtype)
    previous = torch.where(real, previous_action[index], network.num_actions)
    return Windows(seen, previous, ends + 1 - first, ends - first)


def known_lengths(given: Windows, acting: ActingMode) -> Tensor | None:
    """What the network is told of the lengths."""
    return None if acting == "padded" else given.lengths


@torch.no_grad()
def q_values(network: QNetwork, given: Windows, acting: ActingMode) -> Tensor:
    """Q at each window's place, (B, A), as acting computes it."""
    return in_parts(
        given, lambda part: network.at(part.observation, part.previous_action, known_lengths(part, acting), part.place)
    )


def in_parts(given: Windows, function: Callable[[Windows], Tensor]) -> Tensor:
    """The rows of a function of many windows, computed from not too many at once."""
    rows = max(1, TOKENS // max(1, given.previous_action.shape[1]))
    return torch.cat([function(given.part(slice(begin, begin + rows))) for begin in range(0, len(given), rows)])
