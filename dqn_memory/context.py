"""The acting context: the last K observations of each of N running episodes, left-aligned."""

from __future__ import annotations

import torch
from torch import Tensor

from dqn_memory.network import ObservationSpec


class Context:
    """Observations, the actions that led to them and the number of real ones; padding stands behind."""

    def __init__(self, spec: ObservationSpec, num_actions: int, rows: int, size: int, device: torch.device) -> None:
        self.padding, self.num_actions, self.size = spec.padding, num_actions, size
        self.observation = torch.full((rows, size, *spec.shape), spec.padding, dtype=spec.dtype, device=device)
        self.previous_action = torch.full((rows, size), num_actions, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def push(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        """Append one observation a row, (N, ...); rows where `reset` is True start anew with it.

        `previous_action` (N,) is the action that led to it and is ignored where `reset`.
        """
        wide = reset.reshape(-1, *[1] * (self.observation.dim() - 1))
        kept = torch.where(wide, self.padding, self.observation).to(self.observation.dtype)
        previous = torch.where(reset.unsqueeze(1), self.num_actions, self.previous_action)
        lengths = torch.where(reset, 0, self.lengths)
        full = lengths == self.size
        kept = torch.where(full.reshape_as(wide), kept.roll(-1, 1), kept)
        previous = torch.where(full.unsqueeze(1), previous.roll(-1, 1), previous)
        place = torch.where(full, self.size - 1, lengths)
        here = torch.arange(self.size, device=place.device) == place.unsqueeze(1)  # (N, K)
        entry = torch.where(reset, self.num_actions, previous_action)
        self.observation = torch.where(
            here.reshape(*here.shape, *[1] * (kept.dim() - 2)), observation.to(kept.dtype).unsqueeze(1), kept
        )
        self.previous_action = torch.where(here, entry.unsqueeze(1), previous)
        self.lengths = place + 1

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("observation", "previous_action", "lengths")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            setattr(self, name, value.to(self.lengths.device))
