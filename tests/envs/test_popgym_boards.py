"""POPGym's boards, cart-poles, pendulums and mazes beside the package's own: the same numbers from the same states."""

import random
import re
import sys
import warnings
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from types import SimpleNamespace

import numpy as np
import popgym
import pytest
import torch
from popgym.wrappers import PreviousAction
from run_folders import error_of
from world_keywords import check_same, play, uniforms

from envs.gymnasium import Engine
from envs.popgym.levels import LEVELS
from envs.registry import make_world

EPISODES = [5, pytest.param(200, marks=pytest.mark.long)]


def ids(*families):
    return [id for id in LEVELS if id.split("/")[1].split("-")[0] in families]


def pair(id, on_arrays, **kwargs):
    """Our world as an engine, popgym's environment of the same name, and what stands for its random generator."""
    family, level = id.split("/")[1].split("-")[:2]
    theirs = getattr(popgym.envs, family + level)()
    theirs._np_random = SimpleNamespace()
    return Engine(make_world(id, **kwargs), on_arrays), theirs, theirs._np_random


def alike(one, other, share=1e-4):
    """Whether two lists of counts (n,) may come from one distribution, by chi-square."""
    from scipy.stats import chi2_contingency

    table = np.array([one, other])
    return chi2_contingency(table[:, table.sum(0) > 0]).pvalue > share


# ---- cart-poles and pendulums ----------------------------------------------------------------------------------------
CARTS = ids("PositionOnlyCartPole", "VelocityOnlyCartPole", "NoisyPositionOnlyCartPole")
PENDULUMS = ids("PositionOnlyPendulum", "NoisyPositionOnlyPendulum")


def between(u):
    """What stands for a generator's `uniform`: the numbers that u gives."""
    return lambda low, high, size=None: low + (high - low) * u


def normal(u):
    """What stands for a generator's `normal`: Box and Muller's two numbers of u."""
    radius, angle = np.sqrt(-2 * np.log1p(-u[-1])), 2 * np.pi * (u[-2] - 0.5)
    return lambda mean, deviation: mean + deviation * radius * np.array([np.sin(angle), np.cos(angle)])


def upright(state):
    position, speed, angle, spin = state
    return int(angle + 0.5 * spin + 0.02 * position + 0.1 * speed > 0)


def check_step(engine, generator, theirs, state, action, u, seen):
    """Take the step in both, and compare what both give; returns our state, whether the episode ends, what is seen."""
    np.testing.assert_allclose(engine.observation(state)[0], seen, rtol=0, atol=1e-6)
    if len(u):
        generator.normal = normal(u)
    state, reward, terminated, truncated, success = engine.step(state, np.array([action]), u[None])
    seen, their_reward, their_end, their_cut, _ = theirs.step(action)
    assert reward[0] == pytest.approx(their_reward, abs=1e-8) and not success[0]
    assert (terminated[0], truncated[0]) == (their_end, their_cut and not their_end)
    return state, terminated[0] or truncated[0], seen


@pytest.mark.parametrize("episodes", EPISODES)
@pytest.mark.parametrize("id", CARTS)
def test_every_step_of_a_cart_pole_is_that_of_popgym(id, episodes):
    engine, theirs, generator = pair(id, on_arrays=True, **{"as_released": True} if "Velocity" in id else {})
    draws, lengths = np.random.default_rng(len(id)), []
    for episode in range(episodes):
        u = draws.random(engine.world.reset_draws)
        generator.uniform, generator.normal = between(u[:4]), normal(u)
        state, (seen, _), ended = engine.reset(u[None]), theirs.reset(), False
        while not ended:
            action = upright(theirs.state) if episode % 2 else int(draws.integers(2))
            state = replace(state, body=np.array([theirs.state]))  # a falling pole would magnify last places
            u = draws.random(engine.world.step_draws)
            state, ended, seen = check_step(engine, generator, theirs, state, action, u, seen)
        np.testing.assert_allclose(state.observation[0], seen, rtol=0, atol=1e-6)
        lengths.append(int(state.steps[0]))
    assert max(lengths) == theirs.max_episode_length == engine.world.time_limit and min(lengths) < 100


