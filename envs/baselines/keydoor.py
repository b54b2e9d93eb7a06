"""Keydoor: find the key, find the door, leave by the corner behind it."""

from __future__ import annotations

from collections.abc import Sequence

from envs.baselines.chart import WINDOWS, Chart, Pose, Route
from envs.baselines.plan import Plan, Whereabouts
from envs.gridverse.rules import ACTUATE, LEFT_TURN, PICK_N_DROP

MARKS = {4: "exit", 9: "door", 10: "key"}  # by observed value
SLACK = 1  # how much further than the nearest news the best may be


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
            return self._go(self.chart.route(lambda pose: self._worth(pose, mark), slack=SLACK))
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
            return self.chart.route(lambda pose: self._worth(pose, "exit"), slack=SLACK)
        return self.chart.route(lambda pose: float(pose[0] == place), also=place)

    def _worth(self, pose: Pose, mark: str) -> float:
        """The chance that the window of a pose shows a thing in a cell never seen."""
        hidden = (pose[0] + offset for offset in WINDOWS[pose[1]] if pose[0] + offset not in self.chart.seen)
        return sum(self.whereabouts.worth(mark, place) for place in hidden)

    def _go(self, route: Route | None) -> int:
        action = route[0] if route else LEFT_TURN
        self.chart.move(action)
        return action
