"""Gridverse YAML files: what holds in every step of every stock file, and each function of the format by hand.

Reset functions have the distributions that their rules say; rules and rewards are tried on drawings.
"""

import itertools
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from world_keywords import uniforms

from envs.baselines.players import walk
from envs.checker import probe
from envs.core import where_state
from envs.gridverse import objects
from envs.gridverse.objects import Scene, Transition, blocks_movement, kinds, pack
from envs.gridverse.rules import ACTUATE, FORWARD, LEFT_TURN, at
from envs.gridverse.world import scene_of
from envs.gridverse.yaml.parts import Teleport, WalkingDistance, pick_allowed, pick_distinct
from envs.gridverse.yaml.world import ENDINGS, RESETS, REWARDS, RULES, Ground, stock_files
from envs.registry import make_world

CPU, COUNT = torch.device("cpu"), 20_000


def check(found, expected):
    """Compare outcomes with their exact probabilities, or with equally likely ones; nothing else may occur."""
    found, expected = Counter(found), expected if isinstance(expected, dict) else uniform(expected)
    assert sum(expected.values()) == 1
    assert set(found) <= set(expected)
    chances, counts = np.array([*expected.values()], float), [found.get(outcome, 0) for outcome in expected]
    assert traces.normal_score(counts, chances * traces.ENDLESS) < traces.LIMIT


def uniform(outcomes):
    outcomes = list(outcomes)
    return dict.fromkeys(outcomes, Fraction(1, len(outcomes)))


def grid(*lines):
    """One scene from a drawing; capitals are objects, '^' and '>' the agent on floor."""
    codes = {"#": objects.WALL, "E": objects.EXIT, "O": objects.OBSTACLE, "K": objects.KEY}
    special = {
        "D": pack(objects.DOOR, objects.LOCKED, objects.RED),
        "d": pack(objects.DOOR, objects.OPEN, objects.RED),
        "T": pack(objects.TELEPOD, colour=objects.RED),
    }
    drawn = "".join(lines)
    cells = [special.get(letter, pack(codes.get(letter, objects.FLOOR))) for letter in drawn]
    position = max(drawn.find("^"), drawn.find(">"), 0)
    place = torch.tensor([position])
    heading = torch.tensor([objects.EAST if ">" in drawn else objects.NORTH])
    nothing = torch.zeros_like(place)
    return Scene(torch.tensor([cells], dtype=torch.int16), place, heading, nothing, nothing)


def ground(*lines, **counts):
    makes = {getattr(objects, name.upper()): count for name, count in counts.items()}
    return Ground(SimpleNamespace(height=len(lines), width=len(lines[0]), makes=makes), CPU)


def many(scene, count):
    return Scene(*(field.expand(count, *field.shape[1:]) for field in scene))


def amount(state, kind):
    return (kinds(state.cells) == kind).sum(1)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize("name", stock_files())
def test_what_every_step_keeps(name, seed):
    world = make_world("Gridverse/Yaml-v0", path=name)
    solid = torch.zeros(world.height, world.width, dtype=torch.bool)
    solid[[0, -1]] = solid[:, [0, -1]] = True
    generator = torch.Generator().manual_seed(seed)
    before = world.reset(uniforms(8, world.reset_draws, generator=generator))
    for _ in range(25):
        action = torch.randint(world.num_actions, (8,), generator=generator)
        u = uniforms(8, world.step_draws, generator=generator)
        after, observation, reward, terminated, _ = world.step(before, action, u)
        for kind in (objects.WALL, objects.EXIT, objects.BEACON, objects.TELEPOD, objects.DOOR):
            assert torch.equal(kinds(before.cells) == kind, kinds(after.cells) == kind)
        assert (after.cells[:, solid.flatten()] == pack(objects.WALL)).all()
        assert torch.equal(amount(before, objects.OBSTACLE), amount(after, objects.OBSTACLE))
        assert torch.equal(*(amount(each, objects.KEY) + (kinds(each.held) == objects.KEY) for each in (before, after)))
        assert not blocks_movement(at(after.cells, after.position)).any()
        assert (terminated | (kinds(at(after.cells, after.position)) != objects.EXIT)).all()
        assert world.observation_space.contains(observation[0].numpy())
        assert reward.dtype == torch.float64 and (reward.abs() < 9).all()
        before = where_state(terminated, before, after)


