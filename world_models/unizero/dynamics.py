"""Dynamics map latents and actions to the features that the heads read, in training sequences and in searches.

`predict` maps the features at an action to the next latent: the world model's latent head with SimNorm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dqn_memory.blocks import POSITIONS
from world_models.unizero.config import UniZeroModelConfig
from world_models.unizero.layers import AttentionStack, FeedForwardStack, RecurrentStack, TokenStack

Predict = Callable[[Tensor], Tensor]
Features = tuple[Tensor, Tensor]  # at the latents and at the actions of T steps, each (B, T, D)
Imagined = tuple[Tensor, Tensor, Tensor]  # features at K actions, predicted latents, features at those, each (B, K, D)


@dataclass(frozen=True)
class History:
    """The last W pairs of latent and action before the current latent of a search node, in B rows.

    Rows are left-aligned: entries at or after `count` are padding, with arbitrary values.
    """

    latent: Tensor  # (B, W, D)
    action: Tensor  # (B, W) int64
    count: Tensor  # (B,) int64, 0 .. W

    def push(self, latent: Tensor, action: Tensor) -> History:
        """Append the pair of latent (B, D) and action (B,); a row of W pairs drops its oldest."""
        pairs = self.action.shape[1]
        index = torch.arange(pairs, device=action.device)
        shifted = index + (self.count == pairs)[:, None]  # (B, W)
        source = torch.where(shifted == self.count[:, None], pairs, shifted)  # the new pair follows the old ones
        latents = torch.cat((self.latent, latent[:, None].to(self.latent.dtype)), 1)  # (B, W+1, D)
        actions = torch.cat((self.action, action[:, None]), 1)
        columns = source[:, :, None].expand(-1, -1, latents.shape[-1])
        return History(latents.gather(1, columns), actions.gather(1, source), (self.count + 1).clamp(max=pairs))

    def clean(self) -> tuple[Tensor, Tensor]:
        """Return latents (B, W, D) and actions (B, W) with zeros in the padding."""
        real = torch.arange(self.action.shape[1], device=self.count.device) < self.count[:, None]  # (B, W)
        return torch.where(real[..., None], self.latent, 0), torch.where(real, self.action, 0)


class Dynamics(nn.Module, ABC):
    """Base class of dynamics; all features have width D."""

    causal = True
    """True if no feature depends on a later token."""

    @abstractmethod
    def forward(self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None) -> Features:
        """Compute the features at the latents (B, T, D) and at the actions (B, T) of T steps.

        Steps at or after `lengths` (B,) are padding; only dynamics that are not causal read `lengths`.
        """

    def observe(self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None) -> Tensor:
        """Compute the features (B, T, D) at T observed latents, each after the steps before it."""
        return self(latent, action, predict, lengths)[0]

    @abstractmethod
    def root(self, history: History, latent: Tensor) -> Tensor:
        """Compute the features (B, D) at the current latent (B, D) after its history."""

    @abstractmethod
    def imagine(self, history: History, latent: Tensor, action: Tensor, predict: Predict) -> Imagined:
        """Predict from K alternative actions (B, K) at one latent (B, D); the history before them is read once."""


class TokenDynamics(Dynamics):
    """A stack that reads two tokens a step, z_0 a_0 z_1 a_1 ...; position 0 is the window's first token."""

    def __init__(self, config: UniZeroModelConfig, num_actions: int, stack: TokenStack) -> None:
        super().__init__()
        self.causal = stack.causal
        self.embedding = nn.Embedding(num_actions, config.width)
        self.positions = POSITIONS["learned" if isinstance(stack, AttentionStack) else "none"](
            2 * config.horizon, config.width
        )
        self.dropout = nn.Dropout(config.dropout)
        self.stack = stack

    def forward(self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None) -> Features:
        """Read the given latents at every step (teacher forcing)."""
        real = None if lengths is None else 2 * lengths
        features = self.stack(self.embed(self.tokens(latent, action)), real).unflatten(1, (-1, 2))  # (B, T, 2, D)
        return features[:, :, 0], features[:, :, 1]

    def root(self, history: History, latent: Tensor) -> Tensor:
        """Read at most 2 W + 1 tokens."""
        trunk = self.embed(self.tokens(*history.clean()))  # (B, 2W, D)
        after = 2 * history.count
        return self.stack.read(trunk, self._embed_at(latent[:, None], after), after)[0][:, 0]

    def imagine(self, history: History, latent: Tensor, action: Tensor, predict: Predict) -> Imagined:
        """Read at most 2 W tokens before the prediction and 2 W + 1 with it; a history of W pairs drops its oldest."""
        pushed = history.push(latent, action[:, 0])  # the token of this action is cut off below
        trunk = self.embed(self.tokens(*pushed.clean()))[:, :-1]  # (B, 2W-1, D)
        after = 2 * pushed.count - 1
        at_action, memory = self.stack.read(trunk, self._embed_at(self.embedding(action), after), after)
        next_latent = predict(at_action)
        return at_action, next_latent, self.stack.extend(memory, self._embed_at(next_latent, after + 1))

    def tokens(self, latent: Tensor, action: Tensor) -> Tensor:
        """Interleave latents (B, T, D) with embedded actions (B, T): (B, 2T, D)."""
        embedded = self.embedding(action)
        return torch.stack((latent.to(embedded.dtype), embedded), 2).flatten(1, 2)

    def embed(self, tokens: Tensor) -> Tensor:
        """Add the positions 0, 1, ... to tokens (B, S, D)."""
        return self.dropout(self.positions(tokens))

    def _embed_at(self, token: Tensor, index: Tensor) -> Tensor:
        """Add the position `index` (B,) to K alternative tokens (B, K, D)."""
        table = getattr(self.positions, "table", None)
        token = token.to(self.embedding.weight.dtype)
        return self.dropout(token if table is None else token + table[index][:, None])


