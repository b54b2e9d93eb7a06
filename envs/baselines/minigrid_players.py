"""Players in MiniGrid's memory rooms: random actions, three with less than a memory, and one with a perfect memory.

A room in the west holds a key or a ball. A hallway leads east to a fork with a key at one end and a ball at the other,
and the end with the room's object is right. The agent starts anywhere in the middle row and faces east. Players see the
kinds of the 7 x 7 cells in view and nothing else. Columns are numbered from the room's western one, which is 1.

From a fork in column 7 or less the room's object is in view of who looks back, and only the turn must be remembered. On
the way to a fork farther east the view and the last action are the same with a key and with a ball. So the newest
observation and one remembered step carry nothing there, and who has no more succeeds in half of the episodes at most.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from envs.baselines.best import BY_RULES, Best, Budget
from envs.baselines.players import Outcomes, exact_level, sampled_level
from envs.baselines.reference import Level
from envs.packages import make_env
from envs.spaces import Array

ROOMS = tuple(f"MiniGrid-Memory{room}-v0" for room in ("S7", "S9", "S11", "S13", "S13Random", "S17Random"))
PLAYED = 2_000  # maximum number of episodes of each player
IN_VIEW = 6  # last column of the longest hallway from whose fork the room's object is in view
LEFT, RIGHT, FORWARD, WAIT = 0, 1, 2, 6
WALL, KEY, BALL = 2, 5, 6
SIDE = 7  # of the view
BLIND = {"image": np.zeros((SIDE, SIDE, 3), np.uint8)}


class Seen(NamedTuple):
    """What a player may know: the kinds (7, 7) of the cells in view, the number of the step and the last action.

    The first axis goes from left to right. The agent stands in the middle of the end of the second.
    """

    view: Array
    time: int
    last: int | None


Rule = Callable[[Seen], int]


@dataclass(frozen=True)
class MemoryRoom:
    """One of ROOMS by its id. MiniGrid tells no success, so that scores are returns; a success is a return above 0."""

    id: str
    defines_success: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """The side of the map."""
        return int(re.findall(r"S(\d+)", self.id)[0])

    @property
    def time_limit(self) -> int:
        """The number of steps after which an episode is cut."""
        return 5 * self.size**2

    @property
    def hallways(self) -> range:
        """The columns at which the hallway can end; the fork is in the next one."""
        return range(4 if "Random" in self.id else self.size - 3, self.size - 2)

    def random(self, budget: Budget) -> Level:
        """Measure uniformly random actions."""
        generator = np.random.default_rng(budget.seed + 1)
        outcomes = play_rule(
            self.id, lambda seen: int(generator.integers(7)), budget.episodes, budget.seed, looks=False
        )
        return sampled_level(outcomes, "measured")

    def best(self, budget: Budget) -> Best:
        """Play all lines; the upper bound is the shortest way of who knows the right end."""

        def played(words: str, rule: Rule) -> Level:
            outcomes = play_rule(self.id, rule, min(budget.episodes, PLAYED), budget.seed)
            return sampled_level(outcomes, f"lower by {words}")

        looks_back, chance = min(self.hallways) <= IN_VIEW, np.random.default_rng(budget.seed + 2)
        side = ("taking a side", one_side)
        now = ("turning around by chance", by_chance(chance, (2 / self.time_limit) ** 0.5)) if looks_back else side
        before = ("looking back at the fork", by_last_action) if looks_back else side
        lines = {
            "observation": played(*now),
            "clock": played("leaving at a time", by_leaving(self.hallways)),
            "one step": played(*before),
        }
        perfect = played("scripted player", remembering(max(self.hallways) <= IN_VIEW))
        steps = float(np.mean([(end + 5) / 2 for end in self.hallways]))  # from a start in the middle of 1, ..., end
        upper = exact_level(1.0, 1.0 - 0.9 * steps / self.time_limit, BY_RULES)
        return Best(perfect, upper, lines=lines)


def play_rule(id: str, rule: Rule, episodes: int, seed: int, looks: bool = True) -> Outcomes:
    """Play episodes one after the other; all players with the same seed get the same rooms."""
    env: Any = make_env(id)
    if not looks:
        env.unwrapped.gen_obs = lambda: BLIND  # the picture takes most of the time of a step
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    for episode in range(episodes):
        observation, time, last, done = env.reset(seed=None if episode else seed)[0], 0, None, False
        while not done:
            last = rule(Seen(observation["image"][:, :, 0], time, last))
            observation, reward, terminated, truncated, _ = env.step(last)
            returns[episode], time, done = returns[episode] + reward, time + 1, terminated or truncated
        lengths[episode] = time
    env.close()
    return Outcomes(torch.from_numpy(returns > 0.0), torch.from_numpy(returns), torch.from_numpy(lengths))


# ---- what a view shows -----------------------------------------------------------------------------------------------
def is_object(kind: int) -> bool:
    """Tell whether a cell has a key or a ball."""
    return kind in (KEY, BALL)


def room_object(view: Array) -> tuple[int, int, int] | None:
    """Return the kind of the room's object, the agent's column, and the turns to the right that make it face east."""
    facing_fork = is_object(view[5, 5])  # the fork's objects are in view on both sides
    west = range(1, SIDE + 1) if view[3, 5] != WALL else (1,)
    north = () if facing_fork else range(1, 5)
    places = [(4, SIDE - column, column, 2) for column in west]
    places += [(4 - column, 5, column, 1) for column in north]
    places += [(2, 6, 1, 0)]  # facing east
    found = ((int(view[across, ahead]), column, turns) for across, ahead, column, turns in places)
    return next((each for each in found if is_object(each[0])), None)


def fork_objects(view: Array, facing: str) -> tuple[int, int] | None:
    """Return the kinds on the left and on the right of who stands at the fork and faces east or west, or None."""
    left, right = int(view[1, 6]), int(view[5, 6])
    there = is_object(left) and is_object(right) and (view[3, 5] == WALL) == (facing == "east")
    return (left, right) if there else None


def fork_ahead(view: Array) -> int | None:
    """Return the kind of the object ahead of who stands at the fork and faces it, or None."""
    return int(view[3, 4]) if is_object(view[3, 4]) else None


# ---- players ---------------------------------------------------------------------------------------------------------
def one_side(seen: Seen) -> int:
    """Go to the northern end."""
    return LEFT if fork_objects(seen.view, "east") else FORWARD


def turn_to_match(view: Array) -> int:
    """Turn from the west to the object that is the room's, or to the south if that is not in view."""
    ends, known = fork_objects(view, "west"), room_object(view)
    return RIGHT if ends and known and known[0] == ends[1] else LEFT


