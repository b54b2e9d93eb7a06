"""The form of a gridverse YAML file: its functions, and the values of their parameters.

A file is a tree of functions, `{name: ..., parameter: value, ...}`. `PARAMETERS` maps the name of a parameter to its
check, the same in all functions. `envs.gridverse.yaml.world` lists the functions and their parameters.
"""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from envs.errors import UserError
from envs.gridverse import objects
from envs.gridverse.view import Occluded, Raytracing, StochasticRaytracing, Visibility
from envs.gridverse.yaml.parts import METRICS

T = TypeVar("T")
Pair = tuple[int, int]
Check = Callable[[Any, "Location"], Any]
FAR = 60  # maximum extent of a window in one direction, in cells

KIND_NAMES = dict(
    enumerate(
        ("Floor", "Wall", "Exit", "Door", "Key", "MovingObstacle", "Box", "Telepod", "Beacon"), start=objects.FLOOR
    )
)
KINDS = {name: kind for kind, name in KIND_NAMES.items()}
COLOURS = {"NONE": 0, "RED": objects.RED, "GREEN": objects.GREEN, "BLUE": objects.BLUE, "YELLOW": objects.YELLOW}
MOVES = ("FORWARD", "BACKWARD", "LEFT", "RIGHT")
ACTIONS = (*(f"MOVE_{move}" for move in MOVES), "TURN_LEFT", "TURN_RIGHT", "ACTUATE", "PICK_N_DROP")

# ---- values ----------------------------------------------------------------------------------------------------------


class LocatedError(UserError):
    """A UserError that already has its file and key."""


