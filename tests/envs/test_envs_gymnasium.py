"""The worlds as Gymnasium environments, single and vector."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from world_keywords import IDS, build, keywords

from envs import WORLDS
from envs.gymnasium import WorldEnv
from envs.seeding import RowStreams

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("code", "said"), [
    ("import envs, sys; print('torch' in sys.modules, len(envs.WORLDS))", f"False {len(WORLDS)}"),
    ("import gymnasium; print(gymnasium.make('envs:POMDP/CarFlag-v0').reset(seed=1)[0].shape)", "(3,)"),
])  # fmt: skip
def test_importing_the_package_imports_no_torch_and_an_id_with_the_module_needs_no_import(code, said):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == said, done.stderr


@pytest.mark.parametrize("id", IDS)
def test_check_env_is_clean(id):
    """It also draws in every render mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if id.startswith(("Control/", "POPGym/")):  # speeds without a bound and torques up to 2 are Gymnasium's own
            warnings.filterwarnings("ignore", ".*Box observation space m(in|ax)imum value is -?infinity")
            warnings.filterwarnings("ignore", ".*For Box action spaces, we recommend")
        check_env(gymnasium.make(id, **keywords(id)).unwrapped)


@pytest.mark.parametrize("block", [4, 5, 64])
def test_row_streams_are_the_generators_numbers_in_order(block):
    streams = RowStreams(3, block)
    assert len(np.unique(streams.draw(None, 1))) == 3  # without seeds
    streams.seed([3, 4, 5])
    reference = [np.random.Generator(np.random.PCG64(seed)) for seed in (3, 4, 5)]
    choice = np.random.default_rng(0)
    for _ in range(80):
        rows, count = np.flatnonzero(choice.random(3) < 0.5), int(choice.integers(0, 4))
        everybody = choice.random() < 0.3
        drawn = streams.draw(None if everybody else rows, count)
        expected = [reference[row].random(count) for row in (range(3) if everybody else rows)]
        assert drawn.shape == (len(expected), count)
        assert np.array_equal(drawn, np.reshape(expected, drawn.shape))


@pytest.mark.parametrize("id", IDS)
def test_pictures_and_texts(id):
    for mode in ("ansi", "rgb_array"):
        single = gymnasium.make(id, render_mode=mode, **keywords(id))
        single.reset(seed=0)
        vector = gymnasium.make_vec(id, num_envs=2, render_mode=mode, **keywords(id))
        vector.reset(seed=[0, 1])
        assert np.array_equal(single.render(), vector.render()[0]) and len(vector.render()) == 2
    assert gymnasium.make_vec(id, num_envs=2, **keywords(id)).render() is None


def vector(**kwargs):
    return gymnasium.make_vec("POMDP/CarFlag-v0", num_envs=2, autoreset_mode="Disabled", **kwargs)


def started(env):
    env.reset(seed=0)
    return env


ACTIONS = [0, 3], [0, -1], [0], [0.0, 1.0]


def step_again():
    env = started(vector(time_limit=1))
    env.step(np.array([1, 1]))
    env.step(np.array([1, 1]))


@pytest.mark.parametrize(("misuse", "words"), [
    (lambda: WorldEnv("POMDP/CarFlag-v0", render_mode="human"), "render_mode"),
    (lambda: WorldEnv("POMDP/CarFlag-v0").step(0), "call reset"),
    *((lambda bad=bad: started(WorldEnv("POMDP/CarFlag-v0")).step(bad), f"action {bad}") for bad in (3, -1, 1.0)),
    (lambda: gymnasium.make_vec("POMDP/CarFlag-v0", num_envs=2, autoreset_mode="sometimes"), "SameStep"),
    (lambda: vector().reset(seed=[1, 2, 3]), "list of 2"),
    (lambda: vector().reset(options={"reset_mask": np.array([True, False])}), "first reset must start all rows"),
    (step_again, "Row 0, 1 has ended"),
    (lambda: RowStreams(1, 4).draw(None, 5), "block of 4"),
    (lambda: gymnasium.make_vec("POMDP/CarFlag-v0", num_envs=0), "at least 1, not 0"),
    *((lambda wrong=wrong: started(vector()).step(np.array(wrong)), "2 integers from 0 to 2") for wrong in ACTIONS),
])  # fmt: skip
def test_misuse_is_one_clear_sentence(misuse, words):
    with pytest.raises(ValueError, match=words):
        misuse()


def test_keywords_of_numpy_and_none_are_taken():
    made = build("Gridverse/Memory-7x7-v0", view=(np.int64(2), 3), time_limit=np.int64(9), phantom_rooms=None)
    assert (made.time_limit, made.observation_space.shape) == (9, (6,))


def test_an_unknown_keyword_is_the_type_error_that_callers_of_gymnasium_try():
    """TorchRL asks for `frameskip` first, and goes on without it where a TypeError says that nobody takes it."""
    for make in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'frameskip'; known: "):
            make("POMDP/CarFlag-v0", frameskip=4)


def test_torchrl_makes_and_steps_the_environments():
    libs = pytest.importorskip("torchrl.envs", reason="wraps the environments in TorchRL; `pip install torchrl`")
    for id in ("POMDP/CarFlag-v0", "Gridverse/Memory-5x5-v0"):
        assert libs.GymEnv(f"envs:{id}").rollout(5).batch_size[0] >= 1
