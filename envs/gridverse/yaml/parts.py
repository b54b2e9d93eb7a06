"""Layouts, rules and rewards that only gridverse YAML files use."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from envs.core import choose
from envs.errors import UserError, require
from envs.gridverse import objects
from envs.gridverse.layouts import bordered, check_sides
from envs.gridverse.objects import Layout, Reward, Rule, Scene, Transition, kinds, pack
from envs.gridverse.rules import Front, Motion, apply_rules, at, put_code

Shape = tuple[int, int]
Distance = Callable[[Scene], Tensor]  # to (N,) float64
METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # from the differences of rows and columns
    "manhattan": lambda down, right: (down.abs() + right.abs()).double(),
    "euclidean": lambda down, right: (down * down + right * right).double().sqrt(),
}

# ---- choices among cells: no sort, static shapes ---------------------------------------------------------------------


def pick_allowed(allowed: Tensor, u: Tensor) -> Tensor:
    """Choose a True entry in every row of allowed (N, C) bool by uniforms u (N,); returns indices (N,) int64.

    A row without a True entry gives C - 1, so callers must mask it.
    """
    ranks = allowed.cumsum(1)  # (N, C)
    chosen = (u * ranks[:, -1]).long().clamp(max=(ranks[:, -1] - 1).clamp(min=0))
    return (ranks <= chosen[:, None]).sum(1).clamp(max=allowed.shape[1] - 1)


def pick_distinct(allowed: Tensor, u: Tensor) -> Tensor:
    """Choose M different True entries in each row of allowed (N, C) by uniforms u (N, M): indices (N, M) int64."""
    chosen = []
    for draw in u.unbind(1):
        index = pick_allowed(allowed, draw)
        allowed = allowed.scatter(1, index[:, None], False)
        chosen.append(index)
    return torch.stack(chosen, 1) if chosen else torch.zeros(len(u), 0, dtype=torch.int64, device=u.device)


# ---- layouts ---------------------------------------------------------------------------------------------------------


class Empty(Layout):
    """An empty floor within walls.

    The exit is in the lower right corner, or on a random cell with `random_exit`. The agent starts in the upper left
    corner and looks east, or with `random_agent` on a random cell besides the exit's, with a random heading.

    Draws: the exit's cell, the agent's cell, the agent's heading, if they are random.
    """

    makes: Mapping[int, int] = {objects.EXIT: 1}

    def __init__(
        self, device: torch.device, shape: Shape, random_agent: bool = False, random_exit: bool = False
    ) -> None:
        check_sides("An empty grid", shape, (4, 4))
        self.height, self.width = shape
        self.random_agent, self.random_exit = random_agent, random_exit
        self.draws = int(random_exit) + 2 * int(random_agent)
        self.grid = bordered(*shape).flatten().to(device)  # (H*W,)
        self.interior = (self.grid == pack(objects.FLOOR)).nonzero()[:, 0]  # ((H-2)*(W-2),)

    def __call__(self, u: Tensor) -> Scene:
        cells, count = len(self.interior), len(u)
        goal = self.interior.new_full((count,), cells - 1)
        if self.random_exit:
            goal = choose(u[:, 0], cells)
        agent, heading = torch.zeros_like(goal), torch.full_like(goal, objects.EAST)
        if self.random_agent:
            agent = choose(u[:, -2], cells - 1)
            agent, heading = agent + (agent >= goal), choose(u[:, -1], 4)
        grids = self.grid.expand(count, -1).scatter(1, self.interior[goal][:, None], pack(objects.EXIT))
        nothing = torch.zeros_like(goal)
        return Scene(grids, self.interior[agent], heading, nothing, nothing)

    def initial_draws(self) -> Tensor | None:
        return None if self.draws else torch.zeros(1, 0, dtype=torch.float64, device=self.grid.device)


class DynamicObstacles(Empty):
    """An empty grid with moving obstacles on different floor cells, not the agent's.

    Draws: those of the empty grid, then one per obstacle.
    """

    def __init__(self, device: torch.device, shape: Shape, num_obstacles: int, random_agent: bool = False) -> None:
        super().__init__(device, shape, random_agent)
        self.obstacles, self.makes = num_obstacles, {objects.EXIT: 1, objects.OBSTACLE: num_obstacles}
        self.draws += num_obstacles
        free = len(self.interior) - 2
        if not 0 <= num_obstacles <= free:
            raise UserError(f"num_obstacles must be from 0 to {free} in a grid of {list(shape)}, not {num_obstacles}.")

    def __call__(self, u: Tensor) -> Scene:
        begin, along = u.split([self.draws - self.obstacles, self.obstacles], 1)
        before = super().__call__(begin)
        positions = pick_distinct(vacant(before), along)
        return before._replace(cells=before.cells.scatter(1, positions, pack(objects.OBSTACLE)))


class Telepods(Empty):
    """An empty grid with two red telepods; the agent starts in the upper left corner and looks east or south.

    Draws: the cells of the two telepods, the heading.
    """

    makes: Mapping[int, int] = {objects.EXIT: 1, objects.TELEPOD: 2}
    colours = (objects.RED,)

    def __init__(self, device: torch.device, shape: Shape) -> None:
        super().__init__(device, shape)
        self.draws = 3
        self.headings = torch.tensor([objects.EAST, objects.SOUTH], device=device)

    def __call__(self, u: Tensor) -> Scene:
        before = super().__call__(u[:, :0])
        positions = pick_distinct(vacant(before), u[:, :2])
        cells = before.cells.scatter(1, positions, pack(objects.TELEPOD, colour=objects.RED))
        return before._replace(cells=cells, heading=self.headings[choose(u[:, 2], 2)])


class Crossing(Empty):
    """An empty grid with rivers, lines from wall to wall, each with one opening on a path to the exit.

    Rivers are a uniformly random subset of the lines at even coordinates. The path crosses each river once, the
    horizontal and the vertical ones in a uniformly shuffled order. An opening is uniform along the side that the river
    shares with the current room of the path.

    Draws: the subset of rivers, the order of crossing, and the openings.
    """

    def __init__(self, device: torch.device, shape: Shape, num_rivers: int, object_type: int) -> None:
        check_sides("A crossing", shape, (5, 5))
        super().__init__(device, shape)
        if self.height % 2 == 0 or self.width % 2 == 0:
            raise UserError(f"A crossing needs an odd height and an odd width, not {list(shape)}.")
        require(num_rivers >= 1, f"num_rivers must be at least 1, not {num_rivers}.")
        if object_type not in (objects.FLOOR, objects.WALL, objects.EXIT, objects.OBSTACLE):
            raise UserError("object_type of a crossing must be Floor, Wall, Exit or MovingObstacle, without a colour.")
        self.river = pack(object_type)
        self.ys = torch.arange(2, self.height - 2, 2, device=device)  # (Y,) rows of horizontal rivers
        self.xs = torch.arange(2, self.width - 2, 2, device=device)  # (X,) columns of vertical ones
        self.candidates = len(self.ys) + len(self.xs)
        self.rivers = min(num_rivers, self.candidates)
        self.draws = self.candidates + 2 * self.rivers
        lines = torch.zeros(self.candidates, self.height, self.width, dtype=torch.bool, device=device)
        lines[torch.arange(len(self.ys)), self.ys, 1:-1] = True
        lines[len(self.ys) + torch.arange(len(self.xs)), 1:-1, self.xs] = True
        self.lines = lines.flatten(1)  # (Y + X, H*W)
        if object_type not in (objects.FLOOR, objects.WALL):
            maximum = int(self.lines.any(0).sum())  # cells that can be river
            self.makes = {objects.EXIT: 1} | {object_type: maximum + (object_type == objects.EXIT)}

    def __call__(self, u: Tensor) -> Scene:
        which, order, along = u.split([self.candidates, self.rivers, self.rivers], 1)
        before = super().__call__(u[:, :0])
        present = which.argsort(1) < self.rivers  # (N, Y + X)
        wet = (present[:, :, None] & self.lines).any(1)  # (N, H*W)
        cells = before.cells.masked_fill(wet, self.river)
        rows = self._limits(present[:, : len(self.ys)], self.ys, self.height)
        columns = self._limits(present[:, len(self.ys) :], self.xs, self.width)
        vertical = present[:, len(self.ys) :].sum(1, keepdim=True)  # (N, 1)
        sideways = order.argsort(1) < vertical  # (N, rivers), True for a crossing of a vertical river
        i, j = torch.zeros_like(vertical), torch.zeros_like(vertical)  # the path's current room
        for across, draw in zip(sideways.split(1, 1), along.split(1, 1), strict=True):
            y = torch.where(across, _between(rows, i, draw), rows.gather(1, i + 1))
            x = torch.where(across, columns.gather(1, j + 1), _between(columns, j, draw))
            cells = cells.scatter(1, y * self.width + x, pack(objects.FLOOR))
            i, j = i + ~across, j + across
        return before._replace(cells=cells)

    def _limits(self, present: Tensor, lines: Tensor, size: int) -> Tensor:
        """List the limits of rooms: the wall, the present rivers in ascending order, then copies of the other wall."""
        wall = lines.new_zeros(len(present), 1)
        inner = torch.where(present, lines, size - 1).sort(1).values
        return torch.cat([wall, inner, wall + size - 1], 1)  # (N, lines + 2)


def _between(limits: Tensor, index: Tensor, u: Tensor) -> Tensor:
    """Choose a coordinate (N, 1) strictly between two successive limits."""
    low, high = limits.gather(1, index), limits.gather(1, index + 1)
    return low + 1 + torch.minimum((u * (high - low - 1)).long(), high - low - 2)


def vacant(before: Scene) -> Tensor:
    """Return the floor cells (N, H*W) bool without the agent's."""
    return (before.cells == pack(objects.FLOOR)).scatter(1, before.position[:, None], False)


