"""Initial scenes have the distributions of 5,000 resets of the originals."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import traces
from world_keywords import uniforms

from envs.baselines.players import walk
from envs.gridverse.layouts import distinct
from envs.gridverse.objects import BEACON, DOOR, EXIT, KEY, blocks_movement, colours, kinds
from envs.registry import make_world

RESETS = 10_000


def reset(name):
    world = make_world(traces.GRIDS[name])
    return world, world.reset(uniforms(RESETS, world.reset_draws))


def score(ours, theirs):
    """The normal score, or, where only one outcome is possible, whether it is the same one."""
    ours, theirs = np.ravel(ours), np.ravel(theirs)
    if np.count_nonzero(ours + theirs) > 1:
        return traces.normal_score(ours, theirs)
    return 0.0 if np.array_equal(ours > 0, theirs > 0) else np.inf


def check(ours, stat):
    """Compare every recorded count."""
    recorded = {key for key in stat if key.startswith("stat_")} - {"stat_n"}
    assert set(ours) == recorded
    scores = {key: score(ours[key], stat[key]) for key in ours}
    assert all(value < traces.LIMIT for value in scores.values()), scores


def counts(number, bins):
    return torch.bincount(number, minlength=bins).numpy()


def common(world, state):
    size = world.height * world.width
    blocked = blocks_movement(state.cells.long())
    return {
        "stat_agent_pos": counts(state.position, size),
        "stat_agent_orientation": counts(state.heading, 4),
        "stat_blocking": blocked.sum(0).numpy(),
        "stat_free_cells": counts((~blocked).sum(1), size),
    }


def manhattan(world, one, other):
    return (one // world.width - other // world.width).abs() + (one % world.width - other % world.width).abs()


def walks(world, blocked, start, goal):
    """Shortest walks (N,) between cells, -1 where there is none."""
    shape = (-1, world.height, world.width)
    one, other = (torch.nn.functional.one_hot(cell, blocked.shape[1]).bool().view(shape) for cell in (start, goal))
    return walk(~blocked.view(shape), one, other)


def memory(world, state):
    code, size = state.cells.long(), world.height * world.width
    hue, good = colours(code), state.good[:, None]
    exits, beacons = kinds(code) == EXIT, kinds(code) == BEACON
    right, wrong = exits & (hue == good), exits & (hue != good)
    assert (right.sum(1) == 1).all()
    assert (hue[beacons] == good.expand_as(hue)[beacons]).all()
    good_place, bad_place, beacon = (mask.to(torch.uint8).argmax(1) for mask in (right, wrong, beacons))
    lengths = walks(world, blocks_movement(code) | wrong, state.position, good_place)
    return {
        **common(world, state),
        "stat_good_exit_pos": right.sum(0).numpy(),
        "stat_bad_exit_pos": wrong.sum(0).numpy(),
        "stat_beacon_pos": beacons.sum(0).numpy(),
        "stat_color_good_bad": counts(state.good * 5 + (hue * wrong).amax(1), 25),
        "stat_manhattan_agent_good": counts(manhattan(world, state.position, good_place), size),
        "stat_manhattan_agent_firstbeacon": counts(manhattan(world, state.position, beacon), size),
        "stat_manhattan_good_bad": counts(manhattan(world, good_place, bad_place), size),
        "stat_path_agent_good_avoiding_bad": counts(lengths[lengths >= 0], size),
        "stat_unreachable": np.array([(lengths < 0).sum(), (lengths >= 0).sum()]),
    }


@pytest.mark.parametrize("name", [*traces.MEMORY, *traces.HALLUCINATED])
def test_memory(name):
    world, state = reset(name)
    check(memory(world, state), both_ways(traces.load(name)))


def both_ways(stat):
    """The number of unreachable exits beside that of reachable ones."""
    lost = stat["stat_unreachable"]
    return stat | {"stat_unreachable": np.array([lost, stat["stat_n"] - lost])}


@pytest.mark.parametrize("name", traces.ROOMS)
def test_rooms(name):
    world, state = reset(name)
    stat = traces.load(name)
    ys, xs = stat["y_splits"], stat["x_splits"]
    free = (~blocks_movement(state.cells.long())).view(-1, world.height, world.width)
    across = [[free[:, y, a + 1 : b] for a, b in pairwise(xs)] for y in ys[1:-1]]
    down = [[free[:, a + 1 : b, x] for x in xs[1:-1]] for a, b in pairwise(ys)]
    assert all((segment.sum(1) == 1).all() for row in across + down for segment in row)  # one opening each
    assert not any(free[:, y, x].any() for y in ys for x in xs)  # and none at a junction
    horizontal = [[spread(part, at, world.width) for part, at in zip(row, xs, strict=False)] for row in across]
    vertical = [[spread(part, at, world.height) for part in row] for row, at in zip(down, ys, strict=False)]
    openings = {"stat_opening_horizontal": horizontal, "stat_opening_vertical": vertical}
    check({**memory(world, state), **openings}, both_ways(stat))


def spread(segment, before, length):
    """How often each place of a wall segment is open, at its coordinate."""
    line = np.zeros(length, int)
    line[before + 1 : before + 1 + segment.shape[1]] = segment.sum(0)
    return line


@pytest.mark.parametrize("name", traces.KEYDOOR)
def test_keydoor(name):
    world, state = reset(name)
    kind, size = kinds(state.cells.long()), world.height * world.width
    key, door, goal = (kind == object for object in (KEY, DOOR, EXIT))
    assert all((mask.sum(1) == 1).all() for mask in (key, door, goal))
    place, gate = key.to(torch.uint8).argmax(1), door.to(torch.uint8).argmax(1)
    wall = gate % world.width
    on_key = state.position == place
    ours = {
        **common(world, state),
        "stat_key_pos": key.sum(0).numpy(),
        "stat_door_pos": door.sum(0).numpy(),
        "stat_exit_pos": goal.sum(0).numpy(),
        "stat_wall_x": counts(wall, world.width),
        "stat_door_y_by_wall_x": counts(wall * world.height + gate // world.width, world.width * world.height),
        "stat_key_pos_by_wall_x": counts(wall * size + place, world.width * size),
        "stat_agent_pos_by_wall_x": counts(wall * size + state.position, world.width * size),
        "stat_agent_on_key": counts(on_key.long(), 2),
    }
    check(ours, traces.load(name))


def test_memory_has_24_equally_likely_initial_states_and_lists_each_once():
    world, state = reset("memory_5x5")
    listed = world.reset(world.initial_draws())
    assert world.initial_draws().shape == (24, world.reset_draws)
    assert len(torch.unique(listed.cells, dim=0)) == 24
    found, number = torch.unique(state.cells, dim=0, return_counts=True)
    assert len(torch.unique(torch.cat([found, listed.cells]), dim=0)) == 24
    assert traces.normal_score(number.numpy(), np.full(24, RESETS)) < traces.LIMIT


def test_distinct_numbers_are_all_ordered_choices_once():
    """Every combination of ranks gives another choice of different numbers, so uniform ranks give uniform ones."""
    ranks = torch.cartesian_prod(torch.arange(5), torch.arange(4), torch.arange(3))
    chosen = distinct(ranks)
    assert len(torch.unique(chosen, dim=0)) == len(ranks) == 60
    assert all(len(set(row)) == 3 and max(row) < 5 for row in chosen.tolist())


@pytest.mark.parametrize("name", ["memory_four_rooms_7x7", "memory_nine_rooms_13x13_3beacons", "keydoor_5x5"])
def test_the_largest_and_smallest_draws_are_in_the_grid(name):
    world = make_world(traces.GRIDS[name])
    u = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)[:, None].expand(-1, world.reset_draws)
    state = world.reset(u)
    assert not blocks_movement(state.cells.gather(1, state.position[:, None]).long()).any()
    things = torch.isin(kinds(state.cells.long()), torch.tensor([EXIT, BEACON, KEY])).sum(1)
    assert things.tolist() == [{"memory_four_rooms_7x7": 3, "keydoor_5x5": 2}.get(name, 5)] * 2
