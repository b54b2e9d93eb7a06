"""A network that remembers one thing by construction: the observation d steps back."""

import pytest
import torch
from helpers import NUM_ACTIONS, TOKENS, network
from torch import Tensor

from dqn_memory.analysis.episodes import Episode
from dqn_memory.blocks import MEMORY
from dqn_memory.blocks.block import Block
from dqn_memory.network import ARCHITECTURES, Architecture, QNetwork


class Delay(Block):
    """y_t = x_(t - steps), nothing before the first and behind the last real position; steps < 0 reads ahead."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    @property
    def causal(self) -> bool:
        return self.steps >= 0

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        source = torch.arange(length) - self.steps
        end = torch.full((len(x),), length) if lengths is None else lengths
        there = (source >= 0) & (source < end[:, None])  # (B, T)
        return x[:, source.clamp(0, length - 1)] * there[..., None]


def delayed(monkeypatch: pytest.MonkeyPatch, steps: int, context: int = 6, seed: int = 0) -> QNetwork:
    """A float64 Q-network whose Q at t depends on the observation at t - steps alone."""
    monkeypatch.setitem(MEMORY, "delay", lambda width, dropout, projection: Delay(steps))
    row = Architecture(memory="delay", attention=False, layers=1, wrapped=False, positions="none", final_norm=False)
    monkeypatch.setitem(ARCHITECTURES, "delay", row)
    return network("delay", seed, context).eval()


def episode(length: int, seed: int = 0) -> Episode:
    """Random observations and actions; what else an episode holds is empty."""
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randint(TOKENS.vocabulary - 1, (length, 2), generator=generator)
    previous = torch.randint(NUM_ACTIONS, (length,), generator=generator)
    previous[0] = NUM_ACTIONS
    zeros = torch.zeros(length).numpy()
    return Episode(observation, previous, zeros.astype(int), torch.zeros(length, NUM_ACTIONS).numpy(), zeros, (), False)
