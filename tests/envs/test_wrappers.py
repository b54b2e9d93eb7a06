"""Wrappers, single and vector, and the spaces that other libraries read."""

import copy
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st
from run_folders import error_of
from vector_comparison import check_vector_env
from world_keywords import build

from envs import wrappers
from envs.spaces import MultiDiscrete
from envs.wrappers import antialias, one_hot, previous_action, step_count

DICTIONARY = ("Gridverse/Keydoor-5x5-v0", {"dictionary": True, "time_limit": 9})
CAR, CARDS = ("POMDP/CarFlag-v0", {"time_limit": 12}), ("POMDP/MemoryCards-v0", {"pairs": 3, "time_limit": 9})
CASES = [
    (CAR, "PreviousAction", {}),
    (CAR, "StepCount", {}),
    (CAR, "Antialias", {"bins": 7, "entries": [0]}),
    (CARDS, "PreviousAction", {}),
    (CARDS, "StepCount", {"limit": 5}),
    (CARDS, "OneHot", {}),
    (DICTIONARY, "PreviousAction", {}),
    (DICTIONARY, "StepCount", {"limit": 5}),
    (DICTIONARY, "OneHot", {}),
    (DICTIONARY, "PhantomWalls", {"rooms": (2, 2)}),
    (("Gridverse/Memory-Empty-13x13-v0", {"time_limit": 9}), "PhantomWalls", {"rooms": (5, 5)}),
]


def test_shares_among_whole_numbers_keep_their_fractions():
    bytes_of_memory = spaces.Box(0, 255, (3,), np.uint8)
    joined, weights = step_count(bytes_of_memory, 10), antialias(bytes_of_memory, 4, [0])
    batch = np.array([[0, 7, 255], [85, 1, 2]], np.uint8)
    counted = joined.encode(batch, np.array([3, 10]))
    np.testing.assert_allclose(counted, [[0, 7, 255, 0.3], [85, 1, 2, 1.0]], rtol=1e-6)
    assert counted[0] in joined.space and joined.space.dtype == np.float32
    spread = weights.encode(batch, None)
    np.testing.assert_allclose(spread[:, :4].sum(1), 1, rtol=1e-6)
    assert (spread[:, 4:] == batch[:, 1:]).all() and spread[0] in weights.space


def made(world):
    return gymnasium.make(world[0], **world[1])