@pytest.mark.parametrize("episodes", EPISODES)
@pytest.mark.parametrize("id", PENDULUMS)
def test_every_step_of_a_pendulum_is_that_of_popgym(id, episodes):
    engine, theirs, generator = pair(id, on_arrays=True)
    draws, rewards = np.random.default_rng(len(id)), []
    for episode in range(episodes):
        u = draws.random(engine.world.reset_draws)
        generator.uniform, generator.normal = between(u[:2]), normal(u)
        state, (seen, _), ended = engine.reset(u[None]), theirs.reset(), False
        while not ended:
            angle, speed = theirs.state
            action = np.float32([np.sign(speed) * 2 if episode % 2 else draws.uniform(-2, 2)])
            angle -= 2 * np.pi * round(angle / 2 / np.pi)
            motion = np.array([[np.cos(angle), np.sin(angle), speed]])  # a falling rod would magnify last places
            state = replace(state, angle=np.array([angle]), motion=motion)
            u, before = draws.random(engine.world.step_draws), state.returns[0]
            state, ended, seen = check_step(engine, generator, theirs, state, action, u, seen)
            rewards.append(state.returns[0] - before)
        np.testing.assert_allclose(state.observation[0], seen, rtol=0, atol=1e-6)
        assert state.steps[0] == theirs.max_episode_length
    assert min(rewards) < 0 < max(rewards) < 1 / theirs.max_episode_length


def test_the_first_observation_holds_velocities_unless_it_is_as_released():
    u = uniforms(3, 4)
    for released in (False, True):
        world = make_world("POPGym/VelocityOnlyCartPole-Easy-v0", as_released=released)
        state = world.reset(u)
        assert torch.equal(state.observation, state.body[:, 0 if released else 1 :: 2].float())
        state, seen, *_ = world.step(state, torch.tensor([0, 1, 1]), u[:, :0])
        assert torch.equal(seen, state.body[:, 1::2].float())


@pytest.mark.parametrize("id", [*CARTS, *PENDULUMS])
def test_the_spaces_of_carts_and_pendulums_are_those_of_popgym(id):
    engine, theirs, _ = pair(id, on_arrays=False)
    assert (engine.world.observation_space, engine.world.action_space) == (
        theirs.observation_space,
        theirs.action_space,
    )


def test_noise_is_normal_and_stays_within_the_space():
    world = make_world("POPGym/NoisyPositionOnlyPendulum-Hard-v0", noise=0.05)
    u = uniforms(40_000, 4)
    u[:, :2] = torch.tensor([0.625, 0.5])  # a cosine and a sine of +-0.7, which the noise never moves to 1
    state = world.reset(u)
    noise = (state.observation.double() - state.motion[:, :2]).numpy().T / 0.05  # (2, 40000)
    theirs = np.random.default_rng(0).normal(size=(2, 40_000))
    edges = [-9, *np.linspace(-3.5, 3.5, 29), 9]
    assert all(alike(*(np.histogram(each, edges)[0] for each in both)) for both in zip(noise, theirs, strict=True))
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.02 and abs(np.corrcoef(*abs(noise))[0, 1]) < 0.02
    loud = make_world("POPGym/NoisyPositionOnlyCartPole-Easy-v0", noise=9.0)
    seen = loud.reset(uniforms(200, 6)).observation
    assert all(map(loud.observation_space.contains, seen.numpy())) and (abs(seen) == abs(seen).amax(0)).sum() > 200


# ---- boards ----------------------------------------------------------------------------------------------------------
SHIPS, MINES = ids("Battleship"), ids("MineSweeper")


