"""POPGym's Battleship and MineSweeper: squares of hidden cells, of which every action looks at one."""

from __future__ import annotations  # `envs.registry` checks `ships` by how its annotation is written

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from envs.core import Plain, State, Uniform, World
from envs.errors import require
from envs.numpy_backend import (
    converted,
    copied,
    first_true,
    integers,
    put_column,
    running_count,
    take,
    take_column,
    where,
    zeros,
)
from envs.popgym.shuffle import repeated
from envs.spaces import Array, MultiDiscrete

MAX_SIDE = 32
COLOURS = {"#": (75, 80, 90), "*": (110, 25, 25), "x": (214, 66, 61), "o": (200, 225, 250), ".": (62, 108, 205)}


@dataclass
class BoardState(State):
    """N boards of S x S cells."""

    cells: Tensor  # (N, S * S) int8, the kind of each cell, row by row
    left: Tensor  # (N,) int64, cells that are still to be found


class Kind(NamedTuple):
    """What happens where an action looks at a cell."""

    shown: int
    pays: float
    becomes: int  # the kind that it has from then on
    found: bool = False  # it is one of those to be found
    fatal: bool = False
    character: str = "."  # in texts


class Board(World[BoardState]):
    """Look at one cell at each step: action row * S + column.

    The observation is what the cell shows, and its row and column; all are 0 at first. An episode ends when all cells
    are found that should be. Episodes cannot succeed: scores are returns.
    """

    step_draws = 0
    defines_success = False
    runs_on_numpy = True

    def __init__(
        self, side: int, kinds: Sequence[Kind], found: int, time_limit: int, device: str | torch.device
    ) -> None:
        super().__init__(time_limit, device)
        self.side, self.num_actions, self.kinds = side, side * side, kinds
        self.observation_space = MultiDiscrete([max(kind.shown for kind in kinds) + 1, side, side])
        self.state_space = MultiDiscrete([len(kinds)] * self.num_actions)
        places = [[place // side, place % side] for place in range(self.num_actions)]
        self.shown = self._table([[kind.shown, *place] for kind in kinds for place in places])  # (K * S * S, 3)
        self.becomes = self._table([kind.becomes for kind in kinds]).to(torch.int8)  # (K,), as the next three
        self.pays = self._table([kind.pays for kind in kinds], torch.float64)
        self.found = self._table([int(kind.found) for kind in kinds])
        self.fatal = self._table([kind.fatal for kind in kinds])
        self.size, self.wanted, self.none = self._table([self.num_actions, found, 0])
        self.blank = self._table([0.0] * self.num_actions)  # (S * S,) float32

    def _table(self, numbers: Sequence | float, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(numbers, dtype=dtype, device=self.device)

    def step(self, state: BoardState, action: Tensor, u: Tensor) -> tuple[BoardState, Tensor, Tensor, Tensor, Tensor]:
        """Look at one cell."""
        kind = integers(take_column(state.cells, action))  # (N,)
        reward, left = take(self.pays, kind), state.left - take(self.found, kind)
        cells = put_column(copied(state.cells), action, take(self.becomes, kind))
        observation = take(self.shown, kind * self.size + action)
        after = BoardState(observation, state.steps + self.one, state.returns + reward, cells, left)
        return after, observation, reward, take(self.fatal, kind) | (left == self.none), reward != reward

    def plain_step(self: Any, row: Plain, action: int, draw: Uniform) -> tuple[Plain, float, bool, bool]:
        _, steps, returns, cells, left = row
        cells, kind = cells.copy(), cells[action]
        _, reward, cells[action], found, fatal, _ = self.kinds[kind]
        seen, left = self.shown[kind * self.size + action], left - found
        return (seen, steps + 1, returns + reward, cells, left), reward, fatal or left == 0, False

    def started(self, cells: Tensor) -> BoardState:
        """Begin with cells (N, S * S)."""
        steps, returns = self.counters(len(cells))
        # kind 0 shows 0, so the first row of what is shown is all 0
        return BoardState(take(self.shown, steps), steps, returns, converted(cells, self.becomes), steps + self.wanted)

    def observe_state(self, state: BoardState) -> Tensor:
        """Return the kinds of all cells, (N, S * S) int64."""
        kinds: Tensor = integers(state.cells)
        return kinds

    def frame(self, state: BoardState, row: int) -> Array:
        """Draw the squares in the colours of their characters; a square with a high digit is darker."""
        characters = self.text(state, row).split("\n")
        colours = [[COLOURS.get(each) or (225 - 12 * int(each),) * 3 for each in line] for line in characters]
        picture = np.array(colours, np.uint8).repeat(16, 0).repeat(16, 1)
        picture[::16] = picture[:, ::16] = 245
        return picture

    def text(self, state: BoardState, row: int) -> str:
        """Draw one character for each cell, also for what is hidden."""
        characters = "".join(self.kinds[kind].character for kind in state.cells[row].tolist())
        return "\n".join(characters[start : start + self.side] for start in range(0, self.num_actions, self.side))


def _check_side(family: str, side: int) -> None:
    require(2 <= side <= MAX_SIDE, f"board of {family} must be from 2 to {MAX_SIDE} cells wide, not {side}.")


def choices_in_one(count: int) -> int:
    """Tell how many choices among `count` one uniform makes, each of them fair to a millionth."""
    return max(1, int(33 / math.log2(count)))  # of its 53 bits 20 are left


# ---- Battleship ------------------------------------------------------------------------------------------------------
class Battleship(Board):
    """Hit all cells of all ships, which lie along rows and columns and do not overlap.

    A first hit shows 1 and pays 1 / (cells of ships); anything else shows 0 and pays -1 / (cells without a ship). So
    all cells together pay 0. Ships are placed one after the other, each uniformly where there is room.
    """

    def __init__(
        self,
        board: int = 8,
        ships: Sequence[int] = (2, 3, 3, 4),
        time_limit: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        _check_side("Battleship", board)
        ships = tuple(ships)
        _check_ships(board, ships)
        cells = board * board
        hit, miss = 1 / sum(ships), -1 / (cells - sum(ships))
        water, ship = Kind(0, miss, 2), Kind(1, hit, 3, found=True, character="#")
        kinds = water, ship, Kind(0, miss, 2, character="o"), Kind(0, miss, 3, character="x")
        super().__init__(board, kinds, sum(ships), cells if time_limit is None else time_limit, device)
        self.ships = tuple(self._placements(size) for size in ships)
        self.together = choices_in_one(2 * cells)
        self.reset_draws = -(-len(ships) // self.together)

    def _placements(self, size: int) -> Tensor:
        """List the cells of all places of a ship, (P, S * S) float32 zeros and ones."""
        line = torch.zeros(self.side - size + 1, self.side)
        for start, places in enumerate(line):
            places[start : start + size] = 1
        lying = torch.einsum("ps,rc->rpcs", line, torch.eye(self.side)).reshape(-1, self.side, self.side)
        return torch.cat([lying, lying.mT]).flatten(1).to(self.device)

    def reset(self, u: Tensor) -> BoardState:
        """Place the ships by u (N, reset_draws)."""
        board, rest = repeated(self.blank, len(u)), u[:, 0]
        for number, places in enumerate(self.ships):
            if number % self.together == 0:
                rest = u[:, number // self.together]
            order = running_count(board @ places.T == self.none)  # (N, P), 1-based among places with room
            scaled = rest * order[:, -1]
            rank = integers(scaled)
            rest = scaled - rank
            board = board + take(places, first_true(order > rank[:, None]))
        return self.started(board)


def _check_ships(board: int, ships: Sequence[int]) -> None:
    """Refuse ships for which a placement of the first ones might leave no room."""
    require(len(ships) > 0 and min(ships) > 0, f"ships of Battleship must be positive sizes, not {ships}.")
    for index, size in enumerate(ships):
        # to close every row for a ship, as many cells as this must be taken
        room = board * (board // size) > sum(ships[:index]) and board * board > sum(ships)
        wanted = "give it a larger board, or fewer ships"
        require(room, f"The ships {ships} of Battleship may not fit on {board} x {board} cells; {wanted}.")


# ---- MineSweeper -----------------------------------------------------------------------------------------------------
class MineSweeper(Board):
    """Look at all cells without a mine; each shows how many of itself and its eight neighbours are mines.

    With T cells that are safe, the first look at one pays 1 / T, a further look -1 / (2T - 4), and a mine pays
    -1/2 - 1/T and ends the episode. Episodes have T steps at most.
    """

    def __init__(
        self, board: int = 4, mines: int = 2, time_limit: int | None = None, device: str | torch.device = "cpu"
    ) -> None:
        _check_side("MineSweeper", board)
        safe, wanted = board * board - mines, f"from 1 to {board * board - 3} on {board} x {board} cells"
        require(mines >= 1 and safe >= 3, f"mines of MineSweeper must be {wanted}, not {mines}.")
        pays, again, mine, most = 1 / safe, -0.5 / (safe - 2), -0.5 - 1 / safe, min(mines, 9)
        counts = [*range(most + 1)]
        kinds = [Kind(shown, pays, shown + most + 1, found=True) for shown in counts]
        kinds += [Kind(shown, again, shown + most + 1, character=str(shown)) for shown in counts]
        kinds += [Kind(shown, mine, shown + 2 * most + 2, fatal=True, character="*") for shown in counts]
        super().__init__(board, kinds, safe, safe if time_limit is None else time_limit, device)
        self.mines, self.mine = mines, self._table(float(2 * most + 2))
        places = torch.arange(board)
        near = ((places[:, None] - places).abs() <= 1).float()
        self.near = torch.kron(near, near).to(self.device)  # (S * S, S * S)
        self.together = choices_in_one(self.num_actions)
        self.reset_draws = -(-mines // self.together)

    def reset(self, u: Tensor) -> BoardState:
        """Place the mines by u (N, reset_draws), by Floyd's way to draw a set."""
        mines, rest = repeated(self.blank, len(u)), u[:, 0]
        one = zeros(self.mine, len(u)) + 1
        for number, last in enumerate(range(self.num_actions - self.mines, self.num_actions)):
            if number % self.together == 0:
                rest = u[:, number // self.together]
            scaled = rest * (last + 1)
            place = integers(scaled)
            rest = scaled - place
            taken = take_column(mines, place) > self.none
            mines = put_column(mines, where(taken, last, place), one)
        return self.started(mines @ self.near + mines * self.mine)