@pytest.mark.parametrize(("lines", "found"), [
    # the first has nowhere to go; the second goes down or onto the agent's floor
    (("#####", "#OO^#", "##.##", "#####"), [(6, 8), (6, 12)]),
    # after the first has left, its cell is free for the second
    (("#####", "#.O.#", "#.O.#", "#####"), [(6, 11), (6, 13), (6, 7), (7, 8), (8, 11), (8, 13)]),
])  # fmt: skip
def test_obstacles_move_one_after_the_other_to_floor_only(lines, found):
    before = many(grid(*lines), COUNT)
    after = RULES["move_obstacles"](ground(*lines, obstacle=2))(before, before.position, uniforms(COUNT, 2))
    check(places(after, objects.OBSTACLE), found)


def test_fewer_obstacles_than_declared_and_none():
    lines = ("#####", "#.O.#", "#####")
    after = RULES["move_obstacles"](ground(*lines, obstacle=3))(grid(*lines), torch.zeros(1), uniforms(1, 3))
    assert (kinds(after.cells) == objects.OBSTACLE).sum() == 1 and (kinds(after.cells[0, [5, 9]]) == objects.WALL).all()
    rule, scene = RULES["move_obstacles"](ground(*lines)), grid(*lines)
    assert rule.draws == 0 and rule(scene, torch.zeros(1), uniforms(1, 0)) is scene


def test_a_telepod_leads_to_another_one_of_its_colour():
    lines = ("######", "#T.TT#", "######")
    scene = many(grid(*lines)._replace(position=torch.tensor([7])), COUNT)
    after = Teleport(3, 6, CPU)(scene, scene.position, uniforms(COUNT, 1))
    check(after.position.tolist(), [9, 10])
    blue = scene.cells.clone()
    blue[:, 9:11] = pack(objects.TELEPOD, colour=objects.RED + 2)
    alone = Teleport(3, 6, CPU)(scene._replace(cells=blue), scene.position, uniforms(COUNT, 1))
    assert set(alone.position.tolist()) == {7}


def test_a_chain_is_its_rules_one_by_one():
    lines = ("######", "#O..O#", "#T>T.#", "######")
    parts = [RULES[name](ground(*lines, obstacle=2)) for name in ("move_agent", "move_obstacles", "teleport")]
    whole = RULES["chain"](ground(*lines), transition_functions=tuple(parts))
    scene, action, u = many(grid(*lines), 50), torch.full((50,), FORWARD), uniforms(50, 3)
    assert whole.draws == 3
    one = scene
    for rule, share in zip(parts, (u[:, :0], u[:, :2], u[:, 2:]), strict=True):
        one = rule(one, action, share)
    assert all(torch.equal(a, b) for a, b in zip(whole(scene, action, u), one, strict=True))
    assert set(one.position.tolist()) == {13}


def resets(name, count=COUNT, **parameters):
    layout = RESETS[name](CPU, **parameters)
    return layout, layout(uniforms(count, layout.draws))


def places(scene, kind):
    """Tuple of the flat positions of a kind, for every row."""
    rows = [[] for _ in range(len(scene.cells))]
    for row, cell in (kinds(scene.cells) == kind).nonzero().tolist():
        rows[row].append(cell)
    return [tuple(cells) for cells in rows]


def interior(height, width):
    return [y * width + x for y in range(1, height - 1) for x in range(1, width - 1)]


