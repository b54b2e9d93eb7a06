"""Partially observable environments. Importing this package registers them with Gymnasium and imports no torch."""

import re

from gymnasium.envs import registration  # `gymnasium` would be the module envs.gymnasium here

from envs.errors import UserError
from envs.popgym.ladders import RUNGS
from envs.registry import WORLDS, Entry

__all__ = ["WORLDS", "Entry", "UserError", "register"]

ADAPTER = "envs.gymnasium:WorldEnv"
ID = re.compile(r"([\w-]+/)?[\w.-]+")


def register(id: str, entry: Entry) -> None:
    """Register a `World` by `id` for `make_world`, `gymnasium.make`, `gymnasium.make_vec` and every trainer.

    A module of your own adds an environment in four steps:

    1. Write the class `my_module:MyWorld`: a subclass of `envs.core.World`, whose docstring lists the members, or of
       `envs.worlds.tabular.Tabular`, which needs tables of probabilities only.
    2. `envs.register("Mine/World-v0", envs.Entry("my_module:MyWorld", {"size": 5}))` at the end of the module.
    3. `envs.checker.check_registered("Mine/World-v0")` plays episodes to their ends and reports the first difference.
    4. `--plugin my_module` makes every script import it.

    The same entry may be registered twice, because a module may be imported twice.

    Raises:
        UserError: the id is taken, or holds characters that Gymnasium does not allow.
    """
    if not isinstance(entry, Entry):
        raise UserError(f'The entry of {id!r} must be an envs.Entry("module:Class", {{...}}), not {entry!r}.')
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise UserError(f'An id must be like "Mine/World-v0", of letters, digits, _ . and -, not {id!r}.')
    if id in WORLDS and repr(WORLDS[id]) != repr(entry):
        raise UserError(f"There is an environment {id!r} already, {WORLDS[id].entry!r}; register yours by another id.")
    if id in registration.registry and registration.registry[id].entry_point != ADAPTER:
        raise UserError(f"{id!r} is an environment of Gymnasium's already; register yours by another id.")
    WORLDS[id] = entry
    if id not in registration.registry:
        _register_with_gymnasium(id)


def _register_with_gymnasium(id: str) -> None:
    registration.register(
        id, entry_point=ADAPTER, vector_entry_point="envs.gymnasium:WorldVectorEnv", kwargs={"world": id}
    )


for _id in (*WORLDS, *RUNGS):
    _register_with_gymnasium(_id)
