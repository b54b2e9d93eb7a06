"""Policies without a memory: searches find known best ones, exactly and by playing."""

from dataclasses import dataclass, replace

import gymnasium
import numpy as np
import pytest
import torch
from catch_rules import memoryless
from gymnasium.spaces import Box, Dict, Discrete
from own_worlds import spoiled
from run_folders import error_of
from torch import Tensor

from envs.baselines.players import finish
from envs.baselines.search import explore_states
from envs.core import State, World
from envs.memoryless import BINS, Args, ExactGame, SampledGame, as_policy, identifier, main, make_game, search_measures
from envs.registry import make_world
from envs.tables import read_tables

ARGS = Args("any", restarts=4, sweeps=6, patience=2, updates=150, seed=0)
SUCCESS, RETURN = 0, 1


@dataclass
class Road(State):
    """Where a driver stands: the first or the second exit."""

    place: Tensor


class Driver(World[Road]):
    """Piccione and Rubinstein's absent-minded driver, to whom both exits look alike: 0 at the first, 4 at the second, 1
    behind it. Always going on gives 1, going on with chance 2/3 gives 4/3."""

    num_actions, reset_draws, step_draws = 2, 1, 0
    observation_space = gymnasium.spaces.MultiDiscrete([1])
    listed = True

    def reset(self, u):
        steps, returns = self.counters(len(u))
        return Road(torch.zeros(len(u), 1, dtype=torch.int64), steps, returns, torch.zeros_like(steps))

    def step(self, state, action, u):
        reward = torch.where(action == 1, (state.place == 1).double(), 4.0 * state.place)
        terminated = (action == 0) | (state.place == 1)
        after = Road(state.observation, state.steps + 1, state.returns + reward, state.place + 1)
        return after, state.observation, reward, terminated, reward == 4

    def initial_draws(self):
        return torch.zeros(1, 1, dtype=torch.float64) if self.listed else None

    def frame(self, state, row): ...

    def text(self, state, row): ...


class Cue(Driver):
    """A cue of two, then a choice that must match it; at the choice the cue is `seen` or not."""

    def __init__(self, seen):
        super().__init__(time_limit=10)
        self.seen = seen
        self.observation_space = gymnasium.spaces.MultiDiscrete([3])

    def reset(self, u):
        side, (steps, returns) = (u[:, 0] >= 0.5).long(), self.counters(len(u))
        return Road(side[:, None], steps, returns, side)  # place: the side, and 2 more at the choice

    def step(self, state, action, u):
        choosing, side = state.place >= 2, state.place % 2
        won = choosing & (action == side)
        observation = side[:, None] if self.seen else torch.full_like(state.observation, 2)
        after = Road(observation, state.steps + 1, state.returns + won.double(), side + 2)
        return after, observation, won.double(), choosing, won

    def initial_draws(self):
        return torch.tensor([[0.25], [0.75]], dtype=torch.float64) if self.listed else None


@pytest.mark.parametrize(("seen", "best"), [(True, 1.0), (False, 0.5)])
def test_a_cue_that_is_gone_is_lost_on_a_table(seen, best):
    world = Cue(seen)
    game = make_game(world, 50, 0, 500)
    assert isinstance(game, ExactGame) and game.exact and game.observations == (2 if seen else 3)
    row = search_measures(game, ARGS)[SUCCESS]
    assert row["table_success"] == row["table_return"] == best and row["reached"] == 4
    assert row["stochastic_success"] == row["stochastic_return"] == pytest.approx(best, abs=0.02)


