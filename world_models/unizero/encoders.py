"""Encoders from observations to latents (..., D): 64 x 64 images, vectors, and discrete tokens.

Every encoder ends in SimNorm, so a latent is D / 8 categorical distributions of 8 outcomes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dqn_memory.blocks.embeddings import UnitScale, channels_last
from dqn_memory.blocks.feed_forward import Gelu
from dqn_memory.network import ObservationSpec
from dqn_memory.runs.errors import UserError
from world_models.distributions import simnorm
from world_models.unizero.config import GROUP, EncoderConfig

SIDE = 64  # pixels of an image
TOKEN_WIDTH = 16  # of the embedding of one discrete observation component
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"leaky_relu": nn.LeakyReLU, "gelu": Gelu}


def convolution(channels: int, out: int, stride: int, config: EncoderConfig) -> list[nn.Module]:
    """Make a 3 x 3 convolution without bias, and its normalisation, with 2 C parameters in both forms."""
    norm = nn.BatchNorm2d(out) if config.norm == "batch" else nn.GroupNorm(1, out)
    return [nn.Conv2d(channels, out, 3, stride, 1, bias=False), norm]


class ResidualBlock(nn.Module):
    """act(shortcut(x) + norm(conv(act(norm(conv(x)))))); for `stride` 2 the shortcut is a convolution without norm."""

    def __init__(self, channels: int, out: int, stride: int, config: EncoderConfig) -> None:
        super().__init__()
        activation = ACTIVATIONS[config.activation]
        self.inner = nn.Sequential(
            *convolution(channels, out, stride, config), activation(), *convolution(out, out, 1, config)
        )
        self.shortcut = convolution(channels, out, stride, config)[0] if stride > 1 else nn.Identity()
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.shortcut(x) + self.inner(x))  # (B, C', H/s, W/s)


class LatentEncoder(nn.Module, ABC):
    """Base class: encodes observations with any leading dimensions in one pass to latents (..., D)."""

    def __init__(self, spec: ObservationSpec) -> None:
        super().__init__()
        self.dimensions = len(spec.shape)

    def forward(self, observation: Tensor) -> Tensor:
        leading = observation.shape[: observation.ndim - self.dimensions]
        flat = observation.reshape(-1, *observation.shape[len(leading) :])
        return simnorm(self.features(flat), GROUP).unflatten(0, leading)

    @abstractmethod
    def features(self, observation: Tensor) -> Tensor:
        """Encode observations (N, ...) to (N, D), before SimNorm."""


class ImageEncoder(LatentEncoder):
    """Encodes images (64, 64, C) or (C, 64, 64), scaled by their bounds; 3,461,152 parameters as published."""

    def __init__(self, spec: ObservationSpec, width: int, config: EncoderConfig) -> None:
        super().__init__(spec)
        self.channels_last = channels_last(spec.shape) if spec.channels_last is None else spec.channels_last
        height, image_width, colours = spec.shape if self.channels_last else (*spec.shape[1:], spec.shape[0])
        if (height, image_width) != (SIDE, SIDE):
            raise UserError(
                f"the environment shows images of {height} x {image_width}, but UniZero needs {SIDE} x {SIDE}: "
                f"resize them (Atari: --size {SIDE})"
            )
        self.scale = UnitScale(spec.shape, not spec.dtype.is_floating_point, spec.bounds)
        c, twice = config.channels, 2 * config.channels
        self.convolutions = nn.Sequential(  # down-sampling and one more block: (B, 2 channels, 8, 8)
            *convolution(colours, c, 2, config),
            ACTIVATIONS[config.activation](),
            ResidualBlock(c, c, 1, config),
            ResidualBlock(c, twice, 2, config),
            ResidualBlock(twice, twice, 1, config),
            nn.AvgPool2d(3, 2, 1),
            ResidualBlock(twice, twice, 1, config),
            ResidualBlock(twice, twice, 1, config),
        )
        self.linear = nn.Linear(2 * config.channels * (SIDE // 8) ** 2, width, bias=False)

    def features(self, observation: Tensor) -> Tensor:
        frames = self.scale(observation, self.linear.weight.dtype)
        if self.channels_last:
            frames = frames.permute(0, 3, 1, 2)
        return self.linear(self.convolutions(frames).flatten(1))


class VectorEncoder(LatentEncoder):
    """Encodes real vectors by `perceptron`."""

    def __init__(self, spec: ObservationSpec, width: int, config: EncoderConfig) -> None:
        super().__init__(spec)
        self.layers = perceptron(spec.shape[0], width, config)

    def features(self, observation: Tensor) -> Tensor:
        return self.layers(observation.to(next(self.parameters()).dtype))


class DiscreteEncoder(LatentEncoder):
    """Encodes discrete components by an embedding table, with rows of its own for each, and a `perceptron`."""

    offset: Tensor

    def __init__(self, spec: ObservationSpec, width: int, config: EncoderConfig) -> None:
        super().__init__(spec)
        components = spec.shape[0]
        self.table = nn.Embedding(components * spec.vocabulary, TOKEN_WIDTH)
        self.register_buffer("offset", torch.arange(components) * spec.vocabulary, persistent=False)
        self.layers = perceptron(components * TOKEN_WIDTH, width, config)

    def features(self, observation: Tensor) -> Tensor:
        return self.layers(self.table(observation.long() + self.offset).flatten(1))


def perceptron(inputs: int, outputs: int, config: EncoderConfig) -> nn.Sequential:
    """Make the layers Linear, LayerNorm, activation, Linear without bias."""
    hidden, activation = config.hidden, ACTIVATIONS[config.activation]()
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.LayerNorm(hidden), activation, nn.Linear(hidden, outputs, bias=False)
    )


ENCODERS: dict[str, Callable[[ObservationSpec, int, EncoderConfig], LatentEncoder]] = {  # by kind of observation
    "image": ImageEncoder,
    "continuous": VectorEncoder,
    "discrete": DiscreteEncoder,
}
