"""What a run counts between two log lines: the model's updates and the agent's, which need not be as many."""

from __future__ import annotations

from typing import Any

import torch

from dqn_memory.runs.trainer import RunStats


class ModelStats(RunStats):
    """Counts updates of the world model, and episodes; `agent` counts those of actor and critic."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, "losses/total", rate="--learner-learning-rate")
        self.agent = RunStats(device, "losses/agent", "grad/agent_norm", "--agent-learning-rate")

    def scalars(self) -> dict[str, float]:
        """As `RunStats`, of both."""
        return super().scalars() | self.agent.scalars()

    def check_finite(self) -> None:
        """As `RunStats`, of both."""
        super().check_finite()
        self.agent.check_finite()

    def state_dict(self) -> dict[str, Any]:
        """As `RunStats`, of both."""
        return super().state_dict() | {"agent": self.agent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `RunStats`, of both."""
        super().load_state_dict(state)
        self.agent.load_state_dict(state["agent"])
