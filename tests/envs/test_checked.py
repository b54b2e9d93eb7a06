"""What an environment of somebody else gives is read by one rule, or refused in a sentence that says where."""

import random
import sys

import gymnasium
import numpy as np
import pytest
import torch
from foreign import Odd
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit, TransformObservation, TransformReward
from run_folders import error_of

from envs.checked import Checked
from envs.errors import one_line_errors
from envs.gymnasium import GymnasiumVector
from envs.vector import make_vector

STILL = torch.zeros(2, dtype=torch.int64)
GREY, CUE = spaces.Box(0, 255, (2, 3, 1), np.uint8), spaces.Box(0, 1, (2, 3, 1), np.uint8)
VECTOR = spaces.Box(-1, 1, (3,), np.float32)


class Unspeakable:
    def __repr__(self):
        return "\x1b[31mred\nmore"


def vector_of(max_steps=None, **parts):
    return GymnasiumVector(lambda: Odd(**parts), 2, seed=0, max_steps=max_steps)


def stepped(**parts):
    vector = vector_of(**parts)
    vector.reset()
    return vector.step(STILL)


def after(observation=0, reward=0.0, terminated=False, truncated=False, info=None):
    return observation, reward, terminated, truncated, {} if info is None else info


WRONG = [
    *(after(reward=reward) for reward in ("1", None, 1j, np.zeros(3), [1.0, 2.0], 10**400, 1e300, object())),
    *(after(terminated=flag) for flag in (None, "no", 0.5, 2, np.array([True, False]), [])),
    *(after(truncated=flag) for flag in (None, "no", float("nan"))),
    *((0, 0.0, False, False, info) for info in (None, [1], "info", 3)),
    *(after(terminated=True, info={name: told}) for name in ("success", "is_success") for told in (None, "yes", [], 2)),
    after(terminated=True, info={"success": np.zeros(2)}),
    *(after(seen) for seen in (None, 0.5, "a", np.int32(5), np.int64(-1), 2**70, [0, 1], {}, Unspeakable(), np.nan)),
    None, 3, (), (0, 0.0, False, {}), (0,) * 6, [0, 0.0, False, False, {}],
]  # fmt: skip


@pytest.mark.parametrize("result", WRONG, ids=range(len(WRONG)))
def test_a_wrong_value_of_a_step_is_one_sentence_with_environment_and_step(result):
    said = error_of(stepped, after=result)
    assert "Odd" in said and "step 1" in said and said.isprintable()


RIGHT = [
    *(after(reward=reward) for reward in (1, True, np.float32(1), np.array([1.0]), np.int8(1))),
    *(after(terminated=flag) for flag in (np.bool_(True), 1, np.array(True))),
    after(info={"success": None}), after(terminated=True, info={"success": 1.0}),
    *(after(seen) for seen in (np.int64(1), np.uint8(1), [1], True)),
]  # fmt: skip


@pytest.mark.parametrize("result", RIGHT, ids=range(len(RIGHT)))
def test_a_value_that_means_the_same_is_read(result):
    observation, reward, terminated, _, info = result
    step = stepped(after=result)
    assert step.reward.tolist() == [float(np.asarray(reward).item())] * 2
    assert step.terminated.tolist() == [bool(terminated)] * 2
    assert step.final_observation.tolist() == [[int(np.asarray(observation).item())]] * 2
    assert step.success.tolist() == [bool(info.get("success"))] * 2


@pytest.mark.parametrize("first", [None, 0, (0,), (0, None), (None, {}), [0, {}], (5, {}), (0, {}, {})])
def test_a_wrong_value_of_a_reset_is_one_sentence(first):
    said = error_of(vector_of(first=first).reset)
    assert "Odd" in said and "reset" in said


@pytest.mark.parametrize("functions", [
    {"reset": lambda self: (0, {})}, {"reset": lambda self, seed: 1, "step": None}, {"step": lambda self: after()},
    {"reset": lambda self, seed: (0, {}), "limit": 5}, {"step": lambda self, action: (0, 0.0, False, {}), "limit": 5},
    {"reset": lambda self, seed=None, options=None: None, "limit": 5},
])  # fmt: skip
def test_a_function_of_another_signature_or_number_of_values_is_one_sentence(functions):
    limit = functions.pop("limit", None)
    kind = type("Old", (Odd,), functions)
    vector = GymnasiumVector((lambda: TimeLimit(kind(), limit)) if limit else kind, 2, 0)

    def played():
        vector.reset()
        vector.step(STILL)

    said = error_of(played)
    assert "Old" in said and ("reset" in said or "step" in said)


