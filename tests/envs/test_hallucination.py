"""Phantom rooms are seen, and change nothing else."""

import pytest
import torch
from world_keywords import check_same, play, same, uniforms

from envs.gridverse.layouts import inner_lines
from envs.registry import make_world

TWINS = {  # hallucinated: its control twin
    "Gridverse/Memory-13x13-Hallucinated-v0": "Gridverse/Memory-Empty-13x13-v0",
    "Gridverse/Memory-13x13-HallucinatedCorridor-v0": "Gridverse/Memory-13x13-v0",
}


@pytest.mark.parametrize(("id", "rooms", "kwargs"), [
    *((twin, (5, 5), {}) for twin in TWINS.values()),
    ("Gridverse/Memory-Empty-13x13-v0", (5, 5), {"view": (7, 7)}),  # they do not stop sight
    ("Gridverse/Keydoor-9x9-v0", (3, 3), {}),
    ("Gridverse/Keydoor-9x9-v0", (4, 4), {}),
    ("Gridverse/Memory-FourRooms-13x13-v0", (3, 3), {}),
    ("Gridverse/Memory-NineRooms-13x13-3Beacons-v0", (4, 4), {}),
    ("Gridverse/Memory-SixteenRooms-21x21-v0", (3, 3), {}),
    ("Gridverse/Memory-11x11-v0", (4, 4), {}),
    ("Gridverse/Yaml-v0", (4, 4), {"path": "memory.9x9"}),
])  # fmt: skip
def test_a_plan_over_any_world_changes_what_is_seen_and_nothing_else(id, rooms, kwargs):
    """Equal initial states and transitions under one seed; what is seen differs, and only as it should."""
    phantom, twin = make_world(id, phantom_rooms=list(rooms), **kwargs), make_world(id, **kwargs)
    differ, draws = False, (phantom.reset_draws, phantom.step_draws)
    assert draws == (twin.reset_draws, twin.step_draws)  # so that later episodes under one seed are the same, too
    for (ours, step), (theirs, other) in zip(play(phantom, 64, 60), play(twin, 64, 60), strict=True):
        assert same(ours, theirs, but={"observation"})
        assert same(step, other, but={"observation", "final_observation"})
        changed = ours.observation != theirs.observation
        assert (theirs.observation[changed] == 2).all()
        assert (ours.observation[changed] == 3).all()
        differ |= bool(changed.any())
    assert differ


@pytest.mark.parametrize("id", TWINS)
def test_a_registered_world_is_its_twin_with_a_plan(id):
    check_same((play(make_world(TWINS[id], phantom_rooms=(5, 5)), 8, 20), play(make_world(id), 8, 20)))


def test_lines_stand_where_the_walls_of_real_rooms_stand():
    for size, rooms, cuts in ((13, 5, [2, 4, 7, 9]), (13, 4, [3, 6, 9]), (13, 3, [4, 8]), (21, 4, [5, 10, 15])):
        marked = inner_lines(size, size, (rooms, rooms))
        y, x = torch.arange(size)[:, None], torch.arange(size)
        inside = (y > 0) & (y < size - 1) & (x > 0) & (x < size - 1)
        on = torch.isin(y, torch.tensor(cuts)) | torch.isin(x, torch.tensor(cuts))
        assert torch.equal(marked, inside & on)
    assert inner_lines(9, 13, (2, 3)).nonzero().unique().numel() > 2  # plans need not be square


def test_pictures_tell_phantom_walls_from_walls():
    world = make_world("Gridverse/Memory-13x13-Hallucinated-v0")
    state = world.reset(uniforms(1, world.reset_draws))
    picture = world.frame(state, 0)
    colours = {tuple(picture[y * 24 + 1, x * 24 + 1] // 4) for y, x in ((0, 0), (2, 1), (1, 1))}
    assert len(colours) == 3
    grid = world.text(state, 0).split("\n")[:13]
    assert grid[0] == "##" * 13 and grid[2] == "##" + "::" * 11 + "##"