def test_chances_can_be_worth_more_than_the_best_action_and_playing_agrees_with_following():
    row = search_measures(make_game(Driver(10), 1, 0, 1), ARGS)[RETURN]
    assert (row["table_success"], row["table_return"]) == (0, 1)
    assert row["stochastic_return"] == pytest.approx(4 / 3, abs=1e-3)
    world = Driver(10)
    world.listed = False
    played, followed = SampledGame(world, 400, 0, 20_000), make_game(Driver(10), 1, 0, 1)
    assert played.observations == followed.observations + 1  # one for what was never met
    chances = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
    both = chances.expand(2, 2)
    torch.testing.assert_close(played.judge(both), followed.judge(chances), atol=0.05, rtol=0)
    tables = torch.tensor([[0], [1]])
    assert played.score(torch.cat((tables, tables), 1)).tolist() == followed.score(tables).tolist() == [[0, 0], [0, 1]]
    logits = chances.log().requires_grad_()
    exact = torch.autograd.grad(followed.expect(logits.softmax(1))[RETURN], logits)[0]
    guesses = [torch.autograd.grad(played.expect(logits.softmax(1).expand(2, 2))[RETURN], logits)[0] for _ in range(50)]
    torch.testing.assert_close(torch.stack(guesses).mean(0), exact, atol=0.05, rtol=0)


class Toll(Driver):
    """Waiting costs 1, going pays 2.5 and ends: a success, if it is done in one of the first three steps."""

    def step(self, state, action, u):
        reward = torch.where(action == 1, 2.5, -1.0).double()
        after = Road(state.observation, state.steps + 1, state.returns + reward, state.place)
        return after, state.observation, reward, action == 1, (action == 1) & (after.returns > 0)


def test_a_success_that_depends_on_the_way_there_is_that_of_every_way():
    game = make_game(Toll(10), 1, 0, 1)
    policy = torch.tensor([[0.7, 0.3]]).double()
    assert isinstance(game, ExactGame) and game.judge(policy)[SUCCESS].item() == pytest.approx(1 - 0.7**3)
    assert game.score(torch.tensor([[0], [1]])).tolist() == [[0, 1], [-10, 2.5]]
    late = make_game(Toll(2), 1, 0, 1).judge(policy)
    assert late.tolist() == pytest.approx([1 - 0.7**2, 0.3 * 2.5 + 0.7 * (-1 + 0.3 * 2.5 - 0.7)])


@pytest.mark.parametrize("limit", [37, 500])
def test_tables_win_where_the_world_says_so(limit):
    world = make_world("Gridverse/Memory-5x5-v0", time_limit=limit)  # an exit after step 100 is no success any more
    graph, game = explore_states(world), make_game(world, 1, 0, 1)
    tables = game.first_tables(100, torch.Generator().manual_seed(0))
    draws = world.initial_draws()
    owner = torch.arange(len(tables)).repeat_interleave(len(draws))  # each table plays from every start

    def act(observation, running):
        return tables[owner, [graph.observation_ids.get(row.tobytes(), 0) for row in observation.numpy()]]

    success = finish(world, world.reset(draws.repeat(len(tables), 1)), act).success
    scored = game.score(tables)
    assert scored[SUCCESS].tolist() == success.view(len(tables), -1).double().mean(1).tolist()
    assert len(scored[SUCCESS].unique()) > 3
    exact = torch.stack([game.expect(as_policy(table, game.actions)) for table in tables[:5]], 1)
    torch.testing.assert_close(scored[:, :5], exact, atol=1e-9, rtol=0)


class Errand(Toll):
    """Waiting costs more in one place than in the other: what a success needs depends on more than the time."""

    def step(self, state, action, u):
        after, observation, reward, ended, _ = super().step(state, action, u)
        reward = reward - torch.where(action == 0, state.place, 0).double()
        after = Road(observation, after.steps, state.returns + reward, 1 - state.place)
        return after, observation, reward, ended, ended & (after.returns > 0)


def test_a_success_that_cannot_be_told_at_the_end_is_played():
    game = make_game(Errand(10), 4, 0, 2_000)
    assert isinstance(game, SampledGame) and not game.exact
    two = torch.tensor([[0.5, 0.5]]).double().expand(game.observations, 2)
    assert game.judge(two)[SUCCESS].item() == pytest.approx(1 - 0.5**2, abs=0.05)


