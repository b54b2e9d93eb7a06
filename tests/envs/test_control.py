"""The pendulum and the car between hills beside Gymnasium's own: the same numbers in the same steps."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from world_keywords import uniforms

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
    for seed in range(20):
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
    for seed in range(20):
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
