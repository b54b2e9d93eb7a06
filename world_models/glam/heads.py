"""What the features are read for, and latents as distributions and samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from world_models.distributions import unimix, wide
from world_models.glam.config import ModelConfig

HIDDEN = 2  # hidden layers of a head that is an MLP


class CategoricalHead(nn.Module):
    """A map to G categorical variables of C classes, mixed with a share of the uniform distribution.

    It is linear behind its hidden layers, of which there are none where nothing else is said.
    """

    def __init__(self, config: ModelConfig, inputs: int, layers: int = 0) -> None:
        super().__init__()
        self.shape, self.share = (config.categoricals, config.classes), config.unimix
        self.hidden = nn.Sequential(*hidden_layers(inputs, inputs, layers))
        self.linear = nn.Linear(inputs, config.latent)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities (..., G, C) of x (..., inputs), float32 or wider."""
        return unimix(self.linear(self.hidden(x)).unflatten(-1, self.shape), self.share)


def prior_head(config: ModelConfig) -> CategoricalHead:
    """A head that reads features and says what latent is next."""
    return CategoricalHead(config, config.width, HIDDEN if config.prior_head == "mlp" else 0)


def mlp(inputs: int, outputs: int, hidden: int | None = None, layers: int = HIDDEN) -> nn.Sequential:
    """Hidden layers, as wide as the input where nothing else is said, and a linear map."""
    width = inputs if hidden is None else hidden
    return nn.Sequential(*hidden_layers(inputs, width, layers), nn.Linear(width, outputs))


def hidden_layers(inputs: int, width: int, layers: int) -> list[nn.Module]:
    """Each a Linear without bias, LayerNorm and ReLU."""
    parts: list[nn.Module] = []
    for layer in range(layers):
        parts += [nn.Linear(width if layer else inputs, width, bias=False), nn.LayerNorm(width), nn.ReLU(inplace=True)]
    return parts


def gumbel(noise: Tensor) -> Tensor:
    """Gumbel noise -log(-log u) of uniforms u in [0, 1), float32 or wider: argmax(log p + it) is a draw from p."""
    return -(-wide(noise).log()).log()


def draw(log_probabilities: Tensor, noise: Tensor) -> Tensor:
    """One-hot samples (..., G C), with the gradient of their probabilities (straight through).

    The class is the largest of log p plus Gumbel noise of uniforms in [0, 1) of the same shape.
    """
    chosen = (log_probabilities.detach() + gumbel(noise)).argmax(-1, keepdim=True)  # (..., G, 1)
    hard = torch.zeros_like(log_probabilities).scatter(-1, chosen, 1.0)
    soft = log_probabilities.exp()
    return (hard + (soft - soft.detach())).flatten(-2)
