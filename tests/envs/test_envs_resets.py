"""Initial states have the distributions of 5,000 resets of the originals."""

import golden_traces as golden
import numpy as np
import pytest
import torch

from envs.gridverse.objects import BEACON, EXIT, blocks_movement, colours, kinds
from envs.registry import make_world

RESETS, LIMIT = 20_000, 4.0  # a score beyond 4 has a chance of about 1 in 10,000


def reset(id, seed=0):
    world = make_world(id)
    generator = torch.Generator().manual_seed(seed)
    return world, world.reset(torch.rand(RESETS, world.reset_draws, dtype=torch.float64, generator=generator))


def places(mask, size):
    return mask.sum(0).view(size, size).numpy()


@pytest.mark.parametrize("size", golden.SIZES)
def test_memory(size):
    state = reset(f"Gridverse/Memory-{size}x{size}-v0")[1]
    stat = golden.load(f"memory_{size}x{size}")
    code = state.cells.long()
    exits, hues, good = kinds(code) == EXIT, colours(code), state.good[:, None]
    for key, mask in (("good_exit", exits & (hues == good)), ("bad_exit", exits & (hues != good))):
        assert golden.normal_score(places(mask, size), stat[f"stat_{key}_pos"]) < LIMIT, key
    bad = (hues * (exits & (hues != good))).amax(1)
    pairs = torch.bincount(state.good * 5 + bad, minlength=25)
    assert golden.normal_score(pairs.numpy(), stat["stat_color_good_bad"]) < LIMIT
    beacons = (kinds(code) == BEACON) & (hues == good)
    scale = RESETS // int(stat["stat_n"])  # what is the same in every reset must agree exactly
    assert np.array_equal(places(beacons, size), scale * stat["stat_beacon_pos"])
    assert np.array_equal(places(blocks_movement(code), size), scale * stat["stat_blocking"])
    agent = torch.bincount(state.position, minlength=size * size).view(size, size).numpy()
    assert np.array_equal(agent, scale * stat["stat_agent_pos"])
    heading = torch.bincount(state.heading, minlength=4).numpy()
    assert np.array_equal(heading, scale * stat["stat_agent_orientation"])


def test_memory_has_24_equally_likely_initial_states_and_lists_each_once():
    world, state = reset("Gridverse/Memory-5x5-v0")
    listed = world.reset(world.initial_draws())
    assert world.initial_draws().shape == (24, world.reset_draws)
    assert len(torch.unique(listed.cells, dim=0)) == 24
    found, counts = torch.unique(state.cells, dim=0, return_counts=True)
    assert len(torch.unique(torch.cat([found, listed.cells]), dim=0)) == 24
    assert golden.normal_score(counts.numpy(), np.full(24, RESETS)) < LIMIT


def test_car_flag():
    world, state = reset("POMDP/CarFlag-v0")
    stat = golden.load("car_flag")
    right = state.heaven > 0
    sides = [int(right.sum()), int((~right).sum())]
    assert golden.normal_score(sides, stat["stat_heaven_plus_minus"]) < LIMIT
    for key, chosen in (("stat_pos_hist40", right | True), ("stat_pos_hist_given_heaven_plus", right)):
        histogram, _ = np.histogram(state.position[chosen].numpy(), 40, (-0.2, 0.2))
        assert histogram.sum() == chosen.sum()
        assert golden.normal_score(histogram, stat[key]) < LIMIT, key
    assert not state.velocity.any()
    assert world.initial_draws() is None


def test_memory_cards():
    state = reset("POMDP/MemoryCards-v0")[1]
    stat = golden.load("memory_cards")
    values = torch.nn.functional.one_hot(state.cards, 6)
    assert (values.sum(1)[:, 1:] == 2).all()
    assert golden.normal_score(values.sum(0).numpy(), stat["stat_card_value_by_position"]) < LIMIT
    current = torch.bincount(state.current, minlength=10).numpy()
    assert golden.normal_score(current, stat["stat_initial_current_card"]) < LIMIT
    same = (state.cards[:, :, None] == state.cards[:, None]).sum(0).numpy()
    upper = np.triu_indices(10, 1)
    assert golden.normal_score(same[upper], stat["stat_same_value_pairs"][upper]) < LIMIT


def test_the_score_sees_a_wrong_distribution():
    assert golden.normal_score([600, 400], [500, 500]) > LIMIT
