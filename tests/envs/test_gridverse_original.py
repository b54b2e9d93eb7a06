"""The original engine beside ours: live where it is installed, and the translation always."""

import dataclasses
import enum
import sys
import types

import gymnasium
import numpy as np
import original_gridverse
import pytest
import torch
from original_gridverse import Original, Snapshot, snapshot

from envs.core import where
from envs.errors import UserError
from envs.gridverse.yaml.world import stock_files
from envs.registry import make_world

# Moving obstacles draw their steps from the original's own stream, so theirs cannot be compared step by step.
STEADY = [name for name in stock_files() if not name.startswith("dynamic_obstacles")]
live = pytest.mark.skipif(
    not original_gridverse.installed(), reason="gym_gridverse is not installed; no package index has it"
)


def same(ours, theirs):
    return all(np.array_equal(getattr(ours, f.name), getattr(theirs, f.name)) for f in dataclasses.fields(Snapshot))


def started(name, count=8, seed=0):
    world, generator = make_world("Gridverse/Yaml-v0", path=name), torch.Generator().manual_seed(seed)
    draws = torch.rand(count, world.reset_draws, dtype=torch.float64, generator=generator)
    return world, world.reset(draws), generator


@live
@pytest.mark.parametrize("name", STEADY)
def test_both_engines_take_the_same_steps(name):
    world, state, generator = started(name)
    theirs = Original(name)
    for _ in range(30):
        action = torch.randint(world.num_actions, (len(state.steps),), generator=generator)
        u = torch.rand(len(action), world.step_draws, dtype=torch.float64, generator=generator)
        after, observation, reward, terminated, _ = world.step(state, action, u)
        for row in range(len(action)):
            theirs.restore(snapshot(world, state, row))
            assert np.array_equal(theirs.observe(), state.observation[row].numpy())
            seen, paid, done, _, _ = theirs.step(int(action[row]))
            assert same(snapshot(world, after, row), theirs.snapshot())
            assert (paid, done) == (reward[row].item(), terminated[row].item())
            assert np.array_equal(seen, observation[row].numpy())
        state = where(terminated, state, after)


def test_without_the_package_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr(original_gridverse, "installed", lambda: False)
    with pytest.raises(UserError, match="needs the package gym_gridverse"):
        Original("keydoor.5x5")


class Heading(enum.Enum):
    F, R, B, L = range(4)


class Hue(enum.Enum):
    NONE, RED, GREEN, BLUE, YELLOW = range(5)


class Action(enum.Enum):
    STAY, TURN = range(2)


def kind(number):
    """A class of objects as the original has them, with a colour and a status where there is one."""

    class Thing:
        def __init__(self, *about):
            self.color = next((each for each in about if isinstance(each, Hue)), Hue.NONE)
            self.state_index = next((each.value for each in about if isinstance(each, Status)), 0)

        def type_index(self):
            return number

    return Thing


class Status(enum.Enum):
    OPEN, CLOSED, LOCKED = range(3)


class Grid:
    def __init__(self, height, width, thing):
        self.shape = types.SimpleNamespace(height=height, width=width)
        self.things = {(y, x): thing() for y in range(height) for x in range(width)}

    def __getitem__(self, place):
        return self.things[place]

    def __setitem__(self, place, thing):
        assert place in self.things
        self.things[place] = thing


class Inner:
    """An engine that knows one action: TURN faces the agent to the right."""

    action_space = types.SimpleNamespace(actions=list(Action))
    seed = None

    def __init__(self, objects):
        self.objects = objects

    def set_seed(self, seed):
        self.seed = seed

    def functional_reset(self):
        place = types.SimpleNamespace(y=1, x=1)
        agent = types.SimpleNamespace(position=place, orientation=Heading.F, grid_object=self.objects.NoneGridObject())
        return types.SimpleNamespace(grid=Grid(5, 5, self.objects.Floor), agent=agent)

    def functional_step(self, state, action):
        assert isinstance(action, Action)
        state.agent.orientation = Heading((state.agent.orientation.value + action.value) % 4)
        return state, 0.25, action is Action.TURN

    def functional_observation(self, state):
        return types.SimpleNamespace(grid=state.grid)


@pytest.fixture
def engine(monkeypatch):
    """A stand-in for gym_gridverse with the names that the adapter uses; returns the files it was given."""
    names = ["NoneGridObject", "Hidden", "Floor", "Wall", "Exit", "Door", "Key", "MovingObstacle", "Box", "Telepod"]
    things = {name: kind(number) for number, name in enumerate([*names, "Beacon"])}
    things["Door"].Status = Status
    objects = types.SimpleNamespace(**things, Color=Hue)
    geometry = types.SimpleNamespace(Position=lambda y, x: types.SimpleNamespace(y=y, x=x), Orientation=Heading)
    given = []
    factory = types.SimpleNamespace(factory_env_from_yaml=lambda path: given.append(path) or Inner(objects))
    parts = {"grid_object": objects, "geometry": geometry, "envs.yaml.factory": factory}
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, f"gym_gridverse.{name}", module)
    monkeypatch.setattr(original_gridverse, "installed", lambda: True)
    return given


@pytest.mark.parametrize("name", ["keydoor.5x5", "memory.5x5", "teleport.5x5", "dynamic_obstacles.5x5"])
def test_a_state_goes_over_and_comes_back(engine, name):
    world, state, _ = started(name)
    state.held[:] = 6 << 5 | 4  # a yellow key in every hand
    theirs = Original(name)
    assert engine == [str(stock_files()[name])]
    for row in range(len(state.steps)):
        ours = snapshot(world, state, row)
        theirs.restore(ours)
        assert same(ours, theirs.snapshot())
        assert np.array_equal(theirs.observe(), (ours.grid[..., 0] + ours.grid[..., 2]).flatten())


def test_the_adapter_is_a_gymnasium_environment(engine):
    theirs = Original("keydoor.5x5", time_limit=2)
    observation, info = theirs.reset(seed=7)
    assert theirs.inner.seed == 7 and info == {} and theirs.observation_space.contains(observation)
    assert isinstance(theirs, gymnasium.Env) and theirs.action_space.n == 2
    assert theirs.step(0)[1:4] == (0.25, False, False)
    assert theirs.step(0)[1:4] == (0.25, False, True)
    theirs.reset()
    assert theirs.step(1)[1:4] == (0.25, True, False)
    assert theirs.snapshot().agent.tolist() == [1, 1, 3]  # a quarter turn to the right of north is east
    assert theirs.inner.seed == 7
