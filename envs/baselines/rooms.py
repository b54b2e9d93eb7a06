"""Memory worlds with objects anywhere: look for exits and a beacon, then leave by the exit of the beacon's colour."""

from __future__ import annotations

from collections.abc import Sequence

from envs.baselines.chart import WINDOWS, Chart, Pose, Route
from envs.baselines.plan import Plan, Whereabouts
from envs.gridverse.objects import WALL
from envs.gridverse.rules import LEFT_TURN

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
