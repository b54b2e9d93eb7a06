"""Gridverse YAML files: reading them, and checking every value against what it has to be.

A file is a tree of functions, `{name: ..., parameter: value, ...}`. The functions of one kind stand in a plain dict,
name -> builder; the builder's own signature says which parameters there are and which can be left out, and
`PARAMETERS` says what a parameter of a given name has to look like, the same in all functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from envs.errors import UserError, near_names
from envs.gridverse.yaml_values import PARAMETERS, Place, PlacedError, listed, one_of

T = TypeVar("T")
STOCK = Path(__file__).parent / "files"
DEPTH = 8  # functions inside functions; files that nest deeper are mistakes, or contain themselves


def stock_files() -> dict[str, Path]:
    """The files that come with this package, by name, such as "keydoor.7x7"."""
    return {path.name.removesuffix(".yaml"): path for path in sorted(STOCK.glob("*.yaml"))}


def locate(path: str | Path) -> Path:
    """The file at this path, or the stock file of this name.

    Raises:
        UserError: there is neither.
    """
    file = Path(path) if _is_file(path) else stock_files().get(str(path))
    if file is None:
        raise UserError(near_names("gridverse file", str(path), stock_files()))
    return file


def _is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # such as a name that is too long for any file
        return False


def read(path: str | Path) -> tuple[Place, Any]:
    """Read a YAML file, or a stock file by its name; returns where it is from and what it holds.

    Raises:
        UserError: there is no such file, or it cannot be read as YAML.
    """
    file, place = locate(path), Place(str(path))
    try:
        text = file.read_text(encoding="utf-8")
        _check_repeats(text, place)
        return place, yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{place} cannot be read as text: {reason}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{place} is not YAML{_mark(error)}.") from None
    except UserError:
        raise
    except ValueError as error:  # of a date in the 13th month, say
        raise UserError(f"{place} holds a value that cannot be read: {error}.") from None
    except RecursionError:
        raise UserError(f"{place} is nested too deeply to be a gridverse file.") from None


def _check_repeats(text: str, place: Place) -> None:
    """YAML itself would keep the last of two equal keys and say nothing."""
    nodes, seen = [yaml.compose(text, Loader=yaml.SafeLoader)], set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.CollectionNode) and id(node) not in seen:  # a file can contain itself
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                _check_keys([key for key, _ in node.value], place)
                nodes += [value for _, value in node.value]
            else:
                nodes += node.value


def _check_keys(keys: list[yaml.Node], place: Place) -> None:
    for index, key in enumerate(keys):
        if isinstance(key, yaml.ScalarNode) and any(key.value == before.value for before in keys[:index]):
            raise place.error(f"the key {key.value!r} in line {key.start_mark.line + 1} stands there twice.")


def _mark(error: yaml.YAMLError) -> str:
    """Where the parser stopped, and why, as far as it says so."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    told = ": ".join(part for part in (where, problem) if part)
    return f" ({told})" if told else ""


def mapping(value: Any, place: Place, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check a mapping's keys; returns a copy of it."""
    if not isinstance(value, dict):
        raise place.error(f"must be a mapping with the keys {', '.join(required)}, not {value!r:.60}.")
    known = required + optional
    for key in value:
        if key not in known:
            old = " (today the reset function has the shape)" if key == "shape" else ""
            raise place.error(f"there is no key {key!r} here{old}; known are {', '.join(known)}.")
    for key in required:
        if key not in value:
            raise place.error(f"the key {key!r} is missing.")
    return dict(value)


def build(table: Mapping[str, Callable[..., T]], value: Any, place: Place, *context: Any) -> T:
    """Build a function of the file, {name: ..., parameters ...}, with the builder that `table` has for its name.

    The builder is called with `context` and then the checked parameters by name; what it objects to is reported
    with the function's place.

    Raises:
        UserError: the name is unknown, or a parameter is unknown, missing or not what it should be.
    """
    if place.depth > 2 * DEPTH:
        raise place.error(f"functions are nested more than {DEPTH} deep.")
    name = _name(table, value, place)
    signature = list(inspect.signature(table[name]).parameters.values())[len(context) :]
    required = tuple(each.name for each in signature if each.default is each.empty)
    optional = tuple(each.name for each in signature if each.default is not each.empty)
    given = mapping(value, place, ("name", *required), optional)
    del given["name"]
    arguments = {}
    for key, entry in given.items():
        if key.endswith("_functions"):
            arguments[key] = build_all(table, entry, place.at(key), *context)
        else:
            arguments[key] = PARAMETERS[key](entry, place.at(key))
    try:
        return table[name](*context, **arguments)
    except PlacedError:
        raise
    except UserError as error:
        raise place.error(str(error)) from None


def build_all(table: Mapping[str, Callable[..., T]], value: Any, place: Place, *context: Any) -> tuple[T, ...]:
    """Build a list of functions."""
    entries = listed(value, place)
    return tuple(build(table, entry, place.at(index), *context) for index, entry in enumerate(entries))


def _name(table: Mapping[str, Any], value: Any, place: Place) -> str:
    if not isinstance(value, dict) or "name" not in value:
        raise place.error(f"must be a function, a mapping with the key 'name', not {value!r:.60}.")
    return one_of(table, value["name"], place.at("name"))
