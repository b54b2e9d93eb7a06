"""`gym_gridverse:NAME` is an environment that gym-gridverse runs, with what the same file shows in this suite."""

import importlib
import re
import site
import sys

import gymnasium
import numpy as np
import old_gridverse
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from run_folders import error_of

from dqn_memory import train
from dqn_memory.agent import Agent
from envs.errors import DrawsNothing
from envs.gridverse.yaml.world import stock_files
from envs.gymnasium import GymnasiumVector
from envs.packages import make_env

MISSING = importlib.util.find_spec("gym_gridverse") is None
pytestmark = pytest.mark.skipif(not MISSING, reason="gym_gridverse is installed, and would be hidden by the stand-in")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    yield tmp_path
    for name in [each for each in sys.modules if each.partition(".")[0] == "gym_gridverse"]:
        del sys.modules[name]


@pytest.fixture
def installed(place):
    old_gridverse.install(place, stock=[stock_files()["memory.5x5"], stock_files()["memory_four_rooms.7x7"]])
    return place


@pytest.mark.parametrize(
    "name",
    ["memory.5x5", pytest.param("keydoor.7x7", marks=pytest.mark.long), "dynamic_obstacles.7x7", "teleport.5x5"],
)
def test_it_shows_pays_and_ends_as_the_same_file_does_here(installed, name):
    ours, theirs = gymnasium.make("Gridverse/Yaml-v0", path=name), make_env(f"gym_gridverse:{name}")
    assert theirs.observation_space == ours.observation_space and theirs.action_space == ours.action_space
    successes = 0
    for seed in range(20):
        first = [env.reset(seed=seed)[0] for env in (ours, theirs)]
        assert np.array_equal(*first) and first[0].dtype == first[1].dtype
        for action in np.random.default_rng(seed).integers(ours.action_space.n, size=100):
            (one, *rest, info), (other, *same, told) = ours.step(action), theirs.step(action)
            assert np.array_equal(one, other) and rest == same
            assert told["success"] == info.get("success", False)
            successes += told["success"]
            if rest[1] or rest[2]:
                break
    assert successes > 0 or name not in ("memory.5x5", "teleport.5x5")  # chance solves these


def test_a_name_is_an_id_of_the_package_a_file_or_a_stock_file(installed, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(stock_files()["memory.5x5"].read_text())
    for name in ("GV-Memory-5x5-v0", str(file), "memory.5x5", "GV-MemoryFourRooms-7x7-v0"):
        assert make_env(f"gym_gridverse:{name}").reset(seed=0)[0].size
    assert "did you mean 'GV-Memory-5x5-v0'" in error_of(make_env, "gym_gridverse:GV-Memory-5x5-v1")


def test_gymnasium_accepts_it_and_episodes_end_at_500_steps_or_the_given_limit(installed):
    env = make_env("gym_gridverse:keydoor.5x5")
    check_env(env.unwrapped, skip_render_check=True)
    assert env.spec.max_episode_steps == 500
    limited = make_env("gym_gridverse:keydoor.5x5", max_episode_steps=3)
    limited.reset(seed=0)
    assert [limited.step(4)[3] for _ in range(3)] == [False, False, True]
    with pytest.raises(DrawsNothing):
        make_env("gym_gridverse:keydoor.5x5", render_mode="rgb_array")


def test_a_seed_repeats_the_episodes_of_a_vector(installed):
    def episodes(seed):
        vector = GymnasiumVector("gym_gridverse:memory_four_rooms.7x7", 3, seed)
        shown = [vector.reset()] + [vector.step(torch.tensor([0, 1, 5])).final_observation for _ in range(60)]
        return np.stack([each.numpy() for each in shown]), vector.reports_success

    (one, reports), (again, _), (other, _) = episodes(1), episodes(1), episodes(2)
    assert np.array_equal(one, again) and not np.array_equal(one, other) and reports


@pytest.mark.long
def test_training_takes_it_by_name(installed, tmp_path):
    run = tmp_path / "run"
    small = "--num-envs 2 --width 8 --heads 2 --layers 1 --context 4 --learning-starts 8 --prepopulate 8"
    rest = "--total-steps 24 --evaluate-every 24 --episodes 1 --final-episodes 1 --track none"
    train.main(f"--env gym_gridverse:GV-Memory-5x5-v0 --run {run} --time-limit 9 {small} {rest}".split())
    assert Agent.load(run).config.environment.env == "gym_gridverse:GV-Memory-5x5-v0"


@pytest.mark.parametrize(("files", "words"), [
    ({}, "is of another package; install it with `pip install git.https://github.com/abaisero/gym-gridverse`"),
    ({"__init__.py": "import numpy; numpy.int_of_old"}, "cannot be imported .*numpy.* has no attribute 'int_of_old'"),
    ({"__init__.py": ""}, "gym_gridverse cannot make memory.5x5 .ModuleNotFoundError"),
    (old_gridverse.FILES | {"envs/yaml/factory.py": "def factory_env_from_yaml(path): raise SyntaxError('a\\nb')"},
     "gym_gridverse cannot make memory.5x5 .SyntaxError: a b"),
])  # fmt: skip
def test_a_package_that_is_missing_or_broken_is_one_sentence(place, files, words):
    if files:
        old_gridverse.install(place, files)
    assert re.search(words, error_of(make_env, "gym_gridverse:memory.5x5"))
