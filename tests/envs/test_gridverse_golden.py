"""Every recorded step of the original grid worlds is reproduced without a difference."""

import numpy as np
import pytest
import torch
import traces

from envs.gridverse.view import Occluded
from envs.registry import make_world


@pytest.mark.parametrize("name", traces.GRIDS)
def test_no_step_and_no_state_differs(name):
    world = make_world(traces.GRIDS[name])
    traces.check_scenes(world, *traces.check_replay(world, name))


@pytest.mark.parametrize("name", traces.GRIDS)
def test_no_default_encoding_differs(name):
    trace = traces.load(name)
    _, ours = traces.replay(make_world(traces.GRIDS[name], encoding="default"), trace)
    assert np.array_equal(ours["observation"].reshape(-1, 2, 3, 3), trace["obs_default"])


@pytest.mark.parametrize("name", traces.KEYDOOR)
def test_the_dictionary_shows_the_grid_the_agent_and_the_hand(name):
    world, trace = make_world(traces.GRIDS[name], encoding="default", dictionary=True), traces.load(name)
    agent, seen, item = np.split(traces.replay(world, trace)[1]["observation"], [6, 24], 1)
    assert (agent == [0, 0, 0, 0, 1, 0]).all()
    assert np.array_equal(seen.reshape(-1, 2, 3, 3), trace["obs_default"])
    assert np.array_equal(item, trace["held"])
    shapes = [(key, space.shape) for key, space in world.observation_space.items()]
    assert shapes == [("agent_id_grid", (2, 3)), ("grid", (2, 3, 3)), ("item", (3,))]


@pytest.mark.parametrize("name", ["memory_5x5", "memory_four_rooms_7x7", "keydoor_7x7"])
def test_the_window_that_needs_no_occlusion_shows_what_the_general_one_does(name):
    general = make_world(traces.GRIDS[name])
    assert general.view.close
    general.view.close = False
    traces.check_replay(general, name)


def test_light_is_what_two_floods_reach():
    """The floods as row arithmetic equal floods cell by cell."""
    clear = torch.rand(500, 6, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    clear[0], clear[0, 3] = True, False  # a wall from side to side
    seen = Occluded(6, 7, (5, 3))(clear, clear)  # by an agent in the middle of the last row
    for board, ours in zip(clear.tolist(), seen.tolist(), strict=True):
        lit = flood(board, -1) | flood(board, 1)
        assert ours == [[(y, x) in lit for x in range(7)] for y in range(6)]


def flood(clear, side):
    lit, front = set(), {(len(clear) - 1, len(clear[0]) // 2)}
    while front:
        lit |= front
        open_cells = {(y, x) for y, x in front if clear[y][x]}
        onward = {(y - 1, x) for y, x in open_cells} | {(y, x + side) for y, x in open_cells}
        onward |= {(y - 1, x + side) for y, x in open_cells}
        front = {(y, x) for y, x in onward if y >= 0 and 0 <= x < len(clear[0])} - lit
    return lit
