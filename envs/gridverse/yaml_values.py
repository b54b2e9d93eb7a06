"""What single values of a gridverse YAML file have to look like."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from envs.errors import UserError
from envs.gridverse import objects
from envs.gridverse.view import Area

T = TypeVar("T")
FINITE = sys.float_info.max
FAR = 60  # cells that a window may reach in one direction

KINDS = {
    "Floor": objects.FLOOR,
    "Wall": objects.WALL,
    "Exit": objects.EXIT,
    "Door": objects.DOOR,
    "Key": objects.KEY,
    "MovingObstacle": objects.OBSTACLE,
    "Box": objects.BOX,
    "Telepod": objects.TELEPOD,
    "Beacon": objects.BEACON,
}
COLOURS = {"NONE": 0, "RED": objects.RED, "GREEN": objects.GREEN, "BLUE": objects.BLUE, "YELLOW": objects.YELLOW}
ACTIONS = (
    "MOVE_FORWARD",
    "MOVE_BACKWARD",
    "MOVE_LEFT",
    "MOVE_RIGHT",
    "TURN_LEFT",
    "TURN_RIGHT",
    "ACTUATE",
    "PICK_N_DROP",
)
# What older files call things, and the name of today.
RENAMED = {
    "reach_goal": "reach_exit",
    "update_agent": "move_agent and turn_agent",
    "pickup_mechanics": "pickndrop",
    "step_moving_obstacles": "move_obstacles",
    "step_telepod": "teleport",
    "full_observation": "fully_transparent",
    "minigrid_observation": "partially_occluded",
    "Goal": "Exit",
    "goal": "Exit",
}


class PlacedError(UserError):
    """A user's error that names its file and key already."""


@dataclass(frozen=True)
class Place:
    """A value's place, for messages: which file, and the path of keys to it."""

    file: str
    key: str = ""
    depth: int = 0

    def at(self, key: str | int) -> Place:
        """The place of an entry of this mapping or list."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.key else key
        return Place(self.file, self.key + step, self.depth + 1)

    def error(self, text: str) -> PlacedError:
        """The error that says what is wrong here."""
        return PlacedError(f"{self}: {text}")

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else self.file


def one_of(table: Mapping[str, Any], value: Any, place: Place) -> str:
    """Check that a value is a name of the table."""
    if isinstance(value, str) and value in table:
        return value
    if isinstance(value, str) and value in RENAMED:
        raise place.error(f"{value!r} is a name of older files, today it is {RENAMED[value]}.")
    raise place.error(f"{value!r:.60} is not known here; known are {', '.join(table)}.")


def listed(value: Any, place: Place) -> list[Any]:
    """Check a list that is not empty."""
    if not isinstance(value, list) or not value:
        raise place.error(f"must be a list with at least one entry, not {value!r:.60}.")
    return value


def names(table: Mapping[str, T], value: Any, place: Place) -> dict[str, T]:
    """Check a list of different names of the table; returns what they stand for, in the list's order."""
    found = [one_of(table, entry, place.at(index)) for index, entry in enumerate(listed(value, place))]
    for index, name in enumerate(found):
        if name in found[:index]:
            raise place.at(index).error(f"{name!r} stands in the list twice.")
    return {name: table[name] for name in found}


def whole(value: Any, place: Place) -> int:
    """Check a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise place.error(f"must be a whole number, not {value!r:.60}.")
    return value


def number(value: Any, place: Place) -> float:
    """Check a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= FINITE:
        raise place.error(f"must be a number, not {value!r:.60}.")
    return float(value)


def switch(value: Any, place: Place) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise place.error(f"must be true or false, not {value!r:.60}.")
    return value


def pair(value: Any, place: Place) -> tuple[int, int]:
    """Check two whole numbers from 1 to 255."""
    if isinstance(value, list) and len(value) == 2:
        first, second = (whole(entry, place.at(index)) for index, entry in enumerate(value))
        if min(first, second) >= 1 and max(first, second) <= 255:
            return first, second
    raise place.error(f"must be two whole numbers from 1 to 255, as in [7, 7], not {value!r:.60}.")


def area(value: Any, place: Place) -> Area:
    """Check the rows and columns of a window, both relative to the agent, which has to be inside."""
    example = "must be [[rows ahead, rows behind], [columns left, right]] around the agent, as in [[-6, 0], [-3, 3]]"
    if not isinstance(value, list) or len(value) != 2:
        raise place.error(f"{example}, not {value!r:.60}.")
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 2 or not all(type(each) is int for each in entry):
            raise place.error(f"{example}, not {value!r:.60}.")
        if not -FAR <= entry[0] <= 0 <= entry[1] <= FAR:
            raise place.error(f"{example}, at most {FAR} cells away, not {value!r:.60}.")
    (top, bottom), (left, right) = value
    return (top, bottom), (left, right)


def kind(value: Any, place: Place) -> int:
    """Check the name of an object, either spelling (MovingObstacle, moving_obstacle)."""
    table = KINDS | {_snake(name): code for name, code in KINDS.items()}
    if isinstance(value, str) and value in table:
        return table[value]
    return KINDS[one_of(KINDS, value, place)]


def kinds(value: Any, place: Place) -> tuple[int, ...]:
    """Check a list of different objects that can stand in a space."""
    found = [kind(entry, place.at(index)) for index, entry in enumerate(listed(value, place))]
    for index, code in enumerate(found):
        if code in found[:index]:
            raise place.at(index).error(f"{value[index]!r} stands in the list twice.")
        if code == objects.BOX:
            raise place.at(index).error("a Box has a content and cannot be listed in a space.")
    return tuple(found)


def colours(value: Any, place: Place) -> tuple[int, ...]:
    """Check a list of different colours."""
    return tuple(names(COLOURS, value, place).values())


def distance(value: Any, place: Place) -> str:
    """Check the name of a distance."""
    return one_of({"manhattan": 1, "euclidean": 2}, value, place)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")


PARAMETERS: dict[str, Callable[[Any, Place], Any]] = {
    "absolute_counts": switch,
    "area": area,
    "colors": colours,
    "distance_function": distance,
    "layout": pair,
    "num_beacons": whole,
    "num_exits": whole,
    "num_obstacles": whole,
    "num_rivers": whole,
    "object_type": kind,
    "random_agent": switch,
    "random_exit": switch,
    "reward": number,
    "reward_bad": number,
    "reward_close": number,
    "reward_closer": number,
    "reward_drop": number,
    "reward_further": number,
    "reward_good": number,
    "reward_off": number,
    "reward_on": number,
    "reward_open": number,
    "reward_per_unit_distance": number,
    "reward_pick": number,
    "shape": pair,
    "threshold": number,
    "visibility_function": lambda value, place: (value, place),
}
