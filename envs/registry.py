"""The table of all environments by id; torch is imported only when one is made."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from envs.errors import UnknownKeyword, UserError, check_known, require, suggestion
from envs.popgym.ladders import RUNGS
from envs.popgym.levels import LEVELS

if TYPE_CHECKING:
    import torch

    from envs.core import World

ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:.+")


@dataclass(frozen=True)
class Entry:
    """The class of an environment, and the arguments that its id stands for.

    Attributes:
        entry: "module:Class", a string, so that the module is imported only when the environment is made. The class is
            an `envs.core.World`, whose docstring lists the members.
        kwargs: keywords of the class, or `observe`; the user's keywords override them. `device` is always passed.
    """

    entry: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse mistakes that show without an import."""
        wanted = 'a string "module:Class" such as "my_module:MyWorld"'
        fits = isinstance(self.entry, str) and ENTRY.fullmatch(self.entry) is not None
        require(fits, f"The entry of an environment must be {wanted}, not {self.entry!r}.")
        fits = isinstance(self.kwargs, Mapping)
        require(fits, f"The kwargs of the entry {self.entry!r} must be a dict, not {self.kwargs!r}.")


def _rooms(size: int, across: int, **kwargs: int) -> Entry:
    return Entry("envs.gridverse.tasks:MemoryRooms", {"size": size, "rooms": (across, across), **kwargs})


class Worlds(dict[str, Entry]):
    """Entries by id. Rungs of ladders are found, but not listed, so that tables of all environments stay short."""

    def __contains__(self, id: object) -> bool:
        return super().__contains__(id) or id in RUNGS

    def __missing__(self, id: str) -> Entry:
        return Entry(*RUNGS[id])


WORLDS = Worlds()
WORLDS |= {
    **{f"Gridverse/Memory-{n}x{n}-v0": Entry("envs.gridverse.tasks:Memory", {"size": n}) for n in (5, 7, 9, 11, 13)},
    **{f"Gridverse/Memory-FourRooms-{n}x{n}-v0": _rooms(n, 2) for n in (7, 13)},
    "Gridverse/Memory-NineRooms-13x13-v0": _rooms(13, 3),
    **{f"Gridverse/Memory-NineRooms-13x13-{n}Beacons-v0": _rooms(13, 3, beacons=n) for n in (2, 3)},
    **{f"Gridverse/Memory-SixteenRooms-{n}x{n}-v0": _rooms(n, 4) for n in (13, 15, 17, 21)},
    "Gridverse/Memory-TwentyFiveRooms-13x13-v0": _rooms(13, 5),
    "Gridverse/Memory-Empty-13x13-v0": Entry("envs.gridverse.tasks:MemoryEmpty", {"size": 13, "rooms": (5, 5)}),
    "Gridverse/Memory-13x13-Hallucinated-v0": Entry(
        "envs.gridverse.tasks:MemoryEmpty", {"size": 13, "rooms": (5, 5), "phantom_rooms": (5, 5)}
    ),
    "Gridverse/Memory-13x13-HallucinatedCorridor-v0": Entry(
        "envs.gridverse.tasks:Memory", {"size": 13, "phantom_rooms": (5, 5)}
    ),
    **{f"Gridverse/Keydoor-{n}x{n}-v0": Entry("envs.gridverse.tasks:Keydoor", {"size": n}) for n in (5, 7, 9)},
    "Gridverse/Yaml-v0": Entry("envs.gridverse.yaml.world:Yaml"),
    "POMDP/CarFlag-v0": Entry("envs.worlds.car_flag:CarFlag"),
    "POMDP/MemoryCards-v0": Entry("envs.worlds.memory_cards:MemoryCards"),
    "POMDP/Hallway-v0": Entry("envs.worlds.hallway:Hallway"),
    "POMDP/HeavenHell-v0": Entry("envs.worlds.heaven_hell:HeavenHell"),
    "POMDP/File-v0": Entry("envs.worlds.pomdp:File"),
    "Control/CartPole-v0": Entry("envs.worlds.cart_pole:CartPole"),
    "Control/Pendulum-v0": Entry("envs.worlds.control:Pendulum"),
    "Control/MaskedPendulum-v0": Entry("envs.worlds.control:Pendulum", {"masked": True}),
    "Control/MountainCar-v0": Entry("envs.worlds.control:MountainCar"),
    "Control/MaskedMountainCar-v0": Entry("envs.worlds.control:MountainCar", {"masked": True}),
    "Pixel/BlinkingCatch-v0": Entry("envs.worlds.catch:BlinkingCatch"),
    **{id: Entry(*level) for id, level in LEVELS.items()},
}
FROM_FILES = ("Gridverse/Yaml-v0", "POMDP/File-v0")  # defined by the file of their keyword `path`