@pytest.mark.parametrize(("space", "given", "kept"), [
    (GREY, np.full((2, 3, 1), 7), 7),
    (GREY, [[[7], [7], [7]]] * 2, 7),
    (VECTOR, np.full(3, 0.5), 0.5),
    (VECTOR, np.ones(3, np.int8), 1),
    (spaces.MultiBinary(3), np.ones(3, bool), 1),
    (spaces.Box(0, 60_000, (2, 3, 1), np.uint16), np.full((2, 3, 1), 50_000, np.uint16), 50_000),
])  # fmt: skip
def test_a_cast_that_loses_nothing_is_made(space, given, kept):
    step = stepped(space=space, first=(given, {}), after=after(given))
    assert (step.observation == kept).all() and step.observation.numpy().dtype == vector_of(
        space=space
    ).observation_space.dtype


@pytest.mark.parametrize(("space", "given"), [
    (GREY, np.full((2, 3, 1), 0.5, np.float32)), (GREY, np.zeros((2, 3, 1), np.float64)),
    (GREY, np.full((2, 3, 1), 300)), (GREY, np.full((2, 3, 1), -1)), (GREY, np.zeros((3, 2, 1), np.uint8)),
    (GREY, np.zeros((1, 2, 3, 1), np.uint8)), (CUE, np.full((2, 3, 1), 255, np.uint8)), (VECTOR, [[1, 2], [3]]),
    (VECTOR, np.zeros(3, complex)), (VECTOR, np.zeros((3, 1), np.float32)), (VECTOR, np.full(3, np.inf)),
    (VECTOR, np.full(3, 1e300)), (spaces.MultiBinary(3), np.ones(3)), (spaces.MultiDiscrete([2, 3]), [1, 3]),
])  # fmt: skip
def test_an_observation_that_is_not_of_its_space_is_refused(space, given):
    assert "Odd" in error_of(vector_of(space=space, first=(given, {})).reset)


def test_episodes_that_nothing_ends_are_cut_where_a_limit_is_asked_for(capsys):
    vector = vector_of(max_steps=3)
    vector.reset()
    assert [vector.step(STILL).truncated.tolist() for _ in range(4)] == [
        [False] * 2,
        [False] * 2,
        [True] * 2,
        [False] * 2,
    ]
    assert "--time-limit" in capsys.readouterr().err
    limited = GymnasiumVector(lambda: gymnasium.make("CartPole-v1", max_episode_steps=5), 2, 0, max_steps=3)
    limited.reset()
    assert not any(limited.step(STILL).truncated.any() for _ in range(3))


def fails(error):
    def step(env):
        raise error

    return step


class Mute(Exception):
    """It cannot say what it is."""

    def __str__(self):
        raise ValueError("mute")


class Told(Exception):
    """Its text is not what it was made of."""

    def __str__(self):
        return "\x1b[2Jgone"


@pytest.mark.parametrize(
    "error", [ValueError("\x1b[31mred"), KeyError("a"), OSError(2, "no\x07", "file"), Told(1), Mute()]
)
def test_an_error_inside_keeps_its_traceback_and_says_where(error):
    with pytest.raises(Exception) as caught:
        stepped(after=fails(error))
    assert type(caught.value) is type(error) or type(error).__name__ in str(caught.value)
    assert "step" in [entry.name for entry in caught.traceback]
    assert "Odd" in caught.value.__notes__[0] and "step 1" in caught.value.__notes__[0]
    if isinstance(error, Mute):
        return
    assert "\x1b" not in str(caught.value) and "\x07" not in str(caught.value)


def test_an_environment_that_ends_the_program_is_one_sentence():
    assert "Odd" in error_of(stepped, after=lambda env: sys.exit(3))