@pytest.mark.parametrize(("world", "name", "kwargs"), CASES)
def test_single_wrappers_pass_gymnasiums_check(world, name, kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(getattr(wrappers, name)(made(world), **kwargs), skip_render_check=True)


@pytest.mark.parametrize(("world", "name", "kwargs"), CASES)
def test_vector_wrappers_do_what_single_ones_do(world, name, kwargs):
    """In all autoreset modes, with masked resets, final observations included."""

    def make_vector(count, mode):
        vector = gymnasium.make_vec(world[0], num_envs=count, autoreset_mode=mode, **world[1])
        return getattr(wrappers, f"Vector{name}")(vector, **kwargs)

    check_vector_env(make_vector, lambda: getattr(wrappers, name)(made(world), **kwargs))


def test_a_vector_environment_may_name_its_autoreset_mode_by_a_text():
    vector = gymnasium.make_vec(CAR[0], num_envs=2, autoreset_mode=AutoresetMode.SAME_STEP, **CAR[1])
    vector.metadata = vector.metadata | {"autoreset_mode": "SameStep"}
    counted = wrappers.VectorStepCount(vector)
    counted.reset(seed=0)
    shown = [counted.step(np.ones(2, int))[0][:, -1] for _ in range(12)]
    assert shown[10].tolist() == pytest.approx([11 / 12] * 2) and shown[11].tolist() == [0, 0]


def test_wrappers_go_around_each_other():
    env = wrappers.Antialias(wrappers.StepCount(wrappers.PreviousAction(made(CAR))), bins=5, entries=[0, 6])
    observation, _ = env.reset(seed=0)
    assert env.observation_space.shape == observation.shape == (5 + 1 + 1 + 3 + 5,)
    assert observation[-5:].tolist() == [1, 0, 0, 0, 0]
    observation, *_ = env.step(2)
    assert observation[7:10].tolist() == [0, 0, 1]
    np.testing.assert_allclose(observation[-5:], [1 - 4 / 12, 4 / 12, 0, 0, 0], atol=1e-6)


def test_previous_action_counts_from_the_first_action():
    class Shifted(gymnasium.ActionWrapper):
        action_space = spaces.Discrete(3, start=-1)

        def action(self, action):
            return action + 1

    env = wrappers.PreviousAction(made(CARDS))  # of whole numbers: one more
    assert env.observation_space == spaces.MultiDiscrete([5] * 6 + [7]) and env.reset(seed=0)[0][-1] == 6
    assert [env.step(action)[0][-1] for action in (3, 0, 5)] == [3, 0, 5]
    env = wrappers.PreviousAction(Shifted(made(CAR)))
    env.reset(seed=0)
    assert env.step(-1)[0][3:].tolist() == [1, 0, 0]
    assert env.step(1)[0][3:].tolist() == [0, 0, 1]


def test_step_count_is_the_share_of_the_limit_and_stops_there():
    env = wrappers.StepCount(made(CAR), limit=4)
    assert env.reset(seed=0)[0][-1] == 0
    assert [float(env.step(1)[0][-1]) for _ in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert env.reset()[0][-1] == 0
    assert wrappers.StepCount(made(CAR)).limit == 12
    assert wrappers.StepCount(gymnasium.make("CartPole-v1")).limit == 500


@pytest.mark.parametrize(("space", "batch", "expected"), [
    (spaces.Discrete(3, start=-1), [-1, 1], [[1, 0, 0], [0, 0, 1]]),
    (spaces.MultiDiscrete([[2, 3]], start=[[0, 5]]), [[[1, 7]], [[0, 5]]], [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]),
    (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[1, 0, 0, 1], [0, 1, 0, 1]]),
])  # fmt: skip
def test_one_hot_of_all_kinds_of_whole_numbers(space, batch, expected):
    hot = one_hot(space).encode(np.array(batch), None)
    assert hot.tolist() == expected and one_hot(space).space.contains(hot[0])


@given(st.lists(st.floats(-1.5, 2.5, width=32), min_size=1, max_size=8), st.integers(2, 30))
def test_antialiased_weights_sum_to_one_and_give_the_value_back(values, bins):
    whole = antialias(spaces.Box(0, 1, (2,), np.float32), 3, None)  # all entries; what lies outside is clipped
    assert whole.encode(np.array([[-5.0, 0.5], [2, 1]]), None).tolist() == [[1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1]]
    space = spaces.Box(np.float32([-1.5, 0]), np.float32([2.5, 9]))
    feature = antialias(space, bins, [0])
    batch = np.column_stack([np.float32(values), np.full(len(values), 4, np.float32)])
    coded = feature.encode(batch, None)
    weights, places = coded[:, :bins].astype(float), np.linspace(-1.5, 2.5, bins)
    assert all(feature.space.contains(each) for each in coded)
    assert (coded[:, bins] == 4).all() and ((weights > 0).sum(1) <= 2).all()
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(weights @ places, values, atol=1e-5)


class Continuous(gymnasium.Wrapper):
    action_space = spaces.Box(-1, 1, (1,))


@pytest.mark.parametrize(("build", "words"), [
    (lambda: wrappers.OneHot(made(CAR)), "whole numbers"),
    (lambda: wrappers.Antialias(made(CARDS)), "Antialias needs a flat Box"),
    (lambda: wrappers.Antialias(made(CAR), bins=1), "at least 2, not 1"),
    (lambda: wrappers.Antialias(made(CAR), entries=[3]), "from 0 to 2, not 3"),
    (lambda: antialias(spaces.Box(-np.inf, 1, (2,)), 4, None), "bounds for entry 0"),
    (lambda: wrappers.PreviousAction(Continuous(made(CAR))), "Discrete actions"),
    (lambda: wrappers.StepCount(gymnasium.make("CartPole-v1").unwrapped), "limit=..."),
    (lambda: wrappers.StepCount(made(CAR), limit=0), "at least 1 step"),
    (lambda: wrappers.OneHot(gymnasium.make_vec(CARDS[0], num_envs=2)), "envs.wrappers.VectorOneHot"),
    (lambda: wrappers.VectorPreviousAction(made(CAR)), "envs.wrappers.PreviousAction"),
    (lambda: wrappers.StepCount("CarFlag"), "not str"),
    (lambda: previous_action(spaces.Box(0, 1, (3, 3)), spaces.Discrete(2)), "flat"),
    (lambda: step_count(spaces.Dict(step_count=spaces.Discrete(2)), 2), "already has an entry 'step_count'"),
])  # fmt: skip
def test_wrong_use_is_one_sentence(build, words):
    assert words in error_of(build)


def test_a_vector_environment_must_say_when_its_rows_start_over_and_an_empty_mask_resets_all():
    env = gymnasium.make_vec(CAR[0], num_envs=2)
    vector = wrappers.VectorStepCount(env)
    assert np.array_equal(vector.reset(seed=1)[0], vector.reset(seed=1, options={"reset_mask": None})[0])
    env.metadata = {}
    assert "autoreset_mode" in error_of(wrappers.VectorStepCount, env)


def test_a_space_of_ours_sums_to_a_python_integer_also_in_copies_and_is_gymnasiums_in_all_else():
    ours, plain = MultiDiscrete([3, 2, 5], seed=3), spaces.MultiDiscrete([3, 2, 5], seed=3)
    assert ours == plain == ours and batch_space(ours, 4) == batch_space(plain, 4)
    assert [ours.sample().tolist() for _ in range(5)] == [plain.sample().tolist() for _ in range(5)]
    for space in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), build(CARDS[0]).observation_space):
        assert type(sum(space.nvec)) is int and space.nvec.dtype == np.int64