def make_world(id: str, device: str | torch.device = "cpu", **kwargs: Any) -> World[Any]:
    """Make the World of an id with its tables on `device`; keywords override those of its Entry.

    Every World takes `observe`: "observation" for its own, or "state" for its state (`envs.core.StateObserved`).

    Raises:
        UserError: the id or the device is unknown, or the World does not take a keyword or its value.
    """
    import numpy as np
    import torch

    from envs.checker import check_class, check_members
    from envs.core import OBSERVE, StateObserved

    name = check_known("environment", id.removeprefix("envs:"), {*WORLDS, *RUNGS})
    build = _imported(name, WORLDS[name].entry)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError):
        raise UserError(f"There is no device {device!r} here; use 'cpu', or 'cuda' if torch sees a GPU.") from None
    given = {**WORLDS[name].kwargs, **kwargs}
    given = {key: value.item() if isinstance(value, np.generic) else value for key, value in given.items()}
    observe, views = given.pop("observe", "observation"), " or ".join(map(repr, OBSERVE))
    check_class(name, build, _parameters(build))
    check_keywords(name, build, given)
    own = inspect.signature(build).parameters  # a subclass sets its base's keywords
    for key, each in _keywords(build).items():
        if key in own and each.default is each.empty and key not in given:
            raise UserError(f"Environment {name!r} needs the keyword {key!r}; give it by name or in its Entry.")
    world: World[Any] = build(device=device, **given)
    check_members(world)
    require(observe in OBSERVE, f"observe of environment {name!r} must be {views}, not {observe!r}.")
    return StateObserved(world) if observe == "state" else world


def _imported(id: str, entry: str) -> Any:
    """Import an entry's class; an error inside its module keeps its traceback for the module's author."""
    path, _, attribute = entry.partition(":")
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"Environment {id!r} has the entry {entry!r}, but there is no module {error.name!r}.") from None
    build = getattr(module, attribute, None)
    if not callable(build):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        lacks = f"{path} has no class {attribute!r}; {suggestion(attribute, own)}"
        raise UserError(f"Environment {id!r} has the entry {entry!r}, but {lacks}")
    return build


def check_keywords(id: str, build: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise an UnknownKeyword for a keyword that `build` does not take, a UserError for a wrong value."""
    known = _keywords(build)
    for name, value in kwargs.items():
        if name not in known:
            raise UnknownKeyword(
                f"Environment {id!r} got an unexpected keyword argument {name!r}; {suggestion(name, known)}"
            )
        kind = known[name].annotation  # a string where its module postpones annotations
        written = kind.__name__ if isinstance(kind, type) else str(kind)
        fits, wanted = KINDS.get(written.removesuffix(" | None"), (lambda value: True, ""))
        right = fits(value) or (value is None and known[name].default is None)
        require(right, f"{name} of environment {id!r} must be {wanted}, not {value!r}.")


def _keywords(build: Any) -> dict[str, inspect.Parameter]:
    """List the parameters of `build` that can be passed by name, except the device."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in _parameters(build).items() if each.kind in by_name and name != "device"}


def _parameters(build: Any) -> dict[str, inspect.Parameter]:
    """List all parameters of `build`, with those of its base if it passes keywords on."""
    own = inspect.signature(build).parameters
    passes_on = inspect.isclass(build) and any(each.kind is each.VAR_KEYWORD for each in own.values())
    return (_parameters(build.__base__) if passes_on and build.__base__ is not object else {}) | dict(own)


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _wholes(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and all(map(_whole, value))


# The check of a keyword by its annotation in the World's signature; the World checks keywords of other annotations.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_whole, "a whole number"),
    "float": (lambda value: isinstance(value, Real) and not isinstance(value, bool), "a number"),
    "bool": (lambda value: isinstance(value, Integral) and value in (0, 1), "True or False"),
    "str": (lambda value: isinstance(value, str), "a name"),
    **dict.fromkeys(("Sequence[int]", "View | Sequence[int]"), (_wholes, "whole numbers, such as (2, 3)")),
    **dict.fromkeys(
        ("str | os.PathLike[str]", "str | Path"),
        (lambda value: isinstance(value, str | os.PathLike), "the name of a file"),
    ),
}