def test_picks_are_uniform_over_what_is_allowed():
    allowed = torch.tensor([[False, True, True, False, True]]).expand(COUNT, -1)
    check(pick_allowed(allowed, uniforms(COUNT, 1)[:, 0]).tolist(), [1, 2, 4])
    check(map(tuple, pick_distinct(allowed, uniforms(COUNT, 2)).tolist()), itertools.permutations([1, 2, 4], 2))
    highest = torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert pick_allowed(allowed[:1], highest).tolist() == [4]
    assert pick_allowed(torch.zeros(1, 5, dtype=torch.bool), highest).tolist() == [4]


def test_a_file_whose_steps_draw_lists_no_initial_states(tmp_path):
    """An evaluation would call its episodes exhaustive."""
    text, listed = stock_files()["empty.4x4"].read_text(), []
    for rule in ("turn_agent", "teleport"):
        (tmp_path / f"{rule}.yaml").write_text(text.replace("turn_agent", rule))
        world = make_world("Gridverse/Yaml-v0", path=str(tmp_path / f"{rule}.yaml"))
        probe(world)
        listed.append(world.initial_draws() is not None)
    assert listed == [True, False]


def test_empty_has_one_state_or_all():
    layout, scene = resets("empty", 3, shape=(4, 6))
    assert places(scene, objects.EXIT) == [(2 * 6 + 4,)] * 3 and layout.initial_draws().shape == (1, 0)
    assert scene.position.tolist() == [7] * 3 and scene.heading.tolist() == [objects.EAST] * 3
    _, scene = resets("empty", shape=(4, 4), random_agent=True, random_exit=True)
    found = zip(places(scene, objects.EXIT), scene.position.tolist(), scene.heading.tolist(), strict=True)
    inside = interior(4, 4)
    every = [((e,), a, h) for e in inside for a in inside for h in range(4) if e != a]
    check(found, every)
    _, scene = resets("empty", shape=(4, 5), random_exit=True)  # also where the agent starts
    check(places(scene, objects.EXIT), [(cell,) for cell in interior(4, 5)])
    assert set(scene.position.tolist()) == {6}


@pytest.mark.parametrize(("random_agent", "count"), [(False, 2), (True, 1)])
def test_obstacles_stand_on_different_floor_cells_without_the_agent(random_agent, count):
    _, scene = resets("dynamic_obstacles", shape=(4, 5), num_obstacles=count, random_agent=random_agent)
    *floor, goal = interior(4, 5)
    assert places(scene, objects.EXIT) == [(goal,)] * COUNT
    agents = floor if random_agent else floor[:1]
    every = [(a, o) for a in agents for o in itertools.combinations([c for c in floor if c != a], count)]
    check(zip(scene.position.tolist(), places(scene, objects.OBSTACLE), strict=True), every)


def test_telepods_are_two_red_ones():
    _, scene = resets("teleport", shape=(5, 5))
    _, *free, _ = interior(5, 5)
    every = [(pair, heading) for pair in itertools.combinations(free, 2) for heading in (objects.EAST, objects.SOUTH)]
    found = zip(places(scene, objects.TELEPOD), scene.heading.tolist(), strict=True)
    check(found, every)
    assert scene.cells[kinds(scene.cells) == objects.TELEPOD].unique() == pack(objects.TELEPOD, colour=objects.RED)


def crossings(height, width, rivers):
    """The exact distribution of the river cells, from the rule, one choice after the other."""
    lines = [("v", y) for y in range(2, height - 2, 2)] + [("h", x) for x in range(2, width - 2, 2)]
    count = min(rivers, len(lines))
    chances = Counter()
    subsets = list(itertools.combinations(lines, count))
    for chosen in subsets:
        ys = [0, *(at for way, at in chosen if way == "v"), height - 1]
        xs = [0, *(at for way, at in chosen if way == "h"), width - 1]
        wet = {(y, x) for y in ys[1:-1] for x in range(1, width - 1)}
        wet |= {(y, x) for x in xs[1:-1] for y in range(1, height - 1)}
        orders = list(itertools.permutations(way for way, _ in chosen))
        for order in orders:
            share = Fraction(1, len(subsets) * len(orders))
            for gaps, chance in openings(order, ys, xs):
                chances[tuple(sorted(y * width + x for y, x in wet - set(gaps)))] += share * chance
    return dict(chances)


