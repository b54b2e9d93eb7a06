"""Encode frames to embeddings and decode latents to frames, by strided convolutions with batch normalisation.

The world model's update normalises by the statistics of the batch (training mode). Acting and imagination use running
statistics (evaluation mode).
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from world_models.distributions import unimix, upcast
from world_models.glam.config import SMALLEST, GlamModelConfig

COLOURS = 3
HIDDEN = 2  # hidden layers of an MLP head


class FrameEncoder(nn.Module):
    """Convolutions of 4 x 4 with stride 2, each with batch normalisation and ReLU, down to 4 x 4."""

    def __init__(self, config: GlamModelConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, out in pairwise([COLOURS, *config.maps]):
            layers += [nn.Conv2d(inside, out, 4, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, frames: Tensor) -> Tensor:
        """Embed frames (..., 3, S, S), uint8 or floats in [0, 1]: (..., F)."""
        images = frames.flatten(0, -4)  # (N, 3, S, S)
        if not frames.is_floating_point():
            images = images.to(next(self.parameters()).dtype) / 255
        return self.layers(images).flatten(1).unflatten(0, frames.shape[:-3])


class FrameDecoder(nn.Module):
    """A linear map to 4 x 4, then transposed convolutions; no sigmoid."""

    def __init__(self, config: GlamModelConfig) -> None:
        super().__init__()
        maps = config.maps[::-1]
        layers: list[nn.Module] = [
            nn.Linear(config.latent, config.embedding, bias=False),
            nn.Unflatten(1, (maps[0], SMALLEST, SMALLEST)),
            nn.BatchNorm2d(maps[0]),
            nn.ReLU(inplace=True),
        ]
        for inside, out in pairwise(maps):
            layers += [nn.ConvTranspose2d(inside, out, 4, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(maps[-1], COLOURS, 4, 2, 1))

    def forward(self, sample: Tensor) -> Tensor:
        """Decode samples (..., Z) to images (..., 3, S, S)."""
        return self.layers(sample.flatten(0, -2)).unflatten(0, sample.shape[:-1])


class CategoricalHead(nn.Module):
    """Hidden layers and a linear map to G categoricals of C classes, mixed with a share of the uniform one."""

    def __init__(self, config: GlamModelConfig, inputs: int, layers: int = 0) -> None:
        super().__init__()
        self.shape = config.categoricals, config.classes
        self.hidden = nn.Sequential(*hidden_layers(inputs, inputs, layers))
        self.linear = nn.Linear(inputs, config.latent)

    def forward(self, x: Tensor) -> Tensor:
        """Compute log-probabilities (..., G, C) of x (..., inputs), float32 or wider."""
        return unimix(self.linear(self.hidden(x)).unflatten(-1, self.shape))


def prior_head(config: GlamModelConfig) -> CategoricalHead:
    """Make a head that predicts the next latent from features."""
    return CategoricalHead(config, config.width, HIDDEN if config.prior_head == "mlp" else 0)


def mlp(inputs: int, outputs: int, hidden: int | None = None, layers: int = HIDDEN) -> nn.Sequential:
    """Make hidden layers of width `hidden` (None: that of the input), and a linear map."""
    width = hidden or inputs
    return nn.Sequential(*hidden_layers(inputs, width, layers), nn.Linear(width, outputs))


def hidden_layers(inputs: int, width: int, layers: int) -> list[nn.Module]:
    """Make hidden layers: each a Linear without bias, LayerNorm and ReLU."""
    parts: list[nn.Module] = []
    for layer in range(layers):
        parts += [nn.Linear(width if layer else inputs, width, bias=False), nn.LayerNorm(width), nn.ReLU(inplace=True)]
    return parts


def gumbel(noise: Tensor) -> Tensor:
    """Turn uniforms u in [0, 1) into Gumbel noise -log(-log u): argmax(log p + noise) is a draw from p."""
    return -(-upcast(noise).log()).log()


def uniforms(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw uniforms in [0, 1) on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device)


def sample_latent(log_probabilities: Tensor, noise: Tensor) -> Tensor:
    """Draw one-hot samples (..., Z) of G categoricals, with the gradient of their probabilities (straight through).

    The class is the argmax of log p (..., G, C) plus Gumbel noise; `noise` are uniforms in [0, 1) of the same shape.
    """
    chosen = (log_probabilities.detach() + gumbel(noise)).argmax(-1, keepdim=True)  # (..., G, 1)
    hard = torch.zeros_like(log_probabilities).scatter(-1, chosen, 1.0)
    soft = log_probabilities.exp()
    return (hard + (soft - soft.detach())).flatten(-2)
