"""Worlds that hide their state. Importing this package registers them with Gymnasium and imports no torch."""

import gymnasium

from envs.errors import UserError
from envs.registry import WORLDS, Entry

__all__ = ["WORLDS", "Entry", "UserError", "register"]


def register(id: str, entry: Entry) -> None:
    """Make a world known by `id` to `make_world`, `gymnasium.make` and `gymnasium.make_vec`.

    A module of your own adds a world with one line: `envs.register("Mine/Maze-v0", Entry("my_module:Maze"))`.
    """
    WORLDS[id] = entry
    gymnasium.register(
        id,
        entry_point="envs.adapters:WorldEnv",
        vector_entry_point="envs.adapters:WorldVectorEnv",
        kwargs={"world": id},
    )


for _id, _entry in list(WORLDS.items()):
    register(_id, _entry)