@pytest.mark.parametrize("episodes", EPISODES)
@pytest.mark.parametrize("id", [*SHIPS, *MINES])
def test_every_step_of_a_board_is_that_of_popgym(id, episodes):
    engine, inner, generator = pair(id, on_arrays=True)
    theirs, draws, ends = PreviousAction(inner), np.random.default_rng(len(id)), []
    side = engine.world.side
    for episode in range(episodes):
        state, ended = engine.reset(draws.random((1, engine.world.reset_draws))), False
        if id in SHIPS:
            seen, _ = theirs.reset(seed=episode)
            inner.board = (state.cells == 1).reshape(side, side).astype(np.int8)
            safe = draws.permutation(side * side)
        else:
            fatal = np.array([kind.fatal for kind in engine.world.kinds])[state.cells[0]]
            generator.choice = lambda cells, size, replace, fatal=fatal: cells[fatal]
            seen, _ = theirs.reset()
            safe = draws.permutation(np.flatnonzero(~fatal))
        while not ended:
            assert engine.observation(state)[0].tolist() == [seen[0], *seen[1]]
            step = int(state.steps[0])
            action = int(safe[step]) if episode % 2 else int(draws.integers(side * side))
            state, reward, terminated, truncated, success = engine.step(state, np.array([action]), np.zeros((1, 0)))
            seen, their_reward, their_end, their_cut, _ = theirs.step(np.array(divmod(action, side)))
            assert reward[0] == pytest.approx(their_reward, abs=1e-12) and not success[0]
            assert (terminated[0], truncated[0]) == (their_end, their_cut and not their_end)
            ended = terminated[0] or truncated[0]
        assert engine.observation(state)[0].tolist() == [seen[0], *seen[1]]
        ends.append((bool(terminated[0]), state.left[0] == 0, state.returns[0] > 0))
        if id in MINES and episode % 2:
            assert state.returns[0] == pytest.approx(1) and state.steps[0] == inner.max_episode_length
    assert (True, True, True) in ends and {(False, False, False), (True, False, False), (True, False, True)} & {*ends}


@pytest.mark.parametrize("id", [*SHIPS, *MINES])
def test_the_spaces_of_boards_are_those_of_popgym(id):
    engine, inner, _ = pair(id, on_arrays=False)
    seen, last = PreviousAction(inner).observation_space
    assert list(engine.world.observation_space.nvec) == [seen.n, *last.nvec]
    assert engine.world.num_actions == np.prod(inner.action_space.nvec)
    assert engine.world.time_limit == inner.max_episode_length


@pytest.mark.long
def test_ships_lie_where_those_of_popgym_lie():
    """Whole boards where there are few, and what tells crowded from loose ones on a board of usual size."""
    world, theirs = make_world("POPGym/Battleship-Easy-v0", board=4, ships=(2, 3)), popgym.envs.Battleship(4, [2, 3])
    ours = world.reset(uniforms(20_000, 1)).cells.numpy()
    drawn = np.array([theirs.reset(seed=seed) and theirs.board.flatten() for seed in range(20_000)])
    powers = 2 ** np.arange(16)
    assert alike(*(np.bincount(boards @ powers, minlength=2**16) for boards in (ours, drawn)))
    world, theirs = make_world("POPGym/Battleship-Easy-v0"), popgym.envs.BattleshipEasy()
    ours = world.reset(uniforms(20_000, 1)).cells.view(-1, 8, 8).numpy()
    drawn = np.array([theirs.reset(seed=seed) and theirs.board for seed in range(4_000)])
    assert (ours.sum((1, 2)) == 12).all()
    for count in (
        lambda boards: boards[:, 1:-1, 1:-1].sum((1, 2)),
        lambda boards: boards[:, :4, :4].sum((1, 2)),
        lambda boards: (boards[:, 1:] * boards[:, :-1]).sum((1, 2)),
        lambda boards: (boards[:, :, 1:] * boards[:, :, :-1]).sum((1, 2)),
    ):
        assert alike(*(np.bincount(count(boards), minlength=13) for boards in (ours, drawn)))


def test_mines_lie_anywhere():
    world = make_world("POPGym/MineSweeper-Easy-v0")
    mines = is_mine(world, world.reset(uniforms(60_000, world.reset_draws)))
    pairs = np.bincount(mines @ 2 ** np.arange(16))
    pairs = pairs[pairs > 0]
    assert len(pairs) == 120 and alike(pairs, np.full(120, 500_000))
    world, theirs = make_world("POPGym/MineSweeper-Hard-v0"), popgym.envs.MineSweeperHard()
    ours = is_mine(world, world.reset(uniforms(40_000, world.reset_draws)))
    drawn = np.array([theirs.reset(seed=seed) and theirs.hidden_grid.flatten() for seed in range(10_000)])
    assert (ours.sum(1) == 10).all()
    for part in (slice(0, 32), slice(0, None, 2), slice(0, None, 8), slice(0, 8), slice(56, None)):
        assert alike(*(np.bincount(boards[:, part].sum(1), minlength=11) for boards in (ours, drawn)))


def is_mine(world, state):
    """Which cells of boards are mines, (N, S * S)."""
    return np.array([kind.fatal for kind in world.kinds])[state.cells.numpy()].astype(int)


