"""N Gymnasium environments behind the fleet's interface, and exact resume of what cannot be copied."""

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import Step
from envs.errors import DrawsNothing, UserError, require
from envs.packages import Make, make_env, without_module
from envs.seeding import digest
from envs.spaces import Array
from envs.workers import Rows, WorkerRows

SEED_STEPS, SEED_SECONDS = 30, 1.0  # at most, in which two environments are compared
RESTART = -1  # logged in place of the actions when all episodes are started over


class ReplayedFleet(ABC):
    """A fleet of environments that cannot be copied: a saved state is the seeds and all actions since.

    Loading starts anew from the seeds and replays the actions; a hash of the last observations says whether it ended
    where it should.
    """

    seeds: list[int]  # (N,), of the first episodes
    num_actions: int
    observation_space: gymnasium.Space[Any]  # of one environment, as a network sees it

    def __init__(self, name: str, num_envs: int, device: str | torch.device) -> None:
        require(num_envs >= 1, f"num_envs must be at least 1, not {num_envs}.")
        self.name, self.num_envs, self.device = name, num_envs, torch.device(device)
        self.log = array("h")  # all actions since the first reset, N for every step
        self.observation: Array | None = None  # (N, ...), to act on next
        self.returns = np.zeros(num_envs)  # of the running episodes
        self.lengths = np.zeros(num_envs, np.int64)

    @abstractmethod
    def _build(self) -> None:
        """Make the environments."""

    @abstractmethod
    def _first(self, seeds: list[int] | None) -> Array:
        """Start all episodes, from seeds (N,) if given; gives the observations (N, ...)."""

    @abstractmethod
    def _step(self, chosen: list[int]) -> Step:
        """Take one action in every environment and start finished ones over."""

    @abstractmethod
    def close(self) -> None:
        """Close all environments."""

    def step(self, action: Tensor) -> Step:
        """Take one action (N,) int64 in every environment."""
        chosen = action.tolist()
        self.log.extend(chosen)
        return self._step(chosen)

    def forget(self) -> None:
        """Let the next reset begin from new environments and seeds, as a resume will, which then repeats nothing.

        What an environment carries from one episode to the next is lost with it.
        """
        self.close()
        self._build()
        self._reseed()

    def _reseed(self) -> None:
        self.seeds = spawn_seeds([*self.seeds, 1], self.num_envs)
        self.log, self.observation = array("h"), None

    def state_dict(self) -> dict[str, Any]:
        """Save the seeds (N,), the actions (T, N) and a hash of the last observations."""
        log = torch.tensor(np.frombuffer(self.log, np.int16).reshape(-1, self.num_envs))
        return {"seeds": torch.tensor(self.seeds), "actions": log, "observation_hash": digest(self._current())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start anew from the saved seeds and replay the saved actions."""
        fits = "actions" in state and state["actions"].shape[1:] == (self.num_envs,)
        advice = "resume with the environment and the number that the run was started with"
        require(fits, f"The saved state does not fit {self.num_envs} environments {self.name!r}; {advice}.")
        self.log = array("h", state["actions"].flatten().tolist())
        self.seeds = state["seeds"].tolist()
        self.close()
        self._build()
        self._start(self.seeds)
        for chosen in state["actions"].tolist():
            if chosen[0] == RESTART:
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
        """Make the fields of a step from arrays (N, ...); the episodes that it ended count from 0 again."""
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


class GymnasiumFleet(ReplayedFleet):
    """N environments of one kind, stepped one after the other, each started over when its episode ends.

    Every environment is seeded once, at the first reset, with a seed spawned from `seed`. An episode's success is what
    the info of its last step says as "success" or "is_success"; where it says neither, a return above 0 counts, and
    `reports_success` is False from then on.

    Args:
        env: a Gymnasium id, which takes the remaining keywords, or a function that makes one environment.
        observation_key: the entry to use of a Dict observation.
        workers: processes that share the environments; None: they are in this one. The steps are the same.
        longest: steps after which an episode is cut that nothing else limits; None: it goes on.

    Raises:
        UserError: the id is unknown or cannot be made, the actions are not Discrete or MultiDiscrete, the observation
            has another form than Box, Discrete, MultiDiscrete or MultiBinary, or a key is missing.
    """

    def __init__(
        self,
        env: str | Make,
        num_envs: int,
        seed: int,
        device: str | torch.device = "cpu",
        observation_key: str | None = None,
        workers: int | None = None,
        longest: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(env if isinstance(env, str) else getattr(env, "__name__", repr(env)), num_envs, device)
        make: Make = partial(make_env, without_module(env), **kwargs) if isinstance(env, str) else env
        self._sample: Callable[[], Rows] = partial(Rows, make, 1, observation_key)
        rows = Rows if workers is None else partial(WorkerRows, workers=workers)
        self._open: Callable[[], Rows | WorkerRows] = partial(rows, make, num_envs, observation_key, longest)
        children = np.random.SeedSequence(seed).spawn(num_envs)
        self.seeds = [int(child.generate_state(1)[0]) for child in children]
        self.reports_success = True  # until an episode ends without a word of it
        self._build()
        self.observation_space, self.num_actions = self.rows.observation_space, self.rows.num_actions

    def reset(self) -> Tensor:
        """Start all episodes, seeded the first time only; returns the first observations (N, ...)."""
        if self.observation is None:
            return self._start(self.seeds)
        self.log.extend([RESTART] * self.num_envs)
        return self._start(None)

    def frame(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one environment, if it was made with render_mode="rgb_array", as a picture (height, width, 3)."""
        picture = self.rows.frame(row)
        if picture is None:
            raise DrawsNothing(f"Environment {self.name!r} draws nothing with render_mode='rgb_array'.")
        return picture

    def close(self) -> None:
        self.rows.close()

    def ignores_seed(self) -> bool:
        """Tell whether two fresh environments differ that are seeded alike and take the same few actions."""
        with suppress(Exception), closing(self._sample()) as one, closing(self._sample()) as other:
            if not np.array_equal(one.first([self.seeds[0]]), other.first([self.seeds[0]])):
                return True
            until = time.monotonic() + SEED_SECONDS
            for step in range(SEED_STEPS):
                results = [rows.step([step % self.num_actions]) for rows in (one, other)]
                if not all(map(np.array_equal, *results)):
                    return True
                if time.monotonic() > until:
                    break
        return False  # also where one fails, which is said as soon as training comes to it

    def _build(self) -> None:
        self.rows = self._open()

    def _first(self, seeds: list[int] | None) -> Array:
        return self.rows.first([None] * self.num_envs if seeds is None else [*seeds])

    def _step(self, chosen: list[int]) -> Step:
        found = self.rows.step(chosen)
        self._count(found.rewards)
        done = found.terminated | found.truncated
        self.reports_success &= bool((found.success[done] >= 0).all())
        success = done & np.where(found.success < 0, self.returns > 0, found.success > 0)
        self.observation = found.final.copy()
        self.observation[done] = found.fresh
        return Step(**self._fields(found.final, found.rewards, found.terminated, found.truncated, success))


def spawn_seeds(entropy: int | list[int], number: int) -> list[int]:
    """Spawn seeds of environments from one seed, or from earlier ones."""
    return (np.random.SeedSequence(entropy).generate_state(number).astype(np.int64) >> 1).tolist()