def test_the_best_rule_of_catch_is_found():
    world = make_world("Pixel/BlinkingCatch-v0", grid=3, size=3, balls=2, blink=2)
    game = SampledGame(world, 200, 0, 5_000)
    best = search_measures(game, replace(ARGS, updates=1))[RETURN]["table_return"]
    assert best == pytest.approx(memoryless(world).bound, abs=0.15)


def test_cells_tell_signs_and_zero_apart():
    world = make_world("POMDP/CarFlag-v0", time_limit=120)
    identify, shown = identifier(world, torch.Generator().manual_seed(0))
    rows = torch.tensor([[0.1, 0, 0], [-0.001, 0, 0], [0.1, 0.001, 0], [0.1, -0.001, 0]]).double()
    numbers = identify(rows)
    assert len(set(numbers.tolist())) == 4 and numbers.max() < len(shown) - 1
    step = 1 / (BINS // 2)
    assert np.allclose(shown[numbers][:, 0], [step, -step, step, step])
    assert int(identify(torch.tensor([[1.0, -0.07, -1.0]]).double())) == len(shown) - 1  # never met


TEN, ONE = Box(-10, 1, (1,)), Box(-1, 1, (1,))


@pytest.mark.parametrize(("space", "show"), [
    (Box(-10, 1, (2,)), lambda seen: torch.cat((-3.0 - 2 * seen, -3.0 + seen), 1)),  # most of it below 0
    (Box(-1, 1, (2, 1)), lambda seen: torch.stack((seen / 2 - 0.7, 0.3 * seen), 1)),
    (Dict(a=TEN, b=ONE), lambda seen: torch.cat((-3.0 - 3 * seen, 0.0 * seen), 1)),
    (Dict(a=Discrete(3), b=Discrete(3)), lambda seen: torch.cat((seen, 2 - seen), 1)),  # each of one sum
])  # fmt: skip
def test_any_space_is_told_apart(space, show):
    world = spoiled("World", space, show)()
    identify, shown = identifier(world, torch.Generator().manual_seed(0))
    assert identify(show(torch.arange(3)[:, None])).sort().values.tolist() == [0, 1, 2] and len(shown) == 4


def test_fractions_without_bounds_are_refused():
    endless = spoiled("World", Box(-np.inf, np.inf, (1,)), lambda seen: seen.float())()
    assert "each between bounds" in error_of(identifier, endless, torch.Generator())


def test_the_script_keeps_other_worlds(tmp_path, capsys):
    few = ["--restarts", "2", "--sweeps", "1", "--updates", "1", "--write", str(tmp_path)]
    main(["--env", "Gridverse/Memory-5x5-v0", "--options", "time_limit", "5", *few])
    main(["--env", "POMDP/HeavenHell-v0", "--options", "time_limit", "5", "--episodes", "5", "--fresh", "20", *few])
    assert "table_success" in capsys.readouterr().out
    small, hell = "Gridverse/Memory-5x5-v0 (time_limit=5)", "POMDP/HeavenHell-v0 (time_limit=5)"
    policies, origins = read_tables(tmp_path / "memoryless.json").values()
    assert [row["env"] for row in policies.records()] == [small, small, hell, hell]
    made = {row["env"]: row for row in origins.records()}
    assert list(made) == [small, hell] and made[small]["exact"]
    assert made[hell]["observations"] > 2
    page = (tmp_path / "memoryless.md").read_text()
    assert f"| {small} | success |" in page and "python -m envs.memoryless --env POMDP/HeavenHell-v0" in page


def test_wrong_input_is_one_sentence_before_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr("envs.memoryless.search_environment", lambda *_: pytest.fail("the search came first"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "memoryless.json").write_text('{"mine": 1}')
    for flags, words in (
        (["--write", str(tmp_path / "file" / "results")], "choose another folder"),
        (["--write", str(tmp_path)], "page of tables"),
        (["--write", str(tmp_path), "--restarts", "0"], "--restarts 0"),
    ):
        assert words in error_of(main, ["--env", "POMDP/CarFlag-v0", *flags])
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2
