"""The environment that a gridverse YAML file describes, and the functions that a file may name.

There is a table for each kind of function, with a row for each name. A row is called with its context, then with the
parameters of the file by name; those with a default may be left out. The context is the device for reset functions and
for all others the `Ground` that the reset function has made, and for visibility functions the window, too.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import Any

import torch
import yaml

from envs.errors import UserError, near_names
from envs.files import read_text
from envs.gridverse.encodings import Objects
from envs.gridverse.layouts import Corridor, LockedRoom, rooms
from envs.gridverse.objects import (
    BEACON,
    DOOR,
    EXIT,
    FLOOR,
    KEY,
    OBSTACLE,
    RED,
    TELEPOD,
    WALL,
    YELLOW,
    Ending,
    Layout,
    Reward,
    Rule,
)
from envs.gridverse.rewards import Living, MemoryExit, OnKind, OpenDoor, PickDrop, Standing
from envs.gridverse.rules import ActuateDoor, Motion, PickAndDrop
from envs.gridverse.view import Area, Occluded, Raytracing, StochasticRaytracing, Transparent, View, Visibility
from envs.gridverse.world import GridWorld, Task
from envs.gridverse.yaml import parts, schema
from envs.gridverse.yaml.schema import ACTIONS, COLOURS, KIND_NAMES, Location, Pair, build, build_all, mapping

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
        encoding, dictionary, phantom_rooms, phantom_cells, time_limit, device: as in GridWorld; a file says nothing of
            these.

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
        phantom_rooms: Sequence[int] | None = None,
        phantom_cells: str = "walls",
        time_limit: int = 500,
        device: str | torch.device = "cpu",
    ) -> None:
        if not str(path):
            raise UserError(f"A Gridverse/Yaml world needs path=, a file or one of {', '.join(stock_files())}.")
        task, view = load(path, torch.device(device))
        super().__init__(task, view, encoding, dictionary, phantom_rooms, phantom_cells, time_limit, device)
        self.path = path


def load(path: str | Path, device: torch.device) -> tuple[Task, View]:
    """Read and check a file; returns the task and the view that it describes, with tables on `device`."""
    top, data = read(path)
    data = mapping(data, top, KEYS, ("action_space",))
    done = schema.actions(data.get("action_space", list(ACTIONS)), top.at("action_space"))
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
    listed = schema.kinds(space["objects"], location.at("objects"))
    hues = schema.colours(space["colors"], location.at("colors"))
    ground.check_space(listed, hues, location)
    return Objects(listed, tuple(hue for hue in hues if hue))


def _carries(rules: tuple[Rule, ...]) -> bool:
    return any(
        isinstance(rule, PickAndDrop) or (isinstance(rule, parts.Chain) and _carries(rule.rules)) for rule in rules
    )


def stock_files() -> dict[str, Path]:
    """Return the files that come with this package, by name, such as "keydoor.7x7"."""
    return {path.name.removesuffix(".yaml"): path for path in sorted(STOCK.glob("*.yaml"))}


def locate(path: str | Path) -> Path:
    """Return the file at this path, or the stock file of this name.

    Raises:
        UserError: there is neither.
    """
    if os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        return Path(path)
    if str(path) not in stock_files():
        raise UserError(near_names("gridverse file", str(path), stock_files()))
    return stock_files()[str(path)]


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys: YAML itself would keep the last of two equal ones and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def read(path: str | Path) -> tuple[Location, Any]:
    """Read a YAML file, or a stock file by its name; returns where it is from and what it holds.

    Raises:
        UserError: there is no such file, or it cannot be read as YAML.
    """
    file, top = locate(path), Location(str(path))
    try:
        return top, yaml.load(read_text(file), _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UserError(f"{top} is not YAML ({where}{error.problem}).") from None
    except yaml.YAMLError as error:
        raise UserError(f"{top} is not YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise UserError(f"{top} is nested too deeply to be a gridverse file.") from None
    except ValueError as error:  # of a date in the 13th month, say
        if isinstance(error, UserError):
            raise
        raise UserError(f"{top} holds a value that cannot be read: {error}.") from None


@dataclass(frozen=True)
class Ground:
    """What the other functions of a file have to know about its reset function.

    Attributes:
        counts: how many objects of each kind the layout makes besides floor and wall.
        colours: those of these objects.
        carried: whether the agent can lift things, so that the grid may be without a key.
    """

    layout: Layout
    counts: Mapping[int, int]
    device: torch.device
    colours: tuple[int, ...] = ()
    carried: bool = False

    @property
    def height(self) -> int:
        return self.layout.height

    @property
    def width(self) -> int:
        return self.layout.width

    def exactly_one(self, kind: int, wanted_by: str) -> None:
        """Ask for one object of a kind that is always in the grid.

        Raises:
            UserError: the reset function makes none or several, or the agent can take it out of the grid.
        """
        made = "many" if kind in (FLOOR, WALL) else self.counts.get(kind, 0)
        if made != 1:
            raise UserError(f"{wanted_by} needs exactly one {KIND_NAMES[kind]}, and the reset function makes {made}.")
        if kind == KEY and self.carried:
            raise UserError(f"{wanted_by} needs its Key in the grid, and pickndrop lets the agent lift it.")

    def check_space(self, kinds: tuple[int, ...], colours: tuple[int, ...], location: Location) -> None:
        """Check that a space lists what the layout makes.

        Raises:
            UserError: an object or a colour is missing from the space.
        """
        for kind in (FLOOR, WALL, *self.counts):
            if kind not in kinds:
                raise location.at("objects").error(f"{KIND_NAMES[kind]} is missing, and the reset function makes it.")
        for name, colour in COLOURS.items():
            if colour in self.colours and colour not in colours:
                raise location.at("colors").error(f"{name} is missing, and the reset function uses it.")


# ---- reset functions: a layout, and what it puts into the grid -------------------------------------------------------


def _crossing(device: torch.device, shape: Pair, num_rivers: int, object_type: int) -> Ground:
    layout = parts.Crossing(shape, num_rivers, object_type, device)
    counts = {EXIT: 1}
    if object_type not in (FLOOR, WALL):
        counts[object_type] = counts.get(object_type, 0) + layout.most
    return Ground(layout, counts, device)


def _keydoor(device: torch.device, shape: Pair) -> Ground:
    if shape[0] < 4:
        raise UserError(f"A keydoor grid must be at least 4 cells high, to have room beside the key, not {shape[0]}.")
    return Ground(LockedRoom(*shape, device), {EXIT: 1, DOOR: 1, KEY: 1}, device, (YELLOW,))


def _memory(device: torch.device, shape: Pair, colors: tuple[int, ...]) -> Ground:
    return Ground(Corridor(*shape, device, _exit_colours(colors, 2)), {EXIT: 2, BEACON: 2}, device, colors)


def _memory_rooms(
    device: torch.device, shape: Pair, layout: Pair, colors: tuple[int, ...], num_beacons: int, num_exits: int
) -> Ground:
    if num_beacons < 1 or num_exits < 2:
        raise UserError(f"There must be at least 1 beacon and 2 exits, not {num_beacons} and {num_exits}.")
    placed = rooms(*shape, layout, num_beacons, num_exits, device, _exit_colours(colors, num_exits))
    return Ground(placed, {EXIT: num_exits, BEACON: num_beacons}, device, colors)


def _exit_colours(colors: tuple[int, ...], fewest: int) -> tuple[int, ...]:
    if 0 in colors or len(colors) < fewest:
        raise UserError(f"colors must be at least {fewest} colours and not NONE.")
    return colors


RESETS: dict[str, Callable[..., Ground]] = {
    "crossing": _crossing,
    "dynamic_obstacles": lambda device, shape, num_obstacles, random_agent=False: Ground(
        parts.DynamicObstacles(shape, num_obstacles, device, random_agent), {EXIT: 1, OBSTACLE: num_obstacles}, device
    ),
    "empty": lambda device, shape, random_agent=False, random_exit=False: Ground(
        parts.Empty(shape, device, random_agent, random_exit), {EXIT: 1}, device
    ),
    "keydoor": _keydoor,
    "memory": _memory,
    "memory_rooms": _memory_rooms,
    "rooms": lambda device, shape, layout: Ground(
        rooms(shape[0], shape[1], layout, 0, 1, device, (0,)), {EXIT: 1}, device
    ),
    "teleport": lambda device, shape: Ground(parts.Telepods(shape, device), {EXIT: 1, TELEPOD: 2}, device, (RED,)),
}

# ---- transition functions --------------------------------------------------------------------------------------------

RULES: dict[str, Callable[..., Rule]] = {
    "actuate_box": lambda ground: parts.Chain(()),  # no reset function makes boxes
    "actuate_door": lambda ground: ActuateDoor(ground.width, ground.device),
    "chain": lambda ground, transition_functions: parts.Chain(transition_functions),
    "move_agent": lambda ground: Motion(ground.width, ground.device, moves=True, turns=False),
    "move_obstacles": lambda ground: parts.MoveObstacles(
        ground.height, ground.width, ground.counts.get(OBSTACLE, 0), ground.device
    ),
    "pickndrop": lambda ground: PickAndDrop(ground.width, ground.device),
    "teleport": lambda ground: parts.Teleport(ground.height, ground.width, ground.device),
    "turn_agent": lambda ground: Motion(ground.width, ground.device, moves=False, turns=True),
}

# ---- reward functions: what one transition pays ----------------------------------------------------------------------


def _into_wall(ground: Ground, reward: float = -1.0) -> Reward:
    aimed = parts.IntoWall(ground.width, ground.device)
    rewards = torch.tensor([0.0, reward], dtype=torch.float64, device=ground.device)
    return lambda step: rewards[aimed(step).long()]


def _memory_exit(ground: Ground, reward_good: float = 1.0, reward_bad: float = -1.0) -> Reward:
    if not ground.counts.get(BEACON):
        raise UserError("reach_exit_memory needs a Beacon in the grid, and the reset function makes none.")
    return MemoryExit(reward_good, reward_bad, ground.device)


def _distance(ground: Ground, object_type: int, wanted_by: str, metric: str = "") -> parts.Distance:
    """Measure how far the agent is from the one object of a kind: by a metric, or on foot."""
    ground.exactly_one(object_type, wanted_by)
    if metric:
        return parts.StraightDistance(ground.width, object_type, metric)
    return parts.WalkingDistance(ground.height, ground.width, object_type, ground.device)


def _closer(
    ground: Ground,
    object_type: int,
    distance_function: str = "manhattan",
    reward_closer: float = 1.0,
    reward_further: float = -1.0,
) -> Reward:
    distance = _distance(ground, object_type, "getting_closer", distance_function)
    return parts.Change(distance, reward_closer, reward_further, ground.device)


def _closer_on_foot(
    ground: Ground, object_type: int, reward_closer: float = 1.0, reward_further: float = -1.0
) -> Reward:
    distance = _distance(ground, object_type, "getting_closer_shortest_path")
    return parts.Change(distance, reward_closer, reward_further, ground.device)


def _by_distance(
    ground: Ground, object_type: int, distance_function: str = "manhattan", reward_per_unit_distance: float = -1.0
) -> Reward:
    distance = _distance(ground, object_type, "proportional_to_distance", distance_function)
    return lambda step: distance(step.after) * reward_per_unit_distance


REWARDS: dict[str, Callable[..., Reward]] = {
    "actuate_door": lambda ground, reward_open=1.0, reward_close=-1.0: OpenDoor(
        reward_open, reward_close, ground.width, ground.device
    ),
    "bump_into_wall": _into_wall,
    "bump_moving_obstacle": lambda ground, reward=-1.0: Standing(OBSTACLE, reward, 0.0, ground.device),
    "getting_closer": _closer,
    "getting_closer_shortest_path": _closer_on_foot,
    "living_reward": lambda ground, reward=-1.0: Living(reward, ground.device),
    "overlap": lambda ground, object_type, reward_on=1.0, reward_off=0.0: Standing(
        object_type, reward_on, reward_off, ground.device
    ),
    "pickndrop": lambda ground, object_type, reward_pick=1.0, reward_drop=-1.0: PickDrop(
        object_type, reward_pick, reward_drop, ground.device
    ),
    "proportional_to_distance": _by_distance,
    "reach_exit": lambda ground, reward_on=1.0, reward_off=0.0: Standing(EXIT, reward_on, reward_off, ground.device),
    "reach_exit_memory": _memory_exit,
    "reduce_sum": lambda ground, reward_functions: (
        lambda step: reduce(operator.add, [pay(step) for pay in reward_functions])  # in listed order
    ),
}

# ---- terminating functions: whether a transition ends the episode ----------------------------------------------------

ENDINGS: dict[str, Callable[..., Ending]] = {
    "bump_into_wall": lambda ground: parts.IntoWall(ground.width, ground.device),
    "bump_moving_obstacle": lambda ground: OnKind(OBSTACLE, ground.device),
    "overlap": lambda ground, object_type: OnKind(object_type, ground.device),
    "reach_exit": lambda ground: OnKind(EXIT, ground.device),
    "reduce_all": lambda ground, terminating_functions: (
        lambda step: reduce(operator.and_, [ends(step) for ends in terminating_functions])
    ),
    "reduce_any": lambda ground, terminating_functions: (
        lambda step: reduce(operator.or_, [ends(step) for ends in terminating_functions])
    ),
}

# ---- observation functions: a window round the agent, and which of its cells are seen --------------------------------


def _occluded(ground: Ground, area: Area) -> Visibility:
    if area[0][1] != 0:
        raise UserError(f"partially_occluded needs the agent in the last row of its area, [[..., 0], ...], not {area}.")
    return Occluded()


def _window(area: Area) -> tuple[int, int, tuple[int, int]]:
    """Return the rows and columns of a window, and the agent's (row, column) in it."""
    (top, bottom), (left, right) = area
    return bottom - top + 1, right - left + 1, (-top, -left)


VISIBILITIES: dict[str, Callable[..., Visibility]] = {
    "fully_transparent": lambda ground, area: Transparent(),
    "partially_occluded": _occluded,
    "raytracing": lambda ground, area, absolute_counts=True, threshold=1.0: Raytracing(
        *_window(area), absolute_counts, threshold, ground.device
    ),
    "stochastic_raytracing": lambda ground, area: StochasticRaytracing(*_window(area), ground.device),
}


def _view(visibility: Callable[..., Visibility]) -> Callable[..., View]:
    """Make the observation function, with the same parameters, that shows a window with this visibility."""

    @wraps(visibility)
    def view(ground: Ground, area: Area, **parameters: Any) -> View:
        return View(ground.height, ground.width, area, visibility(ground, area, **parameters), ground.device)

    return view


OBSERVATIONS = {
    "from_visibility": _view(
        lambda ground, area, visibility_function: build(VISIBILITIES, *visibility_function, ground, area)
    ),
    **{name: _view(visibility) for name, visibility in VISIBILITIES.items()},
}