def test_pictures_and_texts_of_boards_show_what_is_hidden_and_what_was_seen():
    world = make_world("POPGym/Battleship-Easy-v0", board=4, ships=(2, 3))
    state = world.reset(torch.zeros(1, 1).double())
    assert world.text(state, 0).split() == ["##..", "###.", "....", "...."]
    for action in (0, 3, 3):
        state, *_ = world.step(state, torch.tensor([action]), torch.zeros(1, 0))
    assert world.text(state, 0).split() == ["x#.o", "###.", "....", "...."]
    picture = world.frame(state, 0)
    assert picture[8, 8].tolist() == [214, 66, 61] != picture[8, 24].tolist() and picture.shape == (64, 64, 3)
    world = make_world("POPGym/MineSweeper-Easy-v0")
    state = world.reset(torch.zeros(1, 1).double())  # mines in the first cell and, as it is taken, in the last
    state, *_ = world.step(state, torch.tensor([5]), torch.zeros(1, 0))
    assert world.text(state, 0).split() == ["*...", ".1..", "....", "...*"]


# ---- labyrinths ------------------------------------------------------------------------------------------------------
MAZES = ids("LabyrinthEscape", "LabyrinthExplore")
FAMILIES = ["labyrinth_escape", "labyrinth_explore"]
MOVES = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]])


class Given:
    """What stands for mazelib's Maze: one that the test has laid down."""

    grid, start, end = None, None, None

    def generate(self):
        self.grid = type(self).grid.copy()

    def generate_entrances(self, start_outer):
        assert start_outer


