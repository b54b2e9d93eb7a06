"""Layouts that occur in gridverse YAML files only: empty grids with an exit, and what is put into them."""

from __future__ import annotations

import torch
from torch import Tensor

from envs.core import choose
from envs.errors import UserError
from envs.gridverse.objects import EAST, EXIT, FLOOR, OBSTACLE, RED, SOUTH, TELEPOD, WALL, Scene, pack
from envs.gridverse.picks import pick_distinct, shuffled

Shape = tuple[int, int]


class Empty:
    """Walls round an empty floor.

    The exit is in the lower right corner, or anywhere with `random_exit`; the agent looks east from the upper left
    corner, or with `random_agent` from any other floor cell than the exit's, in any direction.
    """

    def __init__(
        self, shape: Shape, device: torch.device, random_agent: bool = False, random_exit: bool = False
    ) -> None:
        self.height, self.width = at_least(shape, (4, 4), "An empty grid")
        self.random_agent, self.random_exit = random_agent, random_exit
        self.draws = int(random_exit) + 2 * int(random_agent)
        grid = torch.full(shape, pack(WALL), dtype=torch.int16)
        grid[1:-1, 1:-1] = pack(FLOOR)
        self.grid = grid.flatten().to(device)  # (H*W,)
        self.interior = (self.grid == pack(FLOOR)).nonzero()[:, 0]  # ((H-2)*(W-2),)

    def __call__(self, u: Tensor) -> Scene:
        """Scenes from uniforms u (N, draws): the exit's cell, the agent's cell, the agent's heading."""
        cells, count = len(self.interior), len(u)
        goal = self.interior.new_full((count,), cells - 1)
        if self.random_exit:
            goal = choose(u[:, 0], cells)
        agent, heading = torch.zeros_like(goal), torch.full_like(goal, EAST)
        if self.random_agent:
            agent = choose(u[:, -2], cells - 1)
            agent, heading = agent + (agent >= goal), choose(u[:, -1], 4)
        grids = self.grid.expand(count, -1).scatter(1, self.interior[goal][:, None], pack(EXIT))
        return scene(grids, self.interior[agent], heading)

    def initial_draws(self) -> Tensor | None:
        """One row where nothing is drawn."""
        return None if self.draws else torch.zeros(1, 0, dtype=torch.float64, device=self.grid.device)


class DynamicObstacles:
    """An empty grid in which different floor cells, not the agent's, hold moving obstacles."""

    def __init__(self, shape: Shape, num_obstacles: int, device: torch.device, random_agent: bool = False) -> None:
        self.empty = Empty(shape, device, random_agent)
        self.height, self.width = shape
        self.draws = self.empty.draws + num_obstacles
        room = len(self.empty.interior) - 2
        if not 0 <= num_obstacles <= room:
            raise UserError(f"num_obstacles must be from 0 to {room} in a grid of {list(shape)}, not {num_obstacles}.")

    def __call__(self, u: Tensor) -> Scene:
        """Scenes from uniforms u (N, draws): those of the empty grid, then one for every obstacle."""
        before = self.empty(u[:, : self.empty.draws])
        places = pick_distinct(vacant(before), u[:, self.empty.draws :])
        return before._replace(cells=before.cells.scatter(1, places, pack(OBSTACLE)))

    def initial_draws(self) -> None:
        """Not listed."""
        return None


class Teleport:
    """An empty grid with two red telepods; the agent starts in the upper left corner and looks east or south."""

    draws = 3

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.empty = Empty(shape, device)
        self.height, self.width = shape
        self.headings = torch.tensor([EAST, SOUTH], device=device)

    def __call__(self, u: Tensor) -> Scene:
        """Scenes from uniforms u (N, 3): the two telepods' cells, the heading."""
        before = self.empty(u[:, :0])
        places = pick_distinct(vacant(before), u[:, :2])
        cells = before.cells.scatter(1, places, pack(TELEPOD, colour=RED))
        return before._replace(cells=cells, heading=self.headings[choose(u[:, 2], 2)])

    def initial_draws(self) -> None:
        """Not listed."""
        return None


