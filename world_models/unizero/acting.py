"""Planning in N worlds at once, each behind what it has seen in its own episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from world_models.unizero.engine import Planning, make_planning
from world_models.unizero.networks import WorldModel
from world_models.unizero.search import SearchConfig, SearchNumbers, SearchResult, search
from world_models.unizero.window import Window


class Plan(NamedTuple):
    """A search at N current observations, and what `Planner.remember` needs of it."""

    found: SearchResult
    latent: Tensor  # (N, D) of the current observations


class Planner:
    """A world model with a history window per world.

    The window keeps latents as they were encoded when they were seen: an update between two steps changes what is seen
    from then on, as in the reference. `reset_history` says when histories are emptied, see CollectionConfig.
    `planning` executes the model (None: eagerly).
    """

    def __init__(
        self, model: WorldModel, rows: int, device: torch.device, config: SearchConfig,
        reset_history: Literal["episode", "released"] = "episode", planning: Planning | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.reset_history = model, config, reset_history
        self.planning = make_planning("eager", model) if planning is None else planning
        self.window = model.window(rows, device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)  # in this round; for `released` only

    @torch.no_grad()
    def see(self, observation: Tensor) -> Tensor:
        """Latents (N, D) of observations (N, ...); sets the model's evaluation mode."""
        self.model.eval()
        return self.planning.encode(observation)

    @torch.no_grad()
    def plan(self, observation: Tensor, numbers: SearchNumbers) -> Plan:
        """Search from observations (N, ...) with one row of numbers each; sets the model's evaluation mode."""
        latent = self.see(observation)
        return Plan(search(self.planning.functions, self.window, latent, numbers, self.config), latent)

    def remember(self, latent: Tensor, action: Tensor, done: Tensor) -> None:
        """Append what was seen and done, latent (N, D) and action (N,); forget rows (N,) whose episode ended."""
        pushed = self.window.push(latent, action)
        self.window = Window(pushed.latent, pushed.action, torch.where(self._forgets(done), 0, pushed.count))

    def _forgets(self, done: Tensor) -> Tensor:
        if self.reset_history == "episode":
            return done
        ended = self.ended | done
        self.ended = ended & ~ended.all()  # the last end closes the round
        return done | ended.any()

    def state_dict(self) -> dict[str, Tensor]:
        """What an exact continuation needs."""
        return {**vars(self.window), "ended": self.ended}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""
        device = self.ended.device
        self.window = Window(**{name: state[name].to(device) for name in ("latent", "action", "count")})
        self.ended = state["ended"].to(device)
