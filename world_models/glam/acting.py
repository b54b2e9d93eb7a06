"""Acting in N worlds at once, each with the memory of its own episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from world_models.glam.imagination import Policy, choose, uniforms
from world_models.glam.memory import Memory
from world_models.glam.model import WorldModel


@dataclass(frozen=True)
class ActingNoise:
    """Uniforms from [0, 1) for one step of N worlds."""

    latent: Tensor  # (N, G, C), for the frame
    guess: Tensor  # (N, G, C), for the latent that a blind policy is shown instead
    action: Tensor  # (N, A)

    @classmethod
    def draw(cls, model: WorldModel, rows: int, actions: int, generator: torch.Generator) -> ActingNoise:
        """Uniforms on the generator's device."""
        latent = (rows, model.config.categoricals, model.config.classes)
        return cls(*(uniforms(shape, generator) for shape in (latent, latent, (rows, actions))))


class Player:
    """A policy in N worlds. It sees [z_t, h_{t-1}], h_{t-1} being 0 in an episode's first step.

    z_t is a sample of the posterior of the newest frame. With `blind`, the released order, it is a guess of the prior:
    the frame is taken in only after the action has been chosen, and where nothing has been seen before it, the action
    is uniformly random. A model without `resets` never forgets what it has seen in earlier episodes.
    """

    def __init__(self, model: WorldModel, policy: Policy, memory: Memory, rows: int, blind: bool = False) -> None:
        self.model, self.policy, self.memory, self.blind = model, policy, memory, blind
        self.rows = rows
        self.forget()

    def forget(self) -> None:
        """Everything seen so far, in all worlds, also by a model that never forgets on its own."""
        like = next(self.model.parameters())
        self.h = like.new_zeros(self.rows, self.model.config.width)
        self.new = torch.ones(self.rows, dtype=torch.bool, device=like.device)  # has seen nothing at all
        self.state = self.memory.start(self.rows)

    @torch.no_grad()
    def act(self, frame: Tensor, first: Tensor, noise: ActingNoise, greedy: bool = False) -> Tensor:
        """Actions (N,) for frames (N, 3, S, S) uint8; `first` (N,) marks those that open an episode.

        `greedy` takes the most probable action in place of a drawn one. Sets the model's evaluation mode.
        """
        self.model.eval()
        sample = self.model.sample(self.model.encode(frame.unsqueeze(1)).squeeze(1), noise.latent)  # (N, Z)
        opens = self.new | (first & self.model.config.reset_at_episode_start)  # (N,)
        h = torch.where(opens.unsqueeze(1), 0, self.h)  # (N, D)
        action = self._choose(sample, h, opens, noise, greedy)
        self.h, self.state = self.memory.push(sample, action, opens, self.state)
        self.new = torch.zeros_like(self.new)
        return action

    def _choose(self, sample: Tensor, h: Tensor, opens: Tensor, noise: ActingNoise, greedy: bool) -> Tensor:
        if not self.blind:
            logits = self.policy(torch.cat((sample, h), -1))
            return logits.argmax(-1) if greedy else choose(logits, noise.action)
        guess = self.model.sample(self.model.prior(h), noise.guess)
        logits = torch.where(opens.unsqueeze(1), 0, self.policy(torch.cat((guess, h), -1)))
        drawn = choose(logits, noise.action)
        return torch.where(opens, drawn, logits.argmax(-1)) if greedy else drawn

    def state_dict(self) -> dict[str, Any]:
        """What an exact continuation needs: tensors, and those of the memory's state by its fields."""
        return {"h": self.h, "new": self.new, "memory": vars(self.state).copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        saved = _moved(dict(state), self.h.device)
        self.h, self.new, self.state = saved["h"], saved["new"], type(self.state)(**saved["memory"])


def _moved(value: Any, device: torch.device) -> Any:
    """Tensors inside dicts and tuples, on a device."""
    if isinstance(value, dict):
        return {name: _moved(each, device) for name, each in value.items()}
    return value.to(device) if isinstance(value, Tensor) else tuple(_moved(each, device) for each in value)