@dataclass(frozen=True)
class Location:
    """The place of a value in messages: the file, and the path of keys to the value."""

    file: str
    key: str = ""

    def at(self, key: str | int) -> Location:
        """Return the location of an entry of this mapping or list."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.key else key
        return Location(self.file, self.key + step)

    def error(self, text: str) -> LocatedError:
        return LocatedError(f"{self.file}: {self.key}: {text}" if self.key else f"{self.file}: {text}")


_words = reprlib.Repr()  # limited, because a few lines of YAML with references may expand to billions of values
_words.maxlevel, _words.maxstring, _words.maxlong, _words.maxother = 3, 60, 60, 60


def _shown(value: Any) -> str:
    """Write the beginning of a value."""
    return f"{_words.repr(value):.60}"


def of_type(what: str, holds: Callable[[Any], bool], convert: Callable[[Any], Any] = lambda value: value) -> Check:
    """Make a check of single values; `what` describes the wanted values in a message."""

    def check(value: Any, location: Location) -> Any:
        if not holds(value):
            raise location.error(f"must be {what}, not {_shown(value)}.")
        return convert(value)

    return check


def _two(value: Any, low: int, high: int) -> bool:
    """Tell whether a value is a list of two whole numbers from `low` to `high`."""
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and low <= n <= high for n in value)


def _window(value: Any) -> bool:
    """Tell whether a value gives two rows and two columns."""
    return isinstance(value, list) and len(value) == 2 and all(_two(each, -FAR, FAR) for each in value)


whole = of_type("a whole number", lambda value: type(value) is int)
number = of_type("a number", lambda n: type(n) in (int, float) and abs(n) <= sys.float_info.max, float)
switch = of_type("true or false", lambda value: isinstance(value, bool))
filled = of_type("a list with at least one entry", lambda value: isinstance(value, list) and bool(value))
pair = of_type("two whole numbers from 1 to 255, as in [7, 7]", lambda value: _two(value, 1, 255), tuple)
area = of_type(
    "[[rows ahead, rows behind], [columns left, right]] around the agent, as in [[-6, 0], [-3, 3]], at most "
    f"{FAR} cells away",
    _window,
    lambda value: tuple(map(tuple, value)),
)


def one_of(table: Mapping[str, T]) -> Callable[[Any, Location], T]:
    """Make a check that looks up a name in the table."""

    def check(value: Any, location: Location) -> T:
        if not isinstance(value, str) or value not in table:
            raise location.error(f"{_shown(value)} is not known here; known are {', '.join(table)}.")
        return table[value]

    return check


def different(check: Callable[[Any, Location], T]) -> Callable[[Any, Location], tuple[T, ...]]:
    """Make a check of a list whose entries pass `check` and differ from one another."""

    def check_all(value: Any, location: Location) -> tuple[T, ...]:
        entries = [check(entry, location.at(index)) for index, entry in enumerate(filled(value, location))]
        for index, entry in enumerate(entries):
            if entry in entries[:index]:
                raise location.at(index).error(f"{_shown(value[index])} is in the list twice.")
        return tuple(entries)

    return check_all


def object_kind(value: Any, location: Location) -> int:
    """Convert the name of an object in either spelling (MovingObstacle, moving_obstacle) to its number."""
    lower = isinstance(value, str) and value.islower()
    return one_of(KINDS)(value.title().replace("_", "") if lower else value, location)


def listed_kind(value: Any, location: Location) -> int:
    """Check an object that a space may list."""
    if (kind := object_kind(value, location)) == objects.BOX:
        raise location.error("a Box has a content and cannot be listed in a space.")
    return kind


kinds = different(listed_kind)
colours = different(one_of(COLOURS))
actions = different(one_of({name: number for number, name in enumerate(ACTIONS)}))

# Each makes a function from a window to its visibility, see `View`.
VISIBILITIES: dict[str, Callable[..., Callable[..., Visibility]]] = {
    "fully_transparent": lambda: Visibility,
    "partially_occluded": lambda: Occluded,
    "raytracing": lambda absolute_counts=True, threshold=1.0: partial(
        Raytracing, absolute_counts=absolute_counts, threshold=threshold
    ),
    "stochastic_raytracing": lambda: StochasticRaytracing,
}
PARAMETERS: dict[str, Check] = {  # parameters not listed are numbers
    **dict.fromkeys(("absolute_counts", "random_agent", "random_exit"), switch),
    **dict.fromkeys(("num_beacons", "num_exits", "num_obstacles", "num_rivers"), whole),
    **dict.fromkeys(("layout", "shape"), pair),
    "area": area,
    "colors": colours,
    "distance_function": one_of({name: name for name in METRICS}),
    "object_type": object_kind,
    "visibility_function": lambda value, location: build_function(VISIBILITIES, value, location),
}

# ---- functions -------------------------------------------------------------------------------------------------------


def build_function(table: Mapping[str, Callable[..., T]], value: Any, location: Location, *context: Any) -> T:
    """Build a function of the file, {name: ..., parameters ...}, from the row of its name in `table`.

    The row is called with `context` and then the checked parameters by name. Its errors are reported with the
    function's location.
    """
    if not isinstance(value, dict) or "name" not in value:
        raise location.error(f"must be a function, a mapping with the key 'name', not {_shown(value)}.")
    row = one_of(table)(value["name"], location.at("name"))
    parameters = list(inspect.signature(row).parameters.values())[len(context) :]
    required = [each.name for each in parameters if each.default is each.empty]
    optional = [each.name for each in parameters if each.default is not each.empty]
    check_keys(value, location, ["name", *required], optional)
    arguments: dict[str, Any] = {}
    for key in [key for key in value if key != "name"]:
        if key.endswith("_functions"):
            arguments[key] = build_functions(table, value[key], location.at(key), *context)
        else:
            arguments[key] = PARAMETERS.get(key, number)(value[key], location.at(key))
    try:
        return row(*context, **arguments)
    except LocatedError:
        raise
    except UserError as error:
        raise location.error(str(error)) from None


def build_functions(
    table: Mapping[str, Callable[..., T]], value: Any, location: Location, *context: Any
) -> tuple[T, ...]:
    """Build a list of functions."""
    entries = enumerate(filled(value, location))
    return tuple(build_function(table, entry, location.at(index), *context) for index, entry in entries)


def check_keys(value: Any, location: Location, required: list[str], optional: list[str]) -> None:
    """Check that a value is a mapping with all required keys, and no other keys but the optional ones."""
    if not isinstance(value, dict):
        raise location.error(f"must be a mapping with the keys {', '.join(required)}, not {_shown(value)}.")
    known = required + optional
    for key in value:
        if key not in known:
            raise location.error(f"there is no key {_shown(key)} here; known are {', '.join(known)}.")
    for key in required:
        if key not in value:
            raise location.error(f"the key {key!r} is missing.")
