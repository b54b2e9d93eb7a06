"""The reset functions of gridverse YAML files have the distributions that their rules say."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from yaml_helpers import CPU, LIMIT, score, uniform, uniforms

from envs.gridverse.objects import EAST, EXIT, FLOOR, KEY, OBSTACLE, RED, SOUTH, TELEPOD, WALL, YELLOW, kinds, pack
from envs.gridverse.yaml.parts import WalkingDistance, pick, pick_distinct
from envs.gridverse.yaml.world import RESETS

COUNT = 20_000


def resets(name, count=COUNT, **parameters):
    ground = RESETS[name](CPU, **parameters)
    return ground, ground.layout(uniforms(count, ground.layout.draws))


def where(scene, kind):
    """Tuple of the flat positions of a kind, for every row."""
    rows = [[] for _ in range(len(scene.cells))]
    for row, cell in (kinds(scene.cells) == kind).nonzero().tolist():
        rows[row].append(cell)
    return [tuple(cells) for cells in rows]


def interior(height, width):
    return [y * width + x for y in range(1, height - 1) for x in range(1, width - 1)]


def test_picks_are_uniform_over_what_is_allowed():
    allowed = torch.tensor([[False, True, True, False, True]]).expand(COUNT, -1)
    found = Counter(pick(allowed, uniforms(COUNT, 1)[:, 0]).tolist())
    assert score(found, uniform([1, 2, 4])) < LIMIT
    pairs = Counter(map(tuple, pick_distinct(allowed, uniforms(COUNT, 2)).tolist()))
    assert score(pairs, uniform(itertools.permutations([1, 2, 4], 2))) < LIMIT
    highest = torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert pick(allowed[:1], highest).tolist() == [4]
    assert pick(torch.zeros(1, 5, dtype=torch.bool), highest).tolist() == [4]


def test_empty_has_one_state_or_all():
    ground, scene = resets("empty", 3, shape=(4, 6))
    assert where(scene, EXIT) == [(2 * 6 + 4,)] * 3 and ground.layout.initial_draws().shape == (1, 0)
    assert scene.position.tolist() == [7] * 3 and scene.heading.tolist() == [EAST] * 3
    _, scene = resets("empty", shape=(4, 4), random_agent=True, random_exit=True)
    found = zip(where(scene, EXIT), scene.position.tolist(), scene.heading.tolist(), strict=True)
    inside = interior(4, 4)
    every = [((e,), a, h) for e in inside for a in inside for h in range(4) if e != a]
    assert score(Counter(found), uniform(every)) < LIMIT


def test_an_exit_anywhere_may_be_where_the_agent_starts():
    _, scene = resets("empty", shape=(4, 5), random_exit=True)
    assert score(Counter(where(scene, EXIT)), uniform([(cell,) for cell in interior(4, 5)])) < LIMIT
    assert set(scene.position.tolist()) == {6}


@pytest.mark.parametrize(("random_agent", "count"), [(False, 2), (True, 1)])
def test_obstacles_stand_on_different_floor_cells_without_the_agent(random_agent, count):
    _, scene = resets("dynamic_obstacles", shape=(4, 5), num_obstacles=count, random_agent=random_agent)
    *floor, goal = interior(4, 5)
    assert where(scene, EXIT) == [(goal,)] * COUNT
    agents = floor if random_agent else floor[:1]
    every = [(a, o) for a in agents for o in itertools.combinations([c for c in floor if c != a], count)]
    assert score(Counter(zip(scene.position.tolist(), where(scene, OBSTACLE), strict=True)), uniform(every)) < LIMIT


def test_telepods_are_two_red_ones():
    _, scene = resets("teleport", shape=(5, 5))
    _, *free, _ = interior(5, 5)
    every = [(pair, heading) for pair in itertools.combinations(free, 2) for heading in (EAST, SOUTH)]
    found = Counter(zip(where(scene, TELEPOD), scene.heading.tolist(), strict=True))
    assert score(found, uniform(every)) < LIMIT
    assert set(scene.cells[kinds(scene.cells) == TELEPOD].tolist()) == {pack(TELEPOD, colour=RED)}


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
    ground, scene = resets("crossing", shape=shape, num_rivers=rivers, object_type=OBSTACLE)
    assert score(Counter(where(scene, OBSTACLE)), crossings(*shape, rivers)) < LIMIT
    assert set(scene.position.tolist()) == {shape[1] + 1} and set(scene.heading.tolist()) == {EAST}
    assert (kinds(scene.cells) == OBSTACLE).sum(1).max() <= ground.counts[OBSTACLE]


@pytest.mark.parametrize(("shape", "rivers"), [((5, 5), 1), ((7, 7), 2), ((9, 9), 6), ((11, 7), 4), ((9, 13), 99)])
def test_a_crossing_always_leaves_a_path_to_the_exit(shape, rivers):
    _, scene = resets("crossing", 2000, shape=shape, num_rivers=rivers, object_type=WALL)
    assert WalkingDistance(*shape, EXIT, CPU)(scene).isfinite().all()
    lines = scene.cells.view(-1, *shape)[:, 1:-1, 1:-1] == pack(WALL)
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
    opening = (scene.cells.view(-1, *shape)[:, 2] != pack(WALL)).int().argmax(1)
    found = Counter(zip(opening.tolist(), scene.position.tolist(), where(scene, EXIT), strict=True))
    assert score(found, every) < LIMIT
    assert score(Counter(scene.heading.tolist()), uniform(range(4))) < LIMIT
    assert set(scene.cells[kinds(scene.cells) == EXIT].tolist()) == {pack(EXIT)}


def test_keydoor_in_a_rectangle():
    height, width = 4, 7
    _, scene = resets("keydoor", shape=(height, width))
    every = Counter()
    for column in range(2, width - 2):
        left = [y * width + x for y in range(1, height - 1) for x in range(1, column)]
        for door, key, agent in itertools.product(range(1, height - 1), left, left):
            chance = Fraction(1, (width - 4) * (height - 2) * len(left) ** 2)
            every[door * width + column, key, agent] += chance
    doors = [door for (door,) in where(scene, 5)]
    keys = [key for (key,) in where(scene, KEY)]
    assert score(Counter(zip(doors, keys, scene.position.tolist(), strict=True)), every) < LIMIT
    assert set(scene.cells[kinds(scene.cells) == KEY].tolist()) == {pack(KEY, colour=YELLOW)}
    assert where(scene, EXIT) == [((height - 2) * width + width - 2,)] * COUNT


def test_memory_in_a_rectangle_with_some_colours():
    _, scene = resets("memory", shape=(6, 9), colors=(1, 3, 4))
    found = Counter(
        zip(scene.good.tolist(), (scene.cells[:, 10] & 7).tolist(), (scene.cells[:, 16] & 7).tolist(), strict=True)
    )
    every = [(good, *pair) for good, bad in itertools.permutations((1, 3, 4), 2) for pair in ((good, bad), (bad, good))]
    assert score(found, uniform(every)) < LIMIT
    assert set(scene.position.tolist()) == {3 * 9 + 4}
    assert (kinds(scene.cells[0]).view(6, 9)[2:4, 4] == FLOOR).all()


def test_memory_rooms_use_as_many_colours_as_exits():
    _, scene = resets("memory_rooms", shape=(7, 9), layout=(2, 2), colors=(1, 2, 4), num_beacons=2, num_exits=3)
    exits = [scene.cells[row][list(cells)] & 7 for row, cells in enumerate(where(scene, EXIT)[:500])]
    assert all(sorted(hues.tolist()) == [1, 2, 4] for hues in exits)
    beacons = [scene.cells[row][list(cells)] & 7 for row, cells in enumerate(where(scene, 10)[:500])]
    assert all(hues.tolist() == [good] * 2 for hues, good in zip(beacons, scene.good.tolist(), strict=False))
    assert score(Counter(scene.good.tolist()), uniform([1, 2, 4])) < LIMIT
