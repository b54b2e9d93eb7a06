"""Blinking Catch: its rules, its pictures, and what remembering is worth."""

import itertools

import numpy as np
import pytest
import torch
import traces
from catch_rules import Rule, by_rule, memoryless
from hypothesis import given, settings
from hypothesis import strategies as st
from world_keywords import uniforms

from envs.baselines import players
from envs.baselines.bounds import Budget, bounds_of
from envs.baselines.players import play_episodes, random_player
from envs.registry import make_world
from envs.worlds.catch import BALL, PADDLE, BlinkingCatch

NONE = torch.empty(1, 0, dtype=torch.float64)


def start(world, columns):
    """One episode whose balls fall in these columns."""
    return world.reset((torch.tensor([columns], dtype=torch.float64) + 0.5) / world.grid)


def walk(world, state, actions):
    """Rewards, and whether each step terminated, of a list of actions."""
    steps = []
    for action in actions:
        state, _, reward, terminated, success = world.step(state, torch.tensor([action]), NONE)
        steps.append((float(reward), bool(terminated), bool(success)))
    return state, steps


def test_a_ball_lands_on_the_paddle_or_beside_it():
    world = BlinkingCatch(grid=4, balls=3)
    state, steps = walk(world, start(world, [2, 0, 3]), [1, 1, 1, 0, 0, 1, 2, 2, 1])  # 2; 2 -> 0; 0 -> 2
    rewards, terminated, success = zip(*steps, strict=True)
    assert rewards == (0, 0, 1, 0, 0, 1, 0, 0, -1) and float(state.returns) == 1
    assert terminated == (False,) * 8 + (True,) and not any(success)
    for action, column in ((0, 0), (2, 3)):  # the paddle stops at the walls
        assert int(walk(world, start(world, [0] * 3), [action] * 9)[0].paddle) == column


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(16, 50), grid=st.integers(3, 8), blink=st.integers(1, 5), balls=st.integers(1, 3), data=st.data()
)
def test_pictures_show_the_paddle_always_and_the_ball_on_schedule(size, grid, blink, balls, data):
    world = BlinkingCatch(size, grid, balls, blink)
    columns = data.draw(st.lists(st.integers(0, grid - 1), min_size=balls, max_size=balls))
    state = start(world, columns)
    for step in range(balls * (grid - 1) + 1):
        ball, row = divmod(step, grid - 1)
        paddle, *seen = (int(each) for each in players.read_picture(world, state.observation))
        shown = ball < balls and row % blink == 0
        assert seen == ([row, columns[ball]] if shown else [-1, -1])
        assert paddle == int(state.paddle)
        expected = painted(world, (row, columns[ball]) if shown else None, (grid - 1, paddle))
        assert np.array_equal(state.observation[0].numpy(), expected)
        state, _ = walk(world, state, [data.draw(st.integers(0, 2))])


def painted(world, ball, paddle):
    """The picture, pixel by pixel: a pixel belongs to the cell that has its place on the grid."""
    picture = np.zeros((3, world.size, world.size), np.uint8)
    cells = [max(c for c in range(world.grid) if c * world.size // world.grid <= at) for at in range(world.size)]
    for (y, row), (x, column) in itertools.product(enumerate(cells), repeat=2):
        if (cell := (row, column)) in (ball, paddle):
            picture[:, y, x] = BALL if cell == ball else PADDLE
    return picture


@pytest.mark.parametrize(("keywords", "limit"), [({}, 500), ({"grid": 16, "balls": 40}, 600), ({"time_limit": 9}, 9)])
def test_all_balls_have_time_to_fall(keywords, limit):
    assert BlinkingCatch(**keywords).time_limit == limit


def test_columns_are_uniform():
    world = BlinkingCatch()
    counts = torch.bincount(world.reset(uniforms(4_000, 10)).columns.flatten(), minlength=8).numpy()
    assert traces.normal_score(counts, np.full(8, traces.ENDLESS)) < traces.LIMIT
    assert world.reset(torch.full((1, 10), 1 - 2**-53, dtype=torch.float64)).columns.max() == 7


@pytest.mark.parametrize(("grid", "blink"), [(8, 4), (5, 99), (3, 1), (16, 15)])
def test_who_remembers_catches_every_ball(grid, blink):
    world = BlinkingCatch(32, grid, 4, blink)
    outcomes = play_episodes(world, players.catcher(world), 300, 0)
    assert outcomes.success.all() and (outcomes.returns == 4).all() and (outcomes.lengths == 4 * (grid - 1)).all()
    assert bounds_of(world, Budget(50, 0, 0.0, 0)).lower.returns.mean == 4


def test_players_are_worth_what_the_docstring_says():
    """The bound of the fixed rule is reached by itself, so it is the best one's value."""
    world = make_world("Pixel/BlinkingCatch-v0", size=8)
    rule = memoryless(world)
    assert rule.bound == pytest.approx(4.26, abs=0.005)
    assert memoryless(BlinkingCatch(8, 4, 3, blink=1)).bound == 3  # a ball that is always seen needs no memory
    towards = np.broadcast_to(np.sign(np.arange(8) - np.arange(8)[:, None]), (8, 8, 8)).copy()
    following = by_rule(world, Rule(np.zeros(8, np.int64), towards, 0.0))
    players_of = {-7.5: random_player(world, 1), rule.bound: by_rule(world, rule), 1.79: following}
    for worth, player in players_of.items():
        returns = play_episodes(world, player, 4_000, 2).returns
        assert float(returns.mean()) == pytest.approx(worth, abs=4 * float(returns.std()) / 4_000**0.5)


def test_the_text_and_the_frame_tell_where_an_unseen_ball_is():
    world = BlinkingCatch(8, 4, 2, blink=2)
    state = start(world, [3, 0])
    assert world.text(state, 0).splitlines() == ["...o", "....", "....", "..=.", "ball 1 of 2, return +0"]
    state, _ = walk(world, state, [0])
    assert world.text(state, 0).splitlines()[:4] == ["....", "...x", "....", ".=.."]
    assert world.frame(state, 0)[64, -1].tolist() != [0, 0, 0]
    assert state.observation[0, :, 2, -1].tolist() == [0, 0, 0]
