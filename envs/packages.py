"""Environments of other packages: who registers an id that Gymnasium does not know, and how any id is made."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from envs.errors import UserError, near_names
from envs.registry import WORLDS

Make = Callable[[], gymnasium.Env[Any, Any]]


@dataclass(frozen=True)
class Package:
    """A package whose import registers environments with Gymnasium."""

    ids: str  # the pattern that its ids begin with
    module: str
    install: str  # what `pip install` is given


PACKAGES = (
    Package("(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Package("popgym-", "popgym", "popgym"),
    # it asks for Gymnasium 0.29.0, which pip would put in place of the one that is here, but runs with later ones
    Package(
        "(Endless-)?(MortarMayhemB?|MysteryPath|SearingSpotlights)(-Grid)?-v",
        "memory_gym",
        "--no-deps memory-gym pygame",
    ),
)


def make_env(id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Call `gymnasium.make`, with one clear sentence for an id, a package or a keyword that does not exist."""
    _import_package(id)
    try:
        return gymnasium.make(id, disable_env_checker=True, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise UserError(near_names("environment", id, {*WORLDS, *gymnasium.registry})) from error
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise UserError(f"Environment {id!r} cannot be made: {error}") from error
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        raise UserError(f"Environment {id!r} cannot be made with {sorted(kwargs)}: {error}") from error


def _import_package(id: str) -> None:
    """Import the package that registers this id, if it is one of those known here and Gymnasium lacks the id.

    Raises:
        UserError: the package is not installed, or cannot be imported.
    """
    package = next((each for each in PACKAGES if re.match(each.ids, id)), None)
    if package is None or id in gymnasium.registry or package.module in sys.modules:
        return
    try:
        importlib.import_module(package.module)
    except Exception as error:  # whatever a package of another age ends on
        install = f"`pip install {package.install}`"
        if isinstance(error, ModuleNotFoundError) and error.name == package.module:
            raise UserError(f"Environment {id!r} is of another package; install it with {install}.") from None
        why = f"beside Gymnasium {gymnasium.__version__} ({type(error).__name__}: {error}); try {install}"
        raise UserError(f"Environment {id!r} needs {package.module}, which cannot be imported {why}.") from error
