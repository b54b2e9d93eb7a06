"""Deep Q-learning with interchangeable memory blocks for partially observable environments.

    from dqn_memory.api import Agent, evaluate, load_run, train

Importing the package imports no torch: `dqn_memory.Agent` is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqn_memory.agent import Agent

__all__ = ["Agent"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Agent":
        from dqn_memory.agent import Agent

        return Agent
    raise AttributeError(f"module 'dqn_memory' has no attribute {name!r}")
