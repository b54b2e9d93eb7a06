"""GLAM's world model: frames to latents, a sequence module, and heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dqn_memory.runs.errors import UserError
from world_models.distributions import SymlogCode, unimix
from world_models.glam.architecture import ModelConfig
from world_models.glam.encoder import CategoricalHead, Decoder, Encoder, as_images, draw, mlp, prior_head
from world_models.glam.replay import Batch
from world_models.glam.sequences import Features, SequenceState, build_sequence


@dataclass(frozen=True)
class Predictions:
    """Everything that the losses compare; log-probabilities are (B, T, G, C)."""

    images: Tensor  # (B, T, 3, S, S) decoded
    targets: Tensor  # (B, T, 3, S, S) in [0, 1]
    posterior: Tensor
    prior: Tensor  # of the next latent
    reward: Tensor  # (B, T, R) logits
    termination: Tensor  # (B, T) logits
    variation: Tensor | None  # of the variation target; None in forms without a variation loss
    variation_target: Tensor | None  # (B, T - 1, G, C), stopped


class WorldModel(nn.Module):
    """He et al. (2025); see ModelConfig for the forms and for what paper and released code do differently.

    Symbols: S screen, G categoricals of C classes, Z = G C, D width, R points of the reward's code. Training mode
    normalises batches by their own statistics; act and imagine in evaluation mode. h_t has seen o_<=t and a_<=t.
    """

    def __init__(self, config: ModelConfig, actions: int) -> None:
        config.check()
        if actions < 1:
            raise UserError(f"a world model of {actions} actions cannot be built; it needs 1 or more")
        super().__init__()
        self.config, self.actions = config, actions
        self.code = SymlogCode(bins=config.bins)
        self.encoder = Encoder(config)
        self.posterior_head = CategoricalHead(config, config.embedding)
        self.prior_head = prior_head(config)
        self.sequence_model = build_sequence(config, actions)
        self.reward_head = mlp(config.width, config.bins)
        self.termination_head = mlp(config.width, 1)
        self.decoder = Decoder(config)
        varies = self.sequence_model.varies
        own = varies and config.variation_head == "own"
        self.variation_head = prior_head(config) if own else None
        random = varies and config.variation_target == "random_projection"
        self.random_projection = nn.Linear(config.embedding, config.latent) if random else None
        if self.random_projection is not None:
            self.random_projection.requires_grad_(False)  # the released code stops its gradient: it cannot learn

    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames (B, T, 3, S, S) uint8 to unimixed posterior log-probabilities (B, T, G, C)."""
        return self.posterior_head(self.encoder(frames))

    def sample(self, logp: Tensor, noise: Tensor) -> Tensor:
        """Draw one-hot samples (..., Z) with straight-through gradient; `noise` are uniforms (..., G, C)."""
        return draw(logp, noise)

    def sequence(self, sample: Tensor, action: Tensor, first: Tensor) -> Features:
        """Compute features (B, T, D) of samples (B, T, Z), actions (B, T) int64 and `first` (B, T) bool."""
        return self.sequence_model(sample, action, first)

    def prefill(
        self, sample: Tensor, action: Tensor, first: Tensor, state: SequenceState | None = None
    ) -> tuple[Features, SequenceState]:
        """Do as `sequence`, from `state` or from nothing, and return the state after the last position."""
        return self.sequence_model.prefill(sample, action, first, state)

    def initial_state(self, batch: int) -> SequenceState:
        """Return the state before the first position of B rows."""
        return self.sequence_model.initial_state(batch)

    def step(
        self, sample: Tensor, action: Tensor, first: Tensor, state: SequenceState
    ) -> tuple[Features, SequenceState]:
        """Read one position: sample (B, Z), action (B,), first (B,) -> features (B, D) and the state after it."""
        return self.sequence_model.step(sample, action, first, state)

    def prior(self, h: Tensor) -> Tensor:
        """Predict log-probabilities (..., G, C) of the next latent, from features h (..., D)."""
        return self.prior_head(h)

    def reward(self, h: Tensor) -> Tensor:
        """Predict two-hot logits (..., R) of the reward."""
        return self.reward_head(h)

    def reward_value(self, logits: Tensor) -> Tensor:
        """Decode rewards (...), float32 or wider, from logits (..., R)."""
        return self.code.decode(logits)

    def termination(self, h: Tensor) -> Tensor:
        """Predict logits (...) of the episode's end."""
        return self.termination_head(h).squeeze(-1)

    def decode(self, sample: Tensor) -> Tensor:
        """Decode samples (..., Z) to images (..., 3, S, S), about [0, 1]."""
        return self.decoder(sample)

    def predictions(self, batch: Batch, noise: Tensor) -> Predictions:
        """Compute all that the losses compare, in one pass over the batch; `noise` are uniforms (B, T, G, C)."""
        targets = as_images(batch.frames, self.decoder.layers[0].weight)  # type: ignore[arg-type]
        embedded = self.encoder(targets)  # (B, T, F)
        posterior = self.posterior_head(embedded)
        sample = self.sample(posterior, noise)
        features = self.sequence(sample, batch.action, batch.first)
        return Predictions(
            images=self.decode(sample),
            targets=targets,
            posterior=posterior,
            prior=self.prior(features.h),
            reward=self.reward(features.h),
            termination=self.termination(features.h),
            variation=self._variation(features),
            variation_target=self._variation_target(embedded, posterior),
        )

    def _variation(self, features: Features) -> Tensor | None:
        if not self.sequence_model.varies or features.variation is None:
            return None
        head = self.prior_head if self.variation_head is None else self.variation_head
        return head(features.variation)

    @torch.no_grad()
    def _variation_target(self, embedded: Tensor, posterior: Tensor) -> Tensor:
        """Compute the variation loss's target: log-probabilities (B, T - 1, G, C), without gradient."""
        if self.random_projection is None:
            return posterior[:, 1:].detach()
        difference = embedded[:, 1:] - embedded[:, :-1]
        logits = self.random_projection(difference).unflatten(-1, posterior.shape[-2:])
        return unimix(logits, self.config.unimix)
