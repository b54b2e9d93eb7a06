"""The environment of a gridverse YAML file, and the functions that a file may use.

There is a table for each kind of function, with a row for each name. A row is called with its context, then with the
file's parameters by name; a parameter with a default may be left out. The context is the device for reset functions,
and a `Ground` for all others.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import yaml

from envs.errors import UserError, check_known, require
from envs.files import read_text
from envs.gridverse import objects
from envs.gridverse.encodings import Objects
from envs.gridverse.layouts import Corridor, LockedRoom, Scattered
from envs.gridverse.objects import EXIT, FLOOR, KEY, OBSTACLE, WALL, Ending, Layout, Reward, Rule
from envs.gridverse.rewards import MemoryPay, OpenDoor, PickDrop, living, on_kind, standing
from envs.gridverse.rules import ActuateDoor, Motion, PickAndDrop
from envs.gridverse.view import Area, View, Visibility
from envs.gridverse.world import GridWorld, Task
from envs.gridverse.yaml import parts, schema
from envs.gridverse.yaml.schema import (
    ACTIONS,
    COLOURS,
    KIND_NAMES,
    VISIBILITIES,
    Location,
    Pair,
    build_function,
    build_functions,
)

STOCK = Path(__file__).parents[1] / "files"
FUNCTIONS = [f"{name}_function" for name in ("reset", "observation", "terminating")]
REQUIRED = ["state_space", "observation_space", *FUNCTIONS, "transition_functions", "reward_functions"]


class Yaml(GridWorld):
    """The environment of a gridverse YAML file.

    Args:
        path: a file, or the name of a stock file, such as "keydoor.7x7" (`stock_files()` lists them).
        options: the keywords of GridWorld except `view`, which the file sets.

    An episode succeeds if its return is above 0. With a file that pays no rewards, no episode can succeed.

    Raises:
        UserError: the file cannot be read; or a function, parameter, object, colour or action is unknown or missing; or
            a value is wrong. The sentence has the place in the file.

    Source of the format: gym-gridverse, github.com/abaisero/gym-gridverse, as of September 2023.
    """

    def __init__(self, path: str | Path = "", **options: Any) -> None:
        if not str(path):
            raise UserError(f"Gridverse/Yaml needs path=, a file or one of {', '.join(stock_files())}.")
        require("view" not in options, f"The view of {path} is in the file; leave out view=.")
        try:
            task, view = load_world(path, torch.device(options.get("device", "cpu")))
        except RecursionError:
            raise UserError(f"{path} is nested too deeply to be a gridverse file.") from None
        super().__init__(task, view, **options)
        self.path = path


def load_world(path: str | Path, device: torch.device) -> tuple[Task, View]:
    """Read and check a file; returns its task and its view, with tables on `device`."""
    top, data = Location(str(path)), read_yaml(path)
    schema.check_keys(data, top, REQUIRED, ["action_space"])
    done = schema.actions(data.get("action_space", list(ACTIONS)), top.at("action_space"))
    layout = build_function(RESETS, data["reset_function"], top.at("reset_function"), device)
    _space(data["state_space"], top.at("state_space"), layout)
    seen = _space(data["observation_space"], top.at("observation_space"), layout)
    ground = Ground(layout, device)
    rules = build_functions(RULES, data["transition_functions"], top.at("transition_functions"), ground)
    ground = dataclasses.replace(ground, carried=_carries(rules) and ACTIONS.index("PICK_N_DROP") in done)
    rewards = build_functions(REWARDS, data["reward_functions"], top.at("reward_functions"), ground)
    ending = build_function(ENDINGS, data["terminating_function"], top.at("terminating_function"), ground)
    view = build_function(OBSERVATIONS, data["observation_function"], top.at("observation_function"), ground)
    return Task(layout, done, rules, rewards, (ending,), seen), view


def _space(space: Any, location: Location, layout: Layout) -> Objects:
    """Return the objects and colours of a space, after a check that all objects of the layout are listed."""
    schema.check_keys(space, location, ["objects", "colors"], [])
    listed = schema.kinds(space["objects"], location.at("objects"))
    hues = schema.colours(space["colors"], location.at("colors"))
    for kind in (FLOOR, WALL, *layout.makes):
        if kind not in listed:
            raise location.at("objects").error(f"{KIND_NAMES[kind]} is missing, and the reset function makes it.")
    for name, colour in COLOURS.items():
        if colour in layout.colours and colour not in hues:
            raise location.at("colors").error(f"{name} is missing, and the reset function uses it.")
    return Objects(listed, tuple(hue for hue in hues if hue))


def _carries(rules: tuple[Rule, ...]) -> bool:
    return any(
        isinstance(rule, PickAndDrop) or (isinstance(rule, parts.Chain) and _carries(rule.rules)) for rule in rules
    )


def stock_files() -> dict[str, Path]:
    """Return this package's files by name, such as "keydoor.7x7"."""
    return {path.name.removesuffix(".yaml"): path for path in sorted(STOCK.glob("*.yaml"))}


