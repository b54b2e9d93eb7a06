"""Scripted players: what somebody who knows the environment, but sees only the observation, would do.

Car Flag and Blinking Catch need one number of memory. In rooms and in Keydoor a player draws a map (see
`envs.baselines.maps`) and goes where something new may be seen until it knows enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from envs.baselines.maps import WINDOWS, Chart, Maps, Pose, Route, Whereabouts
from envs.baselines.playing import Outcomes, Player, finish
from envs.core import World
from envs.gridverse.objects import WALL
from envs.gridverse.rules import ACTUATE, LEFT_TURN, PICK_N_DROP
from envs.worlds.catch import BALL, PADDLE, BlinkingCatch

PUSH_LEFT, PUSH_RIGHT = 0, 2  # actions of Car Flag
STARTS = 2_001  # positions on the grid of Car Flag's starts
EXIT_VALUE, BEACON_VALUE = 4, 10  # observed value of a colour: the type's number plus the colour
PATIENCE = 100  # the step up to which the good exit leaves a positive return
MARKS = {4: "exit", 9: "door", 10: "key"}  # what Keydoor's objects are, by observed value
SEEKER_SLACK, OPENER_SLACK = 2, 1  # how much further than the nearest news the best may be


def signpost_player() -> Player:
    """Push right until the observation (N, 3) names a side, then push to that side for good."""
    known: Tensor | None = None  # (N,) float64, the side of heaven or 0

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        shown = observation[:, 2]
        known = shown if known is None else torch.where(known == 0, shown, known)
        return torch.where(known < 0, PUSH_LEFT, PUSH_RIGHT)

    return act


def every_start(world: World[Any]) -> Outcomes:
    """Play the signpost player from a grid of starts that has both ends of the line and both sides of heaven."""
    u = torch.linspace(0.0, 1.0, STARTS, dtype=torch.float64, device=world.device)
    draws = torch.cartesian_prod(torch.tensor([0.25, 0.75], dtype=u.dtype, device=u.device), u)  # (2 * STARTS, 2)
    return finish(world, world.reset(draws), signpost_player())


def read_picture(world: BlinkingCatch, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Read the paddle's column, and row and column of the ball, -1 where it is not seen, from pictures; each (N,)."""
    edges = torch.tensor([world.edge(cell) for cell in range(world.grid)], device=observation.device)
    ball, paddle = observation[:, 0, edges][:, :, edges] == BALL[0], observation[:, 0, edges[-1], edges] == PADDLE[0]
    cell = ball.flatten(1).long().argmax(1)  # each cell is read at its first pixel
    there = ball.flatten(1).any(1)
    rows, columns = (torch.where(there, each, -1) for each in (cell // world.grid, cell % world.grid))
    return paddle.long().argmax(1), rows, columns


def catcher(world: BlinkingCatch) -> Player:
    """Remember where the ball was seen last, and go there."""
    known: Tensor | None = None  # (N,)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        paddle, _, column = read_picture(world, observation)
        known = torch.where(column >= 0, column, paddle if known is None else known)
        return 1 + (known - paddle).sign()

    return act


class Explorer:
    """A player that knows every map there may be, and keeps those that fit what it has seen."""

    def __init__(self, maps: Maps) -> None:
        self.whereabouts = Whereabouts(maps)
        self.chart = Chart(self.whereabouts.clear)

    def worth(self, pose: Pose, mark: str) -> float:
        """Rate what the window of a pose may show of a mark in cells never seen."""
        cell, seen, worth = pose[0], self.chart.seen, self.whereabouts.worth
        return sum(worth(mark, cell + offset) for offset in WINDOWS[pose[1]] if cell + offset not in seen)

    def way_to(self, cell: int) -> Route | None:
        """Find the shortest way to a cell, which need not be floor."""
        return self.chart.route(lambda pose: float(pose[0] == cell), also=cell)


class Seeker(Explorer):
    """In memory rooms: look for exits and a beacon, then leave by the exit of the beacon's colour.

    It knows the map, but not where on it it stands. It goes to the cell near by that shows most of what may hold
    something, for its distance, until it knows the beacons' colour and the exit of that colour, and takes the shortest
    way there around the other exits. A `gambler` who would otherwise fail to win in time tries an exit at the last
    moment without knowing the beacons' colour.
    """

    def __init__(self, maps: Maps, gambler: bool) -> None:
        super().__init__(maps)
        self.gambler = gambler
        self.good: int | None = None  # the beacons' colour
        self.exits: dict[int, int] = {}  # cell by colour
        self.route: Route = []
        self.goal: Pose = (0, 0)  # where the route ends
        self.leaving: Route = []  # the way to the good exit
        self.fresh = True  # whether the last observation showed anything new
        self.steps = self.due = 0  # and when to think about an exit again
        self.tried: Pose | None = None  # where a step into what looks like a wall began

    def __call__(self, observation: Sequence[int]) -> int:
        """Choose the next action."""
        self._arrive(observation)
        self._look(observation)
        action = (self._way_out() or self._news() or self._resign())[0]
        before, self.steps = (self.chart.cell, self.chart.heading), self.steps + 1
        self.chart.move(action)
        if self.chart.is_wall(self.chart.cell):
            self.tried = before
        return action

    def _arrive(self, observation: Sequence[int]) -> None:
        """See whether a step into what looks like a wall went through: it is tried from a floor only."""
        if self.tried is None:
            return
        through = observation[WINDOWS[0].index(0)] == WALL
        self.whereabouts.passed(self.chart.cell, through)
        if not through:
            self.chart.cell, self.chart.heading = self.tried
            self.route = []
        self.tried = None

    def _look(self, observation: Sequence[int]) -> None:
        """Note what is new: walls, exits, the beacons' colour."""
        new = self.chart.add(observation)
        self.fresh = bool(new)
        for cell, value in new:
            self.whereabouts.saw(cell, value)
            if EXIT_VALUE < value < BEACON_VALUE:
                self.exits[value - EXIT_VALUE] = cell
            elif value > BEACON_VALUE:
                self.good = value - BEACON_VALUE
        if self.whereabouts.maps.porous.any():
            self._try_walls()

    def _try_walls(self) -> None:
        """Walk through walls that are known to let pass, and try those that may."""
        walls = {cell: self.whereabouts.porous(cell) for cell, value in self.chart.seen.items() if value == WALL}
        self.chart.open.update(cell for cell, porous in walls.items() if porous == 1.0)
        self.chart.doubtful = {cell for cell, porous in walls.items() if 0.0 < porous < 1.0}

    def _way_out(self) -> Route | None:
        """Go to the good exit, or at the last moment to one that may be it."""
        if self.good is None:
            return self._gamble()
        if self.fresh:
            cell = self.exits.get(self.good)
            self.leaving = [] if cell is None else self.way_to(cell) or []
        else:
            self.leaving = self.leaving[1:]
        return self.leaving

    def _gamble(self) -> Route | None:
        """Go to the nearest exit, when that takes all the time that is left."""
        if not self.gambler or not self.exits or self.steps < self.due:
            return None
        nearest = self._nearest_exit()
        spare = PATIENCE - self.steps - len(nearest)
        self.due = self.steps + max(spare // 2, 1)  # no step takes it further away than by one
        return nearest if spare <= 0 else None

    def _nearest_exit(self) -> Route:
        ways = [way for cell in self.exits.values() if (way := self.way_to(cell))]
        return min(ways, key=len, default=[])

    def _news(self) -> Route | None:
        """Go on along the last route while its end still shows something new, else along a new one."""
        self.route = self.route[1:]
        here = (self.chart.cell, self.chart.heading)
        if not self.route or not self._new(self.goal) or not self.chart.possible(here, self.route[0]):
            self.route = self.chart.route(self._new, slack=SEEKER_SLACK) or []
            self.goal = self.chart.end(self.route)
        return self.route

    def _new(self, pose: Pose) -> float:
        return self.worth(pose, "object")

    def _resign(self) -> Route:
        """Take any exit, which ends the costs, or stay: nothing is left to look at."""
        return self._nearest_exit() or [LEFT_TURN]


class Opener(Explorer):
    """In Keydoor: find the key, find the door, leave by the corner behind it.

    It looks where the thing that it needs next is likely: the key, then the door, then the exit.
    """

    def __init__(self, maps: Maps) -> None:
        super().__init__(maps)
        self.found: dict[str, int] = {}  # cell by mark
        self.holding = self.opened = False

    def __call__(self, observation: Sequence[int]) -> int:
        """Choose the next action."""
        for cell, value in self.chart.add(observation):
            self.whereabouts.saw(cell, value)
            if value in MARKS:
                self.found[MARKS[value]] = cell
                self.whereabouts.found(MARKS[value], cell)
        if self.opened:
            exit = self.found.get("exit", self.whereabouts.certain("exit"))
            return self._go(self._search("exit") if exit is None else self.way_to(exit))
        if self.holding:
            return self._use("door", ACTUATE)
        return self._use("key", PICK_N_DROP)

    def _use(self, mark: str, action: int) -> int:
        """Stand before a thing and act on it, or look for it."""
        cell = self.found.get(mark)
        if cell is None:
            return self._go(self._search(mark))
        if self.chart.ahead((self.chart.cell, self.chart.heading)) != cell:
            return self._go(self.chart.route(lambda pose: float(self.chart.ahead(pose) == cell)))
        if mark == "door":
            self.opened = True
            self.chart.open.add(cell)
        self.holding = True
        return action

    def _search(self, mark: str) -> Route | None:
        return self.chart.route(lambda pose: self.worth(pose, mark), slack=OPENER_SLACK)

    def _go(self, route: Route | None) -> int:
        action = route[0] if route else LEFT_TURN
        self.chart.move(action)
        return action