class MarkovDynamics(Dynamics):
    """MuZero's dynamics: next latent and reward depend on the latent and the action alone, (z', r) = g(z, a).

    Training unrolls from the first latent and does not read the others. The gradient from one step to the step before
    is halved (Schrittwieser et al. 2020, appendix G). The history is not read: for memory, stack the observations.
    """

    def __init__(self, config: UniZeroModelConfig, num_actions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_actions, config.width)
        self.stack = FeedForwardStack(config)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None) -> Features:
        z = latent[:, 0]
        at_latents, at_actions = [], []
        for taken in action.unbind(1):
            at_latents.append(self._at_latent(z))
            at_actions.append(self._at_action(z, taken))
            next_latent = predict(at_actions[-1])
            z = 0.5 * next_latent + 0.5 * next_latent.detach()
        return torch.stack(at_latents, 1), torch.stack(at_actions, 1)

    def observe(self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None) -> Tensor:
        """Normalise each latent alone, as at a root."""
        return self._at_latent(latent)

    def root(self, history: History, latent: Tensor) -> Tensor:
        return self._at_latent(latent)

    def imagine(self, history: History, latent: Tensor, action: Tensor, predict: Predict) -> Imagined:
        at_action = self._at_action(latent[:, None], action)
        next_latent = predict(at_action)
        return at_action, next_latent, self._at_latent(next_latent)

    def _at_latent(self, latent: Tensor) -> Tensor:
        return self.norm(latent.to(self.embedding.weight.dtype))

    def _at_action(self, latent: Tensor, action: Tensor) -> Tensor:
        return self.stack(latent.to(self.embedding.weight.dtype) + self.embedding(action))


DYNAMICS: dict[str, Callable[[UniZeroModelConfig, int], Dynamics]] = {
    "transformer": lambda config, num_actions: TokenDynamics(config, num_actions, AttentionStack(config)),
    "gru": lambda config, num_actions: TokenDynamics(config, num_actions, RecurrentStack(config)),
    "recurrent": MarkovDynamics,
}
