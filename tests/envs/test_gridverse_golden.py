"""Every recorded step of the original grid worlds is reproduced without a difference."""

from functools import cache

import golden_traces as golden
import grid_traces as grid
import numpy as np
import pytest
import torch

from envs.gridverse.view import Occluded
from envs.registry import make_world


@cache
def run(name, **kwargs):
    world, trace = make_world(grid.IDS[name], **kwargs), golden.load(name)
    return world, trace, grid.replay(world, trace)


@pytest.mark.parametrize("name", grid.IDS)
def test_no_step_and_no_state_differs(name):
    world, trace, ours = run(name)
    assert np.array_equal(ours["index"], np.arange(len(trace["action"])))
    assert np.array_equal(grid.state(world, trace).observation, trace["init_obs"])
    assert np.array_equal(ours["observation"], trace["obs"])
    assert ours["reward"].tobytes() == trace["reward"].tobytes()  # to the last bit
    for flag in ("terminated", "truncated"):
        assert np.array_equal(ours[flag], trace[flag]), flag
    last = trace["ep_start"][1:] - 1
    assert ours["returns"][last].tobytes() == trace["ep_return"].tobytes()
    assert np.array_equal(ours["success"][last], trace["ep_success_dtqn"])
    pose = np.stack([*np.divmod(ours["position"], world.width), ours["heading"]], 1)
    assert np.array_equal(pose, trace["agent"])
    assert np.array_equal(np.stack(grid.channels(ours["held"]), 1), trace["held"])
    shown = grid.channels(grid.flagged(world, ours["cells"]))
    for channel, key in zip(shown, ("type", "status", "color"), strict=True):
        assert np.array_equal(channel.reshape(trace[f"grid_{key}"].shape), trace[f"grid_{key}"]), key


@pytest.mark.parametrize("name", grid.IDS)
def test_no_default_encoding_differs(name):
    _, trace, ours = run(name, encoding="default")
    assert np.array_equal(ours["observation"].reshape(-1, 2, 3, 3), trace["obs_default"])


@pytest.mark.parametrize("name", grid.KEYDOOR)
def test_no_wide_view_differs(name):
    """Behind walls and a door, and over the border."""
    world, trace, ours = run(name, view=(7, 7))
    assert (trace["obs_view7x7"] == 1).any()
    assert np.array_equal(grid.state(world, trace).observation, trace["init_obs_view7x7"])
    assert np.array_equal(ours["observation"], trace["obs_view7x7"])


@pytest.mark.parametrize("name", grid.KEYDOOR)
def test_the_dictionary_shows_the_grid_the_agent_and_the_hand(name):
    world, trace, ours = run(name, encoding="default", dictionary=True)
    agent, seen, item = np.split(ours["observation"], [6, 24], 1)
    assert (agent == [0, 0, 0, 0, 1, 0]).all()
    assert np.array_equal(seen.reshape(-1, 2, 3, 3), trace["obs_default"])
    assert np.array_equal(item, trace["held"])
    assert [(key, space.shape) for key, space in world.observation_space.items()] == [
        ("agent_id_grid", (2, 3)),
        ("grid", (2, 3, 3)),
        ("item", (3,)),
    ]


@pytest.mark.parametrize("name", ["memory_5x5", "memory_four_rooms_7x7", "keydoor_7x7"])
def test_the_window_that_needs_no_occlusion_shows_what_the_general_one_does(name):
    world, trace, ours = run(name)
    general = make_world(grid.IDS[name])
    assert world.view.close and general.view.close
    general.view.close = False
    theirs = grid.replay(general, trace)
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_success_ends_with_step_100():
    """The running float64 return of the good exit is +9.8e-15 at step 100 and negative after."""
    lengths, wins, returns = [], [], []
    for name in grid.MEMORY:
        _, trace, ours = run(name)
        chosen = trace["ep_kind"] == 8
        last = trace["ep_start"][1:][chosen] - 1
        lengths += ours["steps"][last].tolist()
        wins += ours["success"][last].tolist()
        returns += ours["returns"][last].tolist()
    assert {99, 100, 101, 500} == set(lengths)
    assert wins == [length <= 100 for length in lengths]
    assert all(0 < value < 1e-13 for value, length in zip(returns, lengths, strict=True) if length == 100)


def seen_from_below(clear):
    """What an agent in the middle of the last row sees, from see-through cells, both (N, rows, columns)."""
    rows, columns = clear.shape[1:]
    return Occluded(rows, columns, (rows - 1, columns // 2))(clear, clear)


def test_light_is_what_two_floods_reach():
    """The floods as row arithmetic equal floods cell by cell."""
    clear = torch.rand(500, 6, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    clear[0], clear[0, 3] = True, False  # a wall from side to side
    for board, ours in zip(clear.tolist(), seen_from_below(clear).tolist(), strict=True):
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
