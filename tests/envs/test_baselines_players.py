"""The best players known: what they reach is what was promised, and no more than can be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from own_worlds import Cue
from run_folders import error_of
from test_baselines import apart
from world_keywords import DATA

from envs.baselines import bounds, players, search, tabular
from envs.baselines.bounds import Budget, bounds_of
from envs.registry import make_world
from envs.worlds.pomdp import read_pomdp

TIGER = read_pomdp(DATA / "pomdp" / "tiger.pomdp")
BUDGET = Budget(episodes=200, seed=0, gap=0.01, size=300)

HEAD = "discount: 0.9 values: reward observations: o O: * uniform "
# Waiting pays 1 in every step, cashing pays 10 once: whoever waits till the end and cashes last gets most.
CASH = """states: alive broke actions: wait cash start: alive
T: wait identity
T: cash : * : broke 1
R: wait : alive : * : * 1
R: cash : alive : * : * 10"""
# The gamble pays more on average, what is safe always pays.
GAMBLE = """states: a b actions: gamble safe start: uniform
T: * : * reset
R: gamble : a : * : * 10
R: gamble : b : * : * -1
R: safe : * : * : * 1"""
# Every step costs 1 until the goal: with few left, going is worth no more than staying.
WAY = """states: s0 s1 s2 goal actions: stay go start: s0
T: stay identity
T: go : s0 : s1 1.0
T: go : s1 : s2 1.0
T: go : s2 : goal 1.0
T: * : goal reset
R: * : s0 : * : * -1
R: * : s1 : * : * -1
R: * : s2 : * : * -1"""
THIRDS = f"states: 3 actions: 1 T: 0 {'0.333333 ' * 9} R: 0 : * : * : * 1"


def by_force(world, horizon):
    """The greatest expected return from all initial states, by trying every action after everything seen."""
    draws = world.initial_draws()

    def value(state, steps):
        if steps == 0 or len(state.steps) == 0:
            return 0.0
        return max(after(state, action, steps) for action in range(world.num_actions))

    def after(state, action, steps):
        actions = torch.full((len(state.steps),), action)
        state, seen, reward, ended, _ = world.step(state, actions, torch.empty(len(actions), 0))
        total = float(reward.sum())
        for look in torch.unique(seen[~ended], dim=0):
            total += value(search._pick(state, np.flatnonzero((~ended & (seen == look).all(1)).numpy())), steps - 1)
        return total

    start = world.reset(draws)
    looks = torch.unique(start.observation, dim=0)
    parts = [np.flatnonzero((start.observation == look).all(1).numpy()) for look in looks]
    return sum(value(search._pick(start, part), horizon) for part in parts) / len(draws)


def test_the_search_among_beliefs_is_that_of_brute_force():
    world = make_world("Gridverse/Memory-5x5-v0")
    graph = search.explore_states(world)
    assert search.find_plan(graph, 3).value == pytest.approx(by_force(world, 3), abs=1e-12)
    assert search.find_plan(graph, 2).value == pytest.approx(by_force(world, 2), abs=1e-12)


@pytest.mark.parametrize(("size", "steps"), [(5, 3), (7, 11)])
def test_the_plan_keeps_its_promise(size, steps):
    found = bounds_of(make_world(f"Gridverse/Memory-{size}x{size}-v0"), BUDGET).lower
    assert found == bounds.exact_level(1.0, pytest.approx(5 - 0.05 * steps, abs=1e-9), bounds.BELIEF_OPTIMAL)
    signposts = bounds_of(make_world("POMDP/CarFlag-v0"), BUDGET)
    assert signposts.lower == signposts.upper == bounds.exact_level(1.0, 1.0, bounds.EXACT)


@pytest.mark.parametrize("id", ["POMDP/CarFlag-v0", "Pixel/BlinkingCatch-v0"])
def test_a_bound_that_no_player_reaches_is_not_called_exact(id):
    found = bounds_of(make_world(id, time_limit=3), BUDGET)
    assert found.lower.success.mean < found.upper.success.mean
    assert bounds.EXACT not in (found.lower.kind, found.upper.kind)


def test_the_value_of_tiger():
    found = tabular.bound_value(tabular.Model.of(TIGER), gap=0.01)
    assert found.lower <= 19.3714 + 1e-4 and found.upper >= 19.3713 - 1e-4
    assert 0 <= found.upper - found.lower <= 0.01


def test_heaven_hell_takes_fifteen_steps():
    world = make_world("POMDP/HeavenHell-v0")
    described = tabular.Model.of(world.tables)
    found = tabular.bound_value(described, gap=1e-6)
    assert found.lower == pytest.approx(0.99**14) and found.upper == pytest.approx(0.99**14)
    player = tabular.belief_player(described, found)
    outcomes = players.play_episodes(world, player, 50, 0)
    assert outcomes.success.all() and (outcomes.lengths == 15).all() and (outcomes.returns == 1.0).all()
    assert search.plan_outcomes(world, search.find_plan(search.explore_states(world), 250)).success.all()


@pytest.mark.long
def test_the_bounds_of_hallway_enclose_what_its_policy_gets():
    world = make_world("POMDP/Hallway-v0")
    described = tabular.Model.of(world.tables)
    found = tabular.bound_value(described, gap=0.01, size=700)
    outcomes = players.play_episodes(world, tabular.belief_player(described, found), 1_000, 0)
    # The goal is reached one step before the end, and pays in that step.
    paid = players.mean_with_error(torch.where(outcomes.success, 0.95 ** (outcomes.lengths - 2).double(), 0.0))
    assert found.lower - 4 * paid.error < paid.mean < found.upper + 4 * paid.error
    assert found.upper - found.lower < 0.1 and outcomes.success.double().mean() > 0.97
    assert tabular.full_state(described, 250) >= float(outcomes.returns.mean())


def test_the_upper_bound_is_above_the_lower_everywhere():
    described = tabular.Model.of(make_world("POMDP/Hallway-v0").tables)
    lower, upper = tabular.Lower(described), tabular.Upper(described)
    for _ in range(2):
        tabular._trial(described, lower, upper, 0.01)
    beliefs = np.concatenate([np.random.default_rng(0).dirichlet(np.full(60, 0.05), 200), upper.points])
    planes = (beliefs @ upper.planes.T).max(1)
    assert (upper(beliefs) >= lower(beliefs)).all()
    assert (upper(beliefs) <= planes + 1e-12).all()
    assert (upper(upper.points) < planes[200:] - 1e-9).all()  # the sawtooth is felt
    assert upper(3.0 * beliefs) == pytest.approx(3.0 * upper(beliefs))


def file_world(tmp_path, text, head=HEAD, **kwargs):
    path = tmp_path / "world.pomdp"
    path.write_text(head + text)
    return make_world("POMDP/File-v0", path=str(path), **kwargs)


@pytest.mark.parametrize("limit", [1, 2, 3, 250])
def test_a_plan_knows_how_many_steps_are_left(tmp_path, limit):
    found = bounds_of(file_world(tmp_path, CASH, time_limit=limit), BUDGET)
    assert found.lower.returns.mean == found.upper.returns.mean == limit - 1 + 10


@pytest.mark.parametrize(("limit", "discount"), [(2, 0.9), (3, 0.9), (4, 0.9), (250, 0.9), (250, 1.0)])
def test_a_plan_goes_the_whole_way_where_steps_cost(tmp_path, limit, discount):
    head = HEAD.replace("0.9", str(discount))
    found = bounds_of(file_world(tmp_path, WAY, head, time_limit=limit), BUDGET)
    assert found.lower.returns.mean == found.upper.returns.mean == -min(limit, 3)


def test_the_most_paying_plan_bounds_no_success(tmp_path):
    found = bounds_of(file_world(tmp_path, GAMBLE), BUDGET)
    assert (found.lower.success.mean, found.lower.returns.mean) == (0.5, 4.5)
    assert (found.upper.success.mean, found.upper.returns.mean) == (1.0, 4.5)
    assert found.upper.kind == "return belief-optimal, success at most 1"


def test_chances_that_a_file_rounds_are_no_deaths(tmp_path):
    thirds = file_world(tmp_path, THIRDS, time_limit=250)
    described = tabular.Model.of(thirds.tables)
    assert tabular.full_state(described, 250) == pytest.approx(250, abs=1e-9)
    assert np.allclose(tabular.blind(described), 10, atol=1e-9, rtol=0)
    found = bounds_of(thirds, BUDGET)
    assert found.lower.returns.mean <= found.upper.returns.mean + 1e-9


def test_a_success_of_another_rule_is_refused(tmp_path):
    choosy = file_world(tmp_path, GAMBLE)
    graph = search.explore_states(choosy)
    assert (graph.verdict == search.PAID).all() and graph.follower.max() == -1
    plain = choosy.step

    def step(state, action, u):
        after, observation, reward, terminated, _ = plain(state, action, u)
        return after, observation, reward, terminated, terminated & (after.returns > 2.0)

    choosy.step = step
    assert "depends on the return, but not on its sign" in error_of(search.explore_states, choosy)


def test_seeing_the_state_is_never_worse_than_standing_still():
    for limit in (1, 8, 500):
        found = bounds_of(make_world("Gridverse/Memory-FourRooms-7x7-v0", time_limit=limit), BUDGET)
        assert found.upper.returns.mean >= -0.05 * limit - 1e-9


class Timed(Cue):
    """Say falsely that a state without its step tells what follows."""

    def initial_draws(self):
        return torch.tensor([[0.25], [0.75]], dtype=torch.float64)


def test_what_cannot_be_bounded_is_refused():
    endless, rooms = replace(TIGER, discount=1.0), make_world("Gridverse/Yaml-v0", path="memory_four_rooms.7x7")
    for refused, words in (
        (lambda: tabular.Model.of(endless), "discount above 0 and below 1, not 1.0"),
        (
            lambda: search.explore_states(make_world("POMDP/CarFlag-v0")),
            "CarFlag is not deterministic with a list of initial",
        ),
        (lambda: bounds_of(rooms, BUDGET), "No player is known for such rooms"),
        (lambda: search.explore_states(Timed()), "The dynamics of Timed depend on the step"),
    ):
        assert words in error_of(refused)


def test_the_full_state_player_takes_the_shortest_way():
    outcomes = players.way_out(make_world("Gridverse/Memory-FourRooms-13x13-v0"), 3_000, 0)
    lengths = players.mean_with_error(outcomes.lengths[outcomes.success])
    assert abs(lengths.mean - 9.0) < 0.05 + 4 * lengths.error  # the originals' mean, to one decimal
    small = players.way_out(make_world("Gridverse/Memory-FourRooms-7x7-v0"), 4_000, 0)
    assert apart(float((~small.success).double().mean()), 4_000, 0.0146, 10_000) < 4  # resets nobody can win
