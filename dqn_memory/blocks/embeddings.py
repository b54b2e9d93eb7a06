"""How observations and actions become vectors: B sequences of T steps, model width D."""

from copy import deepcopy

import torch
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """Embed d tokens by one shared table, concatenate, then Linear(8 d, D): 8 V + 8 d D + D parameters."""

    def __init__(self, vocabulary: int, components: int, width: int, token_width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, token_width)
        self.linear = nn.Linear(components * token_width, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        tokens = self.table(observation.int())  # (B, T, d, 8)
        return self.linear(tokens.flatten(-2))


class VectorEmbedding(nn.Module):
    """Embed a real vector by Linear(d, D)."""

    def __init__(self, components: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(components, width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, d) -> (B, T, D)
        return self.linear(observation.to(self.linear.weight.dtype))


class ImageEmbedding(nn.Module):
    """Embed an image: two 3x3 convolutions below 36 pixels, else the 8-4-3 stack of DQN (Mnih et al. 2015)."""

    def __init__(self, shape: tuple[int, ...], width: int, integer: bool) -> None:
        super().__init__()
        self.channels_last = shape[-1] <= shape[0]
        height, image_width, channels = shape if self.channels_last else (shape[1], shape[2], shape[0])
        self.scale = 1 / 255 if integer else 1.0
        # channels, kernel, stride, padding
        small, large = ((32, 3, 1, 1), (64, 3, 2, 1)), ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
        layers: list[nn.Module] = []
        inputs = channels
        for outputs, kernel, stride, padding in small if min(height, image_width) < 36 else large:
            layers += [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU()]
            inputs = outputs
        self.convolutions = nn.Sequential(*layers)
        flat = deepcopy(self.convolutions).to("meta")(torch.empty(1, channels, height, image_width, device="meta"))
        self.linear = nn.Linear(flat.numel(), width)

    def forward(self, observation: Tensor) -> Tensor:  # (B, T, H, W, C) or (B, T, C, H, W) -> (B, T, D)
        frames = observation.flatten(0, 1).to(self.linear.weight.dtype) * self.scale
        if self.channels_last:
            frames = frames.permute(0, 3, 1, 2)
        return self.linear(self.convolutions(frames).flatten(1)).unflatten(0, observation.shape[:2])


class ActionHistoryEmbedding(nn.Module):
    """Embed the action that led to each observation, a_{t-1}; index A means "no action yet" and gives zeros.

    Replay and acting both store the previous action beside its observation, so that training and acting see the same
    pairs (the published code shifts them once too often when acting).
    """

    def __init__(self, num_actions: int, width: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.table = nn.Embedding(num_actions, width)

    def forward(self, previous_action: Tensor) -> Tensor:  # (B, T) -> (B, T, width)
        known = previous_action < self.num_actions
        vectors = self.table(previous_action.clamp(max=self.num_actions - 1).int())
        return vectors * known.unsqueeze(-1)