def openings(order, ys, xs, i=0, j=0):
    if not order:
        return [((), Fraction(1))]
    if order[0] == "h":
        cells, room = [(y, xs[j + 1]) for y in range(ys[i] + 1, ys[i + 1])], (i, j + 1)
    else:
        cells, room = [(ys[i + 1], x) for x in range(xs[j] + 1, xs[j + 1])], (i + 1, j)
    rest = openings(order[1:], ys, xs, *room)
    return [((cell, *gaps), chance / len(cells)) for cell in cells for gaps, chance in rest]


@pytest.mark.parametrize(("shape", "rivers"), [((5, 5), 1), ((5, 5), 9), ((7, 7), 2), ((5, 9), 3)])
def test_crossings(shape, rivers):
    layout, scene = resets("crossing", shape=shape, num_rivers=rivers, object_type=objects.OBSTACLE)
    check(places(scene, objects.OBSTACLE), crossings(*shape, rivers))
    assert set(scene.position.tolist()) == {shape[1] + 1} and set(scene.heading.tolist()) == {objects.EAST}
    assert (kinds(scene.cells) == objects.OBSTACLE).sum(1).max() <= layout.makes[objects.OBSTACLE]


@pytest.mark.parametrize(("shape", "rivers"), [((5, 5), 1), ((7, 7), 2), ((9, 9), 6), ((11, 7), 4), ((9, 13), 99)])
def test_a_crossing_always_leaves_a_path_to_the_exit(shape, rivers):
    _, scene = resets("crossing", 2000, shape=shape, num_rivers=rivers, object_type=objects.WALL)
    assert WalkingDistance(*shape, objects.EXIT, CPU)(scene).isfinite().all()
    lines = scene.cells.view(-1, *shape)[:, 1:-1, 1:-1] == pack(objects.WALL)
    assert lines.any((1, 2)).all()


