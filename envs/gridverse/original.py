"""The environments of gym-gridverse itself, for those who have it installed, as environments of Gymnasium.

Source: gym-gridverse, github.com/abaisero/gym-gridverse, as of September 2023.
"""

import importlib
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envs.errors import UserError, check_known
from envs.gridverse.yaml.world import stock_files
from envs.spaces import Array, MultiDiscrete


class Original(gymnasium.Env[Array, Any]):
    """An environment that gym-gridverse steps itself, one at a time.

    The observation is that of this suite's grids: the type's number plus the colour's number of every cell of the
    window, row by row, both from the package's representation "default". So a network reads the same numbers in
    `Gridverse/Yaml-v0` with the same file. Success is an end with a positive return. The package sets no time limit.

    Args:
        name: an id of the package, such as "GV-Memory-5x5-v0"; a gridverse YAML file; or the name of a stock file of
            this suite, such as "memory.5x5".

    Raises:
        UserError: there is no such environment, or the package cannot make it.
    """

    def __init__(self, name: str) -> None:
        path = name if os.path.isfile(name) else _files()[check_known("gym_gridverse environment", name, _files())]
        try:
            factory = importlib.import_module("gym_gridverse.envs.yaml.factory")
            package = importlib.import_module("gym_gridverse.representations.observation_representations")
            self.inner = factory.factory_env_from_yaml(str(path))
            self.representation = package.make_observation_representation("default", self.inner.observation_space)
            highest = self.representation.space["grid"].upper_bound  # (rows, columns, 3)
        except Exception as error:  # an old package beside newer ones, or a file that it refuses, may raise anything
            raise UserError(f"gym_gridverse cannot make {name} ({type(error).__name__}: {error}).") from error
        self.actions = list(self.inner.action_space.actions)
        self.action_space = gymnasium.spaces.Discrete(len(self.actions))
        self.observation_space = MultiDiscrete(np.full(highest[..., 0].size, 2 * highest.max() + 1))
        self.state: Any = None  # of gym-gridverse
        self.total = 0.0  # the return

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; a seed restarts the package's random stream."""
        super().reset(seed=seed)
        if seed is not None or self.state is None:
            self.inner.set_seed(int(self.np_random.integers(2**31)) if seed is None else seed)
        self.state, self.total = self.inner.functional_reset(), 0.0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        self.state, reward, ended = self.inner.functional_step(self.state, self.actions[int(action)])
        self.total += float(reward)
        return self._observation(), float(reward), bool(ended), False, {"success": bool(ended) and self.total > 0}

    def _observation(self) -> Array:
        cells = self.representation.convert(self.inner.functional_observation(self.state))["grid"]
        return np.asarray(cells[..., 0] + cells[..., 2], np.int64).flatten()


def _files() -> Mapping[str, Path]:
    """List the package's files by its ids, such as "GV-Memory-5x5-v0", and the stock files of this suite."""
    spec, found = find_spec("gym_gridverse"), stock_files()
    for folder in [] if spec is None else spec.submodule_search_locations or ():
        for path in sorted(Path(folder, "registered_envs").glob("gv_*.*.yaml")):
            _, words, size, _ = re.split(r"^gv_|\.", path.name)
            found[f"GV-{''.join(map(str.capitalize, words.split('_')))}-{size}-v0"] = path
    return found
