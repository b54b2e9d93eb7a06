"""From latents and actions to the features that the heads read, for a training sequence and for a search.

`predict` turns the features at an action into the next latent; it is the world model's latent head with SimNorm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dqn_memory.blocks import POSITIONS
from world_models.unizero.config import ModelConfig
from world_models.unizero.layers import AttentionStack, FeedForwardStack, RecurrentStack
from world_models.unizero.window import Window

Predict = Callable[[Tensor], Tensor]


class Dynamics(nn.Module, ABC):
    """Base of the forms: all features have the width D."""

    @property
    def causal(self) -> bool:
        """False when features at a token depend on later tokens."""
        return True

    @abstractmethod
    def forward(
        self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features at the latents and at the actions of T steps: (B, T, D), (B, T) -> (B, T, D) twice.

        Steps at or after `lengths` (B,) are padding; only forms that are not causal need to know.
        """

    def observe(self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None) -> Tensor:
        """Features (B, T, D) at latents that were all observed, each behind the steps before it."""
        return self(latent, action, predict, lengths)[0]

    @abstractmethod
    def root(self, window: Window, latent: Tensor) -> Tensor:
        """Features at the current latent (B, D) behind its history: (B, D)."""

    @abstractmethod
    def imagine(
        self, window: Window, latent: Tensor, action: Tensor, predict: Predict
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features at each of K actions (B, K), the next latents they predict, and the features at those latents.

        Each (B, K, D). The actions are alternatives at one latent (B, D); what lies before them is read once.
        """


class TokenDynamics(Dynamics):
    """Two tokens a step, z_0 a_0 z_1 a_1 ..., read by a stack; positions count from the first token of the window."""

    def __init__(self, config: ModelConfig, num_actions: int, stack: AttentionStack | RecurrentStack) -> None:
        super().__init__()
        absolute = isinstance(stack, AttentionStack) and not config.rotary
        self.embedding = nn.Embedding(num_actions, config.width)
        self.positions = POSITIONS["learned" if absolute else "none"](2 * config.horizon, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = stack

    @property
    def causal(self) -> bool:
        """As the stack says."""
        return self.stack.causal

    def forward(
        self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Teacher forced: every step reads the latents that are given."""
        real = None if lengths is None else 2 * lengths
        features = self.stack(self.embed(self.tokens(latent, action)), real).unflatten(1, (-1, 2))  # (B, T, 2, D)
        return features[:, :, 0], features[:, :, 1]

    def root(self, window: Window, latent: Tensor) -> Tensor:
        """At most 2 W + 1 tokens."""
        trunk = self.embed(self.tokens(*window.clean()))  # (B, 2W, D)
        after = 2 * window.count
        return self.stack.read(trunk, self._embed_at(latent[:, None], after), after)[0][:, 0]

    def imagine(
        self, window: Window, latent: Tensor, action: Tensor, predict: Predict
    ) -> tuple[Tensor, Tensor, Tensor]:
        """At most 2 W tokens before the prediction and 2 W + 1 with it, oldest pair first to go."""
        pushed = window.push(latent, action[:, 0])  # which of the actions is the same: its token is cut off
        trunk = self.embed(self.tokens(*pushed.clean()))[:, :-1]  # (B, 2W-1, D)
        after = 2 * pushed.count - 1
        at_action, memory = self.stack.read(trunk, self._embed_at(self.embedding(action), after), after)
        following = predict(at_action)
        return at_action, following, self.stack.extend(memory, self._embed_at(following, after + 1))

    def tokens(self, latent: Tensor, action: Tensor) -> Tensor:
        """Interleave latents (B, T, D) with embedded actions (B, T): (B, 2T, D)."""
        embedded = self.embedding(action)
        return torch.stack((latent.to(embedded.dtype), embedded), 2).flatten(1, 2)

    def embed(self, tokens: Tensor) -> Tensor:
        """Add the positions 0, 1, ... to tokens (B, S, D)."""
        return self.dropout(self.positions(tokens))

    def _embed_at(self, token: Tensor, index: Tensor) -> Tensor:
        """Alternatives (B, K, D) for the token at position `index` (B,)."""
        table = getattr(self.positions, "table", None)
        token = token.to(self.embedding.weight.dtype)
        return self.dropout(token if table is None else token + table[index][:, None])


class MarkovDynamics(Dynamics):
    """MuZero's: the next latent and the reward follow from the latent and the action alone, (z', r) = g(z, a).

    Training unrolls from the first latent and never looks at the others; the gradient that goes from one step
    into the step before is halved (Schrittwieser et al. 2020, appendix G). The history is not read: whoever
    wants memory from this form gives it stacked observations.
    """

    def __init__(self, config: ModelConfig, num_actions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_actions, config.width)
        self.stack = FeedForwardStack(config)
        self.norm = nn.LayerNorm(config.width)

    def forward(
        self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Unroll the recurrence over time."""
        z = latent[:, 0]
        at_latents, at_actions = [], []
        for taken in action.unbind(1):
            at_latents.append(self._at_latent(z))
            at_actions.append(self._at_action(z, taken))
            following = predict(at_actions[-1])
            z = 0.5 * following + 0.5 * following.detach()
        return torch.stack(at_latents, 1), torch.stack(at_actions, 1)

    def observe(self, latent: Tensor, action: Tensor, predict: Predict, lengths: Tensor | None = None) -> Tensor:
        """Each latent by itself, as at a root."""
        return self._at_latent(latent)

    def root(self, window: Window, latent: Tensor) -> Tensor:
        """Normalise the latent."""
        return self._at_latent(latent)

    def imagine(
        self, window: Window, latent: Tensor, action: Tensor, predict: Predict
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the recurrence."""
        at_action = self._at_action(latent[:, None], action)
        following = predict(at_action)
        return at_action, following, self._at_latent(following)

    def _at_latent(self, latent: Tensor) -> Tensor:
        return self.norm(latent.to(self.embedding.weight.dtype))

    def _at_action(self, latent: Tensor, action: Tensor) -> Tensor:
        return self.stack(latent.to(self.embedding.weight.dtype) + self.embedding(action))


DYNAMICS: dict[str, Callable[[ModelConfig, int], Dynamics]] = {
    "transformer": lambda config, num_actions: TokenDynamics(config, num_actions, AttentionStack(config)),
    "gru": lambda config, num_actions: TokenDynamics(config, num_actions, RecurrentStack(config)),
    "recurrent": MarkovDynamics,
}
