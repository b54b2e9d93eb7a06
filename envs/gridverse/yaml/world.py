"""The environment that a gridverse YAML file describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import torch
import yaml

from envs.errors import UserError, near_names
from envs.gridverse.encodings import Objects
from envs.gridverse.objects import Rule
from envs.gridverse.rules import PickAndDrop
from envs.gridverse.view import View
from envs.gridverse.world import GridWorld, Task
from envs.gridverse.yaml.functions import ENDINGS, OBSERVATIONS, RESETS, REWARDS, RULES, Ground
from envs.gridverse.yaml.parts import Chain
from envs.gridverse.yaml.schema import ACTIONS, Location, actions, build, build_all, colours, kinds, mapping

STOCK = Path(__file__).parents[1] / "files"
KEYS = (
    "state_space",
    "observation_space",
    "reset_function",
    "transition_functions",
    "reward_functions",
    "observation_function",
    "terminating_function",
)


class Yaml(GridWorld):
    """The environment that a gridverse YAML file describes.

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
    """Read and check a file; returns the task and the view that it describes, with tables on `device`."""
    top, data = read(path)
    data = mapping(data, top, KEYS, ("action_space",))
    done = actions(data.get("action_space", list(ACTIONS)), top.at("action_space"))
    ground = build(RESETS, data["reset_function"], top.at("reset_function"), device)
    _space(data, "state_space", top, ground)
    seen = _space(data, "observation_space", top, ground)
    rules = build_all(RULES, data["transition_functions"], top.at("transition_functions"), ground)
    ground = dataclasses.replace(ground, carried=_carries(rules) and ACTIONS.index("PICK_N_DROP") in done)
    rewards = build_all(REWARDS, data["reward_functions"], top.at("reward_functions"), ground)
    ending = build(ENDINGS, data["terminating_function"], top.at("terminating_function"), ground)
    view = build(OBSERVATIONS, data["observation_function"], top.at("observation_function"), ground)
    return Task(ground.layout, done, rules, rewards, (ending,), seen), view


def _space(data: dict[str, Any], key: str, top: Location, ground: Ground) -> Objects:
    """Return the objects and colours that a space lists, once they are known to hold what the layout makes."""
    location = top.at(key)
    space = mapping(data[key], location, ("objects", "colors"))
    listed = kinds(space["objects"], location.at("objects"))
    hues = colours(space["colors"], location.at("colors"))
    ground.check_space(listed, hues, location)
    return Objects(listed, tuple(hue for hue in hues if hue))


def _carries(rules: tuple[Rule, ...]) -> bool:
    return any(isinstance(rule, PickAndDrop) or (isinstance(rule, Chain) and _carries(rule.rules)) for rule in rules)


def stock_files() -> dict[str, Path]:
    """Return the files that come with this package, by name, such as "keydoor.7x7"."""
    return {path.name.removesuffix(".yaml"): path for path in sorted(STOCK.glob("*.yaml"))}


def locate(path: str | Path) -> Path:
    """Return the file at this path, or the stock file of this name.

    Raises:
        UserError: there is neither.
    """
    file = Path(path) if _is_file(path) else stock_files().get(str(path))
    if file is None:
        raise UserError(near_names("gridverse file", str(path), stock_files()))
    return file


def _is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # such as a name that is too long for any file
        return False


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys: YAML itself would keep the last of two equal ones and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for index, key in enumerate(keys):
            if any(key.value == before.value for before in keys[:index]):
                problem = f"the key {key.value!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)


def read(path: str | Path) -> tuple[Location, Any]:
    """Read a YAML file, or a stock file by its name; returns where it is from and what it holds.

    Raises:
        UserError: there is no such file, or it cannot be read as YAML.
    """
    file, top = locate(path), Location(str(path))
    try:
        return top, yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{top} cannot be read as text: {reason}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{top} is not YAML{_problem(error)}.") from None
    except ValueError as error:  # of a date in the 13th month, say
        raise UserError(f"{top} holds a value that cannot be read: {error}.") from None
    except RecursionError:
        raise UserError(f"{top} is nested too deeply to be a gridverse file.") from None


def _problem(error: yaml.YAMLError) -> str:
    """Say where the parser stopped, and why, as far as it tells."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    told = ": ".join(part for part in (where, problem) if part)
    return f" ({told})" if told else ""
