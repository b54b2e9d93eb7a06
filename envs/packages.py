"""Environments of other packages: who registers an id that Gymnasium does not know, and how any id is made."""

import importlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from envs.errors import DrawsNothing, UserError, near_names, require
from envs.registry import WORLDS

Make = Callable[[], gymnasium.Env[Any, Any]]


@dataclass(frozen=True)
class Package:
    """A package whose import registers environments with Gymnasium."""

    ids: str  # the pattern that its ids begin with
    module: str
    install: str  # what `pip install` is given
    closes_all: bool = False  # closing one of its environments ends all others of the process


PACKAGES = (
    Package("(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Package("popgym-", "popgym", "popgym"),
    # it asks for Gymnasium 0.29.0, which pip would put in place of the one that is here, but runs with later ones
    Package(
        "(Endless-)?(MortarMayhemB?|MysteryPath|SearingSpotlights)(-Grid)?-v",
        "memory_gym",
        "--no-deps memory-gym pygame",
        closes_all=True,  # the one display of pygame
    ),
)


def make_env(id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Call `gymnasium.make`, with one clear sentence for an id, a package or a keyword that does not exist."""
    name = id.rpartition(":")[2]
    ours = [known for known in WORLDS if known.rpartition("-v")[0] == name]
    require(not ours, f"Environment {id!r} lacks its version; give {' or '.join(ours)}.")  # Gymnasium would be slower
    package = next((each for each in PACKAGES if re.match(each.ids, name)), None)
    if package is not None and id == name and id not in gymnasium.registry:
        _import(package, id)
    try:
        with warnings.catch_warnings():  # an environment without pictures is said to be one where they are asked for
            warnings.filterwarnings("ignore", message=".*is being initialised with render_mode")
            env = gymnasium.make(id, disable_env_checker=True, **kwargs)
        return Unclosed(env) if package is not None and package.closes_all else env
    except gymnasium.error.UnregisteredEnv as error:
        raise UserError(near_names("environment", id, {*WORLDS, *gymnasium.registry})) from error
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise UserError(f"Environment {id!r} cannot be made: {error}") from error
    except TypeError as error:
        if "argument" not in str(error):
            raise
        if set(kwargs) == {"render_mode"}:
            raise DrawsNothing(f"Environment {id!r} draws nothing: it takes no render_mode.") from error
        raise UserError(f"Environment {id!r} cannot be made with {sorted(kwargs)}: {error}") from error


class Unclosed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that stays open, as others of its process would end with it."""

    def close(self) -> None:
        """Do nothing."""


def _import(package: Package, id: str) -> None:
    """Import the package, so that it registers the id."""
    try:
        importlib.import_module(package.module)
    except Exception as error:  # whatever a package of another age ends on
        install = f"`pip install {package.install}`"
        if isinstance(error, ModuleNotFoundError) and error.name == package.module:
            raise UserError(f"Environment {id!r} is of another package; install it with {install}.") from None
        why = f"beside Gymnasium {gymnasium.__version__} ({type(error).__name__}: {error}); try {install}"
        raise UserError(f"Environment {id!r} needs {package.module}, which cannot be imported {why}.") from error
