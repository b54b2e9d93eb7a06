"""Which steps are random, for how long, and where in an episode."""

import pytest
import torch

from dqn_memory.exploration import ExplorationConfig, Explorer

WORLDS, ACTIONS, GREEDY = 400, 5, 5  # the greedy action is none of the random ones


def explore(config, steps, length=None, seed=1):
    """Whether each step of each world was random, (T, N); episodes of `length` steps."""
    explorer = Explorer(config, WORLDS, ACTIONS, torch.Generator().manual_seed(seed))
    greedy = torch.full((WORLDS,), GREEDY)
    taken = []
    for time in range(steps):
        first = torch.full((WORLDS,), length is not None and time % length == 0)
        action, random = explorer.choose(greedy, explorer.epsilon(time * WORLDS), first)
        assert torch.equal(random, action != GREEDY)
        taken.append(action)
    return torch.stack(taken)


def constant(epsilon, **more):
    return ExplorationConfig(epsilon_start=epsilon, epsilon_end=epsilon, **more)


@pytest.mark.parametrize("hold", [0.0, 2.0])
def test_the_share_of_random_steps_is_epsilon_however_long_they_are_held(hold):
    actions = explore(constant(0.3, sticky_exponent=hold, sticky_max_steps=8), 400)[50:]
    assert ((actions != GREEDY).float().mean() - 0.3).abs() < 0.01


def test_a_held_action_is_repeated():
    same = {hold: explore(constant(0.5, sticky_exponent=hold, sticky_max_steps=8), 300) for hold in (0.0, 2.0)}
    repeats = {
        hold: ((a[1:] == a[:-1]) & (a[1:] != GREEDY)).sum() / (a[1:] != GREEDY).sum() for hold, a in same.items()
    }
    assert repeats[2.0] > 2 * repeats[0.0]


def test_worlds_are_spread_from_epsilon_to_its_power():
    random = (explore(constant(0.5, epsilon_ladder=3.0), 2000) != GREEDY).float().mean(0)
    assert abs(random[:20].mean() - 0.5) < 0.05 and abs(random[-20:].mean() - 0.5**4) < 0.02


def test_prepopulation_is_random_alone():
    config = ExplorationConfig(prepopulate=10 * WORLDS, epsilon_start=0.0, epsilon_end=0.0)
    actions = explore(config, 20)
    assert (actions[:10] != GREEDY).all() and (actions[10:] == GREEDY).all()


def test_a_lead_is_a_uniform_number_of_random_steps_at_the_start_of_an_episode():
    actions = explore(constant(0.0, random_start_steps=6), 10, length=10)
    random = actions != GREEDY
    assert (random.long().diff(dim=0) <= 0).all()  # once greedy, always greedy
    counts = torch.bincount(random.sum(0), minlength=7)
    assert len(counts) == 7 and (counts > 30).all()
    again = explore(constant(0.0, random_start_steps=6), 30, length=10) != GREEDY
    assert again[10:16].any(0).float().mean() > 0.7 and not again[16:20].any()


def test_a_lead_ends_on_time_also_where_actions_are_held():
    random = explore(constant(0.0, random_start_steps=3, sticky_exponent=2.0), 10, length=10) != GREEDY
    assert random.sum(0).max() == 3 and (torch.bincount(random.sum(0)) > 60).all()


@pytest.mark.parametrize(("schedule", "step", "share"), [
    ("linear", 0, 1), ("linear", 25, 0.75), ("linear", 100, 0), ("linear", 1000, 0),
    ("exponential", 0, 1), ("exponential", 1, 0.99), ("exponential", 100, 0.99**100),
])  # fmt: skip
def test_epsilon_falls_from_its_first_to_its_last_value_and_stays_there(schedule, step, share):
    config = ExplorationConfig(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100, epsilon_schedule=schedule)
    assert config.epsilon(step) == pytest.approx(0.1 + 0.8 * share)


def test_the_ladder_ends_at_its_exponent_and_durations_at_the_longest():
    config = constant(0.5, epsilon_ladder=3.0, sticky_exponent=2.0, sticky_max_steps=3)  # of chances 36, 9, 4 / 49
    explorer = Explorer(config, 4, ACTIONS, torch.Generator())
    assert explorer.exponent.tolist() == pytest.approx([1, 2, 3, 4])
    assert explorer.survival.tolist() == pytest.approx([4 / 49, 13 / 49])
    assert explorer.mean_duration == pytest.approx((36 + 2 * 9 + 3 * 4) / 49)