# ---- rules -----------------------------------------------------------------------------------------------------------


class MoveObstacles:
    """Move every moving obstacle to a uniformly random adjacent floor cell, if there is one.

    Obstacles move one after the other, in the row-major order of their cells before the step. The agent does not block
    them: its cell counts as floor.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.draws = layout.makes.get(objects.OBSTACLE, 0)
        self.size, self.inside = layout.height * layout.width, layout.width + 1
        self.cell = torch.arange(self.size, device=device)
        self.steps = Front(layout.width, device).ahead

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        if not self.draws:
            return scene
        # Flat positions (N, count) in row-major order, padded with H*W.
        positions = torch.where(kinds(scene.cells) == objects.OBSTACLE, self.cell, self.size)  # (N, H*W)
        positions = positions.topk(self.draws, 1, largest=False, sorted=True).values
        cells = scene.cells
        for position, draw in zip(positions.unbind(1), u.unbind(1), strict=True):
            start = torch.where(position < self.size, position, self.inside)
            around = start[:, None] + self.steps  # (N, 4)
            free = cells.gather(1, around) == pack(objects.FLOOR)
            moves = free.any(1) & (position < self.size)
            target = torch.where(moves, around.gather(1, pick_allowed(free, draw)[:, None])[:, 0], start)
            left = put_code(cells, start, torch.where(moves, pack(objects.FLOOR), at(cells, start)))
            cells = put_code(left, target, torch.where(moves, pack(objects.OBSTACLE), at(left, target)))
        return scene._replace(cells=cells)


class Teleport:
    """Move an agent on a telepod to a uniformly random other telepod of the same colour, if there is one."""

    draws = 1

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        self.cell = torch.arange(height * width, device=device)

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        code = at(scene.cells, scene.position)
        others = (scene.cells == code[:, None]) & (self.cell != scene.position[:, None])  # (N, H*W)
        jumps = (kinds(code) == objects.TELEPOD) & others.any(1)
        return scene._replace(position=torch.where(jumps, pick_allowed(others, u[:, 0]), scene.position))


class Chain:
    """Apply several rules in listed order, each with its uniforms."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.draws = sum(rule.draws for rule in rules)

    def __call__(self, scene: Scene, action: Tensor, u: Tensor) -> Scene:
        return apply_rules(self.rules, scene, action, u)[0]


