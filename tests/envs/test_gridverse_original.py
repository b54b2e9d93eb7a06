"""The original engine beside ours, step by step from the same states, where somebody has it installed.

gym-gridverse is not in the package index, and needs an old gym; the recorded episodes of `test_gridverse_golden` and
`test_gridverse_yaml` were made with it.
"""

import importlib
import importlib.util

import numpy as np
import pytest
import torch

from envs.core import where_state
from envs.gridverse.objects import EAST, NORTH, SOUTH, WEST, colours, kinds, statuses
from envs.gridverse.yaml.schema import KINDS
from envs.gridverse.yaml.world import locate, stock_files
from envs.registry import make_world

HEADINGS = {NORTH: "F", EAST: "R", SOUTH: "B", WEST: "L"}  # what the originals call them
# Moving obstacles draw their steps from the original's own stream, so theirs cannot be compared step by step.
STEADY = [name for name in stock_files() if not name.startswith("dynamic_obstacles")]


def channels(code):
    return torch.stack([kinds(code), statuses(code), colours(code)], -1).numpy().astype(np.uint8)


def snapshot(world, state, row):
    """One row of our state: the grid (H, W, 3) of types, statuses and colours, the pose, and what is in the hand."""
    y, x = divmod(int(state.position[row]), world.width)
    cells = state.cells[row].view(world.height, world.width)
    return channels(cells), np.array([y, x, int(state.heading[row])], np.uint8), channels(state.held[row])


class Original:
    """The environment of a gridverse YAML file, run by gym_gridverse itself."""

    def __init__(self, path):
        self.objects = importlib.import_module("gym_gridverse.grid_object")
        self.geometry = importlib.import_module("gym_gridverse.geometry")
        factory = importlib.import_module("gym_gridverse.envs.yaml.factory")
        self.inner = factory.factory_env_from_yaml(str(locate(path)))
        self.state = self.inner.functional_reset()

    def step(self, action):
        """One action, by its number in the file's action space; returns the reward and whether the episode ended."""
        actions = list(self.inner.action_space.actions)
        self.state, reward, done = self.inner.functional_step(self.state, actions[action])
        return reward, done

    def observe(self):
        """The window: type index + colour index of its cells, as in our "summed" encoding."""
        grid = self._numbers(self.inner.functional_observation(self.state).grid)
        return (grid[..., 0].astype(np.int64) + grid[..., 2]).flatten()

    def snapshot(self):
        agent = self.state.agent
        names = {name: heading for heading, name in HEADINGS.items()}
        pose = [agent.position.y, agent.position.x, names[agent.orientation.name]]
        return self._numbers(self.state.grid), np.array(pose, np.uint8), np.array(numbers(agent.grid_object), np.uint8)

    def restore(self, snapshot):
        grid, pose, held = snapshot
        for y, x in np.ndindex(grid.shape[:2]):
            self.state.grid[y, x] = self._object(*grid[y, x].tolist())
        y, x, heading = pose.tolist()
        agent = self.state.agent
        agent.position = self.geometry.Position(y, x)
        agent.orientation = self.geometry.Orientation[HEADINGS[heading]]
        agent.grid_object = self._object(*held.tolist())

    def _object(self, kind, status, colour):
        if not kind:
            return self.objects.NoneGridObject()
        name = next(name for name, code in KINDS.items() if code == kind)
        build, hue = getattr(self.objects, name), self.objects.Color(colour)
        if name == "Door":
            return build(self.objects.Door.Status(status), hue)
        return build(hue) if name in ("Exit", "Key", "Telepod", "Beacon") else build()

    def _numbers(self, grid):
        height, width = grid.shape.height, grid.shape.width
        return np.array([[numbers(grid[y, x]) for x in range(width)] for y in range(height)], np.uint8)


def numbers(thing):
    return thing.type_index(), thing.state_index, thing.color.value


@pytest.mark.skipif(importlib.util.find_spec("gym_gridverse") is None, reason="gym_gridverse is not installed")
@pytest.mark.parametrize("name", STEADY)
def test_both_engines_take_the_same_steps(name):
    world, theirs = make_world("Gridverse/Yaml-v0", path=name), Original(name)
    generator = torch.Generator().manual_seed(0)
    state = world.reset(torch.rand(8, world.reset_draws, dtype=torch.float64, generator=generator))
    for _ in range(30):
        action = torch.randint(world.num_actions, (8,), generator=generator)
        u = torch.rand(8, world.step_draws, dtype=torch.float64, generator=generator)
        after, observation, reward, terminated, _ = world.step(state, action, u)
        for row in range(8):
            theirs.restore(snapshot(world, state, row))
            assert np.array_equal(theirs.observe(), state.observation[row].numpy())
            assert theirs.step(int(action[row])) == (reward[row].item(), terminated[row].item())
            assert all(map(np.array_equal, snapshot(world, after, row), theirs.snapshot()))
            assert np.array_equal(theirs.observe(), observation[row].numpy())
        state = where_state(terminated, state, after)