def by_chance(generator: np.random.Generator, share: float) -> Rule:
    """Turn at the fork by the north to the west, look, and turn to the right end; in the north go on by chance.

    The view of the north is the same before and after looking. With probability `share` the player goes on there;
    half of what it does before looking is wrong. It turns about 1 / share times. The root of 2 / time limit is best.
    """

    def act(seen: Seen) -> int:
        if fork_objects(seen.view, "west"):
            return turn_to_match(seen.view)
        if fork_objects(seen.view, "east"):
            return LEFT
        north = fork_ahead(seen.view) is not None and seen.view[2, 6] != WALL  # the hallway is on the left
        return LEFT if north and generator.random() >= share else FORWARD

    return act


def by_last_action(seen: Seen) -> int:
    """Turn at the fork by the south to the west, look, turn to the right end; the last action tells if it looked."""
    if fork_objects(seen.view, "west"):
        return turn_to_match(seen.view)
    south = fork_ahead(seen.view) is not None and seen.view[2, 6] == WALL
    return RIGHT if fork_objects(seen.view, "east") or (south and seen.last == RIGHT) else FORWARD


def after_look(seen: Seen, ready: Callable[[int, int], bool]) -> int:
    """Look at the room's object, wait for `ready` of its kind and of the time minus the column, and walk east."""
    known, (view, time, _) = room_object(seen.view), seen
    if known is not None:
        kind, column, turns = known
        return (RIGHT if turns else FORWARD) if ready(kind, time + turns - column) else WAIT
    if time == 0:
        return LEFT
    north = view[3, 5] == WALL  # in the hallway
    return (LEFT if time == 1 else RIGHT) if north else FORWARD


def by_leaving(hallways: range) -> Rule:
    """Leave the room's object so that the time of coming to the fork, from any start, tells its kind."""
    period = len(hallways)

    def act(seen: Seen) -> int:
        if ends := fork_objects(seen.view, "east"):
            late = (seen.time - hallways[0] - 1) // period % 2
            return LEFT if ends[0] == (BALL if late else KEY) else RIGHT
        return after_look(seen, lambda kind, start: start % (2 * period) == (period if kind == BALL else 0))

    return act


def remembering(looks_back: bool) -> Rule:
    """Remember the room's object. Who `looks_back` walks to the fork at once and looks from there, if need be."""
    kind: int | None = None

    def act(seen: Seen) -> int:
        nonlocal kind
        found = room_object(seen.view)
        kind = found[0] if found else (kind if seen.time else None)
        if kind is not None and (ends := fork_objects(seen.view, "east")):
            return LEFT if ends[0] == kind else RIGHT
        if kind is not None and fork_ahead(seen.view) == kind:
            return FORWARD
        return by_last_action(seen) if looks_back else after_look(seen, lambda kind, start: True)

    return act
