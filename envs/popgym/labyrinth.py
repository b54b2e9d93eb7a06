"""POPGym's labyrinths: mazes that are seen three by three cells at a time, to escape from or to explore."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.errors import require
from envs.numpy_backend import (
    concatenate,
    converted,
    copied,
    integers,
    put_column,
    take,
    take_column,
    take_columns,
    where,
)
from envs.popgym.mazes import FREE, WALL, Mazes
from envs.popgym.shuffle import hashed, repeated
from envs.spaces import Array, MultiDiscrete

START, GOAL, EXPLORED = 2, 3, 4  # other kinds of cells; EXPLORED is added to FREE and START
NOTHING = 4  # the last action before the first
SHOWN = 5  # numbers of a cell that the observation's space has
MOVES = (0, -1), (0, 1), (-1, 0), (1, 0)  # rows and columns
MIN_SIZE, MAX_SIZE = 6, 64
CHARACTERS = " #SE. S"  # of the kinds of cells
COLOURS = {
    "#": (60, 60, 65), " ": (245, 245, 245), ".": (205, 225, 200), "S": (120, 170, 230), "E": (90, 180, 90),
    "@": (214, 66, 61),
}  # fmt: skip


@dataclass
class MazeState(State):
    """N mazes of H x H cells."""

    cells: Tensor  # (N, H * H + 1) int8, row by row; the last one is a wall that stands for all beyond the maze
    place: Tensor  # (N,) int64, the agent's cell
    left: Tensor  # (N,) int64, cells that are still to be found


class Labyrinth(World[MazeState]):
    """Move left, right, up or down through a maze of (maze + 1) x (maze + 1) cells; walls stop a move.

    The agent starts in the outer wall. The observation has the nine cells around it, row by row (0 free, 1 a wall, 2
    the start, 3 the exit), and the last action (4 before the first). An episode has 1023 steps at most. Episodes cannot
    succeed: scores are returns.

    In the first row and in the first column POPGym 1.0.7 moves its view by one cell, so that the agent's own cell is
    not in the middle; `as_released` does so, too.
    """

    num_actions = 4
    action_names = ("left", "right", "up", "down")
    reset_draws = 1
    step_draws = 0
    defines_success = False
    runs_on_numpy = True
    explores: bool  # free cells are to be found, not the exit

    def __init__(
        self, maze: int = 10, as_released: bool = False, time_limit: int = 1023, device: str | torch.device = "cpu"
    ) -> None:
        super().__init__(time_limit, device)
        wanted = f"an even number from {MIN_SIZE} to {MAX_SIZE}"
        fits = MIN_SIZE <= maze <= MAX_SIZE and maze % 2 == 0
        require(fits, f"maze of {type(self).__name__} must be {wanted}, not {maze}.")
        self.side, self.rooms, self.as_released = maze + 1, maze * maze // 4, as_released
        self.observation_space = MultiDiscrete([SHOWN] * 9 + [NOTHING + 1])
        self.state_space = MultiDiscrete([len(CHARACTERS)] * self.side**2 + [self.side, self.side])
        self.mazes = Mazes(maze // 2, self.device)
        cells = [divmod(cell, self.side) for cell in range(self.side**2)]
        self.places = self._table(cells)  # (H * H, 2)
        self.around = self._table([_around(self.side, *cell, as_released) for cell in cells])  # (H * H, 9)
        # a cell beyond the maze is a wall, too
        targets = [_cell(self.side, row + down, column + right) for row, column in cells for down, right in MOVES]
        self.targets = self._table(targets)  # (H * H * 4,)
        self.ends = self._table(_ends(self.side))  # (4 * R * R, 2) starts and exits
        self.outside = self._table([WALL]).to(torch.int8)
        # as many are free as there are rooms, and one less walls that are broken
        self.wanted, cost = 2 * self.rooms - 1 if self.explores else 1, 1 / (time_limit + 1)
        prize = 1 / self.wanted if self.explores else 1 - cost
        self.prize, self.wasted = self._table([prize, -cost], torch.float64)

    def _table(self, numbers: Sequence | float, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=self.device)

    def reset(self, u: Tensor) -> MazeState:
        """Draw a maze and its ends from u (N, 1)."""
        steps, returns = self.counters(len(u))
        drawn = hashed(u, self.rooms + 1)
        ends = take(self.ends, integers(drawn[:, -1] * len(self.ends)))
        start, end, free = ends[:, 0], ends[:, 1], converted(steps, self.outside)
        cells = concatenate([self.mazes(drawn), repeated(self.outside, len(u))])
        cells = put_column(cells, start, free + (START + EXPLORED if self.explores else START))
        if not self.explores:
            cells = put_column(cells, end, free + GOAL)
        observation = self.observe(cells, start, steps + NOTHING)
        return MazeState(observation, steps, returns, cells, start, steps + self.wanted)

    def step(self, state: MazeState, action: Tensor, u: Tensor) -> tuple[MazeState, Tensor, Tensor, Tensor, Tensor]:
        """Move once."""
        target = take(self.targets, state.place * self.num_actions + action)
        kind = take_column(state.cells, target)  # (N,)
        place, cells = where(kind == WALL, state.place, target), state.cells
        found = kind == (FREE if self.explores else GOAL)
        if self.explores:
            cells = put_column(copied(cells), target, kind + EXPLORED * converted(found, kind))
        reward, left = where(found, self.prize, self.wasted), state.left - integers(found)
        observation = self.observe(cells, place, action)
        after = MazeState(observation, state.steps + self.one, state.returns + reward, cells, place, left)
        return after, observation, reward, left == 0, found != found

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, cells, place, left = row
        target = self.targets.item(place * self.num_actions + action)
        kind = cells[target]
        place = place if kind == WALL else target
        found = kind == (FREE if self.explores else GOAL)
        if found and self.explores:
            cells = cells.copy()
            cells[target] = kind + EXPLORED
        reward, left = self.prize if found else self.wasted, left - found
        seen = [*[cells[cell] & (EXPLORED - 1) for cell in self.around[place].tolist()], action]
        return (seen, steps + 1, returns + reward, cells, place, left), reward, left == 0, False

    def observe(self, cells: Tensor, place: Tensor, action: Tensor) -> Tensor:
        """Return the observation (N, 10) int64."""
        view = take_columns(cells, take(self.around, place)) & (EXPLORED - 1)
        observation: Tensor = concatenate([integers(view), action[:, None]])
        return observation

    def observe_state(self, state: MazeState) -> Tensor:
        """Return the kinds of all cells, and the agent's row and column, (N, H * H + 2) int64."""
        whole: Tensor = concatenate([integers(state.cells[:, :-1]), take(self.places, state.place)])
        return whole

    def frame(self, state: MazeState, row: int) -> Array:
        """Draw the cells in the colours of their characters."""
        colours = [[COLOURS[character] for character in line] for line in self.text(state, row).split("\n")]
        return np.array(colours, np.uint8).repeat(8, 0).repeat(8, 1)

    def text(self, state: MazeState, row: int) -> str:
        """Draw walls (#), free and explored cells, the start (S), the exit (E) and the agent (@)."""
        characters = [CHARACTERS[kind] for kind in state.cells[row, :-1].tolist()]
        characters[int(state.place[row])] = "@"
        lines = (characters[start : start + self.side] for start in range(0, self.side**2, self.side))
        return "\n".join(map("".join, lines))


