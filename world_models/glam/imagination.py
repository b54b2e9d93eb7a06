"""Imagine rollouts with the world model, from contexts of the replay (GLAM, section 3.4 and algorithm 1).

Nothing is decoded to pixels. All randomness enters as uniforms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from world_models.distributions import upcast
from world_models.glam.architecture import MemoryKind
from world_models.glam.encoder import gumbel, uniforms
from world_models.glam.memory import make_memory
from world_models.glam.model import WorldModel

Policy = Callable[[Tensor], Tensor]  # features (B, Z + D) -> action logits (B, A)
StartFrom = Literal["posterior", "prior"]


@dataclass(frozen=True)
class Context:
    """K real steps of B rows, and the newest frame after them, if it has been seen."""

    sample: Tensor  # (B, K, Z)
    action: Tensor  # (B, K) int64
    first: Tensor  # (B, K) bool, steps that open an episode
    newest: Tensor | None = None  # (B, Z); None: sample it from the prior
    opens: Tensor | None = None  # (B,) bool, where it opens an episode; given with `newest`


@dataclass(frozen=True)
class Noise:
    """Uniforms from [0, 1) for H steps."""

    latent: Tensor  # (H + 1, B, G, C); the first row is used where the newest frame has not been seen
    action: Tensor  # (H, B, A)

    @classmethod
    def draw(cls, model: WorldModel, rows: int, horizon: int, generator: torch.Generator) -> Noise:
        """Draw uniforms on the generator's device."""
        return cls(model.noise((horizon + 1, rows), generator), uniforms((horizon, rows, model.actions), generator))


@dataclass(frozen=True)
class Rollouts:
    """H imagined steps of B rows, with the states before each step and after the last one."""

    sample: Tensor  # (H + 1, B, Z), z_t
    h: Tensor  # (H + 1, B, D), h_{t-1}: the memory of all steps before
    action: Tensor  # (H, B) int64
    reward: Tensor  # (H, B) float32 or wider
    terminated: Tensor  # (H, B) bool

    def features(self) -> Tensor:
        """Join what actor and critic see, (H + 1, B, Z + D)."""
        return torch.cat((self.sample, self.h), -1)


@torch.no_grad()
def encode_context(
    model: WorldModel, frames: Tensor, action: Tensor, first: Tensor, noise: Tensor, start_from: StartFrom = "posterior"
) -> Context:
    """Encode windows of the replay once, and leave the model in evaluation mode.

    Frames (B, L, 3, S, S) uint8, actions and `first` (B, L), uniforms (B, L, G, C). With `posterior` the rollout starts
    from the last frame itself, so K = L - 1 and the last action does not matter; with `prior` (as released) it starts
    from the model's prediction of the frame after all L = K.
    """
    model.eval()
    sample = model.sample(model.encode(frames), noise)  # (B, L, Z)
    if start_from == "prior":
        return Context(sample, action, first)
    opens = first[:, -1] & model.config.reset_at_episode_start
    return Context(sample[:, :-1], action[:, :-1], first[:, :-1], sample[:, -1], opens)


@torch.no_grad()
def imagine(
    model: WorldModel, policy: Policy, context: Context, horizon: int, noise: Noise, kind: MemoryKind = "window"
) -> Rollouts:
    """Let the policy act in the model for H steps; `noise` may hold uniforms for more.

    `window` reads exactly the last K steps anew for every step (the paper); `carried` goes on from the recurrent state
    after the context. Episodes that end in a rollout go on; their ends cut the returns. The newest frame's memory is 0
    where it opens an episode, as in acting. Leaves the model in evaluation mode.
    """
    model.eval()
    memory = make_memory(model, kind, context.action.shape[1])
    h, state = memory.prefill(context.sample, context.action, context.first)  # (B, D)
    sample, opens = context.newest, context.opens
    if sample is None or opens is None:
        sample, opens = model.sample(model.prior(h), noise.latent[0]), torch.zeros_like(context.first[:, 0])
    h = torch.where(opens.unsqueeze(1), 0, h)
    samples, memories, actions = [sample], [h], []
    for t in range(horizon):
        action = choose(policy(torch.cat((sample, h), -1)), noise.action[t])  # (B,)
        h, state = memory.push(sample, action, opens, state)
        sample = model.sample(model.prior(h), noise.latent[t + 1])
        opens = torch.zeros_like(opens)
        samples.append(sample)
        memories.append(h)
        actions.append(action)
    seen = torch.stack(memories)  # (H + 1, B, D); the memory after a step predicts its reward and end
    return Rollouts(
        sample=torch.stack(samples),
        h=seen,
        action=torch.stack(actions),
        reward=model.reward(seen[1:]),
        terminated=model.termination(seen[1:]) > 0,
    )


def choose(logits: Tensor, noise: Tensor) -> Tensor:
    """Draw actions (...) from softmax(logits) with uniforms from [0, 1), both (..., A)."""
    return (upcast(logits) + gumbel(noise)).argmax(-1)
