"""Flags that scripts share: modules of your own, options of an environment, the folder of results."""

import importlib
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import tyro

from envs.errors import UserError, near_names, require
from envs.popgym.ladders import RUNGS
from envs.registry import WORLDS

Ids = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="ID")]
Plugins = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MODULE")]
Options = Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY VALUE ...")]
PLAIN = (bool, int, float, str, list)
TRUTH = {"True": True, "False": False}


@dataclass(frozen=True, kw_only=True)
class WriteArgs:
    """The flag of scripts that print results and can write them."""

    write: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder for the results; files of the same name are replaced or brought up to date (None: only prints)."""


def check_id(id: str, plugins: Sequence[str]) -> None:
    """Raise a UserError for an unknown id. An id in an unknown namespace may need a plugin."""
    plain = id.removeprefix("envs:")
    if plain in WORLDS:
        return
    if plain in gymnasium.registry:
        raise UserError(f"environment {plain} is Gymnasium's; this script takes those of `envs.register`")
    known = {*WORLDS, *RUNGS}
    spaces = {id.partition("/")[0].lower() for id in known}
    if plugins or "/" not in plain or plain.partition("/")[0].lower() in spaces:
        raise UserError(near_names("environment", plain, known))
    raise UserError(f"unknown environment '{id}'; name the module that registers it with --plugin MODULE")


def keywords(options: Sequence[str]) -> dict[str, Any]:
    """Read KEY VALUE KEY VALUE ... as keywords of an environment, which checks them itself.

    A value is read as TOML: 5, 0.5, true and [3,3] are numbers, a truth value and a list. All else is a string.
    """
    keys, values = options[::2], options[1::2]
    if len(keys) > len(values):
        raise UserError(f"--options takes pairs KEY VALUE, but {keys[-1]!r} has no value.")
    for index, key in enumerate(keys):
        require(key not in keys[:index], f"--options gives {key!r} twice; give it once.")
    given: dict[str, Any] = {}
    for key, text in zip(keys, values, strict=True):
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            value = TRUTH.get(text, text)  # a bare word is a string
        given[key] = value if isinstance(value, PLAIN) else text
    return given


def row_name(id: str, given: Mapping[str, Any]) -> str:
    """Name a row of a table: the environment with its options."""
    options = ", ".join(f"{key}={value}" for key, value in given.items())
    return id.removeprefix("envs:") + (f" ({options})" if options else "")


def load_plugins(names: Iterable[str]) -> None:
    """Import modules that the user names; they register environments, blocks or priors.

    The working directory is searched first. An error inside a plugin keeps its traceback for the plugin's author.
    Modules that a file names go through `envs.packages.load_wanted` instead.
    """
    names = [names] if isinstance(names, str) else [*names]
    if not names:
        return
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        for name in names:
            _load(name)
    finally:
        sys.path.remove(here)
        if here not in sys.path and "" not in sys.path:  # a plugin may import more later
            sys.path.append(here)


def _load(name: str) -> None:
    file = Path(name.removesuffix(".py"))
    if file.name and ("/" in name or name.endswith(".py")):
        raise UserError(f"--plugin {name}: give the module's name in place of its file, {_module_at(file)}")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(f"--plugin {name}: it needs the module '{error.name}', which is missing") from None
        parent = error.name.rpartition(".")[0]
        if parent in sys.modules and not hasattr(sys.modules[parent], "__path__"):
            raise UserError(f"--plugin {name}: {parent} is a module, not a package; give --plugin {parent}") from None
        place = f"start where {name.partition('.')[0]}.py lies, or add that folder to PYTHONPATH"
        raise UserError(f"--plugin {name}: no module of that name here or installed; {place}") from None
    except (TypeError, ValueError) as error:
        if name and not name.startswith("."):
            raise
        raise UserError(f"--plugin '{name}': give a module's full name ({error})") from None


def _module_at(file: Path) -> str:
    """Say how to import the module in a file, given without .py: from here if its folders can be packages."""
    words = ".".join(file.parts).split(".")
    if all(map(str.isidentifier, words)):
        return f"--plugin {'.'.join(words)}"
    return f"--plugin {file.name}, and start in {file.parent} or add that folder to PYTHONPATH"
