"""Players with a clock or one remembered step in corridors, rooms and games: what they get, and what they know."""

import sys
from itertools import pairwise, product

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete
from run_folders import error_of

from envs.baselines.__main__ import main
from envs.baselines.best import Budget
from envs.baselines.bounds import bounds_of
from envs.baselines.control_players import lifter, pusher
from envs.baselines.game_players import STEPS, stayer, stepper, three_cards
from envs.baselines.maze_players import wall_follower
from envs.baselines.minigrid_players import ROOMS, MemoryRoom
from envs.baselines.plain_players import (
    by_heading,
    by_time,
    corridor_lines,
    fork_by_time,
    guesser,
    heaven_hell_lines,
    in_turn,
    left_or_nowhere,
    player_by,
)
from envs.baselines.players import play_episodes
from envs.baselines.reference import read_references, reference_of
from envs.memoryless import Args, make_game, search_measures
from envs.packages import make_env
from envs.registry import make_world
from envs.worlds.heaven_hell import HeavenHell, heaven_hell_tables

SIZES = pytest.mark.parametrize("size", [7, 9, 11, 13])
LENGTHS = pytest.mark.parametrize("n", [1, 2, 3, 6])
SEED = 3
BANDIT, TABLE, SHIPS, MINES, POLE, ROD, MAZE = (make_world(f"POPGym/{task}-v0") for task in (
    "MultiarmedBandit-Easy", "Concentration-Easy", "Battleship-Easy", "MineSweeper-Medium",
    "NoisyPositionOnlyCartPole-Easy", "NoisyPositionOnlyPendulum-Easy", "LabyrinthExplore-Easy",
))  # fmt: skip


def corridor(size):
    return make_world(f"Gridverse/Memory-{size}x{size}-v0")


@SIZES
def test_a_clock_solves_a_memory_corridor_and_one_step_five_of_six(size):
    lines, known = corridor_lines(corridor(size)), reference_of(f"Gridverse/Memory-{size}x{size}-v0")
    clock, one_step, perfect = lines["clock"], lines["one step"], known.lower.returns.mean
    assert (clock.success.mean, one_step.success.mean) == pytest.approx((1.0, 5 / 6))
    assert one_step.returns.mean < clock.returns.mean <= perfect < clock.returns.mean + 0.2
    assert {name: known.lines[name] for name in lines} == lines


@LENGTHS
def test_a_clock_solves_heaven_hell_and_one_step_half_of_it(n):
    lines = heaven_hell_lines(make_world("POMDP/HeavenHell-v0", n=n))
    assert lines["clock"].success.mean == lines["clock"].returns.mean == 1.0
    assert lines["one step"].success.mean == lines["one step"].returns.mean == 0.5
    assert n != 3 or lines.items() <= reference_of("POMDP/HeavenHell-v0").lines.items()


@pytest.mark.parametrize(("limit", "kind"), [(15, "exact"), (14, "lower by leaving for the left alone")])
def test_one_step_in_heaven_hell_is_exact_if_there_is_time_for_it(limit, kind):
    level = heaven_hell_lines(make_world("POMDP/HeavenHell-v0", time_limit=limit))["one step"]
    assert level.kind == kind and level.success == level.returns and level.success.mean == 0.5 * (limit == 15)


def led_to(n, side):
    """What each action leads to with heaven on this side, from all that one step can remember: that, or a reward."""
    tables, count = heaven_hell_tables(n), 4 * n + 2
    found, waiting = {}, [((count + 1, None, None), side * count)]  # what is remembered, and the state
    while waiting:
        memory, state = waiting.pop()
        if memory in found:
            continue
        found[memory] = []
        for action, (move, reset) in enumerate(zip(tables.T[:, state], tables.reset[:, state], strict=True)):
            after = int(move.argmax())
            later = (int(tables.O[action, after].argmax()), memory[0], action)
            found[memory].append(float(tables.R[action, state, after, 0]) if reset else later)
            waiting += [] if reset else [(later, after)]
    return found


@LENGTHS
def test_one_step_tells_no_side_of_heaven_but_at_the_priest_and_beside_him(n):
    near = {4 * n, 4 * n + 1, 4 * n + 2}  # seen beside the priest, and his answers
    left, right = (led_to(n, side) for side in (0, 1))
    far = {memory for memory in left if memory[0] not in near}
    assert far == {memory for memory in right if memory[0] not in near}
    ways = [(left[memory], right[memory]) for memory in far]
    assert all(one == other or one == [-reward for reward in other] for one, other in ways)
    assert sum(isinstance(one[0], float) for one, _ in ways) == 2  # both ends
    leaving = [led for each in (left, right) for memory, leads in each.items() if memory not in far for led in leads]
    assert len({memory for memory in leaving if memory in far}) == 1


