"""What a gridverse YAML file may say: the form of its functions, and the values that their parameters may have.

A file is a tree of functions, `{name: ..., parameter: value, ...}`. `PARAMETERS` says how a parameter of a given name
is checked, the same in all functions; `envs.gridverse.yaml.world` lists the functions and their parameters.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from envs.errors import UserError
from envs.gridverse import objects
from envs.gridverse.view import Area
from envs.gridverse.yaml.parts import METRICS

T = TypeVar("T")
Pair = tuple[int, int]
Check = Callable[[Any, "Location"], Any]
DEPTH = 8  # functions inside functions; files that nest deeper are mistakes, or contain themselves
FAR = 60  # cells that a window may reach in one direction

KINDS = dict(
    zip(
        ("Floor", "Wall", "Exit", "Door", "Key", "MovingObstacle", "Box", "Telepod", "Beacon"),
        range(objects.FLOOR, objects.BEACON + 1),
        strict=True,
    )
)
KIND_NAMES = {kind: name for name, kind in KINDS.items()}
COLOURS = {"NONE": 0, "RED": objects.RED, "GREEN": objects.GREEN, "BLUE": objects.BLUE, "YELLOW": objects.YELLOW}
MOVES = ("FORWARD", "BACKWARD", "LEFT", "RIGHT")
ACTIONS = (*(f"MOVE_{move}" for move in MOVES), "TURN_LEFT", "TURN_RIGHT", "ACTUATE", "PICK_N_DROP")
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

# ---- values ----------------------------------------------------------------------------------------------------------


class LocatedError(UserError):
    """A user's error that names its file and key already."""


