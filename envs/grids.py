"""Phantom walls on the view of any grid environment that says where its agent is.

`phantom_view` knows the Gridverse worlds of this suite and MiniGrid.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from envs.errors import UserError, require
from envs.gridverse import objects
from envs.gridverse.layouts import inner_lines
from envs.gridverse.world import GridState, GridWorld
from envs.spaces import Array

AHEAD = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])  # MiniGrid's headings as steps (y, x): east, south, west, north
KEPT = ("ImgObsWrapper", "ViewSizeWrapper")  # MiniGrid's wrappers that show cells of the same kinds and order
NOWHERE = 2**31  # cells from the agent, which no grid has


@dataclass(frozen=True)
class PhantomView:
    """A view of K cells with C numbers each, in which floor on the lines of phantom rooms looks like a wall."""

    lines: Array  # (H, W) bool, the cells on a line, none of them on the border
    offset: Array  # (4, K, 2) int64, (y, x) of the view's cells from the agent, by heading
    floor: Array  # (C,)
    wall: Array  # (C,)
    entry: str | None  # of a Dict observation
    pose: Callable[[Any], Array]  # of a state: row, column and heading (N, 3) of each agent

    def paint(self, observation: Any, pose: Array) -> Any:
        """Paint the observations of N agents, or of one without a batch axis."""
        shown = observation if self.entry is None else observation[self.entry]
        cells = shown.reshape(len(pose), -1, len(self.floor))  # (N, K, C)
        places = self.offset[pose[:, 2]] + pose[:, None, :2]  # (N, K, 2)
        # clipped to the border, which has no lines, because a view may reach beyond the grid
        y, x = (places[..., axis].clip(0, side - 1) for axis, side in enumerate(self.lines.shape))
        phantom = self.lines[y, x] & (cells == self.floor).all(-1)  # (N, K)
        painted = np.where(phantom[..., None], self.wall, cells).astype(shown.dtype).reshape(shown.shape)
        return painted if self.entry is None else {**observation, self.entry: painted}


def _world_view(world: GridWorld, lines: Array) -> PhantomView:
    """Make the view of a Gridverse world; the states are its GridStates."""
    floor, wall = (world.numbers[objects.pack(kind)].cpu().numpy() for kind in (objects.FLOOR, objects.WALL))
    entry = "grid" if world.dictionary else None
    return PhantomView(lines, world.view.offset.cpu().numpy(), floor, wall, entry, partial(_world_pose, world.width))


def _world_pose(width: int, state: GridState) -> Array:
    position, heading = (torch.as_tensor(each).cpu().numpy() for each in (state.position, state.heading))
    return np.stack([position // width, position % width, heading], -1)


def _minigrid_view(lines: Array, side: int, entry: str | None) -> PhantomView:
    """Make the view of `side` x `side` cells of a MiniGrid environment, which is its own state."""
    column, row = np.divmod(np.arange(side * side)[:, None], side)  # (K, 1) each; a picture's first axis is across
    ahead, aside = side - 1 - row, column - side // 2  # cells from the agent
    offset = ahead * AHEAD[:, None] + aside * np.roll(AHEAD, -1, 0)[:, None]  # (4, K, 2)
    offset[:, (offset == 0).all((0, 2))] = NOWHERE  # the agent's own cell shows what it carries
    floor = np.array([sys.modules["minigrid.core.constants"].OBJECT_TO_IDX["empty"], 0, 0])
    wall = np.array(sys.modules["minigrid.core.world_object"].Wall().encode())
    return PhantomView(lines, offset, floor, wall, entry, _minigrid_pose)


def _minigrid_pose(env: Any) -> Array:
    return np.array([[*env.agent_pos[::-1], env.agent_dir]])


def phantom_view(env: Any, rooms: Sequence[int]) -> PhantomView:
    """Make the view of an environment, or of a vector of worlds.

    Raises:
        UserError: the environment shows no grid that is known here, a wrapper has changed what it shows, or the rooms
            do not fit.
    """
    inner, vector = env.unwrapped, hasattr(env, "num_envs")
    shown, own = (each.single_observation_space if vector else each.observation_space for each in (env, inner))
    changed = "PhantomWalls must see the view that {} shows, but {} changes it; put it outside of PhantomWalls."
    if isinstance(getattr(inner, "world", None), GridWorld):
        require(shown == own, changed.format(type(inner.world).__name__, "a wrapper"))
        return _world_view(inner.world, inner_lines(inner.world.height, inner.world.width, rooms).numpy())
    minigrid: Any = sys.modules.get("minigrid.minigrid_env")
    if minigrid is None or not isinstance(inner, minigrid.MiniGridEnv):
        advice = " (or in a vector: make_vec(id, wrappers=[PhantomWalls]) wraps each of its environments)"
        raise UserError(
            f"PhantomWalls needs a Gridverse world or MiniGrid, where the agent has a place, not {env}"
            f"{advice if vector else ''}."
        )
    while env is not inner:
        changes = isinstance(env, gymnasium.ObservationWrapper) and type(env).__name__ not in KEPT
        require(not changes, changed.format(type(inner).__name__, type(env).__name__))
        env = env.env
    entry = "image" if isinstance(shown, spaces.Dict) else None
    side = (shown[entry] if entry else shown).shape[0]
    return _minigrid_view(inner_lines(inner.height, inner.width, rooms).numpy(), side, entry)
