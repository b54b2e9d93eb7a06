"""N Gymnasium environments behind the fleet's interface, with exact resume by replay of the actions."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import Step
from envs.errors import UserError, near_names
from envs.registry import WORLDS
from envs.spaces import discrete_actions, encoder

Array = np.ndarray[Any, np.dtype[Any]]
Make = Callable[[], gymnasium.Env[Any, Any]]
RESTART = -1  # logged in place of the actions when all episodes are started over


class GymnasiumFleet:
    """N environments of one kind, stepped one after the other, each started over when its episode ends.

    Every environment is seeded once, at the first reset, with a seed spawned from `seed`. An environment
    cannot be copied, so a saved state is the seeds and all actions since; loading replays them.

    An episode's success is what the info of its last step says as "success" or "is_success"; where it says neither,
    a return above 0 counts, and `tells_success` is False from then on.

    Args:
        env: a Gymnasium id, which takes the remaining keywords, or a function that makes one environment.
        observation_key: the entry to use of a Dict observation.

    Raises:
        UserError: the id is unknown or cannot be made, the actions are not Discrete, the observation has
            another form than Box, Discrete, MultiDiscrete or MultiBinary, or a key is missing.
    """

    exact_resume = True

    def __init__(
        self,
        env: str | Make,
        num_envs: int,
        seed: int,
        device: str | torch.device = "cpu",
        observation_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        self.name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
        self.make: Make = (lambda: make_env(env, **kwargs)) if isinstance(env, str) else env
        self.num_envs, self.device = num_envs, torch.device(device)
        children = np.random.SeedSequence(seed).spawn(num_envs)
        self.seeds = [int(child.generate_state(1)[0]) for child in children]
        self.log = array("h")  # all actions since the first reset, N for every step
        self.tells_success = True  # until an episode ends without a word of it
        self._build()
        self.observation_space, self._encode = encoder(self.envs[0].observation_space, observation_key)
        self.num_actions, self._first_action = discrete_actions(self.envs[0].action_space)

    def reset(self) -> Tensor:
        """Start all episodes, seeded the first time only; returns the first observations (N, ...)."""
        if self._observation is None:
            self._start(self.seeds)
        else:
            self.log.extend([RESTART] * self.num_envs)
            self._start([None] * self.num_envs)
        return self._tensor(self._current())

    def step(self, action: Tensor) -> Step:
        """One action (N,) int64 in every environment."""
        chosen = action.tolist()
        self.log.extend(chosen)
        rewards, flags, final = self._act(chosen)
        terminated, truncated, success = flags.T  # each (N,)
        returns, lengths = self._returns.copy(), self._lengths.copy()
        self._restart(terminated | truncated)
        return Step(
            observation=self._tensor(self._current()),
            final_observation=self._tensor(final),
            reward=self._tensor(rewards).float(),
            terminated=self._tensor(terminated),
            truncated=self._tensor(truncated),
            success=self._tensor(success),
            episode_return=self._tensor(returns),
            episode_length=self._tensor(lengths),
        )

    def frame(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Picture (height, width, 3) of one environment, if it was made with render_mode="rgb_array"."""
        picture = self.envs[row].render() if self.envs[row].render_mode == "rgb_array" else None
        if picture is None:
            raise UserError(f"Environment {self.name!r} draws nothing; make it with render_mode='rgb_array'.")
        return np.asarray(picture, np.uint8)

    def state_dict(self) -> dict[str, Any]:
        """Seeds (N,), actions (T, N) and a hash of the last observations: tensors and integers only."""
        log = np.frombuffer(self.log, np.int16).reshape(-1, self.num_envs)
        return {
            "seeds": torch.tensor(self.seeds),
            "actions": torch.tensor(log),
            "observation_hash": _hash(self._current()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start anew from the saved seeds and replay the saved actions.

        Raises:
            UserError: the number of environments differs, or the replay ends in other observations.
        """
        if "actions" not in state or state["actions"].shape[1:] != (self.num_envs,):
            raise UserError(
                f"The saved state does not fit {self.num_envs} environments {self.name!r}; "
                "resume with the environment and the number that the run was started with."
            )
        self.seeds = state["seeds"].tolist()
        self.log = array("h", state["actions"].flatten().tolist())
        self.close()
        self._build()
        self._replay(state["actions"].tolist())
        if _hash(self._current()) != state["observation_hash"]:
            raise UserError(
                f"Environment {self.name!r} is not deterministic: replaying {len(state['actions'])} steps "
                "from the saved seeds ends in other observations, so this run cannot be resumed exactly."
            )

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _build(self) -> None:
        self.envs = [self.make() for _ in range(self.num_envs)]
        self._observation: Array | None = None
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)

    def _start(self, seeds: list[int] | list[None]) -> None:
        first = [env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=True)]
        self._observation = np.stack([self._encode(each) for each in first])  # (N, ...)
        self._returns[:], self._lengths[:] = 0.0, 0

    def _act(self, chosen: list[int]) -> tuple[Array, Array, Array]:
        """Step every environment: rewards (N,), flags (N, 3) and next observations (N, ...)."""
        results = [env.step(self._first_action + a) for env, a in zip(self.envs, chosen, strict=True)]
        rewards = np.array([float(result[1]) for result in results])
        self._returns += rewards
        self._lengths += 1
        flags = [self._flags(row, *result[2:]) for row, result in enumerate(results)]
        self._observation = np.stack([self._encode(result[0]) for result in results])
        return rewards, np.array(flags), self._observation.copy()

    def _flags(self, row: int, ended: Any, cut: Any, info: dict[str, Any]) -> tuple[bool, bool, bool]:
        """terminated, truncated, success; an end at the time limit is an end."""
        terminated, truncated = bool(ended), bool(cut) and not ended
        done = terminated or truncated
        self.tells_success &= not done or "success" in info or "is_success" in info
        verdict = info.get("success", info.get("is_success", self._returns[row] > 0))
        return terminated, truncated, bool(verdict) and done

    def _restart(self, done: Array) -> None:
        for row in np.flatnonzero(done):
            self._current()[row] = self._encode(self.envs[row].reset()[0])
            self._returns[row], self._lengths[row] = 0.0, 0

    def _replay(self, log: list[list[int]]) -> None:
        self._start(self.seeds)
        for chosen in log:
            if chosen[0] == RESTART:
                self._start([None] * self.num_envs)
            else:
                _, flags, _ = self._act(chosen)
                self._restart(flags[:, 0] | flags[:, 1])

    def _current(self) -> Array:
        if self._observation is None:
            raise UserError("The environments have not been started; call reset() before anything else.")
        return self._observation

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values.copy()).to(self.device)


def make_env(id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make` with one clear sentence for an id or a keyword that does not exist."""
    try:
        return gymnasium.make(id, disable_env_checker=True, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise UserError(near_names("environment", id, {*WORLDS, *gymnasium.registry})) from error
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise UserError(f"Environment {id!r} cannot be made: {error}") from error
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        raise UserError(f"Environment {id!r} cannot be made with {sorted(kwargs)}: {error}") from error


def _hash(observation: Array) -> int:
    return int.from_bytes(hashlib.blake2b(observation.tobytes(), digest_size=7).digest(), "little")