def locate(path: str | Path) -> Path:
    """Return the file at this path, or the stock file of this name."""
    if os.path.isfile(path):  # unlike Path.is_file, also False for a name that is too long
        return Path(path)
    return stock_files()[check_known("gridverse file", str(path), stock_files())]


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses repeated keys, of which YAML itself would silently use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> Any:
    """Read the values of a YAML file, or of a stock file by its name."""
    text = read_text(locate(path))
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UserError(f"{path} is not YAML ({where}{error.problem}).") from None
    except (yaml.YAMLError, ValueError, AttributeError, LookupError, TypeError) as error:  # PyYAML raises them all
        raise UserError(f"{path} holds a value that cannot be read: {' '.join(str(error).split())}.") from None


@dataclass(frozen=True)
class Ground:
    """The context of a file's functions: the layout, and the device of all tables.

    `carried`: whether the agent can pick up the key, so that the grid may be without it.
    """

    layout: Layout
    device: torch.device
    carried: bool = False

    @property
    def width(self) -> int:
        return self.layout.width

    def one(self, kind: int) -> int:
        """Return a kind, after a check that the grid always has exactly one object of it."""
        made = "many" if kind in (FLOOR, WALL) else self.layout.makes.get(kind, 0)
        if made != 1:
            raise UserError(f"there must be exactly one {KIND_NAMES[kind]}, and the reset function makes {made}.")
        if kind == KEY and self.carried:
            raise UserError("the Key must stay in the grid, and pickndrop lets the agent lift it.")
        return kind


# ---- reset functions: layouts with their objects --------------------------------------------------------------------


def _memory(device: torch.device, shape: Pair, colors: tuple[int, ...]) -> Layout:
    return Corridor(*shape, device, _exit_colours(colors, 2))


def _memory_rooms(
    device: torch.device, shape: Pair, layout: Pair, colors: tuple[int, ...], num_beacons: int, num_exits: int
) -> Layout:
    if num_beacons < 1 or num_exits < 2:
        raise UserError(f"There must be at least 1 beacon and 2 exits, not {num_beacons} and {num_exits}.")
    return Scattered(*shape, layout, num_beacons, num_exits, device, _exit_colours(colors, num_exits))


def _exit_colours(colors: tuple[int, ...], fewest: int) -> tuple[int, ...]:
    if 0 in colors or len(colors) < fewest:
        raise UserError(f"colors must be at least {fewest} colours and not NONE.")
    return colors


RESETS: dict[str, Callable[..., Layout]] = {
    "crossing": parts.Crossing,
    "dynamic_obstacles": parts.DynamicObstacles,
    "empty": parts.Empty,
    "keydoor": lambda device, shape: LockedRoom(shape[0], shape[1], device),
    "memory": _memory,
    "memory_rooms": _memory_rooms,
    "rooms": lambda device, shape, layout: Scattered(shape[0], shape[1], layout, 0, 1, device, (0,)),
    "teleport": lambda device, shape, random_agent=False: parts.Telepods(device, shape),  # random_agent has no effect
}

# ---- transition functions --------------------------------------------------------------------------------------------

RULES: dict[str, Callable[..., Rule]] = {
    "actuate_box": lambda ground: parts.Chain(()),  # no reset function makes boxes
    "actuate_door": lambda ground: ActuateDoor(ground.width, ground.device),
    "chain": lambda ground, transition_functions: parts.Chain(transition_functions),
    "move_agent": lambda ground: Motion(ground.width, ground.device, moves=True, turns=False),
    "move_obstacles": lambda ground: parts.MoveObstacles(ground.layout, ground.device),
    "pickndrop": lambda ground: PickAndDrop(ground.width, ground.device),
    "teleport": lambda ground: parts.Teleport(ground.layout.height, ground.width, ground.device),
    "turn_agent": lambda ground: Motion(ground.width, ground.device, moves=False, turns=True),
}

# ---- reward functions: the reward of one transition -----------------------------------------------------------------


