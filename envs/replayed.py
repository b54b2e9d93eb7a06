"""Resume environments that cannot be copied: a saved state has the seeds and all actions since."""

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.actions import Actions
from envs.core import Step
from envs.errors import UserError, require
from envs.seeding import digest
from envs.spaces import Array

RESTART = -1  # logged in place of the actions at a reset of all episodes; NaN in place of rows


class ReplayedVector(ABC):
    """A vector of environments that cannot be copied: a saved state has the seeds and all actions since.

    Loading restarts from the seeds and replays the actions. A hash of the last observations detects a difference.
    """

    seeds: list[int]  # (N,), seeds of the first episodes
    actions: Actions  # the form of the actions that `step` takes
    observation_space: gymnasium.Space[Any]  # of one environment, as a network sees it

    def __init__(self, name: str, num_envs: int, device: str | torch.device) -> None:
        require(num_envs >= 1, f"num_envs must be at least 1, not {num_envs}.")
        self.name, self.num_envs, self.device = name, num_envs, torch.device(device)
        self.log = self._new_log()  # all actions since the first reset, N for every step
        self.observation: Array | None = None  # (N, ...), for the next action
        self.returns = np.zeros(num_envs)  # of the running episodes
        self.lengths = np.zeros(num_envs, np.int64)

    @abstractmethod
    def _build(self) -> None:
        """Make the environments."""

    @abstractmethod
    def _first(self, seeds: list[int] | None) -> Array:
        """Start all episodes, with seeds (N,) or without; returns the observations (N, ...)."""

    @property
    def num_actions(self) -> int:
        """The number of actions; 0 if an action is a row of several numbers."""
        return self.actions.count

    @abstractmethod
    def _step(self, chosen: list[Any]) -> Step:
        """Take one action in every environment and reset finished ones."""

    @abstractmethod
    def close(self) -> None:
        """Close all environments."""

    def step(self, action: Tensor) -> Step:
        """Take one action in every environment: (N,) int64, or rows (N, a) float32 as `actions` says."""
        self.log.extend(action.flatten().tolist())
        return self._step(action.tolist())

    def _restart(self) -> Tensor:
        """Start all episodes without seeds, and log it."""
        self.log.extend([RESTART if self.num_actions else math.nan] * (self._row * self.num_envs))
        return self._start(None)

    @property
    def repeats(self) -> int:
        """Actions that loading a state saved now would repeat."""
        return len(self.log) // self._row

    @property
    def _row(self) -> int:
        """Numbers of one logged action."""
        return math.prod(self.actions.shape)

    def _new_log(self) -> Any:
        return array("h" if self.num_actions else "f")

    def forget(self) -> None:
        """Make new environments with new seeds for the next reset, so that a resume need not replay older actions.

        State that an environment keeps between episodes is lost.
        """
        self.close()
        self._build()
        self._reseed()

    def _reseed(self) -> None:
        self.seeds = spawn_seeds([*self.seeds, 1], self.num_envs)
        self.log, self.observation = self._new_log(), None

    def state_dict(self) -> dict[str, Any]:
        """Return the seeds (N,), the actions (T, N), or (T, N, a), and a hash of the last observations."""
        log = torch.tensor(np.frombuffer(self.log, self.log.typecode).reshape(-1, self.num_envs, *self.actions.shape))
        return {"seeds": torch.tensor(self.seeds), "actions": log, "observation_hash": digest(self._current())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restart from the saved seeds and replay the saved actions."""
        fits = "actions" in state and state["actions"].shape[1:] == (self.num_envs, *self.actions.shape)
        advice = "resume with the environment and the number that the run was started with"
        require(fits, f"The saved state does not fit {self.num_envs} environments {self.name!r}; {advice}.")
        self.log = self._new_log()
        self.log.extend(state["actions"].flatten().tolist())
        self.seeds = state["seeds"].tolist()
        self.close()
        self._build()
        self._start(self.seeds)
        for chosen in state["actions"].tolist():
            if np.ravel(chosen)[0] == RESTART if self.num_actions else np.isnan(chosen).all():
                self._start(None)
            else:
                self._step(chosen)
        require(
            digest(self._current()) == state["observation_hash"],
            f"Environment {self.name!r} is not deterministic: replaying {len(state['actions'])} steps from the saved "
            "seeds ends in other observations, so this run cannot be resumed exactly; was it made with another version "
            "of the environment or other settings?",
        )

    def _start(self, seeds: list[int] | None) -> Tensor:
        """Start all episodes; returns the first observations (N, ...)."""
        self.observation = self._first(seeds)
        self.returns[:], self.lengths[:] = 0.0, 0
        return self._tensor(self.observation)

    def _count(self, rewards: Array) -> None:
        self.returns += rewards
        self.lengths += 1

    def _fields(
        self, final: Array, rewards: Array, terminated: Array, truncated: Array, success: Array
    ) -> dict[str, Tensor]:
        """Make the fields of a step from arrays (N, ...), and set the counters of ended episodes to 0."""
        flags = {"terminated": terminated, "truncated": truncated, "success": success}
        seen = {"observation": self._current(), "final_observation": final, "reward": rewards.astype(np.float32)}
        values = {**seen, **flags, "episode_return": self.returns, "episode_length": self.lengths}
        fields = {name: self._tensor(value) for name, value in values.items()}
        done = terminated | truncated
        self.returns[done], self.lengths[done] = 0.0, 0
        return fields

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values.copy()).to(self.device)

    def _current(self) -> Array:
        if self.observation is None:
            raise UserError("The environments have not been started; call reset() before anything else.")
        return self.observation


def spawn_seeds(entropy: int | list[int], number: int) -> list[int]:
    """Spawn seeds of environments from one seed, or from earlier ones."""
    return (np.random.SeedSequence(entropy).generate_state(number).astype(np.int64) >> 1).tolist()
