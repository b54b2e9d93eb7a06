"""Each reward and terminating function of gridverse YAML files, on steps between two drawings."""

from collections import deque

import numpy as np
import pytest
import torch
import yaml
from yaml_helpers import CPU, grid, ground, uniforms

from envs.gridverse.objects import BEACON, EXIT, FLOOR, KEY, OBSTACLE, RED, Transition, blocks_movement, kinds, pack
from envs.gridverse.rules import ACTUATE, FORWARD, LEFT_TURN, at
from envs.gridverse.world import scene_of
from envs.gridverse.yaml.parts import WalkingDistance
from envs.gridverse.yaml.world import ENDINGS, REWARDS, stock_files
from envs.registry import make_world


def pay(name, lines, later, action=FORWARD, counts=None, **parameters):
    """What a reward or ending function says of the step between two drawings."""
    before, after = grid(*lines), grid(*later)
    table = REWARDS if name in REWARDS else ENDINGS
    rule = table[name](ground(*lines, **(counts or {})), **parameters)
    step = Transition(before, torch.tensor([action]), after, at(after.cells, after.position))
    return rule(step).item()


def test_bumping_into_walls_is_judged_by_the_pose_before():
    wall, free = ("####", "#>##", "####"), ("####", "#>.#", "####")
    assert pay("bump_into_wall", wall, wall, reward=-0.3) == -0.3
    assert pay("bump_into_wall", free, ("####", "#.>#", "####")) == 0.0
    assert pay("bump_into_wall", wall, wall, LEFT_TURN) == 0.0
    assert pay("bump_into_wall", free, free, ACTUATE) == 0.0
    assert ENDINGS["bump_into_wall"](ground(*wall))(
        Transition(grid(*wall), torch.tensor([FORWARD]), grid(*wall), torch.tensor([pack(FLOOR)]))
    ).item()


def test_distances():
    before, after = ("#####", "#>..#", "#..E#", "#####"), ("#####", "#.>.#", "#..E#", "#####")
    one = {"counts": {"exit": 1}, "object_type": EXIT}
    assert pay("getting_closer", before, after, distance_function="manhattan", reward_closer=0.2, **one) == 0.2
    assert pay("getting_closer", after, before, distance_function="euclidean", reward_further=-0.7, **one) == -0.7
    assert pay("getting_closer", after, after, distance_function="manhattan", **one) == 0.0
    assert pay("proportional_to_distance", before, after, distance_function="manhattan", **one) == -2.0
    away = {"distance_function": "euclidean", "reward_per_unit_distance": 0.1, **one}
    assert pay("proportional_to_distance", before, before, **away) == np.sqrt(5.0) * 0.1


def test_the_shortest_walk_goes_round_walls():
    """Sideways away from the exit is closer on foot."""
    before = ("#####", "#.E.#", "#.#.#", "#.>.#", "#####")
    after = ("#####", "#.E.#", "#.#.#", "#..>#", "#####")
    one = {"counts": {"exit": 1}, "object_type": EXIT}
    assert pay("getting_closer_shortest_path", before, after, reward_closer=0.4, **one) == 0.4
    assert pay("getting_closer", before, after, distance_function="manhattan", reward_further=-0.5, **one) == -0.5
    shut = ("#####", "#.E.#", "#####", "#.>.#", "#####")
    moved = ("#####", "#.E.#", "#####", "#..>#", "#####")
    assert pay("getting_closer_shortest_path", shut, moved, **one) == 0.0
    open_ = ("#####", "#.E.#", "#d###", "#.>.#", "#####")
    locked = ("#####", "#.E.#", "#D###", "#.>.#", "#####")
    assert pay("getting_closer_shortest_path", locked, open_, ACTUATE, **one) == 1.0


def walk(cells, width, start, goal):
    """Length of the shortest walk by a queue, infinite where there is none."""
    seen, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for near in (cell - width, cell + width, cell - 1, cell + 1):
            if near not in seen and not blocks_movement(torch.tensor(cells[near])):
                seen[near] = seen[cell] + 1
                queue.append(near)
    return seen.get(start, np.inf)