class Remembering(HeavenHell):
    """Shows the newest observation, the one before and the last action."""

    def __init__(self, n, time_limit):
        super().__init__(n, time_limit)
        self.observation_space = MultiDiscrete([4 * n + 4, 4 * n + 4, 4])

    def reset(self, u):
        state = super().reset(u)
        state.observation = state.observation * torch.tensor([1, 1, 0])
        return state

    def step(self, state, action, u):
        after, seen, *results = super().step(state, action, u)
        after.observation = torch.cat((seen, state.observation[:, :1], action[:, None]), 1)
        return after, after.observation, *results


def test_a_search_with_one_step_finds_half_of_heaven_hell_and_no_more():
    game = make_game(Remembering(1, 12), 1, 0, 1)
    by_success, by_return = search_measures(game, Args("any", restarts=8, updates=30))
    assert by_success["table_success"] == by_return["table_return"] == 0.5
    assert max(by_success["stochastic_success"], by_return["stochastic_return"]) <= 0.5
    generator = torch.Generator().manual_seed(SEED)
    for sharpness in (1.0, 3.0, 9.0):
        logits = sharpness * torch.randn(game.observations, 4, generator=generator, dtype=torch.float64)
        success, returns = game.judge(logits.softmax(1)).tolist()
        assert returns < success < 0.5


@pytest.mark.parametrize("kwargs", [{"view": (7, 7)}, {"encoding": "default"}, {"phantom_rooms": (2, 2)}])
def test_a_corridor_that_these_players_cannot_read_has_no_lines(kwargs):
    assert not corridor_lines(make_world("Gridverse/Memory-7x7-v0", **kwargs))


def known_by(world, player, knows):
    """What a player does for everything that `knows` says it knows: a set of actions each."""
    done, before = {}, []

    def watch(observation, running):
        action = player(observation, running)
        for row in running.nonzero()[:, 0].tolist():
            last = before[-1] if before else (None, None)
            seen = tuple(observation[row].tolist())
            past = (tuple(last[0][row].tolist()), last[1][row].item()) if before else None
            done.setdefault(knows(seen, past, len(before)), set()).add(action[row].item())
        before.append((observation, action))
        return action

    play_episodes(world, watch, 200, SEED)
    return done


def newest(seen, past, time):
    return seen


def clock(seen, past, time):
    return seen, time


def one_step(seen, past, time):
    return seen, past


@pytest.mark.parametrize(("world", "player", "knows"), [
    (corridor(7), player_by(by_time(7)), clock), (corridor(11), player_by(by_time(11)), clock),
    (corridor(7), player_by(by_heading), one_step), (corridor(11), player_by(by_heading), one_step),
    (make_world("POMDP/MemoryCards-v0", pairs=2), in_turn(make_world("POMDP/MemoryCards-v0", pairs=2)), clock),
    (make_world("POMDP/HeavenHell-v0"), fork_by_time(3), clock),
    (make_world("POMDP/HeavenHell-v0"), left_or_nowhere(3), one_step),
    (BANDIT, stayer(10, 1), newest), (BANDIT, stayer(10, 2), one_step),
    (SHIPS, stepper(SHIPS, [[1] * 2]), newest),
    (MINES, stepper(MINES, STEPS[6, 6][0]), newest), (MINES, stepper(MINES, STEPS[6, 6][1]), one_step),
    (TABLE, three_cards(TABLE), newest), (MAZE, wall_follower(), newest),
    (POLE, pusher([-0.09, 1.0]), newest), (POLE, pusher([1.0, -0.57, -0.02, -0.1, -0.1]), one_step),
    (ROD, lifter(0.0), newest), (ROD, lifter(7.0), one_step),
])  # fmt: skip
def test_players_know_no_more_than_they_may(world, player, knows):
    done = known_by(world, player, knows)
    assert len(done) > 10 and all(len(actions) == 1 for actions in done.values())


def test_who_guesses_among_four_cards_misses_twice():
    lines = bounds_of(make_world("POMDP/MemoryCards-v0", pairs=2), Budget(episodes=4_000)).lines
    guess = lines["observation"].returns
    assert abs(guess.mean + 2) < 4 * guess.error
    assert guess.mean < lines["clock"].returns.mean < lines["one step"].returns.mean < 0


