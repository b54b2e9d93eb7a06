"""Single environments that step in plain Python, beside the same environments on arrays."""

import copy

import numpy as np
import pytest
from world_keywords import build, random_model

from envs.checker import check_registered
from envs.core import World
from envs.errors import UserError
from envs.gymnasium import Engine, WorldEnv
from envs.popgym.levels import LEVELS
from envs.worlds.car_flag import CarFlag
from envs.worlds.memory_cards import MemoryCards
from envs.worlds.tabular import Tabular

STEPS = 1200
KINDS = [
    ("POMDP/CarFlag-v0", {}), ("POMDP/CarFlag-v0", {"time_limit": np.int64(9)}),
    ("POMDP/MemoryCards-v0", {}), ("POMDP/MemoryCards-v0", {"pairs": np.int64(2), "time_limit": 300}),
    ("POMDP/MemoryCards-v0", {"pairs": 7, "time_limit": 400}),  # without tables over all sets of removed cards
    ("POMDP/Hallway-v0", {}), ("POMDP/Hallway-v0", {"time_limit": 30}),
    ("POMDP/HeavenHell-v0", {}), ("POMDP/HeavenHell-v0", {"n": 1, "time_limit": 5}),
    ("POMDP/HeavenHell-v0", {"observe": "state"}), ("POMDP/File-v0", {}),
    ("Control/CartPole-v0", {}), ("Control/CartPole-v0", {"time_limit": 12}),
    ("Ladder/bind-8-v0", {}), ("Ladder/bind-8-v0", {"pairs": 3}),
    ("Control/Pendulum-v0", {}), ("Control/MaskedPendulum-v0", {}),
    *[(id, {}) for id in LEVELS if "-Easy-" in id],
    ("POPGym/RepeatPrevious-Easy-v0", {"k": 1}), ("POPGym/Concentration-Easy-v0", {"cards": 6, "categories": 3}),
    ("POPGym/Autoencode-Easy-v0", {"cards": 2}), ("POPGym/CountRecall-Medium-v0", {}),
    ("POPGym/Battleship-Easy-v0", {"board": 4, "ships": (2, 2)}), ("POPGym/MineSweeper-Medium-v0", {}),
]  # fmt: skip
MODELS = [((4, 3, 3), 0.1, (True, True)), ((5, 2, 4), 0.0, (True, False)), ((3, 2, 1), 0.3, (False, False))]


def on_arrays(world):
    """The same world without its plain step."""
    twin = copy.copy(world)
    twin.__class__ = type("OnArrays", (type(world),), {"plain_step": World.plain_step})
    return twin


def bits(value):
    """Type, shape and bytes of a result, or of all values in it."""
    if isinstance(value, tuple | list):
        return [bits(each) for each in value]
    if isinstance(value, dict):
        return {name: bits(each) for name, each in value.items()}
    array = np.asarray(value)
    return type(value), array.dtype, array.shape, array.tobytes()


def random_action(world, numbers):
    if world.num_actions:
        return numbers.integers(world.num_actions)
    high = world.action_space.high
    return (high * numbers.uniform(-1, 1, high.shape)).astype(np.float32)


def check_alike(world, seed, modes=("ansi", "rgb_array")):
    """Play at random, also past the ends of episodes, and write into the observations of one environment.

    Actions change at each step or, with other seeds, seldom, so that a car reaches its top speed.
    """
    numbers, worlds, changes = np.random.default_rng(seed), (world, on_arrays(world)), (1.0, 0.3, 0.01)[seed % 3]
    ours, theirs = (WorldEnv(each, mode) for each, mode in zip(worlds, (modes[seed % 2],) * 2, strict=True))
    assert bits(ours.reset(seed=seed)) == bits(theirs.reset(seed=seed))
    ended, chosen = False, random_action(world, numbers)
    for step in range(STEPS):
        if ended and numbers.random() < 0.1:
            again = {"seed": step} if numbers.random() < 0.2 else {"options": {}}
            result, wanted = ours.reset(**again), theirs.reset(**again)
        else:
            chosen = random_action(world, numbers) if numbers.random() < changes else chosen
            action = numbers.choice([int, np.int64, np.int16])(chosen) if world.num_actions else chosen
            result, wanted = ours.step(action), theirs.step(action)
            ended = result[2] or result[3]
        assert bits(result) == bits(wanted), step
        assert ours.np_random.bit_generator.state == theirs.np_random.bit_generator.state
        assert type(ours.state) is type(theirs.state) and bits(vars(ours.state)) == bits(vars(theirs.state))
        if isinstance(result[0], np.ndarray):
            result[0].fill(1)
        if step % 100 == 0:
            assert bits(ours.render()) == bits(theirs.render())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("id", "kwargs"), KINDS)
