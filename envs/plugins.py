"""Modules from outside the package whose import adds worlds, and whatever else a caller has tables for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from envs.errors import UserError


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