GLOBAL = {
    "numpy": lambda: np.random.randint(1000),
    "Python": lambda: random.randrange(1000),
    "torch": lambda: int(torch.randint(1000, ())),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_global_generators_are_lent_seeded_named_and_given_back(name, capsys):
    kind = type(f"Draws{name}", (Odd,), {})
    space, draw = spaces.Discrete(1000), GLOBAL[name]

    def rolled(seed):
        def make():
            return kind(lambda env: (draw(), {}), lambda env: after(draw(), terminated=True), space)

        vector = GymnasiumVector(make, 2, seed)
        seen = [vector.reset(), *(vector.step(STILL).observation for _ in range(60))]
        saved, last = vector.state_dict(), vector.step(STILL).observation
        again = GymnasiumVector(make, 2, 77)
        again.load_state_dict(saved)
        assert torch.equal(again.step(STILL).observation, last)
        return torch.stack(seen)

    before = np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state()
    assert torch.equal(rolled(1), rolled(1)) and not torch.equal(rolled(1), rolled(2))
    said = capsys.readouterr().err
    assert said.count(kind.__name__) == 1 and name in said
    assert np.array_equal(np.random.get_state()[1], before[0]) and random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_wrapper_that_draws_globally_is_watched_though_its_environment_draws_by_itself(capsys):
    kind, zeros = type("Calm", (Odd,), {}), np.zeros(3, np.float32)
    calm = {"first": (zeros, {}), "after": after(zeros), "space": VECTOR}

    def rolled(make):
        vector = GymnasiumVector(make, 2, 1)
        return torch.stack([vector.reset(), *(vector.step(STILL).observation for _ in range(40))])

    rolled(lambda: TransformObservation(kind(**calm), np.copy, VECTOR))
    before = np.random.get_state()[1].copy()
    noisy = [
        rolled(lambda: TransformObservation(kind(**calm), lambda seen: seen + np.random.rand(), VECTOR))
        for _ in range(2)
    ]
    assert torch.equal(*noisy) and noisy[0].std() > 0
    assert np.array_equal(np.random.get_state()[1], before) and "Calm" in capsys.readouterr().err


def test_a_seed_that_changes_nothing_is_found():
    own = np.random.default_rng()
    space = spaces.Box(0, 1, (2,), np.float64)
    assert vector_of(
        first=lambda env: (own.random(2), {}), after=lambda env: after(own.random(2)), space=space
    ).ignores_seed()
    late = vector_of(first=(np.zeros(2), {}), after=lambda env: after(own.random(2)), space=space)
    assert late.ignores_seed()
    for id in ("CartPole-v1", "FrozenLake-v1", "Acrobot-v1"):
        assert not make_vector(id, 2, 0).ignores_seed()


@pytest.mark.parametrize("wrapper", [NormalizeObservation, NormalizeReward])
def test_wrappers_that_keep_statistics_are_named(wrapper, capsys):
    Checked(type("Plain", (Odd,), {})())
    Checked(TransformReward(type("Plain", (Odd,), {})(space=VECTOR), lambda reward: reward))
    assert not capsys.readouterr().err
    Checked(TransformReward(wrapper(type(f"For{wrapper.__name__}", (Odd,), {})(space=VECTOR)), lambda reward: reward))
    assert wrapper.__name__ in capsys.readouterr().err


def test_a_mask_of_actions_is_named_once(capsys):
    kind = type("Masked", (Odd,), {})
    vector = GymnasiumVector(lambda: kind(after=after(info={"action_mask": np.ones(2)})), 2, 0)
    vector.reset()
    for _ in range(3):
        vector.step(STILL)
    assert capsys.readouterr().err.count("action_mask") == 1


@pytest.mark.parametrize(
    "error", [OSError(2, "No such file", "level.map"), MemoryError("of the level"), ValueError("a")]
)
def test_a_script_keeps_the_traceback_of_an_error_inside_an_environment(error):
    """It is not taken for a file or for memory of the script's own."""
    with pytest.raises(type(error)):
        one_line_errors(lambda: stepped(after=fails(error)))()


@pytest.mark.parametrize("picture", ["text", [1, 2], np.zeros((2, 2)), np.zeros((2, 2, 4)), 3])
def test_a_picture_that_is_none_is_one_sentence(picture):
    kind = type("Drawn", (Odd,), {"render_mode": "rgb_array", "render": lambda self: picture})
    vector = GymnasiumVector(kind, 1, 0)
    vector.reset()
    assert "Drawn" in error_of(vector.frame, 0)


@pytest.mark.parametrize("made", [None, object(), gymnasium.Env(), type("Half", (Odd,), {"action_space": 3})()])
def test_what_is_no_environment_with_spaces_is_one_sentence(made):
    error_of(GymnasiumVector, lambda: made, 1, 0)