def test_rooms_put_agent_and_exit_on_two_different_cells():
    shape, layout = (5, 8), (2, 1)  # one wall, at y = 2, with one opening
    _, scene = resets("rooms", shape=shape, layout=layout)
    rooms = [cell for cell in interior(*shape) if cell // 8 != 2]
    every = Counter()
    for gap in range(1, 7):
        floor = [*rooms, 2 * 8 + gap]
        for agent, goal in itertools.permutations(floor, 2):
            every[gap, agent, (goal,)] += Fraction(1, 6 * len(floor) * (len(floor) - 1))
    opening = (scene.cells.view(-1, *shape)[:, 2] != pack(objects.WALL)).int().argmax(1)
    found = zip(opening.tolist(), scene.position.tolist(), places(scene, objects.EXIT), strict=True)
    check(found, every)
    check(scene.heading.tolist(), range(4))
    assert set(scene.cells[kinds(scene.cells) == objects.EXIT].tolist()) == {pack(objects.EXIT)}


def test_keydoor_in_a_rectangle():
    _, scene = resets("keydoor", shape=(4, 7))
    doors, keys = places(scene, objects.DOOR), torch.tensor(places(scene, objects.KEY))[:, 0]
    check(doors, [(y * 7 + x,) for y in (1, 2) for x in (2, 3, 4)])
    wall = torch.tensor(doors)[:, 0] % 7
    left = [y * 7 + x for y in (1, 2) for x in (1, 2, 3)]
    for cells in (keys, scene.position):
        assert (cells % 7 < wall).all() and set(cells.tolist()) == {*left}
    assert places(scene, objects.EXIT) == [(2 * 7 + 5,)] * COUNT


def test_memory_in_a_rectangle_with_some_colours():
    _, scene = resets("memory", shape=(6, 9), colors=(1, 3, 4))
    hues = (scene.cells[:, [10, 16]] & 7).T.tolist()
    found = zip(scene.good.tolist(), *hues, strict=True)
    every = [(good, *pair) for good, bad in itertools.permutations((1, 3, 4), 2) for pair in ((good, bad), (bad, good))]
    check(found, every)
    assert set(scene.position.tolist()) == {3 * 9 + 4}
    assert (kinds(scene.cells[0]).view(6, 9)[2:4, 4] == objects.FLOOR).all()


def test_memory_rooms_use_as_many_colours_as_exits():
    _, scene = resets("memory_rooms", shape=(7, 9), layout=(2, 2), colors=(1, 2, 4), num_beacons=2, num_exits=3)
    exits = [scene.cells[row][list(cells)] & 7 for row, cells in enumerate(places(scene, objects.EXIT)[:500])]
    assert all(sorted(hues.tolist()) == [1, 2, 4] for hues in exits)
    beacons = [scene.cells[row][list(cells)] & 7 for row, cells in enumerate(places(scene, 10)[:500])]
    assert all(hues.tolist() == [good] * 2 for hues, good in zip(beacons, scene.good.tolist(), strict=False))
    check(scene.good.tolist(), [1, 2, 4])


WALL_AHEAD, FREE, MOVED = ("####", "#>##", "####"), ("####", "#>.#", "####"), ("####", "#.>#", "####")
SHUT, OPENED = ("####", "#>D#", "####"), ("####", "#>d#", "####")
FAR, NEAR = ("#####", "#>..#", "#..E#", "#####"), ("#####", "#.>.#", "#..E#", "#####")
ROUND, ASIDE = ("#####", "#.E.#", "#.#.#", "#.>.#", "#####"), ("#####", "#.E.#", "#.#.#", "#..>#", "#####")
CUT_OFF, STILL = ("#####", "#.E.#", "#####", "#.>.#", "#####"), ("#####", "#.E.#", "#####", "#..>#", "#####")
GATE, LOCKED_GATE = ("#####", "#.E.#", "#d###", "#.>.#", "#####"), ("#####", "#.E.#", "#D###", "#.>.#", "#####")
TO_EXIT, HIT = {"object_type": objects.EXIT}, {"object_type": objects.OBSTACLE, "reward_on": 2.0, "reward_off": 0.5}
AWAY = TO_EXIT | {"distance_function": "euclidean", "reward_per_unit_distance": 0.1}
WALK = "getting_closer_shortest_path"


@pytest.mark.parametrize(("name", "lines", "later", "action", "parameters", "expected"), [
    ("bump_into_wall", WALL_AHEAD, WALL_AHEAD, FORWARD, {"reward": -0.3}, -0.3),  # the pose before counts
    ("bump_into_wall", FREE, MOVED, FORWARD, {}, 0.0),
    ("bump_into_wall", WALL_AHEAD, WALL_AHEAD, LEFT_TURN, {}, 0.0),
    ("bump_into_wall", FREE, FREE, ACTUATE, {}, 0.0),
    ("getting_closer", FAR, NEAR, FORWARD, TO_EXIT | {"reward_closer": 0.2}, 0.2),
    ("getting_closer", NEAR, FAR, FORWARD, TO_EXIT | {"distance_function": "euclidean", "reward_further": -0.7}, -0.7),
    ("getting_closer", NEAR, NEAR, FORWARD, TO_EXIT, 0.0),
    ("proportional_to_distance", FAR, NEAR, FORWARD, TO_EXIT, -2.0),
    ("proportional_to_distance", FAR, FAR, FORWARD, AWAY, np.sqrt(5.0) * 0.1),
    (WALK, ROUND, ASIDE, FORWARD, TO_EXIT | {"reward_closer": 0.4}, 0.4),  # sideways is closer on foot
    ("getting_closer", ROUND, ASIDE, FORWARD, TO_EXIT | {"reward_further": -0.5}, -0.5),
    (WALK, CUT_OFF, STILL, FORWARD, TO_EXIT, 0.0),
    (WALK, LOCKED_GATE, GATE, ACTUATE, TO_EXIT, 1.0),
    ("actuate_door", SHUT, OPENED, ACTUATE, {"reward_open": 0.9}, 0.9),
    ("actuate_door", OPENED, SHUT, ACTUATE, {"reward_close": -0.8}, -0.8),
    ("actuate_door", OPENED, OPENED, ACTUATE, {}, 0.0),
    ("overlap", SHUT, SHUT, FORWARD, HIT, 0.5),
])  # fmt: skip
def test_what_a_step_pays(name, lines, later, action, parameters, expected):
    before, after = grid(*lines), grid(*later)
    rule = REWARDS[name](ground(*lines, exit=1), **parameters)
    step = Transition(before, torch.tensor([action]), after, at(after.cells, after.position))
    assert rule(step).item() == expected
    if name == "bump_into_wall":
        assert ENDINGS[name](ground(*lines))(step).item() == bool(expected)


@pytest.mark.parametrize("name", ["crossing.7x7", "nine_rooms.10x10", "keydoor.7x7"])
def test_walks_are_those_of_another_search(name):
    world = make_world("Gridverse/Yaml-v0", path=name)
    scene = scene_of(world.reset(uniforms(30, world.reset_draws)))
    shape = (30, world.height, world.width)
    start = torch.zeros_like(scene.cells, dtype=torch.bool).scatter(1, scene.position[:, None], True)
    masks = (~blocks_movement(scene.cells), start, kinds(scene.cells) == objects.EXIT)
    steps = walk(*(mask.view(shape) for mask in masks)).double()
    distance = WalkingDistance(world.height, world.width, objects.EXIT, CPU)(scene)
    assert torch.equal(distance, torch.where(steps < 0, torch.inf, steps))


def test_hands_and_what_the_agent_stands_on():
    place = ground(*SHUT, beacon=1)
    empty = Transition(grid(*SHUT), torch.tensor([7]), grid(*SHUT), torch.tensor([pack(objects.FLOOR)]))
    lifted = empty._replace(after=empty.after._replace(held=torch.tensor([pack(objects.KEY, colour=objects.RED)])))
    rule = REWARDS["pickndrop"](place, object_type=objects.KEY, reward_pick=0.3, reward_drop=-0.6)
    assert rule(lifted).item() == 0.3 and rule(empty).item() == 0.0
    assert rule(lifted._replace(before=lifted.after, after=lifted.before)).item() == -0.6
    on = empty._replace(under=torch.tensor([pack(objects.OBSTACLE)]))
    assert REWARDS["bump_moving_obstacle"](place)(on).item() == -1.0
    both = ENDINGS["bump_moving_obstacle"](place), ENDINGS["reach_exit"](place)
    assert [ending(on).item() for ending in both] == [True, False]
    assert ENDINGS["reduce_any"](place, both)(on).item() and not ENDINGS["reduce_all"](place, both)(on).item()
    parts = tuple(REWARDS["living_reward"](place, reward=value) for value in (0.1, 0.2, 0.3))
    assert REWARDS["reduce_sum"](place, parts)(on).item() == 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1  # in listed order
    good = empty._replace(after=empty.after._replace(good=torch.tensor([2])))
    rule = REWARDS["reach_exit_memory"](place, reward_good=0.3, reward_bad=-0.7)
    for kind, colour, reward in ((objects.EXIT, 2, 0.3), (objects.EXIT, 3, -0.7), (objects.BEACON, 2, 0.0)):
        assert rule(good._replace(under=torch.tensor([pack(kind, 0, colour)]))).item() == reward
