"""A stand-in of gym-gridverse's API, with this suite's engine behind it: states, actions and numbers as in 2023."""

import types

import gymnasium.utils.seeding
import numpy as np
import torch

from envs.registry import make_world

FILES = {
    "__init__.py": "",
    "envs/__init__.py": "",
    "envs/yaml/__init__.py": "",
    "envs/yaml/factory.py": "from old_gridverse import factory_env_from_yaml",
    "representations/__init__.py": "",
    "representations/observation_representations.py": "from old_gridverse import make_observation_representation",
}


def install(folder, files=FILES, stock=()):
    """Write the package; `stock` are the YAML files of its registered environments."""
    for name, text in files.items():
        path = folder / "gym_gridverse" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "gym_gridverse" / "registered_envs").mkdir()
    for path in stock:
        (folder / "gym_gridverse" / "registered_envs" / f"gv_{path.name}").write_text(path.read_text())


def factory_env_from_yaml(path):
    return InnerEnv(path)


class InnerEnv:
    def __init__(self, path):
        assert isinstance(path, str)
        self.world = make_world("Gridverse/Yaml-v0", path=path, encoding="default", dictionary=True)
        self.observation_space = self.world.observation_space
        names = [f"Action {index}" for index in range(self.world.num_actions)]
        self.action_space = types.SimpleNamespace(actions=names)

    def set_seed(self, seed=None):
        self.rng, _ = gymnasium.utils.seeding.np_random(seed)

    def draws(self, count):
        return torch.from_numpy(self.rng.random((1, count)))

    def functional_reset(self):
        return self.world.reset(self.draws(self.world.reset_draws))

    def functional_step(self, state, action):
        number = torch.tensor([self.action_space.actions.index(action)])
        after, _, reward, ended, _ = self.world.step(state, number, self.draws(self.world.step_draws))
        return after, reward.item(), ended.item()

    def functional_observation(self, state):
        return state.observation[0].numpy()


def make_observation_representation(name, space):
    assert name == "default"
    sizes = [entry.nvec.size for entry in space.values()]
    grid = types.SimpleNamespace(upper_bound=np.asarray(space["grid"].nvec) - 1)

    def convert(observation):
        parts = np.split(observation, np.cumsum(sizes)[:-1])
        return {key: part.reshape(space[key].shape) for key, part in zip(space, parts, strict=True)}

    return types.SimpleNamespace(space={"grid": grid}, convert=convert)
