"""Worlds from gridverse YAML files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from envs.errors import UserError
from envs.gridverse.encodings import Objects
from envs.gridverse.objects import Rule
from envs.gridverse.rules import PickAndDrop
from envs.gridverse.view import View
from envs.gridverse.world import GridWorld, Task
from envs.gridverse.yaml_endings import ENDINGS
from envs.gridverse.yaml_file import build, build_all, mapping, read, stock_files
from envs.gridverse.yaml_ground import Ground
from envs.gridverse.yaml_resets import RESETS
from envs.gridverse.yaml_rewards import REWARDS
from envs.gridverse.yaml_rules import RULES, Chain
from envs.gridverse.yaml_sight import OBSERVATIONS
from envs.gridverse.yaml_values import ACTIONS, Place, colours, kinds, names

REQUIRED = (
    "state_space",
    "observation_space",
    "reset_function",
    "transition_functions",
    "reward_functions",
    "observation_function",
    "terminating_function",
)


class Yaml(GridWorld):
    """The world that a gridverse YAML file describes.

    Args:
        path: a file, or the name of one that comes along, such as "keydoor.7x7" (`stock_files()` lists them).
        encoding, dictionary, time_limit, device: as in GridWorld; a file says nothing of these.

    Raises:
        UserError: the file cannot be read, or it names a function, parameter, object, colour or action that there
            is not, or leaves one out, or a value does not fit; the sentence says where in the file.

    Source of the format: gym-gridverse, github.com/abaisero/gym-gridverse, as of September 2023.
    """

    def __init__(
        self,
        path: str | Path = "",
        encoding: str = "summed",
        dictionary: bool = False,
        time_limit: int = 500,
        device: str | torch.device = "cpu",
    ) -> None:
        if not str(path):
            raise UserError(f"A Gridverse/Yaml world needs path=, a file or one of {', '.join(stock_files())}.")
        task, view = load(path, torch.device(device))
        super().__init__(task, view, encoding, dictionary, time_limit=time_limit, device=device)
        self.path = path


def load(path: str | Path, device: torch.device) -> tuple[Task, View]:
    """Read and check a file; returns the task and the view it describes, with tables on `device`."""
    place, data = read(path)
    data = mapping(data, place, REQUIRED, ("action_space",))
    numbers = {name: number for number, name in enumerate(ACTIONS)}
    actions = names(numbers, data.get("action_space", list(ACTIONS)), place.at("action_space"))
    ground = build(RESETS, data["reset_function"], place.at("reset_function"), device)
    _space(data, "state_space", place, ground)
    seen = _space(data, "observation_space", place, ground)
    rules = build_all(RULES, data["transition_functions"], place.at("transition_functions"), ground)
    ground = dataclasses.replace(ground, carried=_carries(rules) and "PICK_N_DROP" in actions)
    rewards = build_all(REWARDS, data["reward_functions"], place.at("reward_functions"), ground)
    ending = build(ENDINGS, data["terminating_function"], place.at("terminating_function"), ground)
    view = build(OBSERVATIONS, data["observation_function"], place.at("observation_function"), ground)
    return Task(ground.layout, tuple(actions.values()), rules, rewards, (ending,), seen), view


def _space(data: dict[str, Any], key: str, place: Place, ground: Ground) -> Objects:
    """The objects and colours that a space lists, once they are known to hold what the layout makes."""
    place = place.at(key)
    space = mapping(data[key], place, ("objects", "colors"))
    listed = kinds(space["objects"], place.at("objects"))
    hues = colours(space["colors"], place.at("colors"))
    ground.fits(listed, hues, place)
    return Objects(listed, tuple(hue for hue in hues if hue))


def _carries(rules: tuple[Rule, ...]) -> bool:
    return any(isinstance(rule, PickAndDrop) or (isinstance(rule, Chain) and _carries(rule.rules)) for rule in rules)
