"""What layouts make, rules change, and rewards and endings judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor


class Scene(NamedTuple):
    """N grids with one agent each. No tensor is ever written in place."""

    cells: Tensor  # (N, H*W) int16, packed objects row by row
    position: Tensor  # (N,) int64, y*W + x
    heading: Tensor  # (N,) int64
    held: Tensor  # (N,) int64, code of the object in the hand; pack(NONE) is an empty hand
    good: Tensor  # (N,) int64, colour of the good exit; 0 where the task has none


class Transition(NamedTuple):
    """One step: what was, what was done (in canonical actions), what is."""

    before: Scene
    action: Tensor  # (N,) int64
    after: Scene
    under: Tensor  # (N,) int64, code of the cell that the agent stands on after the step


class Layout(Protocol):
    """The initial scenes of a task."""

    height: int
    width: int
    draws: int

    def __call__(self, u: Tensor) -> Scene:
        """N scenes from uniforms u (N, draws) float64."""

    def initial_draws(self) -> Tensor | None:
        """Draws (M, draws), one row per initial state where these are few; else None."""


class Rule(Protocol):
    """One way in which an action, or the world itself, changes a scene. Rules run one after the other."""

    draws: int

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        """The scene after actions (N,) int64 with uniforms u (N, draws) float64; without draws, u is not to be read."""


Reward = Callable[[Transition], Tensor]  # to (N,) float64; a world sums its rewards in their order
Ending = Callable[[Transition], Tensor]  # to (N,) bool; an episode ends when any ending says so
