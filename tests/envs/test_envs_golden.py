"""Every recorded step of the original environments is reproduced without a difference."""

import golden_traces as golden
import numpy as np
import pytest
import torch

from envs.gridverse.objects import channels, summed
from envs.gridverse.view import View, visible
from envs.registry import make_world

CASES = [
    *[(f"Gridverse/Memory-{n}x{n}-v0", f"memory_{n}x{n}", golden.memory_state) for n in golden.SIZES],
    ("POMDP/CarFlag-v0", "car_flag", golden.car_state),
    ("POMDP/MemoryCards-v0", "memory_cards", golden.card_state),
]


def run(id, name, initial):
    world, trace = make_world(id), golden.load(name)
    rows = len(trace["action"])
    draws = golden.card_draws(trace) if name == "memory_cards" else torch.zeros(rows, world.step_draws)
    state = initial(world, trace)
    return trace, state, golden.replay(world, state, trace, draws)


@pytest.mark.parametrize(("id", "name", "initial"), CASES)
def test_recorded_episodes_have_no_difference(id, name, initial):
    trace, state, ours = run(id, name, initial)
    assert np.array_equal(state.observation.numpy(), trace["init_obs"])
    assert np.array_equal(ours["index"], np.arange(len(trace["action"])))
    for theirs, key in (("obs", "observation"), ("terminated",) * 2, ("truncated",) * 2):
        assert np.array_equal(ours[key], trace[theirs]), key
    assert ours["reward"].tobytes() == trace["reward"].astype(np.float64).tobytes()  # to the last bit
    last = trace["ep_start"][1:] - 1
    assert np.array_equal(ours["returns"][last], trace["ep_return"])
    assert np.array_equal(ours["success"][last], trace["ep_success_dtqn"])
    if "is_success" in trace:
        assert np.array_equal(ours["success"], trace["is_success"])


@pytest.mark.parametrize("size", golden.SIZES)
def test_poses_and_the_default_encoding(size):
    id, name = f"Gridverse/Memory-{size}x{size}-v0", f"memory_{size}x{size}"
    trace, _, ours = run(id, name, golden.memory_state)
    pose = np.stack([*np.divmod(ours["position"], size), ours["heading"]], 1)
    assert np.array_equal(pose, trace["agent"])
    view = make_world(id).view
    seen = view(*(torch.from_numpy(ours[key]) for key in ("cells", "position", "heading")))
    assert np.array_equal(channels(seen).view(-1, 2, 3, 3).numpy(), trace["obs_default"])


def test_success_ends_with_step_100():
    """The running float64 return of the good exit is +9.8e-15 at step 100 and negative after."""
    lengths, wins, returns = [], [], []
    for size in golden.SIZES:
        id, name = f"Gridverse/Memory-{size}x{size}-v0", f"memory_{size}x{size}"
        trace, _, ours = run(id, name, golden.memory_state)
        chosen = trace["ep_kind"] == 8
        last = trace["ep_start"][1:][chosen] - 1
        lengths += ours["steps"][last].tolist()
        wins += ours["success"][last].tolist()
        returns += ours["returns"][last].tolist()
    assert {99, 100, 101, 500} == set(lengths)
    assert wins == [length <= 100 for length in lengths]
    assert all(0 < value < 1e-13 for value, length in zip(returns, lengths, strict=True) if length == 100)


@pytest.mark.parametrize(("rows", "columns", "key"), [(7, 7, "obs"), (2, 3, "close")])
def test_views_of_rooms_with_walls_and_doors(rows, columns, key):
    """The 7 x 7 window exercises occlusion and cells outside the grid."""
    trace = golden.load("view_7x7")
    cells = golden.codes(trace["type"], trace["status"], trace["color"])
    y, x, heading = golden.tensor(trace["agent"]).T
    view = View(7, 7, rows, columns, torch.device("cpu"))
    assert np.array_equal(summed(view(cells, y * 7 + x, heading)).numpy(), trace[key])


def test_the_short_cut_for_small_windows_is_the_general_view():
    trace = golden.load("view_7x7")
    cells = golden.codes(trace["type"], trace["status"], trace["color"])
    y, x, heading = golden.tensor(trace["agent"]).T
    view = View(7, 7, 2, 3, torch.device("cpu"))
    assert view.close
    short = view(cells, y * 7 + x, heading)
    view.close = False
    assert torch.equal(short, view(cells, y * 7 + x, heading))


def test_light_does_not_pass_a_wall():
    clear = torch.ones(1, 3, 3, dtype=torch.bool)
    clear[0, 1, :] = False
    assert visible(clear)[0].tolist() == [[False] * 3, [True] * 3, [True] * 3]