class Crossing:
    """An empty grid cut by rivers, lines from wall to wall, with one opening in each on a path to the exit.

    Rivers lie at even coordinates; which of them are there is uniform. The path crosses all of them, each once, the
    horizontal and the vertical ones in a uniformly shuffled order; an opening is uniform along the side that the
    river has in common with the room where the path stands.
    """

    def __init__(self, shape: Shape, num_rivers: int, object_type: int, device: torch.device) -> None:
        self.height, self.width = at_least(shape, (5, 5), "A crossing")
        if self.height % 2 == 0 or self.width % 2 == 0:
            raise UserError(f"A crossing needs an odd height and an odd width, not {list(shape)}.")
        if num_rivers < 1:
            raise UserError(f"num_rivers must be at least 1, not {num_rivers}.")
        if object_type not in (FLOOR, WALL, EXIT, OBSTACLE):
            raise UserError("object_type of a crossing must be Floor, Wall, Exit or MovingObstacle, without a colour.")
        self.empty, self.river = Empty(shape, device), pack(object_type)
        self.ys = torch.arange(2, self.height - 2, 2, device=device)  # (Y,) rows of horizontal rivers
        self.xs = torch.arange(2, self.width - 2, 2, device=device)  # (X,) columns of vertical ones
        self.candidates = len(self.ys) + len(self.xs)
        self.rivers = min(num_rivers, self.candidates)
        self.draws = self.candidates + 2 * self.rivers
        self.lines = self._lines(device)  # (Y + X, H*W)
        self.most = int(self.lines.any(0).sum())  # cells that can be river

    def _lines(self, device: torch.device) -> Tensor:
        lines = torch.zeros(self.candidates, self.height, self.width, dtype=torch.bool, device=device)
        for index, y in enumerate(self.ys.tolist()):
            lines[index, y, 1:-1] = True
        for index, x in enumerate(self.xs.tolist(), len(self.ys)):
            lines[index, 1:-1, x] = True
        return lines.flatten(1)

    def __call__(self, u: Tensor) -> Scene:
        """Scenes from uniforms u (N, draws): which rivers, the order of crossing, and the openings."""
        which, order, along = u.split([self.candidates, self.rivers, self.rivers], 1)
        before = self.empty(u[:, :0])
        present = shuffled(which) < self.rivers  # (N, Y + X)
        wet = (present[:, :, None] & self.lines).any(1)  # (N, H*W)
        cells = before.cells.masked_fill(wet, self.river)
        return before._replace(cells=self._open(cells, present, order, along))

    def _open(self, cells: Tensor, present: Tensor, order: Tensor, along: Tensor) -> Tensor:
        """Cells with an opening in every river."""
        rows = self._limits(present[:, : len(self.ys)], self.ys, self.height)
        columns = self._limits(present[:, len(self.ys) :], self.xs, self.width)
        vertical = present[:, len(self.ys) :].sum(1, keepdim=True)  # (N, 1)
        sideways = shuffled(order) < vertical  # (N, rivers), whether the path crosses a vertical river next
        i, j = torch.zeros_like(vertical), torch.zeros_like(vertical)  # the room where the path stands
        for across, draw in zip(sideways.split(1, 1), along.split(1, 1), strict=True):
            y = torch.where(across, _between(rows, i, draw), rows.gather(1, i + 1))
            x = torch.where(across, columns.gather(1, j + 1), _between(columns, j, draw))
            cells = cells.scatter(1, y * self.width + x, pack(FLOOR))
            i, j = i + ~across, j + across
        return cells

    def _limits(self, present: Tensor, lines: Tensor, size: int) -> Tensor:
        """Where rooms end: the wall, the rivers present in rising order, then the other wall again and again."""
        wall = lines.new_zeros(len(present), 1)
        inner = torch.where(present, lines, size - 1).sort(1).values
        return torch.cat([wall, inner, wall + size - 1], 1)  # (N, lines + 2)

    def initial_draws(self) -> None:
        """Not listed."""
        return None


def _between(limits: Tensor, index: Tensor, u: Tensor) -> Tensor:
    """A coordinate (N, 1) strictly between two limits that follow each other."""
    low, high = limits.gather(1, index), limits.gather(1, index + 1)
    return low + 1 + torch.minimum((u * (high - low - 1)).long(), high - low - 2)


def vacant(before: Scene) -> Tensor:
    """Floor cells (N, H*W) where the agent does not stand."""
    return (before.cells == pack(FLOOR)).scatter(1, before.position[:, None], False)


def scene(cells: Tensor, position: Tensor, heading: Tensor) -> Scene:
    """A scene whose agent holds nothing, without a good exit."""
    nothing = torch.zeros_like(position)
    return Scene(cells, position, heading, nothing, nothing)


def at_least(shape: Shape, smallest: Shape, what: str) -> Shape:
    """Check a shape.

    Raises:
        UserError: a side is too short.
    """
    if shape[0] < smallest[0] or shape[1] < smallest[1]:
        raise UserError(f"{what} needs a shape of at least {list(smallest)}, not {list(shape)}.")
    return shape
