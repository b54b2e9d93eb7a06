"""Convert frozen dataclasses to TOML text and back, strictly: no key is ignored, and no value is converted silently.

None is an absent key, or the word "none" if the default is another value. A nested dataclass is a table, a tuple an
array.

The config class of a trainer has a class variable `trainer`, its kind. Its files hold `schema`, the version of the
settings' names; a file without this key is read as the current version.

A dataclass lists its deleted fields in the class variable `removed`, each with the one value that the code still
implements: {"bag": 0}. A dict compares only the keys that it has; `...` stands for any value. Files of older revisions
stay readable in this way, and an error names a deleted setting that has another value.
"""

import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import reduce
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import tomli_w
import tyro

from dqn_memory.runs.errors import UserError, near_names, require

C = TypeVar("C")
SCHEMA = 2  # version of the settings' names
MAX_DEPTH = 20  # levels of nested tables and arrays
MAX_BITS = 1000  # bits of an integer: 0x may write one with more digits than Python prints
PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""  # part of a key; no character is read twice
DOTTED = re.compile(rf"(?<![\w-])(?:{PART}\.[ \t]*+){{{MAX_DEPTH}}}")  # a key of too many parts
NONE = "none"
NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    dict: "a table",
    list: "an array",
    types.NoneType: "None",
}


def from_toml(config_class: type[C], text: str, source: str, base: C | None = None) -> C:
    """Read a config from TOML text; absent keys keep the value of `base` (the defaults).

    `source` names the text in errors.

    Raises:
        UserError: the TOML is malformed, a key is unknown, a type is wrong, or a value is outside a Literal.
    """
    table = parse_toml(text, source)
    if hasattr(config_class, "trainer"):
        schema = table.pop("schema", SCHEMA)
        require(schema == SCHEMA, f"{source}: schema {schema!r} is not known here; this version reads {SCHEMA}")
    config = _read_table(defaults(config_class) if base is None else base, table, source, "")
    missing = [name for name in field_types(config_class) if getattr(config, name) is tyro.MISSING]
    if missing and base is None:
        raise UserError(f"{source}: the key '{missing[0]}' is missing")
    return config


def defaults(config_class: Any) -> Any:
    """Make a config of defaults; fields of the top class without a default hold tyro.MISSING."""
    free = [f.name for f in fields(config_class) if f.init and f.default is f.default_factory is MISSING]
    return config_class(**dict.fromkeys(free, tyro.MISSING))


def to_toml(config: Any) -> str:
    """Write every field of a config, so that `from_toml` gives an equal one; a trainer's config also has its schema."""
    schema = {"schema": SCHEMA} if hasattr(config, "trainer") else {}
    return tomli_w.dumps(schema | _write_table(config, defaults(type(config))))


def overlaid(config: C, table: Mapping[str, Any], source: str) -> C:
    """Lay the plain values of nested tables over a config; a UserError names the first value that does not fit."""
    return cast(C, _read_table(config, table, source, ""))


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give the settings of nested tables by their dotted paths; an empty table is a value."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return values


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `flat`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *tables, name = path.split(".")
        reduce(lambda table, key: table.setdefault(key, {}), tables, tree)[name] = value
    return tree


def field_types(config_class: type) -> dict[str, Any]:
    """Resolve the annotations of a dataclass's fields, including `Annotated`."""
    if config_class not in _known_types:
        hints = typing.get_type_hints(config_class, include_extras=True)
        _known_types[config_class] = {field.name: hints[field.name] for field in fields(config_class) if field.init}
    return _known_types[config_class]


_known_types: dict[type, dict[str, Any]] = {}  # a cache, because a study reads hundreds of configs


def members(annotation: Any) -> tuple[Any, ...]:
    """Give the members of a union, or the annotation alone, without `Annotated`."""
    if hasattr(annotation, "__metadata__"):
        return members(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(inner for arg in get_args(annotation) for inner in members(arg))
    return (annotation,)


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Read a TOML text, which may be a stranger's; a UserError begins with `source` and the line."""
    try:
        if DOTTED.search(text):  # the parser's memory grows with the square of a key's length
            raise RecursionError
        tree = tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{source}: not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # tomllib's own, or a number with too many digits
        place = re.search(r"\s*\(at line (\d+), column \d+\)", str(error))
        line = int(place[1]) if place else max(1, len(text.splitlines()))
        problem = str(error).split(" (at ")[0]
        problem = "a number has too many digits" if problem.startswith("Exceeds the limit") else problem
        raise UserError(f"{source}:{line}: not valid TOML: {problem}") from None
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
        if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in level):
            raise UserError(f"{source}: a number has too many digits")
        level = [value for value in level if isinstance(value, dict | list)]
    if level:
        raise UserError(f"{source}: its tables are nested too deeply")
    return tree


