"""Grid environments from a layout, rules, rewards, endings, a view and an encoding."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from envs.core import State, World
from envs.gridverse import render
from envs.gridverse.encodings import FullState, Objects, encoding_of
from envs.gridverse.layouts import inner_lines
from envs.gridverse.objects import HIDDEN, PHANTOM, Ending, Layout, Reward, Rule, Scene, Transition, pack
from envs.gridverse.rules import ACTION_NAMES, apply_rules, at
from envs.gridverse.view import View, window
from envs.numpy_backend import concatenate, take
from envs.spaces import MultiDiscrete


@dataclass
class GridState(State):
    """N grids with one agent each: a Scene with an observation and counters."""

    cells: Tensor  # (N, H*W) int16, packed objects row by row
    position: Tensor  # (N,) int64, y*W + x
    heading: Tensor  # (N,) int64
    held: Tensor  # (N,) int64, code of the object in the hand
    good: Tensor  # (N,) int64, colour of the good exit; 0 if the task has none


@dataclass(frozen=True)
class Task:
    """The dynamics, rewards and endings of a grid environment, without the view."""

    runs_on_numpy = True  # if its parts do

    layout: Layout
    actions: tuple[int, ...]  # canonical numbers of the agent's actions, in their order
    rules: tuple[Rule, ...]
    rewards: tuple[Reward, ...]
    endings: tuple[Ending, ...]
    objects: Objects


class GridWorld(World[GridState]):
    """A task with a view and an encoding.

    An observation is the window's cells, row by row, each as the C numbers of its encoding ("summed" has one, the
    others type, status and colour): MultiDiscrete of rows * columns * C. As a dictionary it has the entries
    `grid` (rows, columns, C), `agent_id_grid` (rows, columns), which is 1 at the agent, and `item` (C,), the object in
    the hand. The observation tensor then has the flattened entries in the order of the space.

    Success is an end with a positive float64 return.

    Args:
        view: the view, or rows and columns of a window with the agent in the middle of the last row.
        encoding: "summed" or "default".
        phantom_rooms: draw the lines of (down, across) phantom rooms over the floor. The paper's hallucinated
            environment is an "empty 13x13 grid overlaid with 25 equally sized artificially created rooms" whose walls
            "do not block agent movement but instead only provide cues"; its code was not published. Here a floor cell
            on an inner line of the rooms looks like a wall, but blocks neither the agent nor its sight. Starts, rewards
            and transitions equal those of the same environment without phantoms, the control.

    Raises:
        UserError: there is no such encoding or view, the phantom rooms do not fit, or the time limit is below 1.
    """

    def __init__(
        self,
        task: Task,
        /,
        view: View | Sequence[int] = (2, 3),
        encoding: str = "summed",
        dictionary: bool = False,
        phantom_rooms: Sequence[int] | None = None,
        time_limit: int = 500,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(time_limit, device)
        self.height, self.width = task.layout.height, task.layout.width
        view = view if isinstance(view, View) else View(self.height, self.width, window(view), device=device)
        self.task, self.view, self.dictionary = task, view, dictionary
        self.phantoms: Tensor | None = None  # (H*W,) int64, PHANTOM on a line; only the view uses it
        if phantom_rooms is not None:
            self.phantoms = inner_lines(self.height, self.width, phantom_rooms).flatten().to(self.device) * PHANTOM
        self.num_actions = len(task.actions)
        self.action_names = tuple(ACTION_NAMES[action] for action in task.actions)
        self.reset_draws = task.layout.draws + view.draws
        self.step_draws = sum(rule.draws for rule in task.rules) + view.draws
        plain = task.actions == tuple(range(len(task.actions)))
        self._canonical = None if plain else torch.tensor(task.actions, device=self.device)
        encoded = encoding_of(encoding, task.objects, self.device)
        self.numbers = encoded.numbers  # (SEEN, C)
        self._shown = view.rows * view.columns * len(encoded.sizes)
        agent = torch.zeros(1, view.rows, view.columns, dtype=torch.int64, device=self.device)
        agent[0, view.agent[0], view.agent[1]] = 1
        self._agent = agent.flatten(1)  # (1, rows*columns), 1 at the agent
        parts = (view, *task.rules, *task.rewards, *task.endings)
        self.runs_on_numpy = all(getattr(part, "runs_on_numpy", False) for part in parts)
        self.observation_space = _space(view, encoded.sizes, dictionary)
        self._full_state = FullState(self.height, self.width, self.device)
        self.state_space = self._full_state.space

    def initial_draws(self) -> Tensor | None:
        """List reset draws, one row per initial state, if the layout has few of them and steps draw nothing."""
        return None if self.step_draws else self.task.layout.initial_draws()

    def reset(self, u: Tensor) -> GridState:
        """Start N episodes from uniforms u (N, reset_draws)."""
        drawn = self.task.layout.draws
        scene = self._initial(u[:, :drawn])
        steps, returns = self.counters(len(u))
        return GridState(self.observe(scene, u[:, drawn:]), steps, returns, *scene)

    def step(self, state: GridState, action: Tensor, u: Tensor) -> tuple[GridState, Tensor, Tensor, Tensor, Tensor]:
        """Apply rules, then rewards and endings, then the view."""
        canonical = action if self._canonical is None else take(self._canonical, action)
        before = scene_of(state)
        after, left = apply_rules(self.task.rules, before, canonical, u)
        step = Transition(before, canonical, after, at(after.cells, after.position))
        reward = reduce(operator.add, [pay(step) for pay in self.task.rewards])
        terminated = reduce(operator.or_, [ends(step) for ends in self.task.endings])
        returns, observation = state.returns + reward, self.observe(after, left)
        state = GridState(observation, state.steps + self.one, returns, *after)
        return state, observation, reward, terminated, terminated & (returns > self.nothing)

    def observe(self, scene: Scene, u: Tensor) -> Tensor:
        """Compute the observation (N, d) int64 of a scene, with uniforms u (N, view.draws)."""
        codes = self.view(scene.cells, scene.position, scene.heading, u, self.phantoms)
        shown: Tensor = take(self.numbers, codes.reshape(-1)).reshape(-1, self._shown)
        if not self.dictionary:
            return shown
        agent = take(self._agent, scene.held * 0)
        return concatenate([agent, shown, take(self.numbers, scene.held)])

    def observe_state(self, state: GridState) -> Tensor:
        """Return the complete state (N, S*S + 5) int64, see `envs.gridverse.encodings.FullState`."""
        return self._full_state(scene_of(state))

    def frame(self, state: GridState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the grid with the agent, the object in its hand, phantom walls and, brighter, its visible cells."""
        return render.draw_grid(self._picture(state, row))

    def text(self, state: GridState, row: int) -> str:
        """Draw the grid in characters, with the agent as ^ v < >, and below it the window that the agent sees."""
        return render.grid_text(self._picture(state, row))

    def _initial(self, u: Any) -> Scene:
        """Draw the layout's scenes. Layouts run on tensors only, because resets are rare."""
        if isinstance(u, Tensor):
            return self.task.layout(u)
        arrays: list[Any] = [each.numpy() for each in self.task.layout(torch.from_numpy(u))]
        return Scene(*arrays)

    def _picture(self, state: GridState, row: int) -> render.Drawing:
        """Collect the data for a drawing of one row; uniforms of 0 light all cells that can be lit."""
        one = GridState(*(torch.as_tensor(value[row : row + 1]) for value in vars(state).values()))
        u = torch.zeros(1, self.view.draws, dtype=torch.float64, device=self.device)
        window = self.view(one.cells, one.position, one.heading, u, self.phantoms)[0]
        position = divmod(int(one.position[0]), self.width)
        seen = self.view.offset[one.heading[0]][window != pack(HIDDEN)].cpu() + torch.tensor(position)
        cells = one.cells[0].long() + (0 if self.phantoms is None else self.phantoms)
        return render.Drawing(
            grid=cells.view(self.height, self.width).cpu().numpy(),
            window=window.view(self.view.rows, self.view.columns).cpu().numpy(),
            seen=set(map(tuple, seen.tolist())),
            position=position,
            heading=int(one.heading[0]),
            held=int(one.held[0]),
        )


def scene_of(state: GridState) -> Scene:
    """Return a state's scene, without observation and counters."""
    return Scene(state.cells, state.position, state.heading, state.held, state.good)


def _space(view: View, sizes: tuple[int, ...], dictionary: bool) -> gymnasium.Space[Any]:
    cell = np.array(sizes)  # (C,)
    if not dictionary:
        return MultiDiscrete(np.tile(cell, view.rows * view.columns))
    shape = (view.rows, view.columns)
    parts = {"agent_id_grid": np.full(shape, 2), "grid": np.tile(cell, (*shape, 1)), "item": cell}
    return spaces.Dict({name: MultiDiscrete(part) for name, part in parts.items()})
