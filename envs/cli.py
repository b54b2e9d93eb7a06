"""Flags that the scripts of this package share: modules with worlds of one's own, and options of a world."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from envs.errors import UserError, near_names
from envs.registry import WORLDS

Plugins = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MODULE")]
Options = Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY VALUE ...")]
PLAIN = (bool, int, float, str, list)
TRUTH = {"True": True, "False": False}


def check_id(id: str, plugins: Sequence[str]) -> None:
    """A UserError for an id that no world has; a namespace that nobody has used is a world of one's own."""
    plain = id.removeprefix("envs:")
    if plain in WORLDS:
        return
    spaces = {known.partition("/")[0] for known in WORLDS}
    if plugins or "/" not in plain or plain.partition("/")[0] in spaces:
        raise UserError(near_names("world", plain, WORLDS))
    raise UserError(f"unknown world '{id}'; name the module that registers it with --plugin MODULE")


def keywords(options: Sequence[str]) -> dict[str, Any]:
    """KEY VALUE KEY VALUE ... as keywords of a world, which checks them itself.

    A value is read as TOML, so 5, 0.5, true and [3,3] are what they look like, and anything else is a string.

    Raises:
        UserError: a key without a value, or twice.
    """
    keys, values = options[::2], options[1::2]
    if len(keys) > len(values):
        raise UserError(f"--options takes pairs KEY VALUE, but {keys[-1]!r} has no value.")
    twice = [key for place, key in enumerate(keys) if key in keys[:place]]
    if twice:
        raise UserError(f"--options gives {twice[0]!r} twice; give it once.")
    return {key: _value(text) for key, text in zip(keys, values, strict=True)}


def named(id: str, given: Mapping[str, Any]) -> str:
    """The name of a row: the world with its options."""
    told = ", ".join(f"{key}={value}" for key, value in given.items())
    return id.removeprefix("envs:") + (f" ({told})" if told else "")


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return TRUTH.get(text, text)  # a bare word is a string
    return value if isinstance(value, PLAIN) else text


def load_plugins(names: Iterable[str]) -> None:
    """Import modules that register worlds, or other things, from outside the package.

    The working directory is looked in too, as for a script. An error inside a plugin keeps its traceback, which is
    for the plugin's author.

    Raises:
        UserError: a module is missing, or a name is none.
    """
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for name in names:
        _load(name)


def _load(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(f"--plugin {name}: it needs the module '{error.name}', which is missing") from None
        if name.endswith(".py"):
            module = name.removesuffix(".py").replace("/", ".").strip(".")
            raise UserError(f"--plugin {name}: give the module's name without .py, {module}") from None
        raise UserError(f"--plugin {name}: no module of that name here or installed") from None
    except (TypeError, ValueError) as error:
        if name and not name.startswith("."):
            raise
        raise UserError(f"--plugin '{name}': give a module's full name ({error})") from None
