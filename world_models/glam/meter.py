"""What a run counts between two log lines: the model's updates and the agent's, which need not be as many."""

from __future__ import annotations

from typing import Any

import torch

from dqn_memory.runs.meter import Meter


class AgentMeter(Meter):
    """Counts updates of actor and critic."""

    loss, norm, rate = "losses/agent", "grad/agent_norm", "--agent-learning-rate"


class ModelMeter(Meter):
    """Counts updates of the world model, and episodes; `agent` counts those of actor and critic."""

    loss, rate = "losses/total", "--learner-learning-rate"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.agent = AgentMeter(device)

    def scalars(self) -> dict[str, float]:
        """As `Meter`, of both."""
        return super().scalars() | self.agent.scalars()

    def check_finite(self) -> None:
        """As `Meter`, of both."""
        super().check_finite()
        self.agent.check_finite()

    def state_dict(self) -> dict[str, Any]:
        """As `Meter`, of both."""
        return super().state_dict() | {"agent": self.agent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `Meter`, of both."""
        super().load_state_dict(state)
        self.agent.load_state_dict(state["agent"])
