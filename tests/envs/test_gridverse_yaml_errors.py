"""Whatever is wrong with a gridverse YAML file is told in one sentence that names the file and the key."""

import copy
import re

import pytest
import yaml
from run_folders import error_of

from envs.gridverse.yaml.world import Yaml, stock_files
from envs.registry import make_world

REMOVE = object()


def broken(tmp_path, name, key, value):
    """A copy of a stock file with the value of one key, such as "action_space[3]", changed; returns its path."""
    data = yaml.safe_load(stock_files()[name].read_text())
    entry, keys = data, [int(part) if part.isdigit() else part for part in re.findall(r"\w+", key)]
    for part in keys[:-1]:
        entry = entry[part]
    if value is REMOVE:
        del entry[keys[-1]]
    else:
        entry[keys[-1]] = copy.deepcopy(value)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def complaint(path):
    text = error_of(Yaml, path)
    assert ". " not in text and str(path) in text, text
    return text.replace(str(path), "FILE")


NEAR = {"name": "getting_closer", "distance_function": "manhattan", "object_type": "Exit"}
NEAR_KEY, NEAR_WALL = NEAR | {"object_type": "Key"}, NEAR | {"object_type": "Wall"}
INNER = {"name": "reduce_any", "terminating_functions": [{"name": "overlap", "object_type": "Ghost"}]}
NESTED = {"name": "reduce_all", "terminating_functions": [INNER]}


@pytest.mark.parametrize(("name", "key", "value", "expected"), [
    # What is not known: the sentence lists what is.
    ("keydoor.5x5", "reset_function.name", "maze", "{}: 'maze' is not known here; known are crossing, "),
    ("empty.4x4", "reward_functions[1].distance_function", "taxi", "'taxi' is not known here; known are manhattan, "),
    # Keys too many and too few.
    ("keydoor.5x5", "reward_function", [], "FILE: there is no key 'reward_function' here; known are state_space, "),
    ("keydoor.5x5", "observation_space", REMOVE, "FILE: the key 'observation_space' is missing"),
    ("keydoor.5x5", "reset_function.shape", REMOVE, "FILE: reset_function: the key 'shape' is missing"),
    ("keydoor.5x5", "reward_functions[0].name", REMOVE, "reward_functions[0]: must be a function, a mapping with"),
    ("keydoor.5x5", "reward_functions[0].reward", 1.0, "[0]: there is no key 'reward' here; known are name, reward_on"),
    # Wrong forms.
    ("keydoor.5x5", "transition_functions", [], "{}: must be a list with at least one entry"),
    ("keydoor.5x5", "state_space", ["Floor"], "{}: must be a mapping with the keys objects, colors"),
    ("keydoor.5x5", "reset_function.shape", [5, 5.0], "{}: must be two whole numbers"),
    ("keydoor.5x5", "reset_function.shape", [5, 1000000000], "{}: must be two whole numbers"),
    ("keydoor.5x5", "reward_functions[0].reward_on", "much", "{}: must be a number, not 'much'"),
    ("keydoor.5x5", "reward_functions[0].reward_on", 10**400, "{}: must be a number, not 1000"),
    ("empty.4x4", "reset_function.random_agent", 1, "{}: must be true or false, not 1"),
    ("keydoor.5x5", "observation_function.area", [[-6, 0], [1, 3]], "The view's area must hold the agent"),
    ("keydoor.5x5", "observation_function.area", [-6, 3], "{}: must be [[rows ahead"),
    ("keydoor.5x5", "state_space.objects", ["Floor", "Wall", "floor"], "objects[2]: 'floor' is in the list twice"),
    ("keydoor.5x5", "state_space.objects[2]", "Box", "a Box has a content and cannot be listed"),
    ("keydoor.5x5", "terminating_function", NESTED, "{}.terminating_functions[0].terminating_functions[0].object_type"),
    # What does not fit together.
    ("keydoor.5x5", "reset_function.shape", [3, 5], "A keydoor grid needs at least 4 x 5 cells, not 3 x 5"),
    ("memory.5x5", "reset_function.shape", [5, 6], "reset_function: "),
    ("memory.5x5", "reset_function.colors", ["RED", "NONE"], "reset_function: "),
    ("empty.4x4", "reset_function.shape", [3, 9], "An empty grid needs at least 4 x 4 cells, not 3 x 9"),
    ("crossing.5x5", "reset_function.shape", [5, 6], "reset_function: A crossing needs an odd height"),
    ("crossing.5x5", "reset_function.num_rivers", 0, "reset_function: num_rivers must be at least 1, not 0"),
    ("crossing.5x5", "reset_function.object_type", "Door", "reset_function: object_type of a crossing must be"),
    ("dynamic_obstacles.5x5", "reset_function.num_obstacles", 8, "must be from 0 to 7 in a grid of [5, 5], not 8"),
    ("memory_four_rooms.7x7", "reset_function.num_exits", 1, "reset_function: "),
    ("teleport.5x5", "state_space.objects", ["Floor", "Wall", "Exit"], "{}: Telepod is missing"),
    ("teleport.5x5", "observation_space.colors", ["NONE"], "{}: RED is missing"),
    ("keydoor.5x5", "reward_functions[0]", {"name": "reach_exit_memory"}, "{}: reach_exit_memory needs a Beacon"),
    ("memory.5x5", "reward_functions[0]", NEAR, "{}: there must be exactly one Exit, and the reset function makes 2"),
    ("keydoor.5x5", "reward_functions[0]", NEAR_KEY, "the Key must stay in the grid, and pickndrop lets the agent"),
    ("keydoor.5x5", "reward_functions[0]", NEAR_WALL, "must be exactly one Wall, and the reset function makes many"),
    ("keydoor.5x5", "observation_function.area", [[-6, 1], [-3, 3]], "partially_occluded needs the agent in"),
])  # fmt: skip
def test_one_wrong_value_is_named(tmp_path, name, key, value, expected):
    assert expected.format(key) in complaint(broken(tmp_path, name, key, value))


