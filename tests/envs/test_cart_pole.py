"""Cart Pole beside Gymnasium's: the same numbers in the same episodes."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

from envs.gymnasium import Engine
from envs.registry import make_world
from envs.worlds.cart_pole import MAX_ANGLE, CartPole

ID = "Control/CartPole-v0"


def upright(seen):
    """Push the cart under the pole, which so stays up for a whole episode."""
    return int(seen[2] + 0.5 * seen[3] + 0.02 * seen[0] + 0.1 * seen[1] > 0)


@pytest.mark.parametrize("on_arrays", [False, True])
@pytest.mark.parametrize(("player", "episodes"), [("random", 300), ("upright", 3)])
def test_every_step_is_that_of_gymnasium(player, episodes, on_arrays):
    """In lock step: observations, rewards and endings are equal, and the state behind them but for its last places."""
    theirs, engine = gymnasium.make("CartPole-v1").unwrapped, Engine(make_world(ID), on_arrays)
    draws, lengths = np.random.default_rng(0), []
    for seed in range(episodes):
        seen, _ = theirs.reset(seed=seed)
        state, ended = engine.reset(np.random.default_rng(seed).random((1, 4))), False
        np.testing.assert_array_equal(state.body[0], theirs.state)
        while not ended:
            observation = engine.observation(state)[0]
            assert observation.dtype == seen.dtype and observation.tolist() == seen.tolist()
            action = int(draws.integers(2)) if player == "random" else upright(seen)
            state, reward, terminated, truncated, success = engine.step(state, np.array([action]), np.zeros((1, 0)))
            seen, their_reward, their_end, *_ = theirs.step(action)
            assert (reward[0], terminated[0], success[0]) == (their_reward, their_end, False)
            np.testing.assert_allclose(state.body[0], theirs.state, rtol=0, atol=1e-12)
            if player == "upright":  # a falling pole doubles a difference in nine steps
                state = replace(state, body=engine._given(np.array([theirs.state])))
            ended = terminated[0] or truncated[0]
        lengths.append(int(state.steps[0]))
        assert state.returns[0] == lengths[-1] and truncated[0] == (lengths[-1] == 500)
    assert (min(lengths) < 12 and max(lengths) > 50) if player == "random" else lengths == [500] * episodes


def test_the_spaces_are_those_of_gymnasium():
    theirs = gymnasium.make("CartPole-v1")
    assert gymnasium.make(ID).observation_space == theirs.observation_space
    assert gymnasium.make(ID).action_space == theirs.action_space
    assert gymnasium.make(ID, observe="state").observation_space.dtype == np.float64


def test_the_series_are_sine_and_cosine():
    angle = torch.linspace(-MAX_ANGLE, MAX_ANGLE, 10_001, dtype=torch.float64)
    for ours, theirs in zip(CartPole().sine_and_cosine(angle), (angle.sin(), angle.cos()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=3e-16, atol=0)


def test_an_episode_ends_at_either_limit_and_never_succeeds():
    world = CartPole()
    state = world.reset(torch.rand(4, 4, dtype=torch.float64))
    state.body = torch.tensor([[2.39, 9, 0, 0], [-2.39, -9, 0, 0], [0, 0, 0.2, 9], [0, 0, -0.2, -9]]).double()
    for rows, ends in ((state.body, True), (state.body * torch.tensor([0.9, 0, 0.9, 0]).double(), False)):
        state = replace(state, body=rows)
        _, seen, reward, terminated, success = world.step(state, torch.tensor([0, 1, 0, 1]), torch.zeros(4, 0))
        assert terminated.tolist() == [ends] * 4 and not success.any() and reward.tolist() == [1.0] * 4
        assert all(world.observation_space.contains(row) for row in seen.numpy())


def test_pictures_show_where_the_cart_is_and_how_the_pole_leans():
    world = CartPole()
    state = world.reset(torch.full((2, 4), 0.5, dtype=torch.float64))
    state.body = torch.tensor([[0, 0, 0.2, 0], [4.8, 1, -0.2, 0]], dtype=torch.float64)
    upper, right = world.text(state, 0).split("\n")[0], world.text(state, 1).split("\n")[0]
    assert upper == "." * 20 + "/" + "." * 20 and right == "." * 40 + "\\"
    assert world.frame(state, 0).shape == world.frame(state, 1).shape == (120, 360, 3)
    assert (world.frame(state, 0)[30, 180:] == (200, 140, 70)).all(-1).any()