def _into_wall(ground: Ground, reward: float = -1.0) -> Reward:
    aimed = parts.IntoWall(ground.width, ground.device)
    rewards = torch.tensor([0.0, reward], dtype=torch.float64, device=ground.device)
    return lambda step: rewards[aimed(step).long()]


def _memory_exit(ground: Ground, reward_good: float = 1.0, reward_bad: float = -1.0) -> Reward:
    if not ground.layout.makes.get(objects.BEACON):
        raise UserError("reach_exit_memory needs a Beacon in the grid, and the reset function makes none.")
    return MemoryPay(reward_good, reward_bad, 0.0, ground.device)


def _closer(
    ground: Ground,
    object_type: int,
    distance_function: str = "manhattan",
    reward_closer: float = 1.0,
    reward_further: float = -1.0,
) -> Reward:
    distance = parts.straight_distance(ground.width, ground.one(object_type), distance_function)
    return parts.change(distance, reward_closer, reward_further, ground.device)


def _closer_on_foot(
    ground: Ground, object_type: int, reward_closer: float = 1.0, reward_further: float = -1.0
) -> Reward:
    distance = parts.WalkingDistance(ground.layout.height, ground.width, ground.one(object_type), ground.device)
    return parts.change(distance, reward_closer, reward_further, ground.device)


def _by_distance(
    ground: Ground, object_type: int, distance_function: str = "manhattan", reward_per_unit_distance: float = -1.0
) -> Reward:
    distance = parts.straight_distance(ground.width, ground.one(object_type), distance_function)
    return lambda step: distance(step.after) * reward_per_unit_distance


REWARDS: dict[str, Callable[..., Reward]] = {
    "actuate_door": lambda ground, reward_open=1.0, reward_close=-1.0: OpenDoor(
        reward_open, reward_close, ground.width, ground.device
    ),
    "bump_into_wall": _into_wall,
    "bump_moving_obstacle": lambda ground, reward=-1.0: standing(OBSTACLE, reward, 0.0, ground.device),
    "getting_closer": _closer,
    "getting_closer_shortest_path": _closer_on_foot,
    "living_reward": lambda ground, reward=-1.0: living(reward, ground.device),
    "overlap": lambda ground, object_type, reward_on=1.0, reward_off=0.0: standing(
        object_type, reward_on, reward_off, ground.device
    ),
    "pickndrop": lambda ground, object_type, reward_pick=1.0, reward_drop=-1.0: PickDrop(
        object_type, reward_pick, reward_drop, ground.device
    ),
    "proportional_to_distance": _by_distance,
    "reach_exit": lambda ground, reward_on=1.0, reward_off=0.0: standing(EXIT, reward_on, reward_off, ground.device),
    "reach_exit_memory": _memory_exit,
    "reduce_sum": lambda ground, reward_functions: (
        lambda step: reduce(operator.add, [pay(step) for pay in reward_functions])  # in listed order
    ),
}

# ---- terminating functions: whether a transition ends the episode ----------------------------------------------------

ENDINGS: dict[str, Callable[..., Ending]] = {
    "bump_into_wall": lambda ground: parts.IntoWall(ground.width, ground.device),
    "bump_moving_obstacle": lambda ground: on_kind(OBSTACLE, ground.device),
    "overlap": lambda ground, object_type: on_kind(object_type, ground.device),
    "reach_exit": lambda ground: on_kind(EXIT, ground.device),
    "reduce_all": lambda ground, terminating_functions: (
        lambda step: reduce(operator.and_, [ends(step) for ends in terminating_functions])
    ),
    "reduce_any": lambda ground, terminating_functions: (
        lambda step: reduce(operator.or_, [ends(step) for ends in terminating_functions])
    ),
}

# ---- observation functions: a window around the agent, and its visible cells ----------------------------------------


def _view(ground: Ground, area: Area, visibility: Callable[..., Visibility]) -> View:
    return View(ground.layout.height, ground.width, area, visibility, ground.device)


OBSERVATIONS: dict[str, Callable[..., View]] = {
    "from_visibility": lambda ground, area, visibility_function: _view(ground, area, visibility_function),
    "fully_transparent": lambda ground, area: _view(ground, area, VISIBILITIES["fully_transparent"]()),
    "partially_occluded": lambda ground, area: _view(ground, area, VISIBILITIES["partially_occluded"]()),
    "raytracing": lambda ground, area, absolute_counts=True, threshold=1.0: _view(
        ground, area, VISIBILITIES["raytracing"](absolute_counts, threshold)
    ),
    "stochastic_raytracing": lambda ground, area: _view(ground, area, VISIBILITIES["stochastic_raytracing"]()),
}
