"""What random play finds odd: environments with one fault each, and sound ones."""

import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dqn_memory.analysis import environment_checks as module
from dqn_memory.analysis.environment_checks import aliasing, oddities, play_randomly
from envs.actions import InterfaceConfig
from envs.vector import make_vector


class Odd(gymnasium.Env):
    """A walk over six places; the right end gives 1. Keywords add a fault."""

    action_space = spaces.Discrete(2)

    def __init__(
        self, scale=1.0, bound=10.0, reward=None, limit=None, endless=False, hidden=False, constant=False, stop=None
    ):
        self.stop = stop
        self.observation_space = spaces.Box(-bound, bound, (2,), np.float32)
        self.scale, self.reward, self.limit, self.endless, self.constant = scale, reward, limit, endless, constant
        self.hidden = hidden

    def _seen(self):
        values = self.place % 2 if self.hidden else self.place  # a hidden place looks like every second one
        return np.array([0.0 if self.constant else values * self.scale, self.taken % 2], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.taken = int(self.np_random.integers(4)), 0
        return self._seen(), {}

    def step(self, action):
        self.taken += 1
        self.place = min(max(self.place + 2 * int(action) - 1, 0), 5)
        at_end = self.place == 5
        reward = float(at_end) if self.reward is None else self.reward
        ends = False if self.endless else at_end if self.limit is None else self.taken >= self.limit
        ends = ends or self.taken == self.stop
        return self._seen(), reward, ends, False, {"success": at_end} if ends else {}


class Drawn(gymnasium.Env):
    """Observations are drawn anew; half of the episodes succeed at once, and the others fail after 50 steps."""

    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2)

    def __init__(self, wait=0.0):
        self.wait = wait

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.wins = 0, bool(self.np_random.integers(2))
        return int(self.np_random.integers(4)), {}

    def step(self, action):
        time.sleep(self.wait)
        self.taken += 1
        done = self.wins or self.taken == 50
        return int(self.np_random.integers(4)), float(self.wins), done, False, {"success": self.wins} if done else {}


gymnasium.register("Odd/Walk-v0", Odd)
gymnasium.register("Odd/Drawn-v0", Drawn)


def played(id="Odd/Walk-v0", **kwargs):
    return play_randomly(make_vector(id, 16, 0, "cpu", kwargs), 0)


FAULTS = {
    "leave their space": {"bound": 3.0},
    "not scaled": {"scale": 1000.0, "bound": np.inf},
    "1 of 2 real numbers of an observation never change": {"constant": True},
    "look alike": {"hidden": True},
    "No reward": {"reward": 0.0},
    "Rewards never vary": {"reward": 2.0, "limit": 7},
    "Rewards are huge": {"reward": 500.0},
    "Every episode terminated after 7 steps": {"limit": 7},
    "of all episodes terminated after 4 steps": {"stop": 4},
    "Every episode ends with its first step": {"limit": 1},
    "met its time limit of 9 steps": {"endless": True, "max_episode_steps": 9},
    "Random actions succeed": {},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault, monkeypatch):
    monkeypatch.setattr(module, "STEPS", 512)
    found = oddities(played(**FAULTS[fault]))
    assert sum(fault in each for each in found) == 1
    assert all("\n" not in each and each.endswith(".") for each in found)


def test_a_sound_environment_is_not_odd(monkeypatch):
    monkeypatch.setattr(module, "STEPS", 512)
    assert oddities(played("CartPole-v1")) == []
    assert not played("CartPole-v1").dense and played("POPGym/RepeatPrevious-Easy-v0").dense


def test_scores_and_lengths_are_those_of_whole_episodes(monkeypatch):
    monkeypatch.setattr(module, "STEPS", 300)
    play = played(limit=7)
    assert (play.lengths == 7).all() and len(play.lengths) == 16 * (300 // 7)
    assert play.score.mean() == play.success[play.terminated].mean() and play.reports_success
    assert set(np.unique(play.score)) <= {0.0, 1.0}


def test_short_episodes_count_no_more_than_long_ones():
    play = play_randomly(make_vector("Odd/Drawn-v0", 400, 0), 0, steps=60)
    assert play.score.mean() == pytest.approx(0.5, abs=0.1) and len(play.score) < len(play.lengths)


def test_time_counts_in_which_a_step_only_waits(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.5)
    began = time.monotonic()
    play = play_randomly(make_vector("Odd/Drawn-v0", 16, 0, "cpu", {"wait": 0.002}), 0, seconds=0.1)
    assert time.monotonic() - began < 5 and 0 < len(play.reward) < 100


@pytest.mark.parametrize("steps", [1, 2, 5, 60])
def test_few_steps_are_no_fault(steps):
    play = play_randomly(make_vector("Odd/Walk-v0", 16, 0, "cpu", {"limit": 1}), 0, steps=steps)
    assert oddities(play) and len(play.score) == 16 * steps


def test_observations_that_depend_on_nothing_do_not_look_alike():
    plays = [play_randomly(make_vector("Odd/Drawn-v0", 16, seed), seed, steps=256) for seed in range(20)]
    assert min(aliasing(play).predictions for play in plays) > 200
    assert not any("look alike" in each for play in plays for each in oddities(play))


def test_a_hidden_place_is_told_better_by_what_was_seen_before():
    plain, hidden = aliasing(played()), aliasing(played(hidden=True))
    assert plain.wrong == (0, 0)
    assert hidden.wrong[0] - hidden.wrong[1] > 0.02 and hidden.predictions > 1_000


def test_what_was_seen_before_an_episode_tells_nothing_of_it():
    assert aliasing(played(limit=2)) is None  # no episode is as long as the history
    assert aliasing(played(limit=20)).predictions > 1_000


def test_masks_are_obeyed(monkeypatch):
    monkeypatch.setattr(module, "STEPS", 256)
    free, masked = (
        play_randomly(make_vector("Taxi-v4", 16, 0, interface=InterfaceConfig(masks=masks)), 0)
        for masks in (False, True)
    )
    assert free.reward.min() == -10 < masked.reward.min()  # of a passenger who is not there