def _read_table(base: Any, table: Mapping[str, Any], source: str, prefix: str) -> Any:
    known = field_types(type(base))
    values = {}
    removed = getattr(type(base), "removed", {})
    for key, value in table.items():
        if key in removed:
            _check_removed(value, removed[key], source, f"{prefix}{key}")
            continue
        if key not in known:
            holders = (
                name for name in known if is_dataclass(part := getattr(base, name)) and key in field_types(type(part))
            )
            if holder := next(holders, ""):
                raise UserError(f"{source}: unknown key '{prefix}{key}'; it belongs in the table [{prefix}{holder}]")
            raise UserError(f"{source}: {near_names('key', f'{prefix}{key}', (prefix + name for name in known))}")
        values[key] = _read(value, known[key], getattr(base, key), source, f"{prefix}{key}")
    return replace(base, **values)


def _check_removed(value: Any, allowed: Any, source: str, path: str) -> None:
    """Raise a UserError if a deleted setting has another value than `allowed`."""
    if isinstance(allowed, dict) and isinstance(value, dict):
        for key in value.keys() & allowed.keys():
            _check_removed(value[key], allowed[key], source, f"{path}.{key}")
    elif allowed is not ... and value != allowed:
        raise UserError(f"{source}: {path} = {value!r} was removed from this version; it reads only {allowed!r}")


def _read(value: Any, annotation: Any, base: Any, source: str, path: str) -> Any:
    """Check one value of TOML, or of Python, against an annotation; `base` is the value that it replaces."""
    options = members(annotation)
    for option in sorted(options, key=lambda option: option is float):  # an exact int before its float
        origin, args = get_origin(option), get_args(option)
        if is_dataclass(option) and isinstance(value, dict):
            part = cast(type[Any], option)() if base is None else base
            return _read_table(part, value, source, f"{path}.")
        if origin is Literal and any(value == arg and type(value) is type(arg) for arg in args):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            return _read_array(value, args, source, path)
        if origin is dict and isinstance(value, dict):
            return {key: _read(item, args[1], None, source, f"{path}.{key}") for key, item in value.items()}
        if option is float and type(value) is int:
            return float(value)
        if option is Any or type(value) is option:
            return value
    if value in (None, NONE) and types.NoneType in options:
        return None
    raise UserError(_mismatch(value, options, f"{source}: {path}"))


def _read_array(value: Sequence[Any], args: tuple[Any, ...], source: str, path: str) -> tuple[Any, ...]:
    kinds = args[:1] * len(value) if args[-1:] == (Ellipsis,) else args
    if len(kinds) != len(value):
        raise UserError(f"{source}: {path} must have {len(kinds)} entries, not {len(value)}")
    pairs = enumerate(zip(value, kinds, strict=True))
    return tuple(_read(item, kind, None, source, f"{path}[{index}]") for index, (item, kind) in pairs)


def _mismatch(value: Any, options: tuple[Any, ...], where: str) -> str:
    choices = [arg for option in options if get_origin(option) is Literal for arg in get_args(option)]
    if choices and isinstance(value, str) and all(isinstance(choice, str) for choice in choices):
        return f"{where}: {near_names('value', value, choices)}"
    wanted = [f"one of {', '.join(map(repr, choices))}"] if choices else []
    wanted += [
        _name(option) for option in options if get_origin(option) is not Literal and option is not types.NoneType
    ]
    actual = NAMES.get(type(value), type(value).__name__)
    shown = f" ({value!r})" if isinstance(value, bool | int | float | str) else ""
    return f"{where} must be {' or '.join(wanted)}, not {actual}{shown}"


def _name(option: Any) -> str:
    if is_dataclass(option):
        return "a table"
    origin = {tuple: list}.get(get_origin(option) or option, get_origin(option) or option)
    return NAMES.get(origin, str(origin))


def _write_table(config: Any, default: Any) -> dict[str, Any]:
    """Give the plain values of all fields; None is the word "none" if the `default` is another value."""
    table: dict[str, Any] = {}
    for name in field_types(type(config)):
        value, fallback = getattr(config, name), getattr(default, name)
        if is_dataclass(value):
            table[name] = _write_table(value, fallback)
        elif value is not None or fallback is not None:
            table[name] = NONE if value is None else value
    return table
