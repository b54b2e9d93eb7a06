"""Gymnasium environments made from any world: one row as an Env, N rows as a VectorEnv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from envs.core import State, UserError, World, where
from envs.registry import make_world
from envs.streams import Mask, RowStreams

Array = np.ndarray[Any, np.dtype[Any]]
METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}


class WorldEnv(gymnasium.Env[Array, Any]):
    """One world as a Gymnasium environment on numpy.

    `info["success"]` is set on the final step of every episode. The world truncates itself at `time_limit`.

    Args:
        world: an id of `envs.registry.WORLDS`, which takes the remaining keywords, or a world.
        render_mode: None or "rgb_array".
    """

    metadata = METADATA

    def __init__(self, world: str | World[Any], render_mode: str | None = None, **kwargs: Any) -> None:
        self.world = _world(world, render_mode, kwargs)
        self.render_mode = render_mode
        self.observation_space = self.world.observation_space
        self.action_space = gymnasium.spaces.Discrete(self.world.num_actions)
        self.state: State | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; a seed starts the random stream anew."""
        super().reset(seed=seed)
        self.state = self.world.reset(self._draw(self.world.reset_draws))
        return _array(self.state.observation[0]), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One action."""
        _check_actions(self.action_space, action)
        before, actions = _started(self.state), torch.tensor([int(action)], device=self.world.device)
        u = self._draw(self.world.step_draws)
        self.state, observation, reward, terminated, success = self.world.step(before, actions, u)
        truncated = self.world.truncated(self.state, terminated)
        done, lost = bool(terminated[0]), bool(truncated[0])
        info = {"success": bool(success[0])} if done or lost else {}
        return _array(observation[0]), float(reward[0]), done, lost, info

    def render(self) -> Any:
        """Picture (height, width, 3) of the world as it stands, or None without a render mode."""
        return None if self.render_mode is None else self.world.frame(_started(self.state), 0)

    def _draw(self, count: int) -> Tensor:
        return torch.from_numpy(self.np_random.random((1, count))).to(self.world.device)


class WorldVectorEnv(VectorEnv[Array, Array, Array]):
    """N rows of one world as a Gymnasium vector environment.

    Row i with seed s is `WorldEnv` with seed s; an integer seed gives row i the seed `seed + i`, as in
    Gymnasium's own vector environments. All autoreset modes are served; in `SAME_STEP` the last observation
    and info of an episode are in `info["final_obs"]` and `info["final_info"]`.

    Args:
        world: an id of `envs.registry.WORLDS`, which takes the remaining keywords, or a world.
        autoreset_mode: an AutoresetMode or its value, "NextStep", "SameStep" or "Disabled".
    """

    def __init__(
        self,
        world: str | World[Any],
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.world = _world(world, render_mode, kwargs)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.world.observation_space
        self.single_action_space = gymnasium.spaces.Discrete(self.world.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.streams = RowStreams(num_envs)
        self.state: State | None = None
        self._done: Mask = np.zeros(num_envs, bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        """Start all episodes, or those of `options["reset_mask"]` (N,) bool."""
        if seed is not None:
            self.streams.seed(self._seeds(seed))
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self._restart(mask)
        return _array(_started(self.state).observation), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """One action in every row; a row that is due for its reset ignores its action."""
        _check_actions(self.action_space, actions)
        idle = self._done if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros_like(self._done)
        before = _started(self.state)
        u = self._tensor(self.streams.draw(~idle, self.world.step_draws))
        chosen = self._tensor(actions).long()
        after, observation, reward, terminated, success = self.world.step(before, chosen, u)
        truncated = self.world.truncated(after, terminated)
        rewards, ended, cut, won = (_array(x) for x in (reward, terminated, truncated, success))
        rewards, ended, cut = np.where(idle, 0.0, rewards), ended & ~idle, cut & ~idle
        self.state = after
        self._done = ended | cut
        info = self._finish(idle, _array(observation), won)
        return _array(self.state.observation), rewards, ended, cut, info

    def render(self) -> tuple[Any, ...] | None:
        """One picture for every row, or None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self.world.frame(_started(self.state), row) for row in range(self.num_envs))

    def _finish(self, idle: Mask, observation: Array, success: Array) -> dict[str, Any]:
        """Restart the rows whose turn it is and describe the episodes that have just ended."""
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        done = self._done
        if (restarted := done if same_step else idle).any():
            self._restart(restarted)
        self._done = done
        if not done.any():
            return {}
        info: dict[str, Any] = {"success": success & done, "_success": done.copy()}
        if same_step:
            info |= {"final_info": dict(info), "_final_info": done.copy()}
            info |= {"final_obs": _rows(observation, done), "_final_obs": done.copy()}
        return info

    def _restart(self, mask: Mask) -> None:
        fresh = self.world.reset(self._tensor(self.streams.draw(mask, self.world.reset_draws)))
        self.state = fresh if self.state is None else where(self._tensor(mask), fresh, self.state)
        self._done = self._done & ~mask

    def _tensor(self, array: Array) -> Tensor:
        return torch.as_tensor(array, device=self.world.device)

    def _seeds(self, seed: int | Sequence[int | None]) -> Sequence[int | None]:
        if isinstance(seed, int | np.integer):
            return [int(seed) + row for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UserError(f"seed must be one integer or a list of {self.num_envs}, not a list of {len(seed)}.")
        return seed


def _world(world: str | World[Any], render_mode: str | None, kwargs: dict[str, Any]) -> World[Any]:
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"render_mode must be None or 'rgb_array', not {render_mode!r}.")
    return make_world(world, **kwargs) if isinstance(world, str) else world


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(each.value) for each in AutoresetMode)
        raise UserError(f"autoreset_mode must be one of {known}, not {mode!r}.") from None


def _check_actions(space: gymnasium.Space[Any], action: Any) -> None:
    if not space.contains(action):
        raise UserError(f"The action {action!r} is not in {space}.")


def _started(state: State | None) -> State:
    if state is None:
        raise UserError("The environment has not been started; call reset() before anything else.")
    return state


def _rows(array: Array, chosen: Mask) -> Array:
    """The chosen rows of an array (N, ...) as an object array (N,), None elsewhere, as Gymnasium has it."""
    rows = np.full(len(array), None, object)
    for row in np.flatnonzero(chosen):
        rows[row] = array[row]
    return rows


def _array(tensor: Tensor) -> Array:
    """A numpy copy that later steps do not touch."""
    return tensor.detach().cpu().numpy().copy()
