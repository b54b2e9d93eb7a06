"""Gymnasium environments for the tests; without torch, as processes that step them import this."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces

from envs.errors import UserError


class Corridor(gymnasium.Env):
    """Three steps; actions count from 5, success is what the environment says."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (4, 5, 3), np.uint8), "mission": spaces.Discrete(3, start=-1)}
    )
    action_space = spaces.Discrete(2, start=5)

    def __init__(self, key="success", render_mode=None):
        self.key, self.render_mode, self.open = key, render_mode, True

    def observe(self):
        return {"image": np.full((4, 5, 3), self.time, np.uint8), "mission": self.time % 3 - 1}

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        assert action in (5, 6)
        self.time += 1
        over = self.time == 3
        return self.observe(), -1.0, over, over, {self.key: action == 6}

    def close(self):
        self.open = False

    def render(self):
        return np.zeros((2, 2, 3), np.uint8)


class TwoArguments(Exception):
    """It cannot be made again from what it keeps."""

    def __init__(self, where, why):
        super().__init__(f"{where}: {why}")


def bad(action):
    """Fail, each action in its own way."""
    if action == 0:
        raise UserError("mind the gap")
    if action == 1:
        raise TwoArguments("here", "because")
    os._exit(3)


class Failing(gymnasium.Env):
    """Every step fails, but for the last action."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        if action < 3:
            bad(action)
        return 0, 0.0, False, False, {}


class Promising(gymnasium.Env):
    """Give observations of another shape than its space promises, or those that are given; of none, no tuple."""

    observation_space, action_space = spaces.Box(0, 1, (6,), np.float32), spaces.Discrete(2)

    def __init__(self, first=(0,) * 5):
        self.first = np.float32(first)

    def reset(self, *, seed=None, options=None):
        return (self.first, {}) if len(self.first) else None


class Odd(gymnasium.Env):
    """Gives what it is told to: `first` at a reset, `after` at a step; functions are called for it."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, first=(0, {}), after=(0, 0.0, False, False, {}), space=None):
        self.first, self.after = first, after
        self.observation_space = self.observation_space if space is None else space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first(self) if callable(self.first) else self.first

    def step(self, action):
        return self.after(self) if callable(self.after) else self.after


def hang(env):
    """Never come back."""
    while True:
        time.sleep(0.1)