@dataclass(frozen=True)
class Location:
    """Where a value stands, for messages: the file, and the path of keys to the value."""

    file: str
    key: str = ""
    depth: int = 0

    def at(self, key: str | int) -> Location:
        """Return the location of an entry of this mapping or list."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.key else key
        return Location(self.file, self.key + step, self.depth + 1)

    def error(self, text: str) -> LocatedError:
        """Make the error that says what is wrong here."""
        return LocatedError(f"{self}: {text}")

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else self.file


def of_type(what: str, holds: Callable[[Any], bool], convert: Callable[[Any], Any] = lambda value: value) -> Check:
    """Make a check of single values; `what` says in a message what they must be."""

    def check(value: Any, location: Location) -> Any:
        if not holds(value):
            raise location.error(f"must be {what}, not {value!r:.60}.")
        return convert(value)

    return check


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


whole = of_type("a whole number", lambda value: type(value) is int)
number = of_type("a number", _finite, float)
switch = of_type("true or false", lambda value: isinstance(value, bool))
listed = of_type("a list with at least one entry", lambda value: isinstance(value, list) and bool(value))


def one_of(table: Mapping[str, Any], value: Any, location: Location) -> str:
    """Check that a value is a name of the table."""
    if isinstance(value, str) and value in table:
        return value
    if isinstance(value, str) and value in RENAMED:
        raise location.error(f"{value!r} is a name of older files, today it is {RENAMED[value]}.")
    raise location.error(f"{value!r:.60} is not known here; known are {', '.join(table)}.")


def named(table: Mapping[str, T]) -> Callable[[Any, Location], T]:
    """Make a check that turns a name of the table into what it stands for."""
    return lambda value, location: table[one_of(table, value, location)]


def different(check: Callable[[Any, Location], T]) -> Callable[[Any, Location], tuple[T, ...]]:
    """Make a check of a list whose entries pass `check` and differ from one another."""

    def check_all(value: Any, location: Location) -> tuple[T, ...]:
        found = [check(entry, location.at(index)) for index, entry in enumerate(listed(value, location))]
        for index, entry in enumerate(found):
            if entry in found[:index]:
                raise location.at(index).error(f"{value[index]!r} stands in the list twice.")
        return tuple(found)

    return check_all


def kind(value: Any, location: Location) -> int:
    """Turn the name of an object, in either spelling (MovingObstacle, moving_obstacle), into its number."""
    both = KINDS | {_snake(name): code for name, code in KINDS.items()}
    if isinstance(value, str) and value in both:
        return both[value]
    return KINDS[one_of(KINDS, value, location)]


def kinds(value: Any, location: Location) -> tuple[int, ...]:
    """Check a list of different objects that can stand in a space."""
    found = different(kind)(value, location)
    if objects.BOX in found:
        raise location.at(found.index(objects.BOX)).error("a Box has a content and cannot be listed in a space.")
    return found


colours = different(named(COLOURS))
actions = different(named({name: number for number, name in enumerate(ACTIONS)}))


def pair(value: Any, location: Location) -> Pair:
    """Check two whole numbers from 1 to 255."""
    if isinstance(value, list) and len(value) == 2:
        first, second = (whole(entry, location.at(index)) for index, entry in enumerate(value))
        if min(first, second) >= 1 and max(first, second) <= 255:
            return first, second
    raise location.error(f"must be two whole numbers from 1 to 255, as in [7, 7], not {value!r:.60}.")


def area(value: Any, location: Location) -> Area:
    """Check the rows and columns of a window, both relative to the agent, which has to be inside."""
    example = "must be [[rows ahead, rows behind], [columns left, right]] around the agent, as in [[-6, 0], [-3, 3]]"
    pairs = isinstance(value, list) and len(value) == 2 and all(isinstance(entry, list) for entry in value)
    if not pairs or not all(len(entry) == 2 and all(type(each) is int for each in entry) for entry in value):
        raise location.error(f"{example}, not {value!r:.60}.")
    (top, bottom), (left, right) = value
    if not (-FAR <= top <= 0 <= bottom <= FAR and -FAR <= left <= 0 <= right <= FAR):
        raise location.error(f"{example}, at most {FAR} cells away, not {value!r:.60}.")
    return (top, bottom), (left, right)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")


REWARD_CASES = ("bad", "close", "closer", "drop", "further", "good", "off", "on", "open", "pick")
PARAMETERS: dict[str, Check] = {
    **dict.fromkeys(("absolute_counts", "random_agent", "random_exit"), switch),
    **dict.fromkeys(("num_beacons", "num_exits", "num_obstacles", "num_rivers"), whole),
    **dict.fromkeys(("layout", "shape"), pair),
    **dict.fromkeys(("reward", "reward_per_unit_distance", "threshold"), number),
    **dict.fromkeys([f"reward_{case}" for case in REWARD_CASES], number),
    "area": area,
    "colors": colours,
    "distance_function": lambda value, location: one_of(METRICS, value, location),
    "object_type": kind,
    "visibility_function": lambda value, location: (value, location),  # built with the window that it belongs to
}

# ---- functions -------------------------------------------------------------------------------------------------------


def build(table: Mapping[str, Callable[..., T]], value: Any, location: Location, *context: Any) -> T:
    """Build a function of the file, {name: ..., parameters ...}, by the row that `table` has for its name.

    The row is called with `context` and then the checked parameters by name; what it objects to is reported with
    the function's location.

    Raises:
        UserError: the name is unknown, or a parameter is unknown, missing or not what it should be.
    """
    if location.depth > 2 * DEPTH:
        raise location.error(f"functions are nested more than {DEPTH} deep.")
    if not isinstance(value, dict) or "name" not in value:
        raise location.error(f"must be a function, a mapping with the key 'name', not {value!r:.60}.")
    row = table[one_of(table, value["name"], location.at("name"))]
    parameters = list(inspect.signature(row).parameters.values())[len(context) :]
    required = tuple(each.name for each in parameters if each.default is each.empty)
    optional = tuple(each.name for each in parameters if each.default is not each.empty)
    given = mapping(value, location, ("name", *required), optional)
    del given["name"]
    arguments = {}
    for key, entry in given.items():
        if key.endswith("_functions"):
            arguments[key] = build_all(table, entry, location.at(key), *context)
        else:
            arguments[key] = PARAMETERS[key](entry, location.at(key))
    try:
        return row(*context, **arguments)
    except LocatedError:
        raise
    except UserError as error:
        raise location.error(str(error)) from None


def build_all(table: Mapping[str, Callable[..., T]], value: Any, location: Location, *context: Any) -> tuple[T, ...]:
    """Build a list of functions."""
    entries = enumerate(listed(value, location))
    return tuple(build(table, entry, location.at(index), *context) for index, entry in entries)


def mapping(
    value: Any, location: Location, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Check a mapping's keys; returns a copy of it."""
    if not isinstance(value, dict):
        raise location.error(f"must be a mapping with the keys {', '.join(required)}, not {value!r:.60}.")
    known = required + optional
    for key in value:
        if key not in known:
            old = " (today the reset function has the shape)" if key == "shape" else ""
            raise location.error(f"there is no key {key!r} here{old}; known are {', '.join(known)}.")
    for key in required:
        if key not in value:
            raise location.error(f"the key {key!r} is missing.")
    return dict(value)
