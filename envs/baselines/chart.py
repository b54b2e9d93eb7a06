"""The map that a scripted player draws of a grid world from the 2 x 3 windows it has seen.

Places are integers relative to the start, `y * ROW + x`, headings 0..3 clockwise from the first one: a player knows
neither where it stands nor where north is, but it knows its own moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from envs.gridverse.objects import FLOOR, WALL
from envs.gridverse.rules import BACKWARD, FORWARD, LEFT, LEFT_TURN, RIGHT, RIGHT_TURN

ROW = 256  # more than any chart is wide
CUE_VALUE = 0  # observed value of a floor that is marked by nothing at all
KEY_VALUE = 10  # and of a key; beacons are greater, and all of them can be walked on
STEPS = (-ROW, 1, ROW, -1)  # by heading
Pose = tuple[int, int]  # place, heading
Route = list[int]  # actions


def window(heading: int) -> tuple[int, ...]:
    """Offsets of the six cells, in the order of the observation."""
    ahead, right = STEPS[heading], STEPS[(heading + 1) % 4]
    return ahead - right, ahead, ahead + right, -right, 0, right


WINDOWS = tuple(window(heading) for heading in range(4))
ACTIONS = (FORWARD, LEFT, RIGHT, BACKWARD, LEFT_TURN, RIGHT_TURN)
CHANGES = {
    action: tuple((STEPS[(h + turn) % 4] if turn is not None else 0, (h + spin) % 4) for h in range(4))
    for action, turn, spin in (
        (FORWARD, 0, 0), (RIGHT, 1, 0), (BACKWARD, 2, 0), (LEFT, 3, 0), (LEFT_TURN, None, 3), (RIGHT_TURN, None, 1),
    )
}  # by action and heading: change of place, new heading  # fmt: skip
FOLLOWERS = tuple(tuple((action, *CHANGES[action][h]) for action in ACTIONS) for h in range(4))  # the same by heading


def moved(pose: Pose, action: int) -> Pose:
    """The pose after an action that meets no wall."""
    change, heading = CHANGES[action][pose[1]]
    return pose[0] + change, heading


class Chart:
    """What has been seen so far, and ways through it."""

    def __init__(self, clear: Callable[[int], bool]) -> None:
        self.clear = clear  # whether a cell never seen is certainly free
        self.seen: dict[int, int] = {}  # observed value of each cell
        self.place, self.heading = 0, 0
        self.open: set[int] = set()  # cells to walk on
        self.doubtful: set[int] = set()  # cells that look like walls and may let pass, which shows from a floor only

    def add(self, observation: Sequence[int]) -> list[tuple[int, int]]:
        """Enter the window (6,) seen from where the player stands; returns place and value of what is new."""
        shown = ((self.place + offset, value) for offset, value in zip(WINDOWS[self.heading], observation, strict=True))
        new = [(place, value) for place, value in shown if self.seen.get(place) != value]
        self.seen.update(new)
        self.open.update(place for place, value in new if value in (CUE_VALUE, FLOOR) or value >= KEY_VALUE)
        return new

    def move(self, action: int) -> None:
        """Follow one's own action, which must be possible."""
        self.place, self.heading = moved((self.place, self.heading), action)

    def end(self, route: Route) -> Pose:
        """Where a route ends."""
        return reduce(moved, route, (self.place, self.heading))

    def is_wall(self, place: int) -> bool:
        """Whether a cell was seen to be a wall."""
        return self.seen.get(place) == WALL

    def ahead(self, pose: Pose) -> int:
        """The cell in front of a pose."""
        return pose[0] + STEPS[pose[1]]

    def possible(self, pose: Pose, action: int, also: int | None = None) -> bool:
        """Whether an action leads from a pose where it should, as far as one knows.

        Cells never seen are entered in sight only, that is not backwards: something may lie there.
        """
        target = moved(pose, action)[0]
        if target == pose[0] or target == also or target in self.open:
            return True
        if target not in self.seen:
            return action != BACKWARD and self.clear(target)
        return target in self.doubtful and not self.is_wall(pose[0])

    def route(self, wanted: Callable[[Pose], float], also: int | None = None, slack: int = 0) -> Route | None:
        """The way to a near pose that is wanted more than 0, over free cells and perhaps the cell `also`.

        Poses up to `slack` steps beyond the first wanted one are compared by what they are worth a step.
        """
        start = (self.place, self.heading)
        before: dict[Pose, tuple[Pose, int]] = {start: (start, -1)}
        level, found, distance, last = [start], (0.0, start), 0, 1_000_000
        while level and distance <= last:
            best = max((wanted(pose), pose) for pose in level)
            if best[0] > 0.0:
                last = min(last, distance + slack)
                found = max(found, (best[0] / max(distance, 1), best[1]), key=lambda pair: pair[0])
            level, distance = self._next(level, before, also), distance + 1
        return _back(before, found[1]) if found[0] > 0.0 else None

    def _next(self, level: list[Pose], before: dict[Pose, tuple[Pose, int]], also: int | None) -> list[Pose]:
        """Poses one action away from those of the level, not met before."""
        ahead = []
        for pose in level:
            for action, change, heading in FOLLOWERS[pose[1]]:
                new = (pose[0] + change, heading)
                if new not in before and (new[0] in self.open or self.possible(pose, action, also)):
                    before[new] = (pose, action)
                    ahead.append(new)
        return ahead


def _back(before: dict[Pose, tuple[Pose, int]], pose: Pose) -> Route:
    """Actions from the start to a pose."""
    route: Route = []
    while before[pose][1] >= 0:
        pose, action = before[pose]
        route.append(action)
    return route[::-1]
