"""What a scripted player knows of a grid: the maps there may be, and the map that it draws of what it has seen.

A player knows neither where it stands nor where north is, but it knows its own moves. So cells of its chart are
integers relative to the start, `y * ROW + x`, and headings 0..3 are clockwise from the first one. What it observes are
the published 2 x 3 windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from envs.errors import UserError
from envs.gridverse.layouts import LockedRoom, Scattered
from envs.gridverse.objects import DOOR, EXIT, FLOOR, WALL
from envs.gridverse.rules import BACKWARD, FORWARD, LEFT, LEFT_TURN, RIGHT, RIGHT_TURN
from envs.gridverse.view import Phantoms

Array = np.ndarray[Any, np.dtype[Any]]
Pose = tuple[int, int]  # cell, heading
Route = list[int]  # actions

ROW = 256  # more than any chart is wide
STEPS = (-ROW, 1, ROW, -1)  # by heading
CUE_VALUE = 0  # observed value of a floor that is marked by nothing at all
KEY_VALUE = 10  # and of a key; beacons are greater, and all of them can be walked on
ON_THE_WAY = 0.1  # worth of seeing a cell that holds nothing and leads on
NEVER, ALWAYS, PERHAPS = 0, 1, 2  # whether a cell looks like a wall
AXES = tuple(zip(STEPS, (*STEPS[1:], STEPS[0]), strict=True))  # by heading: the steps ahead and to the right
CHANGES = tuple(
    {FORWARD: (ahead, h), LEFT: (-right, h), RIGHT: (right, h), BACKWARD: (-ahead, h)}
    | {LEFT_TURN: (0, (h - 1) % 4), RIGHT_TURN: (0, (h + 1) % 4)}
    for h, (ahead, right) in enumerate(AXES)
)  # by heading and action: change of cell, new heading
# By heading: offsets of the six cells of a window, in the order of the observation.
WINDOWS = tuple((ahead - right, ahead, ahead + right, -right, 0, right) for ahead, right in AXES)


def moved(pose: Pose, action: int) -> Pose:
    """Return the pose after an action that meets no wall."""
    change, heading = CHANGES[pose[1]][action]
    return pose[0] + change, heading


@dataclass(frozen=True)
class Maps:
    """V equally likely maps of H x W cells, but for what is drawn on them."""

    wall: Array  # (V, H, W) int64, NEVER, ALWAYS or PERHAPS
    start: Array  # (V, H, W) bool, where an episode may begin
    porous: Array  # (V, H, W) bool, looks like a wall and lets everybody pass
    marks: Mapping[str, Array]  # each (V, H, W) float64, where something may be, and what seeing the cell is worth

    @cached_property
    def tables(self) -> dict[str, Array]:
        """Flatten everything into tables of the maps with a margin as wide as they are, which nothing can leave."""
        clear = self.wall == NEVER
        named = {"wall": self.wall, "porous": self.porous, "clear": clear, "inside": clear | True, **self.marks}
        margin = ((0, 0), (self.wall.shape[1],) * 2, (self.wall.shape[2],) * 2)
        return {name: np.pad(table, margin).ravel() for name, table in named.items()}

    @cached_property
    def row(self) -> int:
        """Count the cells in a row of the tables."""
        return 3 * self.wall.shape[2]

    @cached_property
    def poses(self) -> tuple[Array, Array]:
        """List every start: cell (C,) in the tables, and true heading (C,), clockwise from north."""
        _, height, width = self.wall.shape
        variant, y, x = np.nonzero(self.start)
        cells = (variant * 3 * height + height + y) * self.row + width + x
        return np.tile(cells, 4), np.repeat(np.arange(4), len(cells))


def room_maps(layout: Scattered, phantoms: Phantoms | None) -> Maps:
    """Describe rooms: agent and objects anywhere on the floor, between walls with openings or phantom walls.

    Raises:
        UserError: there are openings and phantom walls, which could hide them.
    """
    shape = (layout.height, layout.width)
    base, floor = layout.base.cpu().numpy(), layout.floor.cpu().numpy()
    lines = np.zeros(len(base), bool) if phantoms is None else phantoms.flags.cpu().numpy() > 0
    real = base >> 5 == WALL
    wall_like = phantoms is not None and phantoms.appearance >> 5 == WALL  # some floor looks like a wall
    wall = np.where(real | (lines & wall_like), ALWAYS, NEVER)
    worth = np.where(real, 0.0, ON_THE_WAY)
    worth[floor] = 1.0
    segments = zip(layout.first.tolist(), layout.stride.tolist(), layout.counts.tolist(), strict=False)
    for first, stride, count in segments:  # the wall segments that have an opening
        opening = first + stride * np.arange(count)
        wall[opening], worth[opening] = PERHAPS, 1.0 / count
    if len(layout.first) and wall_like:
        raise UserError("Nobody has written a player for phantom walls that are laid over walls with openings.")
    start = np.isin(np.arange(len(base)), floor) | (wall == PERHAPS)
    porous = ~real & (wall == ALWAYS)
    wall, start, porous, worth = (each.reshape(1, *shape) for each in (wall, start, porous, worth))
    return Maps(wall, start, porous, {"object": worth})


def keydoor_maps(layout: LockedRoom) -> Maps:
    """Describe Keydoor: a wall with a door, both anywhere, the key left of it, and the exit in the far corner."""
    kind = layout.grids.cpu().numpy().reshape(-1, layout.height, layout.width) >> 5  # (V, H, W)
    column = (kind == DOOR).argmax(2).max(1)  # (V,), of the wall
    left = (kind == FLOOR) & (np.arange(layout.width) < column[:, None, None])
    marks = {"key": left, "door": kind == DOOR, "exit": kind == EXIT}
    wall = np.where(kind == WALL, ALWAYS, NEVER)
    return Maps(wall, left, np.zeros_like(left), {name: mark.astype(float) for name, mark in marks.items()})


class Whereabouts:
    """All maps, cells and headings of the start that fit what has been seen since, equally likely."""

    def __init__(self, maps: Maps) -> None:
        self.maps, self.tables = maps, maps.tables
        self.origin, self.turn = maps.poses  # (C,), see there
        self.known: dict[tuple[str, int], float] = {}

    def candidates(self, cell: int) -> Array:
        """Return the cell (C,) in the tables that a cell of the chart is for each candidate."""
        ahead, right = -((cell + ROW // 2) // ROW), (cell + ROW // 2) % ROW - ROW // 2
        north, east = ahead * self.maps.row, right * self.maps.row
        return self.origin + np.array([right - north, ahead + east, north - right, -ahead - east])[self.turn]

    def saw(self, cell: int, value: int) -> None:
        """Keep the candidates for which a cell may look so."""
        cells = self.candidates(cell)
        unlike = NEVER if value == WALL else ALWAYS
        self._keep(self.tables["inside"][cells] & (self.tables["wall"][cells] != unlike))

    def found(self, mark: str, cell: int) -> None:
        """Keep the candidates that have a mark at a cell."""
        self._keep(self.tables[mark][self.candidates(cell)] > 0.0)

    def passed(self, cell: int, through: bool) -> None:
        """Keep the candidates for which a cell that looks like a wall lets pass, or does not."""
        self._keep(self.tables["porous"][self.candidates(cell)] == through)

    def worth(self, mark: str, cell: int) -> float:
        """Average a table over the candidates: what seeing a cell is worth, or the chance that it is so."""
        if (mark, cell) not in self.known:
            self.known[mark, cell] = float(self.tables[mark][self.candidates(cell)].mean())
        return self.known[mark, cell]

    def certain(self, mark: str) -> int | None:
        """Return the one cell of a mark, which each candidate has once; None where the candidates differ."""
        size = 3 * self.maps.wall.shape[1] * self.maps.row  # of one map's table
        where = np.flatnonzero(self.tables[mark] > 0.0)  # (V,)
        (goal_y, goal_x), (y, x) = (divmod(each, self.maps.row) for each in (where[self.origin // size], self.origin))
        south, east = goal_y - y, goal_x - x
        ahead = np.choose(self.turn, (-south, east, south, -east))
        right = np.choose(self.turn, (east, south, -east, -south))
        cells = np.unique(right - ahead * ROW)
        return int(cells[0]) if len(cells) == 1 else None

    def _keep(self, fits: Array) -> None:
        if not fits.all():
            self.origin, self.turn = self.origin[fits], self.turn[fits]
            self.known.clear()


class Chart:
    """What has been seen so far, where on which map that may be, and ways through it."""

    def __init__(self, maps: Maps) -> None:
        self.whereabouts = Whereabouts(maps)
        self.seen: dict[int, int] = {}  # observed value of each cell
        self.pose: Pose = (0, 0)
        self.open: set[int] = set()  # cells to walk on
        self.doubtful: set[int] = set()  # cells that look like walls and may let pass, which shows from a floor only

    def add(self, observation: Sequence[int]) -> list[tuple[int, int]]:
        """Enter the window (6,) seen from where the player stands; returns cell and value of what is new."""
        here, heading = self.pose
        shown = ((here + offset, value) for offset, value in zip(WINDOWS[heading], observation, strict=True))
        new = [(cell, value) for cell, value in shown if self.seen.get(cell) != value]
        self.seen.update(new)
        self.open.update(cell for cell, value in new if value in (CUE_VALUE, FLOOR) or value >= KEY_VALUE)
        for cell, value in new:
            self.whereabouts.saw(cell, value)
        return new

    def move(self, action: int) -> None:
        """Follow one's own action, which must be possible."""
        self.pose = moved(self.pose, action)

    def possible(self, pose: Pose, action: int, also: int | None = None) -> bool:
        """Tell whether an action leads from a pose where it should, as far as one knows.

        Cells never seen are entered in sight only, that is not backwards: something may lie there.
        """
        target = moved(pose, action)[0]
        if target == pose[0] or target == also or target in self.open:
            return True
        if target not in self.seen:
            return action != BACKWARD and self.whereabouts.worth("clear", target) == 1.0
        return target in self.doubtful and self.seen.get(pose[0]) != WALL

    def route(self, wanted: Callable[[Pose], float], also: int | None = None, slack: int = 0) -> Route | None:
        """Find the way to a near pose that is wanted more than 0, over free cells and perhaps the cell `also`.

        Poses up to `slack` steps beyond the first wanted one are compared by what they are worth a step.
        """
        before: dict[Pose, tuple[Pose, int]] = {self.pose: (self.pose, -1)}
        level, found, distance, last = [self.pose], (0.0, self.pose), 0, 1_000_000
        while level and distance <= last:
            best = max((wanted(pose), pose) for pose in level)
            if best[0] > 0.0:
                last = min(last, distance + slack)
                found = max(found, (best[0] / max(distance, 1), best[1]), key=lambda pair: pair[0])
            level, distance = self._next(level, before, also), distance + 1
        if found[0] <= 0.0:
            return None
        actions = []
        pose, action = before[found[1]]
        while action >= 0:
            actions.append(action)
            pose, action = before[pose]
        return actions[::-1]

    def way_to(self, cell: int) -> Route | None:
        """Find the shortest way to a cell, which need not be floor."""
        return self.route(lambda pose: float(pose[0] == cell), also=cell)

    def worth(self, pose: Pose, mark: str) -> float:
        """Rate what the window of a pose may show of a mark in cells never seen."""
        cells = [pose[0] + offset for offset in WINDOWS[pose[1]]]
        return sum(self.whereabouts.worth(mark, cell) for cell in cells if cell not in self.seen)

    def _next(self, level: list[Pose], before: dict[Pose, tuple[Pose, int]], also: int | None) -> list[Pose]:
        """List poses one action away from those of the level, not met before."""
        ahead = []
        for pose in level:
            for action, (change, heading) in CHANGES[pose[1]].items():
                new = (pose[0] + change, heading)
                if new not in before and (new[0] in self.open or self.possible(pose, action, also)):
                    before[new] = (pose, action)
                    ahead.append(new)
        return ahead
