"""Recorded steps of the originals are reproduced without a difference, and resets have their distributions."""

import golden_traces as golden
import numpy as np
import pytest
import torch

from envs.registry import make_world

CASES = [  # an id, its keywords, the trace, and how to begin it
    ("POMDP/CarFlag-v0", {}, "car_flag", golden.car_flag),
    ("POMDP/MemoryCards-v0", {}, "memory_cards", golden.memory_cards),
    ("POMDP/Hallway-v0", {"time_limit": 251}, "hallway", golden.tabular),
    ("POMDP/HeavenHell-v0", {"time_limit": 251}, "heavenhell_3", golden.tabular),
]


@pytest.mark.parametrize(("id", "kwargs", "name", "begin"), CASES)
def test_recorded_episodes_have_no_difference(id, kwargs, name, begin):
    world, trace = make_world(id, **kwargs), golden.load(name)
    state, draws = begin(world, trace)
    ours, last = golden.replay(world, state, trace, draws), trace["ep_start"][1:] - 1
    assert np.array_equal(state.observation.numpy().squeeze(), trace["init_obs"])
    assert np.array_equal(ours["index"], np.arange(len(trace["action"])))
    ours["state_after"] = np.where(ours["terminated"], -1, ours.get("hidden", 0))
    names = {"observation": "obs", "success": "is_success"}
    for key in ("observation", "terminated", "truncated", "success", "state_after"):
        theirs = trace.get(names.get(key, key))
        assert theirs is None or np.array_equal(ours[key].squeeze(), theirs), key
    assert ours["reward"].tobytes() == trace["reward"].tobytes()  # to the last bit
    assert np.array_equal(ours["returns"][last], trace["ep_return"])
    ended = trace.get("ep_ended", np.ones(len(last), bool))
    assert np.array_equal(ours["success"][last][ended], trace["ep_success_dtqn"][ended])
    assert not ours["success"][~ours["terminated"]].any()


# Initial states, against 5,000 resets of the originals

RESETS, LIMIT = 20_000, 4.0  # a score beyond 4 has a chance of about 1 in 10,000


def reset(id, seed=0):
    world = make_world(id)
    generator = torch.Generator().manual_seed(seed)
    return world, world.reset(torch.rand(RESETS, world.reset_draws, dtype=torch.float64, generator=generator))


def test_resets_of_car_flag():
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


def test_resets_of_memory_cards():
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
