"""Car Flag: read the signpost, then drive to the side that it names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.baselines.maps import WINDOWS, Chart, Plan, Pose, Route, Whereabouts
from envs.baselines.playing import Outcomes, Player, finish
from envs.core import World
from envs.gridverse.objects import WALL
from envs.gridverse.rules import ACTUATE, LEFT_TURN, PICK_N_DROP
from envs.worlds.catch import BALL, PADDLE, BlinkingCatch

STARTS = 2_001  # places on the grid of starts


PUSH_LEFT, PUSH_RIGHT = 0, 2


def signpost_player() -> Player:
    """Push right until the observation (N, 3) names a side, then push to that side for good."""
    known: Tensor | None = None  # (N,) float64, the side of heaven or 0

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        seen = observation[:, 2]
        known = seen if known is None else torch.where(known == 0, seen, known)
        return torch.where(known < 0, PUSH_LEFT, PUSH_RIGHT)

    return act


def every_start(world: World[Any]) -> Outcomes:
    """The signpost player from a grid of starts that has both ends of the line and both sides of heaven."""
    u = torch.linspace(0.0, 1.0, STARTS, dtype=torch.float64, device=world.device)
    draws = torch.cartesian_prod(torch.tensor([0.25, 0.75], dtype=u.dtype, device=u.device), u)  # (2 * STARTS, 2)
    return finish(world, world.reset(draws), signpost_player())


Floats = np.ndarray[Any, np.dtype[np.float64]]


Integers = np.ndarray[Any, np.dtype[np.int64]]


WIDEST = 9  # columns up to which all rules are tried: 3 ** columns of them


@dataclass(frozen=True)
class Rule:
    """Moves, -1, 0 or 1, from the newest picture alone; `bound` is what no such rule exceeds in expectation."""

    unseen: Integers  # (columns,) by the paddle's column, where the ball is not seen
    seen: Integers  # (rows, columns, columns) by row of the ball, column of the paddle, column of the ball
    bound: float


def seen(world: BlinkingCatch, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Column of the paddle, and row and column of the ball, -1 where it is not seen, read from pictures; each (N,)."""
    edges = torch.tensor([world.edge(place) for place in range(world.grid)], device=observation.device)
    ball, paddle = observation[:, 0, edges][:, :, edges] == BALL[0], observation[:, 0, edges[-1], edges] == PADDLE[0]
    place = ball.flatten(1).long().argmax(1)  # of the cells, each read at its first pixel
    there = ball.flatten(1).any(1)
    rows, columns = (torch.where(there, each, -1) for each in (place // world.grid, place % world.grid))
    return paddle.long().argmax(1), rows, columns


def catcher(world: BlinkingCatch) -> Player:
    """Remember where the ball was seen last, and go there."""
    known: Tensor | None = None  # (N,)

    def act(observation: Tensor, running: Tensor) -> Tensor:
        nonlocal known
        paddle, _, column = seen(world, observation)
        known = torch.where(column >= 0, column, paddle if known is None else known)
        return 1 + (known - paddle).sign()

    return act


def by_rule(world: BlinkingCatch, rule: Rule) -> Player:
    """Follow a rule."""
    unseen, shown = (torch.from_numpy(moves).to(world.device) for moves in (rule.unseen, rule.seen))

    def act(observation: Tensor, running: Tensor) -> Tensor:
        paddle, row, column = seen(world, observation)
        return 1 + torch.where(row >= 0, shown[row, paddle, column], unseen[paddle])

    return act


def memoryless(world: BlinkingCatch) -> Rule:
    """The best rule from the newest picture to a move, by trying all moves for a ball that is not seen.

    While the ball is seen the picture tells the whole state but the number of balls left. With those known too, dynamic
    programming gives the greatest return beside each set of moves; the rule returned has the moves of the first ball.

    Raises:
        ValueError: the grid is too wide to try all.
    """
    if world.grid > WIDEST:
        raise ValueError(f"all rules can be tried on at most {WIDEST} columns, not {world.grid}")
    unseen = np.array(list(itertools.product((-1, 0, 1), repeat=world.grid)))  # (M, columns)
    values = np.zeros(unseen.shape)
    for _ in range(world.balls):
        values, choices = _one_ball(world, unseen, values)
    best = int(values[:, world.grid // 2].argmax())
    moves = np.zeros((world.grid, world.grid, world.grid), np.int64)
    for row, chosen in choices.items():
        moves[row] = chosen[best] - 1
    return Rule(unseen[best], moves, float(values[best, world.grid // 2]))


def _one_ball(world: BlinkingCatch, unseen: Integers, after: Floats) -> tuple[Floats, dict[int, Integers]]:
    """Values (M, columns) by the paddle's column before a ball is drawn, from those after it has landed.

    Also the best actions (M, columns, columns) of every row in which the ball is seen.
    """
    columns, choices = np.arange(world.grid), {}
    worth = np.where(np.eye(world.grid, dtype=bool), 1.0, -1.0) + after[:, :, None]  # (M, paddle, ball)
    for row in reversed(range(world.grid - 1)):
        if world.shown[row]:
            moved = [worth[:, np.clip(columns + move, 0, world.grid - 1)] for move in (-1, 0, 1)]
            worth, choices[row] = np.max(moved, 0), np.argmax(moved, 0)
        else:
            target = np.clip(columns + unseen, 0, world.grid - 1)  # (M, columns)
            worth = np.take_along_axis(worth, target[:, :, None], 1)
    return worth.mean(2), choices


EXIT_VALUE, BEACON_VALUE = 4, 10  # observed value of a colour: the type's number plus the colour


PATIENCE = 100  # the step up to which the good exit leaves a positive return


SLACK = 2  # how much further than the nearest news the best may be


class Seeker:
    """One scripted player without hidden information: it knows the plan, but not where on it it stands.

    It goes to the place near by that shows most of what may hold something, for its distance, until it knows the
    beacons' colour and the exit of that colour, and takes the shortest way there around the other exits. A `gambler`
    who would otherwise fail to win in time tries an exit at the last moment without knowing the beacons' colour.
    """

    def __init__(self, plan: Plan, gambler: bool) -> None:
        self.whereabouts, self.gambler = Whereabouts(plan), gambler
        self.chart = Chart(self.whereabouts.clear)
        self.good: int | None = None  # the beacons' colour
        self.exits: dict[int, int] = {}  # place by colour
        self.route: Route = []
        self.goal: Pose = (0, 0)  # where the route ends
        self.leaving: Route = []  # the way to the good exit
        self.fresh = True  # whether the last look showed anything new
        self.steps = self.due = 0  # and when to think about an exit again
        self.tried: Pose | None = None  # where a step into what looks like a wall began

    def __call__(self, observation: Sequence[int]) -> int:
        """The next action."""
        self._arrive(observation)
        self._look(observation)
        action = (self._way_out() or self._news() or self._resign())[0]
        before, self.steps = (self.chart.place, self.chart.heading), self.steps + 1
        self.chart.move(action)
        if self.chart.is_wall(self.chart.place):
            self.tried = before
        return action

    def _arrive(self, observation: Sequence[int]) -> None:
        """See whether a step into what looks like a wall went through: it is tried from a floor only."""
        if self.tried is None:
            return
        through = observation[WINDOWS[0].index(0)] == WALL
        self.whereabouts.passed(self.chart.place, through)
        if not through:
            self.chart.place, self.chart.heading = self.tried
            self.route = []
        self.tried = None

    def _look(self, observation: Sequence[int]) -> None:
        """Note what is new: walls, exits, the beacons' colour."""
        new = self.chart.add(observation)
        self.fresh = bool(new)
        for place, value in new:
            self.whereabouts.saw(place, value)
            if EXIT_VALUE < value < BEACON_VALUE:
                self.exits[value - EXIT_VALUE] = place
            elif value > BEACON_VALUE:
                self.good = value - BEACON_VALUE
        if self.whereabouts.plan.porous.any():
            self._doors()

    def _doors(self) -> None:
        """Walk through walls that are known to let pass, and try those that may."""
        walls = {place: self.whereabouts.porous(place) for place, value in self.chart.seen.items() if value == WALL}
        self.chart.open.update(place for place, porous in walls.items() if porous == 1.0)
        self.chart.doubtful = {place for place, porous in walls.items() if 0.0 < porous < 1.0}

    def _worth(self, pose: Pose) -> float:
        """What the window of a pose may show that is new."""
        place, seen, worth = pose[0], self.chart.seen, self.whereabouts.worth
        return sum(worth("object", place + offset) for offset in WINDOWS[pose[1]] if place + offset not in seen)

    def _way_out(self) -> Route | None:
        """To the good exit, or at the last moment to one that may be it."""
        if self.good is None:
            return self._gamble()
        self.leaving = self._towards(self.exits.get(self.good)) if self.fresh else self.leaving[1:]
        return self.leaving

    def _gamble(self) -> Route | None:
        """To the nearest exit, when that takes all the time that is left."""
        if not self.gambler or not self.exits or self.steps < self.due:
            return None
        nearest = self._nearest_exit()
        spare = PATIENCE - self.steps - len(nearest)
        self.due = self.steps + max(spare // 2, 1)  # no step takes it further away than by one
        return nearest if spare <= 0 else None

    def _nearest_exit(self) -> Route:
        ways = [way for place in self.exits.values() if (way := self._towards(place))]
        return min(ways, key=len, default=[])

    def _towards(self, place: int | None) -> Route:
        if place is None:
            return []
        return self.chart.route(lambda pose: float(pose[0] == place), also=place) or []

    def _news(self) -> Route | None:
        """On along the last route while its end still shows something new, else along a new one."""
        self.route = self.route[1:]
        here = (self.chart.place, self.chart.heading)
        if not self.route or not self._worth(self.goal) or not self.chart.possible(here, self.route[0]):
            self.route = self.chart.route(self._worth, slack=SLACK) or []
            self.goal = self.chart.end(self.route)
        return self.route

    def _resign(self) -> Route:
        """Nothing is left to look at: take any exit, which ends the costs, or stay."""
        return self._nearest_exit() or [LEFT_TURN]


MARKS = {4: "exit", 9: "door", 10: "key"}  # by observed value


KEYDOOR_SLACK = 1  # how much further than the nearest news the best may be


class Opener:
    """One scripted player without hidden information.

    It knows every plan there may be, keeps those that fit what it has seen, and looks where the thing that it needs
    next is likely: the key, then the door, then the exit.
    """

    def __init__(self, plan: Plan) -> None:
        self.whereabouts = Whereabouts(plan)
        self.chart = Chart(self.whereabouts.clear)
        self.places: dict[str, int] = {}
        self.holding = self.opened = False

    def __call__(self, observation: Sequence[int]) -> int:
        """The next action."""
        for place, value in self.chart.add(observation):
            self.whereabouts.saw(place, value)
            if value in MARKS:
                self.places[MARKS[value]] = place
                self.whereabouts.found(MARKS[value], place)
        if self.opened:
            return self._go(self._leave())
        if self.holding:
            return self._use("door", ACTUATE)
        return self._use("key", PICK_N_DROP)

    def _use(self, mark: str, action: int) -> int:
        """Stand before a thing and act on it, or look for it."""
        place = self.places.get(mark)
        if place is None:
            return self._go(self.chart.route(lambda pose: self._worth(pose, mark), slack=KEYDOOR_SLACK))
        if self.chart.ahead((self.chart.place, self.chart.heading)) != place:
            return self._go(self.chart.route(lambda pose: float(self.chart.ahead(pose) == place)))
        if mark == "door":
            self.opened = True
            self.chart.open.add(place)
        self.holding = True
        return action

    def _leave(self) -> Route | None:
        """To the exit, where its place is known or follows from what is known, or on in search of it."""
        place = self.places.get("exit", self.whereabouts.certain("exit"))
        if place is None:
            return self.chart.route(lambda pose: self._worth(pose, "exit"), slack=KEYDOOR_SLACK)
        return self.chart.route(lambda pose: float(pose[0] == place), also=place)

    def _worth(self, pose: Pose, mark: str) -> float:
        """The chance that the window of a pose shows a thing in a cell never seen."""
        hidden = (pose[0] + offset for offset in WINDOWS[pose[1]] if pose[0] + offset not in self.chart.seen)
        return sum(self.whereabouts.worth(mark, place) for place in hidden)

    def _go(self, route: Route | None) -> int:
        action = route[0] if route else LEFT_TURN
        self.chart.move(action)
        return action
