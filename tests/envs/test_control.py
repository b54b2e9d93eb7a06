"""The pendulum and the car between hills beside Gymnasium's own: the same numbers in the same steps."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from run_folders import error_of
from world_keywords import uniforms

from dqn_memory.size import environment_sizes
from envs import benchmark, memoryless
from envs.baselines.__main__ import main as reference_scores
from envs.gymnasium import Engine
from envs.registry import make_world

PENDULUM, CAR = "Control/Pendulum-v0", "Control/MountainCar-v0"
PAIRS = [(PENDULUM, "Pendulum-v1"), (CAR, "MountainCarContinuous-v0")]
NONE = np.zeros((1, 0))


@pytest.mark.parametrize("on_arrays", [False, True])
def test_every_step_of_a_pendulum_is_that_of_gymnasium(on_arrays):
    """From equal states: observations are equal, rewards and states but for their last places."""
    theirs, engine = gymnasium.make("Pendulum-v1").unwrapped, Engine(make_world(PENDULUM), on_arrays)
    draws, fastest = np.random.default_rng(0), 0
    for seed in range(8):
        seen, _ = theirs.reset(seed=seed)
        state = engine.reset(np.random.default_rng(seed).random((1, 2)))
        np.testing.assert_array_equal([state.angle[0], state.motion[0, 2]], theirs.state)
        for step in range(200):
            assert engine.observation(state)[0].tolist() == seen.tolist()
            strong = np.sign(theirs.state[1]) * 2  # up to the top speed
            action = np.float32([strong if seed % 2 else draws.uniform(-2, 2)])
            state, reward, terminated, truncated, success = engine.step(state, action[None], NONE)
            seen, their_reward, their_end, *_ = theirs.step(action)
            assert reward[0] == pytest.approx(their_reward, abs=1e-9)  # the torque costs in float32
            assert (terminated[0], success[0], truncated[0]) == (their_end, False, step == 199)
            angle, velocity = theirs.state
            motion, whole = np.array([[np.cos(angle), np.sin(angle), velocity]]), round(angle / 2 / np.pi)
            np.testing.assert_allclose(state.motion, motion, rtol=0, atol=1e-13)
            np.testing.assert_allclose(state.angle, [angle - 2 * np.pi * whole], rtol=0, atol=1e-13)
            # a falling rod would soon double the difference of last places
            angle, motion = engine._given(np.array([angle - 2 * np.pi * whole])), engine._given(motion)
            state, fastest = replace(state, angle=angle, motion=motion), max(fastest, abs(velocity))
    assert fastest == 8


@pytest.mark.parametrize("on_arrays", [False, True])
def test_every_step_of_a_car_is_that_of_gymnasium(on_arrays):
    """In lock step from an equal start: every number is equal."""
    theirs, engine = gymnasium.make("MountainCarContinuous-v0").unwrapped, Engine(make_world(CAR), on_arrays)
    draws, lengths, walls = np.random.default_rng(0), [], 0
    for seed in range(8):
        theirs.reset(seed=seed)
        state, ended = engine.reset(np.random.default_rng(seed).random((1, 1))), False
        np.testing.assert_array_equal(state.body[0], np.float32(theirs.state))
        theirs.state = np.float32(theirs.state)  # as after each of its steps
        while not ended:
            along = np.sign(theirs.state[1]) if seed % 2 else draws.uniform(-1, 1)
            action = np.float32([along or 1])
            state, reward, terminated, truncated, success = engine.step(state, action[None], NONE)
            seen, their_reward, their_end, *_ = theirs.step(action)
            assert (reward[0], terminated[0], success[0]) == (their_reward, their_end, their_end)
            assert engine.observation(state)[0].tolist() == seen.tolist()
            walls += int(tuple(seen) == (np.float32(-1.2), 0))
            ended = terminated[0] or truncated[0]
        lengths.append(int(state.steps[0]))
    assert max(lengths) == 999 and min(lengths) < 120 and walls


@pytest.mark.parametrize(("id", "theirs"), PAIRS)
def test_the_spaces_are_those_of_gymnasium(id, theirs):
    theirs, ours, masked = (gymnasium.make(each) for each in (theirs, id, id.replace("/", "/Masked")))
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    low, high = theirs.observation_space.low[:-1], theirs.observation_space.high[:-1]
    assert masked.observation_space == gymnasium.spaces.Box(low, high) and masked.action_space == ours.action_space


@pytest.mark.parametrize("id", [PENDULUM, CAR])
def test_a_mask_hides_the_velocity_alone(id):
    whole, masked = (make_world(each) for each in (id, id.replace("/", "/Masked")))
    u, action = uniforms(5, whole.reset_draws), torch.full((5, 1), 0.5)
    state, hidden = whole.reset(u), masked.reset(u)
    for _ in range(3):
        assert torch.equal(state.observation[:, :-1], hidden.observation)
        assert torch.equal(whole.observe_state(state), masked.observe_state(hidden))
        state, hidden = (world.step(each, action, u[:, :0])[0] for world, each in ((whole, state), (masked, hidden)))


def test_the_state_of_a_pendulum_is_within_its_space():
    """Also where a sum of series is one unit of the last place beyond 1."""
    world = make_world(PENDULUM, observe="state")
    u = torch.stack((torch.linspace(0, 1, 20_001, dtype=torch.float64), torch.full((20_001,), 0.5).double()), 1)
    assert all(world.observation_space.contains(row) for row in world.reset(u).observation.numpy())


def test_texts_show_where_the_rod_and_the_car_are():
    pendulum, car = make_world(PENDULUM), make_world(CAR)
    state = pendulum.reset(torch.tensor([[0.75, 0.5], [0.5, 1.0]], dtype=torch.float64))
    texts = [pendulum.text(state, row).splitlines() for row in (0, 1)]
    assert texts[0] == ["o" + "." * 40, "angle +1.5708, velocity +0.0000"]
    assert texts[1] == ["." * 20 + "o" + "." * 20, "angle +0.0000, velocity +1.0000"]
    state = car.reset(torch.tensor([[0.0]], dtype=torch.float64))
    assert car.text(state, 0).splitlines() == ["." * 13 + "o" + "." * 27, "position -0.600, velocity +0.0000"]


def test_tools_draw_real_actions_or_refuse_them_in_a_sentence(capsys):
    assert "numbered actions" in error_of(memoryless.main, ["--env", PENDULUM])
    assert "must be Discrete" in error_of(environment_sizes, CAR)
    benchmark.main(["--quick", "--env", CAR, "--only", "vector"])
    reference_scores(["--env", PENDULUM, "--episodes", "200"])
    assert "No player is known for Pendulum" in (said := capsys.readouterr().out) and CAR in said


class Unprinted(np.ndarray):
    """An array that nobody may write as a text."""

    def __repr__(self):
        raise AssertionError("written")


@pytest.mark.parametrize("id", ["Control/Pendulum-v0", "POPGym/PositionOnlyPendulum-Easy-v0", "POMDP/CarFlag-v0"])
def test_a_step_writes_no_text_of_its_actions(id):
    """A text of 1,024 real actions took two fifths of a step's time."""
    vector = gymnasium.make_vec(id, num_envs=3)
    vector.reset(seed=1)
    vector.step(np.asarray(vector.action_space.sample()).view(Unprinted))
