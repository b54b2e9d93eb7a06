"""Blinking Catch: an environment of pictures; catch several balls in a row that are mostly invisible."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from envs.core import State, World
from envs.errors import require
from envs.numpy_backend import integers, stack, take, take_column, where, zeros
from envs.spaces import MultiDiscrete

BALL, PADDLE, UNSEEN = (235, 90, 60), (70, 160, 235), (80, 70, 70)  # RGB
ENLARGED = 256  # minimum height in pixels of a picture for people
GRIDS, SIZES = (3, 16), 256  # bounds of the grid, and maximum of the picture, because a table has every ball's picture


@dataclass
class CatchState(State):
    """N screens. The number and the row of the falling ball follow from the steps taken."""

    columns: Tensor  # (N, balls) int64, column of each ball
    paddle: Tensor  # (N,) int64, column of the paddle


class BlinkingCatch(World[CatchState]):
    """Move the paddle left, not at all, or right: +1 for every ball that lands on it, -1 for every other.

    The observation is a picture of `size` x `size` pixels of a grid of `grid` x `grid` cells, Box(0, 255,
    (3, size, size), uint8): the ball is red, the paddle in the last row blue, all else black. The ball falls straight
    down, one row per step, from row 0 in a column that the reset draws. It is visible only in the rows 0, blink,
    2 blink, ...; `blink` 1 makes it always visible. It lands after grid - 1 steps, and the next of `balls` balls begins
    in the same step. The paddle starts in the middle and moves one cell per step, so an agent that remembers the column
    can catch every ball. Success is to catch all balls.

    An episode has balls (grid - 1) steps and a return from -balls to +balls. A `time_limit` of None is 500, or the
    number of steps of all balls if that is larger. Random actions catch one ball in `grid`. With 10 balls on 8 x 8
    cells and blink 4 the exact expected returns are: best player 10; best memoryless policy 4.26; moving towards the
    ball only while it is visible 1.79; random actions -7.5.
    """

    num_actions = 3
    action_names = ("left", "stay", "right")
    step_draws = 0
    runs_on_numpy = True

    def __init__(
        self,
        size: int = 64,
        grid: int = 8,
        balls: int = 10,
        blink: int = 4,
        time_limit: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        check_catch(size, grid, balls, blink)
        super().__init__(max(500, balls * (grid - 1)) if time_limit is None else time_limit, device)
        self.size, self.grid, self.balls = size, grid, balls
        self.reset_draws = balls
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, size, size), np.uint8)
        self.state_space = MultiDiscrete([balls + 1, grid - 1, grid, grid])
        numbers = torch.tensor([0, grid, grid - 1, balls, balls - 1, grid // 2, grid * grid], device=self.device)
        self.zero, self.width, self.last, self.count, self.last_ball, self.middle, self.nowhere = numbers.unbind()
        self.moves = torch.tensor([-1, 0, 1], device=self.device)
        self.caught, self.missed, self.best = torch.tensor([1.0, -1.0, balls], dtype=torch.float64, device=self.device)
        self.shown = (torch.arange(grid, device=self.device) % blink) == 0  # (grid,) True in visible rows
        self.ball_pictures = self._pictures(BALL, [(y, x) for y in range(grid) for x in range(grid)] + [None])
        self.paddle_pictures = self._pictures(PADDLE, [(grid - 1, x) for x in range(grid)])

    def reset(self, u: Tensor) -> CatchState:
        """Draw the columns of all balls from u (N, balls); the paddle stands in the middle."""
        steps, returns = self.counters(len(u))
        columns = integers(u * self.width).clip(self.zero, self.last)  # rounding may give grid itself
        paddle = zeros(self.one, len(u)) + self.middle
        return CatchState(self.observe(columns, paddle, steps), steps, returns, columns, paddle)

    def step(self, state: CatchState, action: Tensor, u: Tensor) -> tuple[CatchState, Tensor, Tensor, Tensor, Tensor]:
        """Move once: 0 left, 1 stay, 2 right."""
        paddle = (state.paddle + take(self.moves, action)).clip(self.zero, self.last)  # (N,)
        steps = state.steps + self.one
        landed = steps % self.last == self.zero
        caught = self._column(state.columns, state.steps // self.last) == paddle
        reward = where(landed, where(caught, self.caught, self.missed), self.nothing)
        returns = state.returns + reward
        observation = self.observe(state.columns, paddle, steps)
        terminated = steps == self.count * self.last
        after = CatchState(observation, steps, returns, state.columns, paddle)
        return after, observation, reward, terminated, terminated & (returns == self.best)

    def observe(self, columns: Tensor, paddle: Tensor, steps: Tensor) -> Tensor:
        """Draw the picture, (N, 3, size, size) uint8."""
        ball, row = steps // self.last, steps % self.last  # (N,)
        seen = take(self.shown, row) & (ball < self.count)
        cell = where(seen, row * self.width + self._column(columns, ball), self.nowhere)
        return take(self.ball_pictures, cell) | take(self.paddle_pictures, paddle)

    def observe_state(self, state: CatchState) -> Tensor:
        """Return the number of landed balls, the ball's row, the paddle's column and the ball's column: (N, 4) int64.

        The columns of later balls are random, and not shown.
        """
        ball, row = state.steps // self.last, state.steps % self.last  # (N,)
        return stack([ball, row, state.paddle, self._column(state.columns, ball)])

    def _column(self, columns: Tensor, ball: Tensor) -> Tensor:
        """Return the column of a ball (N,); for numbers past the last ball, the last ball's column."""
        return take_column(columns, ball.clip(self.zero, self.last_ball))

    def _pictures(self, colour: tuple[int, int, int], cells: list[tuple[int, int] | None]) -> Tensor:
        """Draw one black picture (3, size, size) per cell, and fill the cell with the colour."""
        pictures = torch.zeros(len(cells), 3, self.size, self.size, dtype=torch.uint8)
        for picture, cell in zip(pictures, cells, strict=True):
            if cell is not None:
                picture[:, *self._pixels(*cell)] = torch.tensor(colour, dtype=torch.uint8)[:, None, None]
        return pictures.to(self.device)

    def _pixels(self, *cell: int) -> tuple[slice, ...]:
        """Return the slices of pixels of a cell (y, x)."""
        return tuple(slice(self.edge(at), self.edge(at + 1)) for at in cell)

    def edge(self, cell: int) -> int:
        """Return the first pixel of a row or column of cells."""
        return cell * self.size // self.grid

    def frame(self, state: CatchState, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw the picture enlarged, with an invisible ball in dark grey."""
        picture = torch.as_tensor(state.observation[row]).cpu().numpy().transpose(1, 2, 0).copy()
        fallen, column = self._ball(state, row)
        if fallen is not None and not self.shown[fallen]:
            picture[self._pixels(fallen, column)] = UNSEEN
        times = -(-ENLARGED // self.size)
        return picture.repeat(times, 0).repeat(times, 1)

    def text(self, state: CatchState, row: int) -> str:
        """Draw the grid with the ball (o, invisible x) and the paddle (=), the ball's number and the return."""
        lines = [["."] * self.grid for _ in range(self.grid)]
        lines[-1][int(state.paddle[row])] = "="
        fallen, column = self._ball(state, row)
        if fallen is not None:
            lines[fallen][column] = "o" if self.shown[fallen] else "x"
        ball = min(int(state.steps[row]) // (self.grid - 1) + 1, self.balls)
        return "\n".join(map("".join, lines)) + f"\nball {ball} of {self.balls}, return {float(state.returns[row]):+g}"

    def _ball(self, state: CatchState, row: int) -> tuple[int | None, int]:
        """Return row and column of the ball in one row of the state; the row is None after the last ball."""
        ball, fallen = divmod(int(state.steps[row]), self.grid - 1)
        return (fallen, int(state.columns[row, ball])) if ball < self.balls else (None, 0)


def check_catch(size: int, grid: int, balls: int, blink: int) -> None:
    """Refuse settings out of their bounds."""
    low, high = GRIDS
    require(low <= grid <= high, f"grid of Blinking Catch must be from {low} to {high} cells, not {grid}.")
    wanted = f"from {grid}, its grid, to {SIZES} pixels"
    require(grid <= size <= SIZES, f"size of Blinking Catch must be {wanted}, not {size}.")
    require(balls >= 1, f"balls of Blinking Catch must be at least 1, not {balls}.")
    require(blink >= 1, f"blink of Blinking Catch must be at least 1 (always seen), not {blink}.")
