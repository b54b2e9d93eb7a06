"""Observations and previous actions to vectors of width D: the first layer of every Q-network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dqn_memory.observations import ObservationSpec


class TokenEmbedding(nn.Module):
    """d tokens through one shared table, flattened, then Linear(8 d, D): 8 V + 8 d D + D parameters."""

    def __init__(self, vocabulary: int, components: int, width: int, token_width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, token_width)
        self.linear = nn.Linear(components * token_width, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        tokens = self.table(observation.int())  # (B, T, d, 8)
        return self.linear(tokens.flatten(-2))


class VectorEmbedding(nn.Module):
    """A real vector through Linear(d, D)."""

    def __init__(self, components: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(components, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        return self.linear(observation.to(self.linear.weight.dtype))


class ImageEmbedding(nn.Module):
    """A convolutional encoder: two 3x3 layers below 36 pixels, the 8-4-3 stack of DQN (Mnih et al. 2015) above."""

    def __init__(self, shape: tuple[int, ...], width: int, integer: bool) -> None:
        super().__init__()
        self.channels_last = shape[-1] <= shape[0]
        height, wide, channels = shape if self.channels_last else (shape[1], shape[2], shape[0])
        self.scale = 1 / 255 if integer else 1.0
        self.convolutions = _convolutions(channels, min(height, wide))
        with torch.device("meta"):
            probe = _convolutions(channels, min(height, wide))(torch.empty(1, channels, height, wide))
        self.linear = nn.Linear(probe.numel(), width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, H, W, C) or (B, T, C, H, W) -> (B, T, D)
        frames = observation.flatten(0, 1).to(self.linear.weight.dtype) * self.scale
        if self.channels_last:
            frames = frames.permute(0, 3, 1, 2)
        return self.linear(self.convolutions(frames).flatten(1)).unflatten(0, observation.shape[:2])


def _convolutions(channels: int, side: int) -> nn.Sequential:
    layers: list[nn.Module]
    if side < 36:
        layers = [nn.Conv2d(channels, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    else:
        layers = [nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
        layers += [nn.Conv2d(64, 64, 3, 1), nn.ReLU()]
    return nn.Sequential(*layers)


def observation_embedding(spec: ObservationSpec, width: int, token_width: int = 8) -> nn.Module:
    """The embedding that fits the observation's kind."""
    if spec.kind == "discrete":
        return TokenEmbedding(spec.vocabulary, spec.shape[0], width, token_width)
    if spec.kind == "continuous":
        return VectorEmbedding(spec.shape[0], width)
    return ImageEmbedding(spec.shape, width, integer=not spec.dtype.is_floating_point)


class ActionHistoryEmbedding(nn.Module):
    """The action that led to each observation, `a_{t-1}`, as a vector; index `num_actions` means "none" and is zero.

    Replay, acting and evaluation store the previous action beside its observation, so training and acting see the
    same pair (the reference rolled once too often when acting).
    """

    def __init__(self, num_actions: int, width: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.table = nn.Embedding(num_actions, width)

    def forward(self, previous_action: Tensor) -> Tensor:  # (B, T) -> (B, T, width)
        known = previous_action < self.num_actions
        vectors = self.table(previous_action.clamp(max=self.num_actions - 1).int())
        return vectors * known.unsqueeze(-1)
