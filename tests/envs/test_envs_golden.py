"""Recorded steps of the originals are reproduced without a difference, and resets have their distributions."""

import golden_traces as golden
import numpy as np
import pytest
import torch

from envs.registry import make_world

CASES = [
    ("POMDP/CarFlag-v0", "car_flag", golden.car_state),
    ("POMDP/MemoryCards-v0", "memory_cards", golden.card_state),
]


@pytest.mark.parametrize(("id", "name", "initial"), CASES)
def test_recorded_episodes_have_no_difference(id, name, initial):
    world, trace = make_world(id), golden.load(name)
    rows = len(trace["action"])
    draws = golden.card_draws(trace) if name == "memory_cards" else torch.zeros(rows, world.step_draws)
    state = initial(world, trace)
    ours = golden.replay(world, state, trace, draws)
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
