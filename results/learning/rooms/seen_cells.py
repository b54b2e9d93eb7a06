"""Mazes that also pay for each cell, walls apart, that comes into view for the first time after the start.

They are for tries p and q of `rooms.md`, and for the usual view of 2 x 3 cells alone:

    PYTHONPATH=results/learning/rooms python -m dqn_memory.ppo --plugin seen_cells --env Seen5/NineRooms-v0

The number in the name is the pay in hundredths. Success is a positive return without this pay, as in the suite; only at
step 100, where the return is 0, rounding may decide otherwise.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import envs
from envs.core import World
from envs.gridverse.objects import WALL, pack
from envs.gridverse.tasks import MemoryEmpty, MemoryRooms
from envs.gridverse.world import GridState, GridWorld, scene_of


@dataclass
class SeenState(GridState):
    """A grid with the cells that were in view."""

    seen: Tensor  # (N, H*W) bool
    paid: Tensor  # (N,) float64, the pay so far


class PaysForCells(GridWorld):
    """A grid environment that pays for new cells, of tensors alone; its view must not reach beyond the grid."""

    pay = 0.0

    def _look(self, scene: Any, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Mark the cells in view; also count the new ones that are no wall, (N,)."""
        view = scene.position[:, None] + self.view.flat[scene.heading]  # (N, cells of the window)
        new = ~seen.gather(1, view) & (scene.cells.gather(1, view) != pack(WALL))
        return seen.scatter(1, view, True), new.sum(1)

    def reset(self, u: Tensor) -> SeenState:
        """Start N episodes from uniforms u; what is in view at first pays nothing."""
        state = super().reset(u)
        seen, _ = self._look(state, torch.zeros(state.cells.shape, dtype=torch.bool, device=state.cells.device))
        return SeenState(**vars(state), seen=seen, paid=torch.zeros_like(state.returns))

    def step(self, state: Any, action: Tensor, u: Tensor) -> Any:
        """Step the environment, which sees the return without the pay, and then pay."""
        inner = GridState(state.observation, state.steps, state.returns - state.paid, *scene_of(state))
        after, observation, reward, terminated, success = super().step(inner, action, u)
        seen, new = self._look(after, state.seen)
        pay = self.pay * new.double()
        reward = reward + pay
        changed = vars(after) | {"returns": state.returns + reward}
        after = SeenState(**changed, seen=seen, paid=state.paid + pay)
        return after, observation, reward, terminated, success


def register(base: type[PaysForCells], task: type[World[Any]], group: str, name: str, **kwargs: Any) -> None:
    """Register a task under `group`/`name`, with what a base adds to it."""

    class Changed(base, task):  # type: ignore[misc, valid-type]
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**kwargs, **options})
            self.runs_on_numpy = False

    label = f"{group}{name.replace('-', '')}"
    module = sys.modules[base.__module__]
    setattr(module, label, Changed)
    envs.register(f"{group}/{name}-v0", envs.Entry(f"{base.__module__}:{label}"))


class Pays5(PaysForCells):
    """Pays 0.05 a cell."""

    pay = 0.05


class Pays30(PaysForCells):
    """Pays 0.3 a cell."""

    pay = 0.30


for base, group in ((Pays5, "Seen5"), (Pays30, "Seen30")):
    register(base, MemoryRooms, group, "FourRooms-7x7", size=7, rooms=(2, 2))
    for rooms, name in ((2, "FourRooms"), (3, "NineRooms"), (4, "SixteenRooms"), (5, "TwentyFiveRooms")):
        register(base, MemoryRooms, group, name, size=13, rooms=(rooms, rooms))
    for beacons in (2, 3):
        register(base, MemoryRooms, group, f"NineRooms-{beacons}Beacons", size=13, rooms=(3, 3), beacons=beacons)
    register(base, MemoryEmpty, group, "Hallucinated", size=13, rooms=(5, 5), phantom_rooms=(5, 5))