def _cell(side: int, row: int, column: int) -> int:
    """Return the number of a cell; all cells beyond the maze have the last number."""
    inside = 0 <= row < side and 0 <= column < side
    return row * side + column if inside else side * side


def _around(side: int, row: int, column: int, as_released: bool) -> list[int]:
    """Return the numbers of the nine cells that are seen from one."""
    first = (max(row - 1, 0), max(column - 1, 0)) if as_released else (row - 1, column - 1)
    rows, columns = (
        [line if line <= own + 1 else -1 for line in range(start, start + 3)]
        for start, own in zip(first, (row, column), strict=True)
    )
    return [_cell(side, one, other) for one in rows for other in columns]


def _ends(side: int) -> list[list[int]]:
    """List the cells of all starts with all exits, which are in opposite outer walls."""
    places, last = range(1, side, 2), side - 1
    down = [((0, start), (last, end)) for start in places for end in places]
    right = [((start, 0), (end, last)) for start in places for end in places]
    one_way = [[_cell(side, *start), _cell(side, *end)] for start, end in [*down, *right]]
    return one_way + [ends[::-1] for ends in one_way]


class LabyrinthEscape(Labyrinth):
    """Find the exit in the outer wall: it pays 1 and ends the episode, and every step costs 1/1024."""

    explores = False


class LabyrinthExplore(Labyrinth):
    """Go to every free cell: the first step on one pays 1 / (free cells), any other step costs 1/1024."""

    explores = True
