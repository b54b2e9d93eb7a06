"""Acting on N running episodes: from a window that is re-encoded each step, or from a carried recurrent state."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from dqn_memory.context import Context
from dqn_memory.learner import BUCKETS
from dqn_memory.network import QNetwork
from dqn_memory.runs.errors import UserError


class Actor(Protocol):
    """Remembers N episodes and values their actions."""

    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        """Take in one observation a row, (N, ...), and the action that led to it (ignored where `reset`)."""

    def q_values(self) -> Tensor:
        """Q of the newest observation, (N, A)."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class WindowActor:
    """Re-encodes the last K observations each step. `padded` feeds all K and reads the last real index."""

    def __init__(self, network: QNetwork, rows: int, device: torch.device, padded: bool = False) -> None:
        self.network, self.padded = network, padded
        self.context = Context(network.spec, network.num_actions, rows, network.config.context, device)

    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        self.context.push(observation, previous_action, reset)

    @torch.no_grad()
    def q_values(self) -> Tensor:
        lengths, width = self.context.lengths, self._width()
        observation, previous = self.context.observation[:, :width], self.context.previous_action[:, :width]
        return self.network.at(observation, previous, None if self.padded else lengths, lengths - 1)

    def _width(self) -> int:
        """Tokens to feed: all K on an accelerator, where reading the longest episode would be a sync."""
        if self.padded or self.context.lengths.device.type != "cpu":
            return self.context.size
        longest = int(self.context.lengths.max())
        return next((width for width in BUCKETS if longest <= width < self.context.size), self.context.size)

    def state_dict(self) -> dict[str, Any]:
        return self.context.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.context.load_state_dict(state)


class StateActor:
    """Carries the recurrent state through the whole episode, as published DRQN acts."""

    def __init__(self, network: QNetwork, rows: int, device: torch.device) -> None:
        if not network.stateful:
            raise UserError(
                f"--acting-state episode needs a recurrent network without attention, not "
                f"{network.config.architecture}; use window"
            )
        self.network = network
        self.state = network.initial_state(rows, device)
        self.q = torch.zeros(rows, network.num_actions, device=device)

    @torch.no_grad()
    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        previous = torch.where(reset, self.network.num_actions, previous_action)
        self.q, self.state = self.network.step(observation, previous, self.state, reset)

    def q_values(self) -> Tensor:
        return self.q

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state, "q": self.q}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.q.device
        self.state = [tuple(part.to(device) for part in layer) for layer in state["state"]]
        self.q = state["q"].to(device)


class Forgetful:
    """Begins anew at every step, so that only the newest observation counts: what an agent does without its memory."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def observe(self, observation: Tensor, previous_action: Tensor, reset: Tensor) -> None:
        self.actor.observe(observation, previous_action, torch.ones_like(reset))

    def q_values(self) -> Tensor:
        return self.actor.q_values()

    def state_dict(self) -> dict[str, Any]:
        return self.actor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state)


ActingMode = Literal["prefix", "padded"]
ActingState = Literal["window", "episode"]


def make_actor(network: QNetwork, rows: int, device: torch.device, acting: ActingMode, state: ActingState) -> Actor:
    """The actor that fits the flags `--acting` and `--acting-state`."""
    if state == "episode":
        return StateActor(network, rows, device)
    return WindowActor(network, rows, device, acting == "padded")
