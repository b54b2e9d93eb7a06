"""Deep Q-learning with interchangeable memory blocks for partially observable environments.

    from dqn_memory import Agent

    agent = Agent.load("runs/demo-1")

Importing the package imports no torch: its names are loaded at their first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqn_memory.agent import Agent

__all__ = ["Agent", "register_block", "register_prior"]
__version__ = "0.1.0"


def register_block(name: str, make: Callable[..., Any]) -> None:
    """Name a memory block of your own: `make(width, ...)` gives the module, as the entries of `blocks.MEMORY` do."""
    from dqn_memory.blocks import MEMORY

    MEMORY[name] = make


def register_prior(name: str, prior: Any) -> None:
    """Name an attention prior of your own, a subclass of `blocks.Prior`, as the entries of `blocks.PRIORS` are."""
    from dqn_memory.blocks import PRIORS

    PRIORS[name] = prior


def __getattr__(name: str) -> Any:
    if name == "Agent":
        from dqn_memory.agent import Agent

        return Agent
    raise AttributeError(f"module 'dqn_memory' has no attribute {name!r}")
