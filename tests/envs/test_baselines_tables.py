"""Exact players and bounds on small tabular worlds, whose optimum can be told by hand."""

import numpy as np
import pytest

from envs.baselines import search, tabular
from envs.baselines.bounds import Budget, best
from envs.errors import UserError
from envs.registry import make_world

BUDGET = Budget(episodes=200, scripted=20, seed=0, gap=0.01, size=300)

# Waiting pays 1 in every step, cashing pays 10 once: whoever waits till the end and cashes last gets most.
CASH = """
discount: 0.9
values: reward
states: alive broke
actions: wait cash
observations: o
start: alive
T: wait identity
T: cash : * : broke 1
O: * uniform
R: wait : alive : * : * 1
R: cash : alive : * : * 10
"""
# The gamble pays more on average, what is safe always pays.
GAMBLE = """
discount: 0.9
values: reward
states: a b
actions: gamble safe
observations: o
start: uniform
T: * : * reset
O: * uniform
R: gamble : a : * : * 10
R: gamble : b : * : * -1
R: safe : * : * : * 1
"""
THIRDS = """
discount: 0.9
values: reward
states: 3
actions: 1
observations: 3
T: 0
0.333333 0.333333 0.333333
0.333333 0.333333 0.333333
0.333333 0.333333 0.333333
O: 0 uniform
R: 0 : * : * : * 1
"""


def world(tmp_path, text, **kwargs):
    path = tmp_path / "world.pomdp"
    path.write_text(text)
    return make_world("POMDP/File-v0", path=str(path), **kwargs)


@pytest.mark.parametrize("limit", [1, 2, 3, 250])
def test_a_plan_knows_how_many_steps_are_left(tmp_path, limit):
    known = best(world(tmp_path, CASH, time_limit=limit), BUDGET)
    assert known.lower.returns.mean == known.upper.returns.mean == limit - 1 + 10


def test_the_most_paying_plan_bounds_no_success(tmp_path):
    known = best(world(tmp_path, GAMBLE), BUDGET)
    assert (known.lower.success.mean, known.lower.returns.mean) == (0.5, 4.5)
    assert (known.upper.success.mean, known.upper.returns.mean) == (1.0, 4.5)
    assert known.upper.kind == "return belief-optimal, success at most 1"


def test_chances_that_a_file_rounds_are_no_deaths(tmp_path):
    thirds = world(tmp_path, THIRDS, time_limit=250)
    described = tabular.Model.of(thirds.tables)
    assert tabular.full_state(described, 250) == pytest.approx(250, abs=1e-9)
    assert np.allclose(tabular.blind(described), 10, atol=1e-9, rtol=0)
    known = best(thirds, BUDGET)
    assert known.lower.returns.mean <= known.upper.returns.mean + 1e-9


def test_a_verdict_says_whether_the_return_so_far_matters(tmp_path):
    graph = search.explore(world(tmp_path, GAMBLE))
    assert (graph.verdict == search.PAID).all() and graph.follower.max() == -1
    graph = search.explore(make_world("Gridverse/Memory-5x5-v0"))
    assert set(graph.verdict[graph.follower < 0]) == {search.PAID}


def test_a_success_of_another_rule_is_refused(tmp_path):
    choosy = world(tmp_path, GAMBLE)
    plain = choosy.step

    def step(state, action, u):
        after, observation, reward, terminated, _ = plain(state, action, u)
        return after, observation, reward, terminated, terminated & (after.returns > 2.0)

    choosy.step = step
    with pytest.raises(UserError, match="depends on the return, but not on its sign"):
        search.explore(choosy)


def test_players_of_rooms_know_no_files():
    with pytest.raises(UserError, match="know the registered worlds only, not Yaml"):
        best(make_world("Gridverse/Yaml-v0", path="memory_four_rooms.7x7"), BUDGET)


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 500])
def test_seeing_the_state_is_never_worse_than_standing_still(limit):
    rooms = make_world("Gridverse/Memory-FourRooms-7x7-v0", time_limit=limit)
    known = best(rooms, BUDGET)
    assert known.upper.returns.mean >= -0.05 * limit - 1e-9
    assert known.upper.returns.mean >= known.lower.returns.mean - 4 * known.lower.returns.error - 1e-9
