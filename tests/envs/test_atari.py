"""Atari games as a vector: what the emulator does, nothing else, and a resume that replays it."""

import inspect

import ale_py
import gymnasium
import numpy as np
import pytest
import torch
from ale_py.vector_env import AtariVectorEnv
from run_folders import error_of
from world_keywords import actions, same

from envs.atari import AtariConfig, AtariVector, _games, rom
from envs.vector import make_vector

gymnasium.register_envs(ale_py)


@pytest.mark.long
def test_rewards_ends_and_lives_are_those_of_the_emulator():
    """Each row beside the bare emulator: four frames an action, rewards summed, no no-ops, no sticky actions."""
    vector = AtariVector("Breakout", 2, seed=1, config=AtariConfig(noops=0))
    bare = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    vector.reset()
    bare.reset(seed=0)
    lives, rewarded, lost, ended = 5, 0, 0, 0
    for action in actions(vector, 1200):
        both = action[:1].repeat(2)  # the game is deterministic, so both rows must do what one emulator does
        step, total = vector.step(both), 0.0
        for _ in range(4):
            _, reward, done, _, info = bare.step(int(both[0]))
            total += reward
            if done:
                break
        assert step.reward.tolist() == [total, total]
        assert step.terminated.tolist() == [done, done]
        assert step.life_lost.tolist() == [info["lives"] < lives and not done] * 2
        lost, rewarded, ended = lost + int(step.life_lost[0]), rewarded + total, ended + done
        lives = info["lives"]
        if done:
            bare.reset()
            lives = 5
    assert rewarded > 0 and lost > 3 and ended > 0


def test_frames_are_the_maximum_of_the_last_two_and_in_colour():
    vector = AtariVector("Pong", 1, seed=1, config=AtariConfig(noops=0, size=210, frame_skip=2))
    bare = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    vector.reset()
    bare.reset(seed=0)
    for action in actions(vector, 60):
        frames = [bare.step(int(action[0]))[0] for _ in range(2)]
        ours = vector.step(action).observation[0].numpy()  # (3, 210, 210), stretched sideways only
        theirs = np.maximum(*frames)  # (210, 160, 3)
        assert np.abs(ours.mean((1, 2)) - theirs.mean((0, 1))).max() < 0.6
    assert np.array_equal(vector.frame(0), np.moveaxis(ours, 0, -1))


def test_an_episode_that_ends_starts_over_and_its_last_frame_is_kept():
    vector = AtariVector("pong", 2, seed=3, config=AtariConfig(most_frames=400, noops=0))
    first = vector.reset()
    assert first.shape == (2, 3, 64, 64) and first.dtype == torch.uint8
    for time, action in enumerate(actions(vector, 205), 1):
        step = vector.step(action)
        over = time % 100 == 0
        assert step.truncated.tolist() == [over] * 2 and not step.terminated.any()
        if over:
            assert step.episode_length.tolist() == [100, 100]
            assert torch.equal(step.observation, first) and not torch.equal(step.final_observation, first)
        else:
            assert torch.equal(step.observation, step.final_observation)


@pytest.mark.parametrize("config", [AtariConfig(), AtariConfig(sticky=0.25, grayscale=True)])
def test_a_saved_vector_goes_on_as_if_it_had_not_been_stopped(config):
    vector = AtariVector("ms_pacman", 2, seed=5, config=config)
    vector.reset()
    drawn = actions(vector, 120)
    for action in drawn[:60]:
        vector.step(action)
    state = vector.state_dict()
    again = AtariVector("ms_pacman", 2, seed=9, config=config)
    again.load_state_dict(state)
    assert all(same(vector.step(action), again.step(action)) for action in drawn[60:])
    assert "ends in other observations" in error_of(again.load_state_dict, {**state, "observation_hash": 1})


def test_every_keyword_of_the_emulators_is_given(monkeypatch):
    """Their defaults are none of ours, and may change."""
    known = set(inspect.signature(AtariVectorEnv.__init__).parameters) - {"self", "game"}
    monkeypatch.setattr("ale_py.vector_env.AtariVectorEnv", lambda game, **keywords: keywords)
    assert set(_games("pong", 1, AtariConfig())) == known


def test_names_of_games():
    assert [rom(name) for name in ("Pong", "MsPacman", "ms_pacman")] == ["pong", "ms_pacman", "ms_pacman"]
    assert rom("ALE/KungFuMaster-v5") == "kung_fu_master"
    assert make_vector("ALE/Pong-v5", 1, 0, env_kwargs={"size": 32}).observation_space.shape == (3, 32, 32)
    for name, options, words in (
        ("ALE/Pongg-v5", {}, "pong"),
        ("ALE/Pong-v5", {"sticki": 0.1}, "unexpected keyword argument 'sticki'"),
        ("ALE/Pong-v5", {"sticky": 2}, "sticky 2"),
    ):
        assert words in error_of(make_vector, name, 1, 0, env_kwargs=options)


def test_neither_another_row_nor_another_reset_repeats_the_first():
    """Rows differ by their no-ops and sticky actions."""

    def episode(vector):
        return torch.stack([vector.reset(), *(vector.step(torch.tensor([2, 2])).observation for _ in range(60))])

    vector, again, other = (AtariVector("pong", 2, seed, config=AtariConfig(sticky=0.25)) for seed in (5, 5, 6))
    first, second = episode(vector), episode(vector)
    assert not torch.equal(first, second) and not torch.equal(first[:, 0], first[:, 1])
    assert torch.equal(episode(again), first) and torch.equal(episode(again), second)
    other.load_state_dict(vector.state_dict())
    assert torch.equal(episode(other), episode(vector))


ATARI = sorted(id for id in gymnasium.registry if id.startswith("ALE/") and id.endswith("-v5"))


def test_every_id_names_its_game():
    assert len(ATARI) >= 104
    assert {id: rom(id) for id in ATARI} == {id: gymnasium.registry[id].kwargs["game"] for id in ATARI}
