"""Make environments of other packages, and import the packages that register them.

Files of other people may name modules: a config's plugins, and ids such as "module:Id-v0". Only `load_wanted` imports
such modules.
"""

import importlib
import os
import re
import shlex
import site
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FilterObservation, FrameStackObservation

from envs.errors import DrawsNothing, UserError, near_names, require
from envs.popgym.ladders import RUNGS
from envs.registry import WORLDS
from envs.spaces import ImageBox

Make = Callable[[], gymnasium.Env[Any, Any]]
HOME = Path(__file__).resolve().parents[1]  # the folder of this package and of `configs`
LIBRARIES = ("numpy", "torch", "gymnasium")  # their errors are blamed on their caller
SHIPPED = re.compile(r"configs\.studies\.(\w+)")  # modules of the suite's own studies


@dataclass(frozen=True)
class Package:
    """A package whose import registers environments with Gymnasium."""

    ids: str  # pattern of the beginning of its ids
    module: str
    install: str  # arguments of `pip install`
    closes_all: bool = False  # closing one of its environments closes all of the process


PACKAGES = (
    Package("(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Package("popgym-", "popgym", "popgym"),
    # --no-deps, because it requires Gymnasium 0.29.0, but also runs with later versions
    Package(
        "(Endless-)?(MortarMayhemB?|MysteryPath|SearingSpotlights)(-Grid)?-v",
        "memory_gym",
        "--no-deps memory-gym pygame",
        closes_all=True,  # all environments share pygame's display
    ),
)

ORIGINAL = "gym_gridverse:"  # begins the ids of the environments that gym-gridverse runs itself
GRIDVERSE = Package(ORIGINAL, "gym_gridverse", "git+https://github.com/abaisero/gym-gridverse")
ORIGINAL_STEPS = 500  # their time limit, as in this suite


def make_env(id: str, stack: int = 1, image_axes: str | None = None, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Call `gymnasium.make`, with a UserError for an id, a package or a keyword that does not exist.

    The module of "module:Id-v0" must be known or imported already, see `load_wanted`. "gym_gridverse:NAME" is an
    `envs.gridverse.original.Original`. With `stack` above 1 an observation holds as many of the newest ones, oldest
    first; the first of an episode fills the places before it. `image_axes` says which axis of images has the channels,
    "chw" or "hwc".
    """
    name, original = without_module(id), _original(id)
    ours = [known for known in (*WORLDS, *RUNGS) if known.rpartition("-v")[0] == name]
    require(not ours, f"Environment {id!r} lacks its version; give {' or '.join(ours)}.")
    package = next((each for each in PACKAGES if re.match(each.ids, name)), None)
    if package is not None and id == name and id not in gymnasium.registry:
        _import(package, f"Environment {id!r}")
    try:
        with warnings.catch_warnings(), _path_of(name):
            # a caller that needs pictures gets DrawsNothing instead
            warnings.filterwarnings("ignore", message=".*is being initialised with render_mode")
            env = gymnasium.make(original or name, disable_env_checker=True, **kwargs)
        env = Unclosed(env) if package is not None and package.closes_all else env
        env = env if image_axes is None else ImageAxes(env, image_axes)
        return _stacked(env, stack) if stack > 1 else env
    except gymnasium.error.UnregisteredEnv as error:
        raise UserError(near_names("environment", id, {*WORLDS, *gymnasium.registry})) from error
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        if isinstance(error, ValueError) and not isinstance(error, UserError) and in_own_code(error):
            raise
        raise UserError(f"Environment {id!r} cannot be made: {error}") from error
    except TypeError as error:
        if "argument" not in str(error):
            raise
        if set(kwargs) == {"render_mode"}:
            raise DrawsNothing(f"Environment {id!r} draws nothing: it takes no render_mode.") from error
        raise UserError(f"Environment {id!r} cannot be made with {sorted(kwargs)}: {error}") from error


def _stacked(env: gymnasium.Env[Any, Any], count: int) -> gymnasium.Env[Any, Any]:
    """Stack observations; a dictionary loses entries such as texts, which cannot be stacked."""
    shown, kinds = env.observation_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if isinstance(shown, spaces.Dict):
        env = FilterObservation(env, [name for name, entry in shown.items() if isinstance(entry, kinds)])
    return FrameStackObservation(env, count)


class ImageAxes(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Show images as (C, H, W), from (H, W, C) if `axes` is "hwc". Images are every Box of three axes."""

    def __init__(self, env: gymnasium.Env[Any, Any], axes: str) -> None:
        super().__init__(env)
        self._last = axes == "hwc"
        self.observation_space = self._space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """Move the channels."""
        return self._moved(self.env.observation_space, observation)

    def _space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if isinstance(space, spaces.Dict):
            return spaces.Dict({name: self._space(entry) for name, entry in space.items()})
        if isinstance(space, spaces.Tuple):
            return spaces.Tuple(map(self._space, space))
        if not (isinstance(space, spaces.Box) and len(space.shape) == 3):
            return space
        low, high = (self._moved(space, bound) for bound in (space.low, space.high))
        return ImageBox(low, high, dtype=space.dtype)

    def _moved(self, space: gymnasium.Space[Any], given: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: self._moved(entry, given[name]) for name, entry in space.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(map(self._moved, space, given))
        image = isinstance(space, spaces.Box) and len(space.shape) == 3
        return np.moveaxis(given, -1, 0) if image and self._last else given


def _original(id: str) -> EnvSpec | None:
    """Specify the environment "gym_gridverse:NAME"; None for other ids."""
    if not id.startswith(ORIGINAL):
        return None
    _import(GRIDVERSE, f"Environment {id!r}")
    entry, kwargs = "envs.gridverse.original:Original", {"name": id.removeprefix(ORIGINAL)}
    return EnvSpec("Gridverse/Original-v0", entry, max_episode_steps=ORIGINAL_STEPS, kwargs=kwargs)


class Unclosed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that ignores `close`, which would also close the others of its process."""

    def close(self) -> None:
        """Do nothing."""


def without_module(id: str) -> str:
    """Import the module of "module:Id-v0" if that is allowed, and return the id without it."""
    if id.startswith(ORIGINAL):
        return id
    module, colon, name = id.rpartition(":")
    if colon:
        load_wanted([module], f"the environment {id!r}")
    return name


# ---- modules that files name -----------------------------------------------------------------------------------------
def load_wanted(names: Iterable[str], who: str) -> None:
    """Import the modules that a file names, if that cannot run a stranger's code.

    A module that this process has imported already is allowed, because the command line or a caller imported it. Other
    modules must be part of the suite, or be an installed package of `PACKAGES`. The working directory is not searched.

    Args:
        names: names of the modules.
        who: the file's owner in an error, such as "the run runs/a".

    Raises:
        UserError: a module is not allowed or not installed; then none is imported.
    """
    wanted = [name for name in names if name not in sys.modules]
    for name in wanted:
        require(is_known(name), _refusal(name, who))
    packages = {package.module: package for package in PACKAGES}
    for name in wanted:
        if name in packages:
            _import(packages[name], f"the module {name!r} of {who}")
        else:
            with installed_alone(*([str(HOME)] if SHIPPED.fullmatch(name) else [])):
                importlib.import_module(name)


def _refusal(name: str, who: str) -> str:
    """Write the sentence that refuses to import a module merely because a file names it."""
    if not all(part.isidentifier() for part in name.split(".")):
        return f"{who} wants the module {name!r}, which is no module's name: take that out of it"
    flag = f"--plugin {shlex.quote(name)}"
    return f"{who} wants the module {name!r}, whose code would run here: read it, then pass {flag} (plugins= in Python)"


def in_own_code(error: BaseException) -> bool:
    """Tell whether a user's own module raised an error, itself or through a library; its author needs the traceback."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = (str(name).partition(".")[0] for name in reversed(names))
    others = {*LIBRARIES, *(package.module for package in PACKAGES), *sys.stdlib_module_names}
    first = next((name for name in packages if name not in others), "envs")
    return first not in ("dqn_memory", "envs", "world_models")


def is_known(name: str) -> bool:
    """Tell whether a module is this package, one of PACKAGES, ALE's, or a shipped study's, without an import."""
    study = SHIPPED.fullmatch(name)
    shipped = study is not None and (HOME / "configs" / "studies" / f"{study[1]}.py").is_file()
    return shipped or name in ("envs", "ale_py", *(package.module for package in PACKAGES))


def without_working_directory() -> AbstractContextManager[None]:
    """Let imports find nothing in the working directory."""
    here = Path.cwd().resolve()
    return _search(entry for entry in sys.path if Path(entry).resolve() != here)


def installed_alone(*first: str) -> AbstractContextManager[None]:
    """Let imports search these folders, then the installed packages, and not the working directory."""
    return _search([*first, *(entry for entry in sys.path if entry and _is_installed(entry))])


@contextmanager
def _search(entries: Iterable[str]) -> Iterator[None]:
    before = sys.path[:]
    sys.path[:] = entries
    try:
        yield
    finally:
        sys.path[:] = before


def _is_installed(place: str) -> bool:
    """Tell whether a path, or the target of its link, is in a folder of installed packages.

    uv may link each file of a package to its cache, and adds site-packages of other places to the path.
    """
    paths = sysconfig.get_paths()
    named = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    places = [*named, *site.getsitepackages(), site.getusersitepackages(), f"{sys.base_prefix}/DLLs"]  # of Windows
    added = [Path(entry).absolute() for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    here = Path.cwd().resolve()
    homes = [*map(Path, places), *(entry for entry in added if not entry.resolve().is_relative_to(here))]
    path = Path(os.path.abspath(place))
    return any(path.is_relative_to(each) or path.resolve().is_relative_to(each.resolve()) for each in homes)


def _path_of(name: str) -> AbstractContextManager[None]:
    """Hide the working directory from an installed package's environment, but not from one of the user's."""
    if name.startswith(ORIGINAL):
        return installed_alone()  # a file may name modules
    spec = gymnasium.registry.get(name)
    if spec is None or spec.additional_wrappers or not isinstance(spec.entry_point, str):
        return nullcontext()
    package = re.split("[.:]", spec.entry_point)[0]
    installed = package in ("gymnasium", *(each.module for each in PACKAGES))
    return without_working_directory() if installed else nullcontext()


def _import(package: Package, who: str) -> None:
    """Import a package, which registers its ids; refuse one that is not installed."""
    install = f"`pip install {package.install}`"
    try:
        with installed_alone():
            spec = None if package.module in sys.modules else find_spec(package.module)
            places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
            strange = any(place is not None and not _is_installed(place) for place in places)
            require(not strange, _refusal(package.module, who))
            importlib.import_module(package.module)
    except UserError:
        raise
    except Exception as error:  # an outdated package may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == package.module:
            raise UserError(f"{who} is of another package; install it with {install}.") from None
        why = f"beside Gymnasium {gymnasium.__version__} ({type(error).__name__}: {error}); try {install}"
        raise UserError(f"{who} needs {package.module}, which cannot be imported {why}.") from error
