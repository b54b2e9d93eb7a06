"""Pair Recall: what it shows and pays, and players who reach its reference lines."""

import pytest
import torch
from run_folders import error_of
from scipy.stats import chisquare

from envs.baselines.best import Budget
from envs.baselines.bounds import bounds_of
from envs.baselines.players import mean_with_error, play_episodes
from envs.registry import make_world

EPISODES = 4_000
RARE = 1e-5  # probability at which a test of chances fails
SIZES = pytest.mark.parametrize("pairs", [2, 3, 8, 32])


def world(pairs):
    return make_world("Ladder/bind-8-v0", pairs=pairs)


def seen(pairs, act=lambda observation, running: observation[:, 2]):
    """All observations (N, 2 pairs, 3) but the last of an episode each, and the outcomes."""
    shown = []

    def player(observation, running):
        shown.append(observation)
        return act(observation, running)

    outcomes = play_episodes(world(pairs), player, EPISODES, 0)
    return torch.stack(shown, 1), outcomes


@SIZES
def test_every_key_is_shown_once_and_then_asked_for_once(pairs):
    shown, outcomes = seen(pairs)
    phase, key, value = shown.unbind(2)
    assert (phase == torch.arange(2 * pairs) // pairs).all() and (outcomes.lengths == 2 * pairs).all()
    for half in (key[:, :pairs], key[:, pairs:]):
        assert (half.sort(1).values == torch.arange(pairs)).all()
    assert not value[:, pairs:].any()
    counts = torch.nn.functional.one_hot(value[:, :pairs], 4).sum(1)
    assert counts.max() <= -(-pairs // 4)


def test_orders_and_values_tell_nothing_of_each_other():
    shown, _ = seen(4)
    first, asked = shown[:, 0], shown[:, 4]
    table = torch.bincount(16 * first[:, 1] + 4 * first[:, 2] + asked[:, 1], minlength=64)
    assert chisquare(table).pvalue > RARE


@SIZES
def test_a_perfect_memory_gets_1_and_the_state_tells_as_much(pairs):
    known = torch.zeros(EPISODES, pairs, dtype=torch.long)

    def remember(observation, running):
        asks, key, value = observation.T
        known[asks == 0, key[asks == 0]] = value[asks == 0]
        return known.gather(1, key[:, None])[:, 0]

    def look(observation, running):
        return observation[:, pairs : 2 * pairs].gather(1, observation[:, -2:-1])[:, 0]

    world = make_world("Ladder/bind-8-v0", pairs=pairs, observe="state")
    for outcomes in (seen(pairs, remember)[1], play_episodes(world, look, EPISODES, 0)):
        assert torch.allclose(outcomes.returns, torch.ones(EPISODES).double())


def keeper():
    """Keep the value of key 0 in the action, one off until it is asked for, and be one off again afterwards."""
    before = last = None

    def act(observation, running):
        nonlocal before, last
        asks, key, value = observation.T
        if before is None:
            before, last = torch.ones_like(observation), value
        answered = (before[:, 0] == 1) & (before[:, 1] == 0) & (asks == 1)
        last = torch.where((asks == 1) & (key == 0), last - 1, last + answered.long()) % 4
        last = torch.where((asks == 0) & (key == 0), (value + 1) % 4, last)
        before = observation
        return last

    return act


@SIZES
def test_lines_are_reached_by_players_with_so_much_memory(pairs):
    best = bounds_of(world(pairs), Budget())
    for name, act in (("observation", lambda observation, running: observation[:, 1] % 4), ("one step", keeper())):
        returns = mean_with_error(seen(pairs, act)[1].returns)
        assert abs(returns.mean - best.lines[name].returns.mean) < 4 * returns.error + 1e-9, name
    assert best.lines["clock"].returns == best.lines["observation"].returns
    assert best.lower.returns.mean == best.upper.returns.mean == 1.0


@pytest.mark.parametrize("pairs", [1, 1001])
def test_a_wrong_number_of_pairs_is_told(pairs):
    assert f"must be from 2 to 1000, not {pairs}" in error_of(make_world, "Ladder/bind-8-v0", pairs=pairs)
