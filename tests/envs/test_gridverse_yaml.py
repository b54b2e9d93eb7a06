"""Gridverse YAML files are the registered worlds, step for step, and so the recorded originals."""

import pytest
import torch
import traces
import yaml
from world_keywords import check_same, play, uniforms

from envs.gridverse.yaml.world import stock_files
from envs.registry import make_world

NEAR = [[-1, 0], [-1, 1]]  # the registered worlds' window; the files have 7 x 7
NAMES = [*traces.KEYDOOR, *traces.MEMORY, "memory_four_rooms_7x7", "memory_four_rooms_13x13", "memory_nine_rooms_13x13"]
CASES = [(".".join(name.rsplit("_", 1)), traces.GRIDS[name]) for name in NAMES]


def changed(tmp_path, file, **entries):
    """The world of a stock file with other entries."""
    path = tmp_path / f"{file}.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(stock_files()[file].read_text()) | entries))
    return make_world("Gridverse/Yaml-v0", path=path)


def near(tmp_path, file, **observation):
    """The world of a stock file with another observation function, by default the small window."""
    return changed(tmp_path, file, observation_function={"name": "partially_occluded", "area": NEAR} | observation)


@pytest.mark.parametrize("size", [5, 7, 9])
def test_the_stock_window_of_keydoor_as_recorded(size):
    """It also shows what lies behind walls and a door, and beyond the border."""
    world = make_world("Gridverse/Yaml-v0", path=f"keydoor.{size}x{size}")
    trace, ours = traces.check_replay(world, f"keydoor_{size}x{size}", window="obs_view7x7")
    traces.check_scenes(world, trace, ours)
    assert (trace["obs_view7x7"] == 1).any()


@pytest.mark.parametrize(("file", "id"), CASES)
def test_the_registered_world_with_the_same_draws(tmp_path, file, id):
    ours, theirs = near(tmp_path, file), make_world(id)
    assert (ours.reset_draws, ours.step_draws) == (theirs.reset_draws, theirs.step_draws)
    assert ours.observation_space == theirs.observation_space and ours.num_actions == theirs.num_actions
    assert ours.action_names == theirs.action_names
    check_same((play(ours, 32, 60), play(theirs, 32, 60)))


@pytest.mark.parametrize("encoding", ["default", "summed"])
def test_encodings_are_those_of_the_objects_that_the_file_lists(encoding):
    ours = make_world("Gridverse/Yaml-v0", path="keydoor.5x5", encoding=encoding)
    theirs = make_world("Gridverse/Keydoor-5x5-v0", view=(7, 7), encoding=encoding)
    u = uniforms(9, ours.reset_draws, seed=0)
    assert ours.observation_space == theirs.observation_space
    assert torch.equal(ours.reset(u).observation, theirs.reset(u).observation)


def test_an_action_space_of_ones_own(tmp_path):
    mine = changed(tmp_path, "keydoor.5x5", action_space=["TURN_RIGHT", "MOVE_FORWARD"])
    stock = make_world("Gridverse/Yaml-v0", path="keydoor.5x5")
    u = uniforms(20, 7, seed=2)
    for action, meaning in ((0, 5), (1, 0)):
        a = mine.step(mine.reset(u), torch.full((20,), action), u[:, :0])
        b = stock.step(stock.reset(u), torch.full((20,), meaning), u[:, :0])
        assert all(torch.equal(x, y) for x, y in zip(a[1:], b[1:], strict=True))
    assert mine.action_names == ("turn right", "forward")


@pytest.mark.parametrize("sight", [
    {"name": "fully_transparent", "area": [[-6, 2], [-3, 1]]},
    {"name": "raytracing", "area": [[-3, 3], [-3, 3]]},
    {"name": "raytracing", "area": [[-6, 0], [-3, 3]], "absolute_counts": False, "threshold": 0.5},
    {"name": "stochastic_raytracing", "area": [[-6, 0], [-3, 3]]},
    {"name": "from_visibility", "area": [[-6, 0], [-3, 3]], "visibility_function": {"name": "raytracing"}},
    {"name": "from_visibility", "area": [[-3, 0], [-3, 2]], "visibility_function": {"name": "partially_occluded"}},
])  # fmt: skip
def test_observation_functions_hide_some_cells_and_change_none(tmp_path, sight):
    (top, bottom), (left, right) = sight["area"]
    clear = near(tmp_path, "keydoor.7x7", name="fully_transparent", area=sight["area"])
    world = near(tmp_path, "keydoor.7x7", **sight)
    u = uniforms(200, world.reset_draws, seed=3)
    all_seen, seen = clear.reset(u).observation, world.reset(u).observation
    assert seen.shape == (200, (bottom - top + 1) * (right - left + 1))
    hidden = seen == 1
    assert torch.equal(seen[~hidden], all_seen[~hidden])
    own = -top * (right - left + 1) - left
    assert not hidden[:, own].any()
    if sight["name"] != "fully_transparent":
        assert (hidden & (all_seen != 1)).any()


def test_fully_transparent_sees_behind_the_agent_and_through_walls(tmp_path):
    world = near(tmp_path, "empty.4x4", name="fully_transparent", area=[[-3, 3], [-3, 3]])
    state = world.reset(torch.zeros(1, 0))
    window = state.observation.view(7, 7)
    floor, wall, goal = 2, 3, 4
    assert window[3].tolist() == [1, 1, wall, floor, floor, wall, 1]  # east is up, so this is column x = 1
    assert window[2].tolist() == [1, 1, wall, floor, goal, wall, 1]
    assert window[4].tolist() == [1, 1, *[wall] * 4, 1] and window[5].tolist() == [1] * 7


@pytest.mark.parametrize("sight", ["partially_occluded", "stochastic_raytracing"])
def test_a_chain_that_draws_nothing_leaves_the_draws_to_others(tmp_path, sight):
    moves, others = [{"name": "move_agent"}, {"name": "turn_agent"}], [{"name": "move_obstacles"}]
    window = {"name": sight, "area": [[-6, 0], [-3, 3]]}
    worlds = [
        changed(tmp_path, "dynamic_obstacles.7x7", observation_function=window, transition_functions=rules)
        for rules in ([*moves, *others], [{"name": "chain", "transition_functions": moves}, *others])
    ]
    check_same([play(world, 8, 20) for world in worlds])
