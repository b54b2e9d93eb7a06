"""The original engine, where somebody has it: the same file, the same numpy interface.

gym-gridverse is not in the package index, and needs an old gym; without it everything here but `installed` raises.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.errors import UserError
from envs.gridverse.objects import EAST, NORTH, SOUTH, WEST, colours, kinds, statuses
from envs.gridverse.world import GridState, GridWorld
from envs.gridverse.yaml.schema import COLOURS, KINDS
from envs.gridverse.yaml.world import locate

Array = np.ndarray[Any, np.dtype[Any]]
HEADINGS = {NORTH: "F", EAST: "R", SOUTH: "B", WEST: "L"}  # what the originals call them
HIGHEST_TYPE = 10


@dataclass(frozen=True)
class Snapshot:
    """A state as plain arrays, in the numbers of the 'default' encoding."""

    grid: Array  # (H, W, 3) uint8: type, status, colour
    agent: Array  # (3,) uint8: y, x, heading
    held: Array  # (3,) uint8: type, status, colour; all 0 is an empty hand


def snapshot(world: GridWorld, state: GridState, row: int) -> Snapshot:
    """One row of a state of this package's worlds."""
    cells = state.cells[row].view(world.height, world.width)
    y, x = divmod(int(state.position[row]), world.width)
    pose = np.array([y, x, int(state.heading[row])], np.uint8)
    return Snapshot(_channels(cells), pose, _channels(state.held[row]))


def _channels(code: Tensor) -> Array:
    parts = torch.stack([kinds(code), statuses(code), colours(code)], -1)
    return parts.cpu().numpy().astype(np.uint8)


def installed() -> bool:
    """Whether the package gym_gridverse can be imported."""
    return importlib.util.find_spec("gym_gridverse") is not None


class Original(gymnasium.Env[Array, np.int64]):
    """The world of a gridverse YAML file, run by gym_gridverse itself; the dynamics draw from its own stream.

    Observation: type index + colour index of the window's cells, as in this package's worlds.

    Args:
        path: a file, or the name of one that comes along.
        time_limit: an episode that has not terminated after this many steps is truncated.

    Raises:
        UserError: gym_gridverse is not installed, or there is no such file.
    """

    def __init__(self, path: str | Path, time_limit: int = 500) -> None:
        if not installed():
            raise UserError("Original needs the package gym_gridverse (github.com/abaisero/gym-gridverse).")
        self._objects = importlib.import_module("gym_gridverse.grid_object")
        self._geometry = importlib.import_module("gym_gridverse.geometry")
        factory = importlib.import_module("gym_gridverse.envs.yaml.factory")
        self.inner = factory.factory_env_from_yaml(str(locate(path)))
        self.actions = list(self.inner.action_space.actions)
        self.action_space = gymnasium.spaces.Discrete(len(self.actions))
        self.time_limit, self.steps = time_limit, 0
        self.state = self.inner.functional_reset()
        high = HIGHEST_TYPE + max(COLOURS.values()) + 1
        self.observation_space = gymnasium.spaces.MultiDiscrete([high] * len(self.observe()))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; returns the observation (cells,) int64 and an empty info."""
        super().reset(seed=seed)
        if seed is not None:
            self.inner.set_seed(seed)
        self.state, self.steps = self.inner.functional_reset(), 0
        return self.observe(), {}

    def step(self, action: int | np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One action, by its number in the file's action space."""
        self.state, reward, done = self.inner.functional_step(self.state, self.actions[int(action)])
        self.steps += 1
        return self.observe(), float(reward), bool(done), not done and self.steps >= self.time_limit, {}

    def observe(self) -> Array:
        """The window (cells,) int64 of the present state."""
        grid = _grid(self.inner.functional_observation(self.state).grid)
        return (grid[..., 0].astype(np.int64) + grid[..., 2]).flatten()

    def snapshot(self) -> Snapshot:
        """The present state."""
        agent = self.state.agent
        names = {name: heading for heading, name in HEADINGS.items()}
        pose = [agent.position.y, agent.position.x, names[agent.orientation.name]]
        return Snapshot(
            _grid(self.state.grid), np.array(pose, np.uint8), np.array(_numbers(agent.grid_object), np.uint8)
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Make `snapshot` the present state; a new episode begins."""
        self.steps = 0
        for y, x in np.ndindex(snapshot.grid.shape[:2]):
            self.state.grid[y, x] = self._object(*snapshot.grid[y, x].tolist())
        y, x, heading = snapshot.agent.tolist()
        agent = self.state.agent
        agent.position = self._geometry.Position(y, x)
        agent.orientation = self._geometry.Orientation[HEADINGS[heading]]
        agent.grid_object = self._object(*snapshot.held.tolist())

    def _object(self, kind: int, status: int, colour: int) -> Any:
        """One of the originals' objects from its three numbers."""
        if not kind:
            return self._objects.NoneGridObject()
        name = next(name for name, code in KINDS.items() if code == kind)
        build, hue = getattr(self._objects, name), self._objects.Color(colour)
        if name == "Door":
            return build(self._objects.Door.Status(status), hue)
        return build(hue) if name in ("Exit", "Key", "Telepod", "Beacon") else build()


def _grid(grid: Any) -> Array:
    """The numbers (H, W, 3) uint8 of the originals' grid."""
    height, width = grid.shape.height, grid.shape.width
    cells = [[_numbers(grid[y, x]) for x in range(width)] for y in range(height)]
    return np.array(cells, np.uint8)


def _numbers(thing: Any) -> tuple[int, int, int]:
    """Type, status and colour of one of the originals' objects."""
    return thing.type_index(), thing.state_index, thing.color.value
