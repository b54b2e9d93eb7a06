"""Initial scenes: corridors, rooms, open ground, and a locked door."""

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from envs.core import choose
from envs.errors import UserError, require
from envs.gridverse import objects
from envs.gridverse.objects import Layout, Scene, pack
from envs.gridverse.rules import put_code


class Corridor(Layout):
    """The memory task: an I-shaped corridor with exits at the ends of the upper bar, and beacons at those of the lower.

    Both beacons have the good exit's colour. The agent starts in the middle and faces north. u[:, 0] draws the ordered
    pair of colours (good, bad), u[:, 1] the side of the good exit.
    """

    draws = 2
    makes: Mapping[int, int] = {objects.EXIT: 2, objects.BEACON: 2}

    def __init__(self, height: int, width: int, device: torch.device, colours: Sequence[int] = objects.COLOURS) -> None:
        check_sides("A memory corridor", (height, width), (5, 5))
        require(width % 2 != 0, f"A memory corridor needs an odd width, not {width}.")
        self.height, self.width, self.colours = height, width, tuple(colours)
        pairs = list(itertools.permutations(colours, 2))
        grids = [_corridor(height, width, *pair, right) for pair in pairs for right in (False, True)]
        self.grids = torch.stack(grids).flatten(1).to(device)  # (2*pairs, H*W)
        self.goods = torch.tensor([good for good, _ in pairs], device=device).repeat_interleave(2)  # (2*pairs,)
        self.pairs = len(pairs)

    def initial_draws(self) -> Tensor:
        """List draws (2*pairs, 2): every ordered pair of colours with the good exit on either side."""
        grid = torch.cartesian_prod(torch.arange(self.pairs), torch.arange(2)).double()
        return ((grid + 0.5) / torch.tensor([self.pairs, 2.0], dtype=torch.float64)).to(self.goods.device)

    def __call__(self, u: Tensor) -> Scene:
        grid = 2 * choose(u[:, 0], self.pairs) + choose(u[:, 1], 2)  # (N,)
        position = torch.full_like(grid, self.height // 2 * self.width + self.width // 2)
        heading, held = torch.full_like(grid, objects.NORTH), torch.full_like(grid, pack(objects.NONE))
        return Scene(self.grids.index_select(0, grid), position, heading, held, self.goods.index_select(0, grid))


class Scattered(Layout):
    """Agent, beacons and exits on different random cells of a floor, with a random heading.

    The exits have different colours; the first is the good one and all beacons have its colour. The floor is a fixed
    list of cells and one opening in every wall segment, drawn in each episode. Cells are drawn by their rank among the
    free ones, so neither sorting nor a list of the free cells is needed.

    Args:
        height, width: cells of the grid.
        plan: number of rooms (down, across), with one opening in the wall between two neighbours.
        beacons, exits: number of each.
        device: device of all tables.
        colours: colours of the exits.
        walls: False makes open ground; agent, beacons and exits still avoid the lines between the rooms.
    """

    def __init__(
        self,
        height: int,
        width: int,
        plan: Sequence[int],
        beacons: int,
        exits: int,
        device: torch.device,
        colours: Sequence[int] = objects.COLOURS,
        walls: bool = True,
    ) -> None:
        self.height, self.width, self.colours = height, width, tuple(colours)
        self.makes = {objects.EXIT: exits, objects.BEACON: beacons} if beacons else {objects.EXIT: exits}
        ground = bordered(height, width)
        parted = ground.masked_fill(inner_lines(height, width, plan), pack(objects.WALL))
        self.base = (parted if walls else ground).flatten().to(device)  # (H*W,) codes before openings and objects
        self.floor = (parted.flatten() == pack(objects.FLOOR)).nonzero()[:, 0].to(device)  # (F,)
        openings = torch.tensor(_segments(height, width, plan) if walls else [], dtype=torch.int64, device=device)
        self.first, self.stride, segments = openings.view(-1, 3).unbind(1)  # each (O,): opens at first + stride * k
        self.objects, self.beacons = 1 + beacons + exits, beacons
        self.fixed, self.walls = len(self.floor), len(openings)
        total = self.fixed + self.walls
        if beacons < 0 or exits < 1:
            raise UserError(f"There must be at least 1 exit and no negative number of beacons, not {exits}, {beacons}.")
        if exits > len(colours):
            raise UserError(f"{exits} exits need as many different colours, but there are {len(colours)}.")
        if self.objects > total:
            raise UserError(f"An agent, {beacons} beacons and {exits} exits do not fit on {total} cells of floor.")
        left = total - torch.arange(self.objects, device=device)
        hues = list(itertools.permutations(colours, exits))
        self.counts = torch.cat([segments, left, torch.tensor([4, len(hues)], device=device)])  # (draws,)
        self.draws = len(self.counts)
        self.hues = torch.tensor(hues, device=device)  # (permutations, exits), colours of the exits
        codes = [
            [pack(objects.BEACON, colour=hue[0])] * beacons + [pack(objects.EXIT, colour=c) for c in hue]
            for hue in hues
        ]
        self.codes = torch.tensor(codes, dtype=torch.int16, device=device)  # (permutations, beacons + exits)

    def __call__(self, u: Tensor) -> Scene:
        drawn = torch.minimum((u * self.counts).long(), self.counts - 1)  # (N, draws)
        opened = self.first + self.stride * drawn[:, : self.walls]  # (N, O)
        ranks = distinct(drawn[:, self.walls : self.walls + self.objects])  # (N, objects)
        positions = self._positions(ranks, opened)
        palette = drawn[:, -1]
        cells = self.base.expand(len(u), -1)
        if self.walls:
            cells = cells.scatter(1, opened, pack(objects.FLOOR))
        cells = cells.scatter(1, positions[:, 1:], self.codes.index_select(0, palette))
        held = torch.full_like(palette, pack(objects.NONE))
        return Scene(cells, positions[:, 0], drawn[:, -2], held, self.hues.index_select(0, palette)[:, 0])

    def _positions(self, ranks: Tensor, opened: Tensor) -> Tensor:
        """Find floor cells by rank, both (N, objects); openings (N, O) come after the fixed floor."""
        if not self.walls:
            return self.floor[ranks]
        among = opened.gather(1, (ranks - self.fixed).clamp(min=0))
        return torch.where(ranks < self.fixed, self.floor[ranks.clamp(max=self.fixed - 1)], among)


class LockedRoom(Layout):
    """Keydoor: a wall with one locked yellow door; the agent and the key left of it, the exit in the far corner.

    Draws: column of the wall, row of the door, row and column of the key, row and column of the agent (possibly on the
    key), heading.
    """

    draws = 7
    makes: Mapping[int, int] = {objects.EXIT: 1, objects.DOOR: 1, objects.KEY: 1}
    colours = (objects.YELLOW,)

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        check_sides("A keydoor grid", (height, width), (4, 5))  # the left room needs a cell beside the key
        self.height, self.width, self.rows, self.columns = height, width, height - 2, width - 4
        grids = [_locked(height, width, x, y) for x in range(2, width - 2) for y in range(1, height - 1)]
        self.grids = torch.stack(grids).flatten(1).to(device)  # (columns*rows, H*W)
        self.goal = (height - 2) * width + width - 2  # flat position of the exit

    def __call__(self, u: Tensor) -> Scene:
        wall, door = choose(u[:, 0], self.columns), choose(u[:, 1], self.rows)  # (N,)
        cells = self.grids.index_select(0, wall * self.rows + door)
        key, position = (self._left(u[:, i], u[:, i + 1], wall + 1) for i in (2, 4))
        cells = put_code(cells, key, torch.full_like(key, pack(objects.KEY, colour=objects.YELLOW)))
        none = torch.zeros_like(key)
        return Scene(cells, position, choose(u[:, 6], 4), none + pack(objects.NONE), none)

    def _left(self, y: Tensor, x: Tensor, columns: Tensor) -> Tensor:
        """Choose a cell (N,) of the left room, which has `columns` (N,) columns, by two uniforms (N,)."""
        column = torch.minimum((x * columns).long(), columns - 1)
        return (1 + choose(y, self.rows)) * self.width + 1 + column


def distinct(ranks: Tensor) -> Tensor:
    """Turn ranks (N, M) into different numbers; the m-th rank counts only numbers that the earlier ranks left free.

    The loop runs backwards. The numbers so far are ranks among all numbers but the next one, which shifts them.
    """
    numbers: list[Tensor] = []
    for rank in reversed(ranks.unbind(1)):
        numbers = [rank, *(number + (number >= rank) for number in numbers)]
    return torch.stack(numbers, 1)


def check_sides(what: str, shape: tuple[int, int], smallest: tuple[int, int]) -> None:
    """Refuse a grid with a side that is too short."""
    if shape[0] < smallest[0] or shape[1] < smallest[1]:
        minimum, given = (f"{height} x {width}" for height, width in (smallest, shape))
        raise UserError(f"{what} needs at least {minimum} cells, not {given}.")


def bordered(height: int, width: int) -> Tensor:
    """Make a floor within walls."""
    check_sides("A grid", (height, width), (3, 3))
    grid = torch.full((height, width), pack(objects.WALL), dtype=torch.int16)
    grid[1:-1, 1:-1] = pack(objects.FLOOR)
    return grid  # (H, W)


def _corridor(height: int, width: int, good: int, bad: int, right: bool) -> Tensor:
    grid = torch.full((height, width), pack(objects.WALL), dtype=torch.int16)
    grid[1, 2:-2] = grid[-2, 2:-2] = grid[2:-2, width // 2] = pack(objects.FLOOR)
    grid[1, -2 if right else 1] = pack(objects.EXIT, colour=good)
    grid[1, 1 if right else -2] = pack(objects.EXIT, colour=bad)
    grid[-2, 1] = grid[-2, -2] = pack(objects.BEACON, colour=good)
    return grid  # (H, W)


def _locked(height: int, width: int, x: int, y: int) -> Tensor:
    grid = bordered(height, width)
    grid[1:-1, x] = pack(objects.WALL)
    grid[y, x] = pack(objects.DOOR, objects.LOCKED, objects.YELLOW)
    grid[-2, -2] = pack(objects.EXIT)
    return grid  # (H, W)


def _segments(height: int, width: int, plan: Sequence[int]) -> list[tuple[int, int, int]]:
    """List the openings (first, stride, count): the horizontal segments row by row, then the vertical ones."""
    ys, xs = splits((height, width), plan)
    across = [(y * width + x + 1, 1, end - x - 1) for y in ys[1:-1] for x, end in itertools.pairwise(xs)]
    down = [((y + 1) * width + x, width, end - y - 1) for y, end in itertools.pairwise(ys) for x in xs[1:-1]]
    return across + down


def splits(shape: tuple[int, int], rooms: Sequence[int]) -> tuple[list[int], list[int]]:
    """List the wall lines (ys, xs) of a grid (height, width) with rooms (down, across), including its border."""
    if not isinstance(rooms, Sequence) or len(rooms) != 2 or min(rooms) < 1:
        raise UserError(f"rooms must be two positive numbers (down, across), not {rooms!r}.")
    cuts = [
        [index * (side - 1) // count for index in range(count + 1)] for side, count in zip(shape, rooms, strict=True)
    ]
    if any(after - before < 2 for line in cuts for before, after in itertools.pairwise(line)):
        smallest = " x ".join(str(2 * count + 1) for count in rooms)
        grid, plan = (" x ".join(map(str, each)) for each in (shape, rooms))
        raise UserError(f"{plan} rooms do not fit into a grid of {grid} cells; they need at least {smallest}.")
    return cuts[0], cuts[1]


def inner_lines(height: int, width: int, rooms: Sequence[int]) -> Tensor:
    """Mark the interior cells (H, W) bool on the lines between rooms."""
    ys, xs = splits((height, width), rooms)
    marked = torch.zeros(height, width, dtype=torch.bool)
    marked[ys[1:-1], 1:-1] = True
    marked[1:-1, xs[1:-1]] = True
    return marked