@pytest.mark.parametrize(("text", "expected"), [
    ("state_space: [", "is not YAML (line 1, column "),
    ("a: b: c", "is not YAML (line 1, column 5: mapping values are not allowed here)."),
    ("", "must be a mapping"),
    ("x: !!python/object/apply:os.getcwd []", "is not YAML (line 1, column 4"),
    ("[" * 5000, "is nested too deeply"),
    ("x:\n  a: 1\n  b: 2\n  a: 3\n", "is not YAML (line 4, column 3: the key 'a' is there twice)."),
    ("a: 2001-99-99", "holds a value that cannot be read: month must be in 1..12"),
])  # fmt: skip
def test_what_is_no_gridverse_file(tmp_path, text, expected):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert expected in complaint(path)


def test_bytes_folders_and_missing_files(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    assert "is not UTF-8" in complaint(path)
    for wrong in (tmp_path, tmp_path / "other.yaml", tmp_path / ("a" * 5000)):
        assert "unknown gridverse file" in complaint(wrong)
    assert "'keydor.7x7'; did you mean 'keydoor.7x7'" in error_of(make_world, "Gridverse/Yaml-v0", path="keydor.7x7")
    assert "needs path=, a file or one of crossing.5x5, " in error_of(make_world, "Gridverse/Yaml-v0")


def test_a_file_that_contains_itself_ends_with_a_sentence(tmp_path):
    text = stock_files()["empty.4x4"].read_text()
    start, stop = text.index("reward_functions:"), text.index("observation_function:")
    path = tmp_path / "mine.yaml"
    path.write_text(text[:start] + "reward_functions: &a\n- name: reduce_sum\n  reward_functions: *a\n\n" + text[stop:])
    assert "nested too deeply" in complaint(path)