@pytest.mark.parametrize("name", ["crossing.7x7", "nine_rooms.10x10", "keydoor.7x7"])
def test_walks_are_those_of_a_search_with_a_queue(name):
    world = make_world("Gridverse/Yaml-v0", path=name)
    state = world.reset(uniforms(30, world.reset_draws))
    ours = WalkingDistance(world.height, world.width, EXIT, CPU)(scene_of(state)).tolist()
    goals = (kinds(state.cells) == EXIT).int().argmax(1).tolist()
    rows = zip(state.cells.tolist(), state.position.tolist(), goals, strict=True)
    assert ours == [walk(cells, world.width, start, goal) for cells, start, goal in rows]


def test_doors_hands_and_what_the_agent_stands_on():
    shut, opened = ("####", "#>D#", "####"), ("####", "#>d#", "####")
    assert pay("actuate_door", shut, opened, ACTUATE, reward_open=0.9) == 0.9
    assert pay("actuate_door", opened, shut, ACTUATE, reward_close=-0.8) == -0.8
    assert pay("actuate_door", opened, opened, ACTUATE) == 0.0
    hit = {"object_type": OBSTACLE, "reward_on": 2.0, "reward_off": 0.5}
    assert pay("overlap", shut, shut, **hit) == 0.5
    held = Transition(grid(*shut), torch.tensor([7]), grid(*shut), torch.tensor([pack(FLOOR)]))
    key = held._replace(after=held.after._replace(held=torch.tensor([pack(KEY, colour=RED)])))
    rule = REWARDS["pickndrop"](ground(*shut), object_type=KEY, reward_pick=0.3, reward_drop=-0.6)
    assert rule(key).item() == 0.3 and rule(held).item() == 0.0
    assert rule(key._replace(before=key.after, after=key.before)).item() == -0.6
    on = Transition(held.before, held.action, held.after, torch.tensor([pack(OBSTACLE)]))
    assert REWARDS["bump_moving_obstacle"](ground(*shut))(on).item() == -1.0
    assert ENDINGS["bump_moving_obstacle"](ground(*shut))(on).item()
    both = (ENDINGS["bump_moving_obstacle"](ground(*shut)), ENDINGS["reach_exit"](ground(*shut)))
    assert ENDINGS["reduce_any"](ground(*shut), both)(on).item()
    assert not ENDINGS["reduce_all"](ground(*shut), both)(on).item()


def test_the_memory_exit_pays_to_the_last_bit():
    scene = grid("###", "#^#", "###")._replace(good=torch.tensor([2]))
    rule = REWARDS["reach_exit_memory"](ground("###", beacon=1), reward_good=0.3, reward_bad=-0.7)
    for colour, reward in ((2, 0.3), (3, -0.7)):
        assert rule(Transition(scene, scene.heading, scene, torch.tensor([pack(EXIT, 0, colour)]))).item() == reward
    assert rule(Transition(scene, scene.heading, scene, torch.tensor([pack(BEACON, 0, 2)]))).item() == 0.0


def test_sums_add_up_in_listed_order(tmp_path):
    parts = [{"name": "living_reward", "reward": value} for value in (0.1, 0.2, 0.3)]
    data = yaml.safe_load(stock_files()["empty.4x4"].read_text())
    data["reward_functions"] = [{"name": "reduce_sum", "reward_functions": parts}, {"name": "living_reward"}]
    (tmp_path / "sum.yaml").write_text(yaml.safe_dump(data))
    world = make_world("Gridverse/Yaml-v0", path=tmp_path / "sum.yaml")
    reward = world.step(world.reset(uniforms(1, 0)), torch.tensor([LEFT_TURN]), uniforms(1, 0))[2]
    assert reward.item() == 0.1 + 0.2 + 0.3 - 1.0 != 0.3 + 0.2 + 0.1 - 1.0
