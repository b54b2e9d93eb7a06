"""Every recorded step of the original environments is reproduced without a difference."""

import golden_traces as golden
import numpy as np
import pytest
import torch

from envs.registry import make_world

CASES = [
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
