"""Recorded steps of the originals are reproduced without a difference, and resets have their distributions."""

import numpy as np
import pytest
import torch
import traces
from world_keywords import build, uniforms

LIMIT = traces.LIMIT


@pytest.mark.parametrize(("id", "kwargs", "name", "begin"), [
    ("POMDP/CarFlag-v0", {}, "car_flag", traces.car_flag),
    ("POMDP/MemoryCards-v0", {}, "memory_cards", traces.memory_cards),
    ("POMDP/Hallway-v0", {"time_limit": 251}, "hallway", traces.tabular),
    ("POMDP/HeavenHell-v0", {"time_limit": 251}, "heavenhell_3", traces.tabular),
])  # fmt: skip
def test_recorded_episodes_have_no_difference(id, kwargs, name, begin):
    trace, ours = traces.check_replay(build(id, **kwargs), name, begin)
    if begin is traces.tabular:
        assert np.array_equal(np.where(ours["terminated"], -1, ours["hidden"]), trace["state_after"])


def reset(id):
    """Initial states, to be compared with 5,000 resets of the originals."""
    world = build(id)
    return world, world.reset(uniforms(20_000, world.reset_draws))


def test_resets_of_car_flag():
    world, state = reset("POMDP/CarFlag-v0")
    stat = traces.load("car_flag")
    right = state.heaven > 0
    sides = [int(right.sum()), int((~right).sum())]
    assert traces.normal_score(sides, stat["stat_heaven_plus_minus"]) < LIMIT
    for key, chosen in (("stat_pos_hist40", right | True), ("stat_pos_hist_given_heaven_plus", right)):
        histogram, _ = np.histogram(state.position[chosen].numpy(), 40, (-0.2, 0.2))
        assert histogram.sum() == chosen.sum()
        assert traces.normal_score(histogram, stat[key]) < LIMIT, key
    assert not state.velocity.any()
    assert world.initial_draws() is None


def test_resets_of_memory_cards():
    state = reset("POMDP/MemoryCards-v0")[1]
    stat = traces.load("memory_cards")
    values = torch.nn.functional.one_hot(state.cards, 6)
    assert (values.sum(1)[:, 1:] == 2).all()
    assert traces.normal_score(values.sum(0).numpy(), stat["stat_card_value_by_position"]) < LIMIT
    current = torch.bincount(state.current, minlength=10).numpy()
    assert traces.normal_score(current, stat["stat_initial_current_card"]) < LIMIT
    same = (state.cards[:, :, None] == state.cards[:, None]).sum(0).numpy()
    upper = np.triu_indices(10, 1)
    assert traces.normal_score(same[upper], stat["stat_same_value_pairs"][upper]) < LIMIT


def test_the_score_sees_a_wrong_distribution():
    assert traces.normal_score([600, 400], [500, 500]) > LIMIT
    assert traces.normal_score([600, 400], np.array([0.5, 0.5]) * traces.ENDLESS) > LIMIT
