"""N single environments, driven as a vector environment of each autoreset mode should drive its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode


@dataclass
class Turn:
    """What one row should give in one step."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    final_observation: Any = None
    """The last one of an episode whose row has already been started over."""

    @property
    def done(self) -> bool:
        """The episode ended with this step."""
        return self.terminated or self.truncated


class SingleRows:
    """The rows."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], count: int) -> None:
        self.envs = [make() for _ in range(count)]
        self.current: list[Any] = [None] * count  # last observations
        self.ended = [False] * count

    def reset(self, seeds: Sequence[int | None] | None, mask: Any = None) -> list[Any]:
        """Start all rows, or those of the mask (N,) bool; returns the last observation of every row."""
        for index, env in enumerate(self.envs):
            if mask is None or mask[index]:
                self.current[index], _ = env.reset(seed=None if seeds is None else seeds[index])
                self.ended[index] = False
        return list(self.current)

    def step(self, actions: Any, mode: AutoresetMode) -> list[Turn]:
        """One action in every row."""
        turns = [self._turn(index, action, mode) for index, action in enumerate(np.asarray(actions))]
        for index, turn in enumerate(turns):
            self.current[index], self.ended[index] = turn.observation, turn.done
        return turns

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _turn(self, index: int, action: Any, mode: AutoresetMode) -> Turn:
        env = self.envs[index]
        if self.ended[index] and mode is AutoresetMode.NEXT_STEP:
            return Turn(env.reset()[0], 0.0, False, False, {})
        observation, reward, terminated, truncated, info = env.step(action)
        turn = Turn(observation, float(reward), terminated, truncated, info)
        if turn.done and mode is AutoresetMode.SAME_STEP:
            turn.final_observation, turn.observation = observation, env.reset()[0]
        return turn