def test_every_result_equals_that_of_arrays(id, kwargs, seed):
    check_alike(build(id, **kwargs), seed)


@pytest.mark.parametrize("id", [id for id in LEVELS if "-Easy-" in id])
def test_a_single_environment_of_popgym_needs_no_step_of_arrays(id, monkeypatch):
    env = WorldEnv(id)
    env.reset(seed=0)
    monkeypatch.setattr(Engine, "step", None)
    env.step(random_action(env.world, np.random.default_rng(0)))


@pytest.mark.parametrize("action", [[2.5], [-2.5], [np.nan], [0.0, 0.0], [[0.0]], []])
def test_a_real_action_outside_of_its_space_is_refused(action):
    env = WorldEnv("Control/Pendulum-v0")
    env.reset(seed=0)
    env.step(np.array([2.0], np.float32))
    with pytest.raises(UserError, match="is not in"):
        env.step(np.array(action, np.float32))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("sizes", "resets", "whole"), MODELS)
def test_every_result_of_a_random_model_equals_that_of_arrays(sizes, resets, whole, seed):
    check_alike(Tabular(random_model(seed, sizes, resets, whole), time_limit=25), seed, ("ansi", "ansi"))


def test_rounding_up_to_the_number_of_cards_chooses_the_last():
    for pairs in (5, 7):
        row = ([0] * 2 * pairs, 0, 0.0, [*range(1, pairs + 1)] * 2, 0, 0)
        after, *_ = MemoryCards(pairs).plain_step(row, 0, lambda: 1.0)
        assert after[-1] == 2 * pairs - 1


@pytest.mark.parametrize("kind", ["POMDP/CarFlag-v0", "POMDP/MemoryCards-v0", "POMDP/Hallway-v0"])
def test_a_copy_in_an_episode_goes_on_by_itself(kind):
    env = WorldEnv(kind)
    env.reset(seed=0)
    env.step(1)
    other = copy.deepcopy(env)
    first = [env.step(action % 3) for action in range(40)]
    assert bits(first) == bits([other.step(action % 3) for action in range(40)])


def test_an_environment_goes_on_from_a_state_that_is_set():
    env = WorldEnv("POMDP/CarFlag-v0")
    env.reset(seed=0)
    kept, first = env.state, env.step(2)
    env.step(0)
    env.state = kept
    assert bits(env.step(2)) == bits(first)


class Blind(CarFlag):
    def observe(self, position, velocity, heaven):
        return super().observe(position, velocity * 0, heaven)


class Cheap(CarFlag):
    def step(self, state, action, u):
        after, seen, reward, ended, won = super().step(state, action, u)
        after.returns = after.returns + 0.25
        return after, seen, reward + 0.25, ended, won


@pytest.mark.parametrize(("kind", "velocity", "reward"), [(Blind, 0.0, 0.0), (Cheap, 0.0015, 0.25)])
def test_a_subclass_with_other_rules_is_stepped_by_its_own(kind, velocity, reward):
    env = WorldEnv(kind())
    env.reset(seed=0)
    observation, given, *_ = env.step(2)
    assert (observation[1], given) == (velocity, reward)


def test_a_plain_step_of_other_numbers_is_found(monkeypatch):
    def paid(self, row, action, draw):
        after, reward, ended, won = plain(self, row, action, draw)
        return after, reward + 1, ended, won

    check_registered("POMDP/CarFlag-v0", time_limit=20)
    plain = CarFlag.plain_step
    monkeypatch.setattr(CarFlag, "plain_step", paid)
    with pytest.raises(UserError, match=r"the reward of the vector environment is array\(\[0., 0., 0.\]\)"):
        check_registered("POMDP/CarFlag-v0", time_limit=20)