# ---- rewards and endings ---------------------------------------------------------------------------------------------


class IntoWall:
    """End the episode if the agent's move aims at a wall, in the scene before the step."""

    def __init__(self, width: int, device: torch.device) -> None:
        motion = Motion(width, device)
        self.offsets = motion.offset.view(-1, motion.actions)  # (4, 8), 0 for actions that are no move

    def __call__(self, step: Transition) -> Tensor:
        before = step.before
        target = before.position + self.offsets[before.heading, step.action]
        return kinds(at(before.cells, target)) == objects.WALL


def change(distance: Distance, closer: float, further: float, device: torch.device) -> Reward:
    """Make a reward: `closer` or `further` by the change of a distance, else 0."""
    rewards = torch.tensor([closer, 0.0, further], dtype=torch.float64, device=device)

    def pay(step: Transition) -> Tensor:
        before, after = distance(step.before), distance(step.after)
        return rewards[1 + (after > before).long() - (after < before).long()]

    return pay


def straight_distance(width: int, kind: int, metric: str) -> Distance:
    """Make the agent's distance to the only object of a kind, ignoring walls."""

    def distance(scene: Scene) -> Tensor:
        goal, agent = find_object(scene.cells, kind), scene.position
        return METRICS[metric](goal // width - agent // width, goal % width - agent % width)

    return distance


class WalkingDistance:
    """Count the steps of the shortest walk from the agent to the only object of a kind; inf without a way."""

    def __init__(self, height: int, width: int, kind: int, device: torch.device) -> None:
        self.kind = kind
        self.blocked = objects.tabulate(objects.blocks_movement, device)  # (SEEN,)
        cells = torch.arange(height * width, device=device)
        # A clamped neighbour is on the border, which is wall and blocks the walk.
        self.neighbours = (cells[:, None] + Front(width, device).ahead).clamp(0, len(cells) - 1)  # (H*W, 4)
        self.max_steps = max((height - 2) * (width - 2), 1)

    def __call__(self, scene: Scene) -> Tensor:
        free = ~self.blocked[scene.cells.long()]  # (N, H*W)
        reached = torch.zeros_like(free).scatter(1, find_object(scene.cells, self.kind)[:, None], True)
        agent = scene.position[:, None]
        missing = (~reached.gather(1, agent)).long()
        for _ in range(self.max_steps):  # a fixed number, so that the loop does not depend on data
            reached = reached | free & reached[:, self.neighbours].any(2)
            missing = missing + ~reached.gather(1, agent)
        steps = missing[:, 0].double()
        return torch.where(reached.gather(1, agent)[:, 0], steps, torch.inf)


def find_object(cells: Tensor, kind: int) -> Tensor:
    """Return the flat position (N,) int64 of the first object of a kind in grids (N, H*W)."""
    return (kinds(cells) == kind).to(torch.uint8).argmax(1)