def test_who_remembers_a_card_names_its_partner_and_no_guess_twice():
    world = make_world("POMDP/MemoryCards-v0")
    act, running = guesser(world, SEED, remembers=True), torch.ones(500, dtype=torch.bool)

    def shown(place, value):
        observation = torch.zeros(500, 10, dtype=torch.long)
        observation[:, place] = value
        return observation

    first, again = act(shown(4, 2), running), act(shown(4, 2), running)
    assert (first != again).all() and (again != 4).all()
    assert (act(shown(7, 3), running) != 4).all()
    assert (act(shown(1, 3), running) == 7).all()


def test_lines_of_memory_cards_are_written_beside_its_recorded_optimum(tmp_path, capsys):
    main(["--env", "POMDP/MemoryCards-v0", "--episodes", "40", "--write", str(tmp_path)])
    (row,) = read_references(tmp_path / "baselines.json").values()
    known = reference_of("POMDP/MemoryCards-v0")
    assert (row.lower, row.upper) == (known.lower, known.upper)
    assert list(row.lines) == ["observation", "clock", "one step"]


# ---- MiniGrid's memory rooms -----------------------------------------------------------------------------------------
EAST = 0  # a heading


def apart(one, other):
    """How many standard errors two measures lie apart; an error is at least that of one odd episode of 60."""
    return abs(one.mean - other.mean) / max(np.hypot(one.error, other.error), 1 / 60)


@pytest.mark.parametrize("id", ROOMS)
def test_who_remembers_more_gets_more_in_minigrids_memory_rooms(id):
    known = reference_of(id)
    levels = {"random": known.random, **known.lines, "perfect": known.lower, "most": known.upper}
    for names in (("random", "observation", "clock", "perfect", "most"), ("observation", "one step", "perfect")):
        for less, more in pairwise(levels[name].returns for name in names):
            assert less.mean <= more.mean + 3 * np.hypot(less.error, more.error) + 1e-9
    assert all(levels[name].success.mean == 1.0 for name in ("clock", "perfect", "most"))
    assert known.words.count(",") == 4  # all lines


def test_players_of_minigrids_memory_room_get_what_is_shipped():
    pytest.importorskip("minigrid")
    room, budget = MemoryRoom("MiniGrid-MemoryS7-v0"), Budget(episodes=60, seed=SEED)
    known, best = reference_of(room.id), room.best(budget)
    played = {"random": room.random(budget), **best.lines, "perfect": best.lower}
    shipped = {"random": known.random, **known.lines, "perfect": known.lower}
    for name, level in played.items():
        assert apart(level.success, shipped[name].success) < 4 and level.kind == shipped[name].kind, name
        assert apart(level.returns, shipped[name].returns) < 4, name
    assert best.upper == known.upper and known.time_limit == make_env(room.id).unwrapped.max_steps
    returns = {name: level.returns.mean for name, level in played.items()}
    assert returns["random"] < returns["observation"] < min(returns["clock"], returns["one step"])
    assert max(returns["clock"], returns["one step"]) < returns["perfect"] < best.upper.returns.mean


@pytest.mark.parametrize("id", ["MiniGrid-MemoryS11-v0", "MiniGrid-MemoryS13-v0"])
def test_nothing_that_is_seen_tells_the_rooms_object_beyond_its_neighbourhood(id):
    objects = pytest.importorskip("minigrid.core.world_object")
    env = make_env(id).unwrapped
    env.reset(seed=SEED)
    for column, heading in product(range(2, env.width - 1), range(4)):
        seen = []
        for kind in (objects.Key, objects.Ball):
            env.grid.set(1, env.height // 2 - 1, kind("green"))
            env.agent_pos, env.agent_dir = (column, env.height // 2), heading
            seen.append(env.gen_obs()["image"])
        assert np.array_equal(*seen) or (column <= 7 and heading != EAST)


def test_a_missing_minigrid_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    monkeypatch.delitem(gymnasium.registry, "MiniGrid-MemoryS7-v0", raising=False)
    assert "pip install minigrid" in error_of(main, ["--env", "MiniGrid-MemoryS7-v0", "--write", str(tmp_path)])


def test_another_environment_of_minigrid_is_one_sentence_with_those_that_are_known(tmp_path):
    said = error_of(main, ["--env", "MiniGrid-Empty-5x5-v0", "--write", str(tmp_path)])
    assert "MiniGrid-MemoryS7-v0" in said and not list(tmp_path.iterdir())