@pytest.fixture
def labyrinths(monkeypatch):
    """popgym's classes of labyrinths by their names, whether mazelib is installed or not."""
    if find_spec("mazelib") is None:
        for name in ("mazelib", "mazelib.generate", "mazelib.generate.HuntAndKill"):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(Maze=Given, HuntAndKill=lambda *dims: None))
        for name in ("popgym.core.maze", *(f"popgym.envs.{family}" for family in FAMILIES)):
            monkeypatch.delitem(sys.modules, name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # says that no memory is needed for them
        modules = [import_module(f"popgym.envs.{family}") for family in FAMILIES]
        monkeypatch.setattr("popgym.core.maze.Maze", Given)
        yield {name: kind for module in modules for name, kind in vars(module).items() if name.startswith("Labyrinth")}
    for name in ("popgym.core.maze", *(f"popgym.envs.{family}" for family in FAMILIES)):
        sys.modules.pop(name)


def grid_of(world, state, row=0):
    """The kinds of cells (H, H) of one maze."""
    return state.cells[row, :-1].reshape(world.side, world.side)


def next_move(grid, place, goals):
    """The first move of a shortest way to one of the goals (H, H)."""
    ways, reached = [(tuple(place), None)], {tuple(place)}
    for at, first in ways:
        for move, step in enumerate(MOVES):
            to = tuple(at + step)
            if min(to) >= 0 and max(to) < len(grid) and grid[to] != 1 and to not in reached:
                if goals[to]:
                    return move if first is None else first
                reached.add(to)
                ways.append((to, move if first is None else first))
    raise AssertionError("no goal is in reach")


@pytest.mark.parametrize("episodes", EPISODES)
@pytest.mark.parametrize("id", MAZES)
def test_every_step_of_a_labyrinth_is_that_of_popgym(id, episodes, labyrinths):
    engine = Engine(make_world(id, as_released=True))
    theirs = labyrinths["".join(id.split("/")[1].split("-")[:2])]()
    draws, ends = np.random.default_rng(len(id)), []
    for episode in range(episodes):
        state, ended = engine.reset(draws.random((1, 1))), False
        grid = grid_of(engine.world, state)
        start, end = np.argwhere(grid & 3 == 2), np.argwhere(grid == 3)
        Given.grid, Given.start = np.where(grid == 0, 0, 1).astype(np.int8), tuple(start[0])
        Given.end = tuple(end[0]) if len(end) else (0, 0)
        seen, _ = theirs.reset()
        while not ended:
            assert engine.observation(state)[0].tolist() == seen.tolist()
            grid = grid_of(engine.world, state)
            action = int(draws.integers(4))
            if episode % 4 and draws.random() < 0.8:
                action = next_move(grid, theirs.position, grid == (0 if engine.world.explores else 3))
            state, reward, terminated, truncated, success = engine.step(state, np.array([action]), np.zeros((1, 0)))
            seen, their_reward, their_end, their_cut, _ = theirs.step(action)
            assert reward[0] == pytest.approx(their_reward, abs=1e-12) and not success[0]
            assert (terminated[0], truncated[0]) == (their_end, their_cut and not their_end)
            assert tuple(divmod(int(state.place[0]), engine.world.side)) == tuple(theirs.position)
            ended = terminated[0] or truncated[0]
        assert engine.observation(state)[0].tolist() == seen.tolist()
        ends.append((bool(terminated[0]), bool(truncated[0]), int(state.steps[0])))
    assert any(end for end, *_ in ends) and (False, True, 1023) in ends
    assert list(engine.world.observation_space.nvec) == list(theirs.observation_space.nvec)
    assert engine.world.action_space == theirs.action_space


@pytest.mark.parametrize("id", MAZES[::3])
def test_the_agent_is_in_the_middle_of_its_view(id):
    world, released = make_world(id), make_world(id, as_released=True)
    state = world.reset(uniforms(200, 1))
    other, moved = released.reset(uniforms(200, 1)), 0
    for row in range(200):
        y, x = divmod(int(state.place[row]), world.side)
        outer = np.pad(grid_of(world, state, row).numpy() & 3, 1, constant_values=1)
        assert state.observation[row].tolist() == [*outer[y : y + 3, x : x + 3].flatten(), 4]
        differs = state.observation[row].tolist() != other.observation[row].tolist()
        assert differs == (0 in (y, x))
        moved += differs
    assert 60 < moved < 140


def broken_walls(rooms, draws):
    """The walls that hunting and killing breaks, by its rules: pairs of rooms."""
    every = list(product(range(rooms), range(rooms)))
    at = draws.choice(every)
    broken, visited = set(), {at}
    while len(visited) < len(every):
        beside = {(at[0] + y, at[1] + x) for y, x in MOVES.tolist()} & set(every) - visited
        if at in visited and beside:
            room = draws.choice(sorted(beside))
            broken.add((min(at, room), max(at, room)))
            visited.add(room)
            at = room
        else:
            at = draws.choice(every)
    return frozenset(broken)


def drawn_walls(rooms, count):
    """The same of mazes that a world draws."""
    grids = make_world(MAZES[0], maze=2 * rooms).mazes(uniforms(count, rooms * rooms))
    for grid in grids.view(count, 2 * rooms + 1, -1).numpy():
        walls = [cell for cell in np.argwhere(grid == 0) if sum(cell) % 2]
        yield frozenset((tuple((cell - 1) // 2), tuple(cell // 2)) for cell in walls)


def dead_ends(broken):
    return (np.bincount([9 * y + x for pair in broken for y, x in pair]) == 1).sum()


@pytest.mark.long
def test_mazes_are_those_of_hunting_and_killing():
    """Mazes of three by three rooms are as frequent as by the rules; of larger ones the number of dead ends."""
    draws, names = random.Random(0), {}
    for walls in (ours := list(drawn_walls(3, 20_000))) + (theirs := [broken_walls(3, draws) for _ in range(20_000)]):
        names.setdefault(walls, len(names))
    assert len(names) == 174  # of 192 that connect all rooms, because no walk stops early
    assert alike(*(np.bincount([names[walls] for walls in each], minlength=174) for each in (ours, theirs)))
    ours, theirs = drawn_walls(9, 2_000), (broken_walls(9, draws) for _ in range(1_000))
    assert alike(*(np.bincount([dead_ends(walls) for walls in each], minlength=40) for each in (ours, theirs)))


def test_starts_and_exits_are_anywhere_in_opposite_walls():
    world = make_world(MAZES[0])
    state = world.reset(uniforms(20_000, 1))
    start, end = state.place.numpy(), (state.cells == 3).int().argmax(1).numpy()
    pairs = np.unique(np.stack([start, end]), axis=1, return_counts=True)
    assert len(pairs[1]) == 100 and alike(pairs[1], np.full(100, 10**6))
    (y, x), (row, column) = np.divmod(start, 11), np.divmod(end, 11)
    assert ((abs(y - row) == 10) | (abs(x - column) == 10)).all()


def test_texts_and_pictures_of_mazes_show_the_way_that_was_gone():
    world = make_world("POPGym/LabyrinthExplore-Easy-v0", maze=6)
    state = world.reset(uniforms(40, 1))
    row = int((state.place < 7).nonzero()[0])  # in the upper wall
    assert [line.count("@") for line in world.text(state, row).split("\n")] == [1, 0, 0, 0, 0, 0, 0]
    state, *_ = world.step(state, torch.full((40,), 3), torch.zeros(40, 0))
    lines = world.text(state, row).split("\n")
    column = lines[0].index("S")
    assert lines[1][column] == "@" and sum(line.count("#") for line in lines) == 31
    picture = world.frame(state, row)
    assert picture.shape == (56, 56, 3) and picture[12, 8 * column].tolist() == [214, 66, 61]


# ---- dials -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("id", "keywords", "words"), [
    ("NoisyPositionOnlyCartPole-Easy", {"noise": -0.1}, "noise of NoisyPositionOnlyCartPole must be .*, not -0.1"),
    ("NoisyPositionOnlyPendulum-Easy", {"noise": float("nan")}, "noise of NoisyPositionOnlyPendulum must .* not nan"),
    ("NoisyPositionOnlyPendulum-Easy", {"noise": 10**400}, "noise of NoisyPositionOnlyPendulum must be .* to 1000"),
    ("Battleship-Easy", {"board": 1}, "board of Battleship must be from 2 to 32 cells wide, not 1"),
    ("Battleship-Easy", {"board": 5}, r"ships \(2, 3, 3, 4\) of Battleship may not fit on 5 x 5 cells"),
    ("Battleship-Easy", {"ships": ()}, "ships of Battleship must be positive sizes"),
    ("Battleship-Easy", {"ships": (3, 0)}, r"must be positive sizes, not \(3, 0\)"),
    ("Battleship-Easy", {"ships": 3}, "ships of .* must be whole numbers, .* not 3"),
    ("Battleship-Easy", {"ships": "23"}, "ships of .* must be whole numbers, .* not '23'"),
    ("Battleship-Easy", {"ships": (2, 2.5)}, r"ships of .* must be whole numbers, .* not \(2, 2.5\)"),
    ("Battleship-Easy", {"ships": (2, True)}, r"ships of .* must be whole numbers, .* not \(2, True\)"),
    ("MineSweeper-Easy", {"board": 33}, "board of MineSweeper must be from 2 to 32 cells wide, not 33"),
    ("MineSweeper-Easy", {"mines": 0}, "mines of MineSweeper must be from 1 to 13 on 4 x 4 cells, not 0"),
    ("MineSweeper-Easy", {"mines": 14}, "must be from 1 to 13"),
    ("LabyrinthEscape-Easy", {"maze": 7}, "maze of LabyrinthEscape must be an even number from 6 to 64, not 7"),
    ("LabyrinthExplore-Easy", {"maze": 4}, "maze of LabyrinthExplore must be .*, not 4"),
    ("PositionOnlyCartPole-Easy", {"time_limit": 0}, "time_limit must be at least 1 step"),
])  # fmt: skip
def test_a_wrong_dial_is_named(id, keywords, words):
    assert re.search(words, error_of(make_world, f"POPGym/{id}-v0", **keywords))


@pytest.mark.parametrize("id", [id for id in LEVELS if "-Easy-" in id])
def test_dials_may_be_numbers_of_numpy(id):
    given = {name: np.array(dial) for name, dial in LEVELS[id][1].items()}
    dials = {
        name: (dial.astype(np.int8) if dial.dtype.kind == "i" and dial < 100 else dial)[()]
        for name, dial in given.items()
    }
    check_same([play(make_world(id, **each), 3, 4) for each in ({}, dials)])


@pytest.mark.parametrize("ships", [[3, 2], np.array([3, 2]), dict.fromkeys([3, 2])])
def test_ships_may_be_any_row_of_sizes(ships):
    check_same([play(make_world("POPGym/Battleship-Easy-v0", ships=each), 3, 4) for each in ((3, 2), ships)])


@pytest.mark.parametrize("family", ["RepeatPrevious", "CountRecall", "Concentration", "Battleship", "MineSweeper"])
def test_a_shorter_episode_pays_as_much_at_each_step(family):
    ours, short = (make_world(f"POPGym/{family}-Easy-v0", **limit) for limit in ({}, {"time_limit": 9}))
    paths = [play(world, 50, 8) for world in (ours, short)]
    check_same(paths)
    assert any(step.reward.any() for _, step in paths[0])
