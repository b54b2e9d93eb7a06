"""GLAM's world model: encoder, sequence module, heads and decoder."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from world_models.distributions import symlog_code, unimix
from world_models.glam.config import GlamModelConfig
from world_models.glam.encoder import (
    CategoricalHead,
    FrameDecoder,
    FrameEncoder,
    mlp,
    prior_head,
    sample_latent,
    uniforms,
)
from world_models.glam.replay import FrameBatch
from world_models.glam.sequences import Features, SequenceModel


@dataclass(frozen=True)
class GlamPredictions:
    """The inputs of the losses; log-probabilities are (B, T, G, C)."""

    images: Tensor  # (B, T, 3, S, S) decoded
    targets: Tensor  # (B, T, 3, S, S) in [0, 1]
    posterior: Tensor
    prior: Tensor  # of the next latent
    reward: Tensor  # (B, T, R) logits
    termination: Tensor  # (B, T) logits
    variation: Tensor | None  # of the variation target; None in forms without a variation loss
    variation_target: Tensor  # (B, T - 1, G, C), without gradient


class GlamModel(nn.Module):
    """GLAM (He et al. 2025); see GlamModelConfig for the forms and the differences between paper and released code.

    Symbols: S screen, G categoricals of C classes, Z = G C, D width, R points of the reward's code. h_t depends on
    o_<=t and a_<=t. Training mode normalises batches by their own statistics; act and imagine in evaluation mode.
    """

    def __init__(self, config: GlamModelConfig, num_actions: int) -> None:
        super().__init__()
        self.config, self.num_actions = config, num_actions
        self.code = symlog_code(config.bins)
        self.encoder = FrameEncoder(config)
        self.posterior_head = CategoricalHead(config, config.embedding)
        self.prior_head = prior_head(config)
        self.sequence_model = SequenceModel(config, num_actions)
        self.reward_head = mlp(config.width, config.bins)
        self.termination_head = mlp(config.width, 1)
        self.decoder = FrameDecoder(config)
        self.varies = config.sequence == "glam"  # the only form with a variation loss
        own = self.varies and config.variation_head == "own"
        self.variation_head = prior_head(config) if own else None
        random = self.varies and config.variation_target == "random_projection"
        self.random_projection = nn.Linear(config.embedding, config.latent) if random else None
        if self.random_projection is not None:
            self.random_projection.requires_grad_(False)  # the released code stops its gradient

    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames (B, T, 3, S, S) uint8 to unimixed posterior log-probabilities (B, T, G, C)."""
        return self.posterior_head(self.encoder(frames))

    sample = staticmethod(sample_latent)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw the uniforms (*shape, G, C) of samples, on the generator's device."""
        return uniforms((*shape, self.config.categoricals, self.config.classes), generator)

    def sequence(self, sample: Tensor, action: Tensor, first: Tensor) -> Features:
        """Compute features (B, T, D) of samples (B, T, Z), actions (B, T) int64 and `first` (B, T) bool."""
        return self.sequence_model(sample, action, first)[0]

    def reward(self, h: Tensor) -> Tensor:
        """Predict rewards (...), float32 or wider."""
        return self.code.decode(self.reward_head(h))

    def termination(self, h: Tensor) -> Tensor:
        """Predict logits (...) of an episode's end."""
        return self.termination_head(h).squeeze(-1)

    def predictions(self, batch: FrameBatch, noise: Tensor) -> GlamPredictions:
        """Compute the inputs of the losses in one pass over the batch; `noise` are uniforms (B, T, G, C)."""
        targets = batch.frames.to(next(self.parameters()).dtype) / 255
        embedded = self.encoder(targets)  # (B, T, F)
        posterior = self.posterior_head(embedded)
        sample = self.sample(posterior, noise)
        features = self.sequence(sample, batch.action, batch.first)
        head = self.prior_head if self.variation_head is None else self.variation_head
        return GlamPredictions(
            images=self.decoder(sample),
            targets=targets,
            posterior=posterior,
            prior=self.prior_head(features.h),
            reward=self.reward_head(features.h),
            termination=self.termination(features.h),
            variation=None if not self.varies or features.variation is None else head(features.variation),
            variation_target=self._variation_target(embedded, posterior),
        )

    @torch.no_grad()
    def _variation_target(self, embedded: Tensor, posterior: Tensor) -> Tensor:
        """Compute the variation loss's target: log-probabilities (B, T - 1, G, C), without gradient."""
        if self.random_projection is None:
            return posterior[:, 1:].detach()
        difference = embedded[:, 1:] - embedded[:, :-1]
        logits = self.random_projection(difference).unflatten(-1, posterior.shape[-2:])
        return unimix(logits)
