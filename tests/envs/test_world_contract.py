"""Worlds of one's own that break the contract of `envs.core.World`, and wrong names and keywords: one sentence each."""

import re
from dataclasses import dataclass, replace

import gymnasium
import own_worlds
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from own_worlds import Cue, FourValues, Narrow, Sided, spoiled
from run_folders import error_of

import envs
from dqn_memory.api import train
from envs.checker import check_episodes, check_registered, probe
from envs.core import OBSERVE, StateObserved, World
from envs.gymnasium import WorldEnv, WorldVectorEnv
from envs.registry import WORLDS, Entry, make_world
from envs.vector import TensorVector, make_vector

ID = "Mine/Cue-v0"


MEMBERS = {name: value for name, value in vars(Cue).items() if not name.startswith("_")}
MEMBERS["__init__"] = lambda self, time_limit=10, device="cpu": World.__init__(self, time_limit, device)


@pytest.fixture
def register():
    """Registers one world under ID, and takes it away afterwards."""

    def register(entry, **kwargs):
        envs.register(ID, Entry(entry, kwargs))
        return ID

    yield register
    WORLDS.pop(ID, None)
    gymnasium.registry.pop(ID, None)


@dataclass
class Single(Sided):
    score: torch.Tensor


def one_score(self, u):
    return Single(*vars(Cue.reset(self, u)).values(), score=torch.zeros(()))


def write_into_the_state(self, state, action, u):
    state.returns += 1
    return Cue.step(self, replace(state, returns=state.returns - 1), action, u)


def paid_before(self, u):
    state = Cue.reset(self, u)
    return replace(state, returns=state.returns + 1)


def starts(*shape):
    return torch.full(shape, 0.5, dtype=torch.float64)


def no_state(self, u):
    return Cue.reset(self, u).observation, {}


def wrong(index, change):
    """A world that returns something else as one part of a step's result."""
    return spoiled("W", spoil=lambda *result: (*result[:index], change(result[index]), *result[index + 1 :]))


@pytest.mark.parametrize(("kind", "words"), [
    # Spreads out to four copies where nobody looks.
    (Narrow, "Narrow.reset must be a tensor (3, 4) of float32, as its observation_space Box(0.0, 2.0"),
    # Shows the number that stands for padding in a network's table.
    (spoiled("W", Discrete(2)), "W.step holds 2 at index 0, but its observation_space Discrete(2) says 0 to 1"),
    (spoiled("W", Discrete(3, start=1), lambda seen: seen + 1), "space of W must count from 0, not Discrete(3"),
    (spoiled("W", show=lambda seen: seen / 2), "observation of W.reset must be a tensor (3, 1) of int64"),
    (spoiled("W", Box(-9, 9, (1,)), lambda seen: seen * torch.nan), "observation of W.reset holds nan"),
    (spoiled("W", reset=no_state), "W.reset must return a state, a dataclass under envs.core.State, not a tuple"),
    (spoiled("W", reset=one_score), "score of the state Single of W.reset must be a tensor (3, ...), not one ()"),
    (FourValues, "must return five values (state, observation, reward, terminated, success), not 4 values"),
    (wrong(0, lambda after: None), "W.step must return first a state"),
    (wrong(0, lambda after: replace(after, steps=after.steps - 1)), "W.step must add 1 to steps of the state"),
    (wrong(1, lambda seen: seen.clamp(max=0)), "W.step must return the observation of the returned state"),
    (wrong(2, lambda reward: reward[:, None]), "reward of W.step must be a tensor (3,) of float32 or float64"),
    (wrong(2, lambda reward: reward.long()), "not one (3,) of int64"),
    (wrong(2, lambda reward: reward + 1), "W.step must add the reward to returns"),
    (wrong(3, lambda ended: ended.long()), "terminated of W.step must be a tensor (3,) of bool, not one (3,) of int64"),
    (wrong(4, lambda won: won[:1]), "success of W.step must be a tensor (3,) of bool, not one (1,)"),
    (wrong(4, lambda won: ~won), "W.step returns success without terminated"),
    (wrong(2, lambda reward: reward / 0), "reward of W.step must be a finite number, not nan"),
    (spoiled("W", step=write_into_the_state), "W.step must not write into the given state (returns)"),
    (spoiled("W", reset=paid_before), "W.reset must set steps and returns of the state to 0"),
    (spoiled("W", step_draws=1, initial_draws=lambda self: starts(2, 1)), "W.initial_draws must return None, because"),
    (spoiled("W", initial_draws=lambda self: starts(2, 3)), "initial_draws must return None or a tensor (M, 1)"),
    (spoiled("W", initial_draws=lambda self: starts(0, 1)), "not one (0, 1) of float64"),
    (spoiled("W", initial_draws=lambda self: [[0.5]]), "not a list"),
])  # fmt: skip
def test_a_wrong_world_is_told_what_is_wrong(kind, words):
    before = torch.get_rng_state()
    assert words in error_of(TensorVector, kind(), 5, 0)
    assert torch.equal(torch.get_rng_state(), before)


def at_the_end(change):
    """A world that is wrong only where an episode ends, which no first step shows."""
    return spoiled("W", spoil=lambda after, *others: change(after, *others) if others[2].any() else (after, *others))


def keep_returns(after, observation, reward, *ends):
    return replace(after, returns=0 * after.returns), observation, reward, *ends


def first_cue(self, u):
    self.cue = Cue.reset(self, u).side  # of all rows, outside of the state
    return Cue.reset(self, u)


def by_attribute(self, state, action, u):
    return Cue.step(self, replace(state, side=self.cue), action, u)


def count_calls(self, state, action, u):
    self.calls = getattr(self, "calls", 0) + 1
    after, seen, reward, *ends = Cue.step(self, state, action, u)
    return replace(after, returns=after.returns + self.calls), seen, reward + self.calls, *ends


def write_at_the_end(self, state, action, u):
    result = Cue.step(self, state, action, u)
    state.side[result[3]] = 1 - state.side[result[3]]
    return result


@pytest.mark.parametrize(("kind", "words"), [
    (at_the_end(keep_returns), "add the reward to returns"),
    (at_the_end(lambda after, seen, reward, *ends: (after, seen, reward * torch.inf, *ends)), "finite number, not nan"),
    (spoiled("W", step=write_at_the_end), "write into the given state (side)"),
    (spoiled("W", step=count_calls), "W.step .* pure function .* another returns"),
    (spoiled("W", reset=first_cue, step=by_attribute), "W.step .* pure function .* another side"),
    (spoiled("W", show=lambda seen: torch.randint_like(seen, 3)), "W.step .* pure function .* another observation"),
])  # fmt: skip
def test_what_a_first_step_does_not_show_is_found_by_playing_episodes(kind, words, register, monkeypatch):
    monkeypatch.setattr(own_worlds, "Mine", kind, raising=False)
    probe(kind())
    found = error_of(check_registered, register("own_worlds:Mine"), steps=30)
    assert all(part in found for part in words.split(" .* ")), found


def never_seen(self, u):
    """Show nan in the first state of some episodes."""
    state = Cue.reset(self, u)
    return replace(state, observation=torch.where(u < 0.8, state.observation, torch.nan))


REAL = {"observation_space": Dict({"cue": Box(-5, 5, (1,))}), "show": lambda seen: seen.float()}


@pytest.mark.parametrize(("kind", "words"), [
    (at_the_end(lambda after, seen, reward, *ends: (after, seen, reward * torch.inf, *ends)), "reward nan.*step 3 of"),
    (at_the_end(lambda after, seen, reward, *ends: (after, seen, reward + torch.inf, *ends)), "reward inf.*step 3 of"),
    (spoiled("W", **REAL, spoil=lambda after, seen, reward, ended, won: (
        replace(after, observation=seen.masked_fill(ended[:, None], torch.nan)),
        seen.masked_fill(ended[:, None], torch.nan), reward, ended, won
    )), "nan in its entry 'cue'.*step 3 of"),
    (spoiled("W", **REAL, reset=never_seen), "nan in its entry 'cue'.*at reset"),
])  # fmt: skip
def test_training_stops_before_it_learns_from_numbers_that_are_not_finite(kind, words, register, monkeypatch, tmp_path):
    monkeypatch.setattr(own_worlds, "Mine", kind, raising=False)
    monkeypatch.setattr("envs.vector.probe", lambda world: None)  # as if the first draws had shown nothing
    message = error_of(
        train, "ppo", env=register("own_worlds:Mine"), run=tmp_path / "run", total_steps=64, num_envs=4,
        rollout_steps=8, minibatches=1, width=8, random_start_steps=0, final_episodes=2, evaluate_every=0,
    )  # fmt: skip
    assert re.search(f"^W: .*{words}", message), message


def test_a_replay_with_a_reward_of_nan_stops_training_at_its_first_update(register, monkeypatch, tmp_path):
    calls = []
    kind = spoiled("W", spoil=lambda after, seen, reward, *ends: (
        after, seen, torch.where(ends[0], torch.nan, reward), *ends, calls.append(1)
    )[:5])  # fmt: skip
    monkeypatch.setattr(own_worlds, "Mine", kind, raising=False)
    message = error_of(
        train, env=register("own_worlds:Mine"), run=tmp_path / "run", total_steps=8_000, num_envs=16, prepopulate=0,
        learning_starts=64, batch_size=8, width=8, heads=2, context=4, evaluate_every=0, log_every=8_000,
    )  # fmt: skip
    assert "not finite" in message and len(calls) < 20, (message, len(calls))


@pytest.mark.parametrize("name", ["Memory-5x5-v0", "Keydoor-5x5-v0"])
def test_a_world_of_the_suite_keeps_the_contract_in_its_views_too(name):
    for view in OBSERVE:
        check_episodes(make_world(f"Gridverse/{name}", observe=view, time_limit=9), 20)


def test_a_wrong_view_of_the_state_is_named_with_its_world():
    shy = spoiled("Shy", state_space=Discrete(2), observe_state=lambda self, state: state.side)
    assert "Shy with observe='state'.reset" in error_of(probe, StateObserved(shy()))


@pytest.mark.parametrize("make", [WorldEnv, WorldVectorEnv, check_registered])
def test_gymnasium_environments_of_a_wrong_world_are_refused(make, register):
    assert "The observation of Narrow.reset must be a tensor (3, 4)" in error_of(make, register("own_worlds:Narrow"))
    WORLDS.pop(ID)
    check_registered(register("own_worlds:Cue"), steps=30)  # a right one, whose first step shows nothing


def without(*names, base=World, **others):
    """A class with what a world must have, but for some of it."""
    members = {name: value for name, value in MEMBERS.items() if name not in names} | others
    return type("Mine", (base,), members)


def plain_init(self, time_limit=10, device="cpu"):
    self.time_limit = time_limit


@pytest.mark.parametrize(("kind", "words"), [
    (without("num_actions"), "Mine has no num_actions: a World is a subclass of envs.core.World with"),
    (without("reset_draws"), "Mine has no reset_draws"),
    (without("observation_space"), "Mine has no observation_space"),
    (without("frame", "text"), "has no frame and text: a World is a subclass of envs.core.World with"),
    (without(base=object, __init__=plain_init), "is no World: a World is a subclass of envs.core.World"),
    (without(__init__=plain_init), "Mine has no device; its __init__ must call super().__init__"),
    (without(__init__=lambda self, time_limit=10: None), "Mine of environment 'Mine/Cue-v0' takes no keyword device"),
    (without("step"), "has no step: a World is a subclass"),
    (without(num_actions=2.0), "num_actions of Mine must be a whole number of at least 0, not 2.0"),
    (without(reset=lambda self: None), "Mine.reset must take (u), not ()"),
    (without(step=lambda self, action: None), "Mine.step must take (state, action, u), not (action)"),
    (without(observation_space=gymnasium.spaces.Text(3)), "The observation_space of Mine must be Box, Discrete"),
    (without("__init__"), "Environment 'Mine/Cue-v0' needs the keyword 'time_limit'"),
])  # fmt: skip
def test_what_is_missing_is_named(kind, words, register, monkeypatch):
    monkeypatch.setattr(own_worlds, "Mine", kind, raising=False)
    assert words in error_of(make_vector, register("own_worlds:Mine"), 2, 0)


@pytest.mark.parametrize("limit", [None, 2.5, True, "9", 0, 2**63])
def test_a_time_limit_is_a_whole_number_of_steps(limit):
    assert "time_limit" in error_of(Cue, limit)


@pytest.mark.parametrize(
    "space", [Dict({}), Dict({"a": Discrete(2), "b": Dict({})}), MultiDiscrete([]), Box(0, 1, (0,))]
)
def test_a_world_without_a_number_to_see_is_refused(space):
    assert "observation_space of W" in error_of(probe, spoiled("W", space)())


def test_a_class_with_all_members_and_a_function_make_worlds(register, monkeypatch):
    monkeypatch.setattr(own_worlds, "Mine", without(), raising=False)
    assert make_vector(register("own_worlds:Mine"), 2, 0).reset().shape == (2, 1)
    envs.WORLDS.pop(ID)
    monkeypatch.setattr(own_worlds, "make", lambda device: Cue(device=device), raising=False)
    assert make_vector(register("own_worlds:make"), 2, 0).reset().shape == (2, 1)
    monkeypatch.setattr(own_worlds, "make", lambda device: 3, raising=False)
    assert "int is no World" in error_of(make_world, ID)


@pytest.mark.parametrize(("entry", "kwargs", "words"), [
    ("own_worlds:Cu", {}, "'own_worlds:Cu', but own_worlds has no class 'Cu'; did you mean 'Cue'? known: "),
    ("own_wrlds:Cue", {}, "'own_wrlds:Cue', but there is no module 'own_wrlds'."),
    ("envs.none:Cue", {}, "'envs.none:Cue', but there is no module 'envs.none'."),
    ("own_worlds:Cue", {"time_limt": 4}, "got an unexpected keyword argument 'time_limt'; did you mean 'time_limit'?"),
    ("own_worlds:Cue", {"device": "cpu"}, "got an unexpected keyword argument 'device'"),
    ("own_worlds:Cue", {"time_limit": "9"}, "time_limit of environment 'Mine/Cue-v0' must be a whole number"),
])  # fmt: skip
def test_a_wrong_entry_says_where_it_breaks_off(entry, kwargs, words, register):
    assert words in error_of(make_world, register(entry, **kwargs))


@pytest.mark.parametrize("entry", ["own_worlds", "own_worlds.Cue", ":Cue", "own_worlds:", "own worlds:Cue", Cue, None])
def test_an_entry_of_another_form_is_refused(entry):
    assert 'must be a string "module:Class" such as "my_module:MyWorld", not' in error_of(Entry, entry)


def test_a_module_that_is_missing_in_a_worlds_module_is_the_authors(tmp_path, monkeypatch, register):
    (tmp_path / "needy_world.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    register("needy_world:Cue")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        make_world(ID)


@pytest.mark.parametrize(("id", "entry", "words"), [
    ("POMDP/CarFlag-v0", Entry("own_worlds:Cue"), "There is an environment 'POMDP/CarFlag-v0' already"),
    ("CartPole-v1", Entry("own_worlds:Cue"), "environment of Gymnasium's already"),
    (ID, "own_worlds:Cue", "must be an envs.Entry"),
    *((id, Entry("own_worlds:Cue"), 'must be like "Mine/World-v0"') for id in ("Mine/My World-v0", "", 3, "a/b/c-v0")),
])  # fmt: skip
def test_what_cannot_be_registered_is_refused_and_changes_nothing(id, entry, words):
    before = dict(WORLDS)
    assert words in error_of(envs.register, id, entry)
    assert before == WORLDS


def test_the_same_entry_may_be_registered_again(register):
    for _ in range(2):  # as when a module is imported twice
        register("own_worlds:Cue", sizes=(3, 3), tables=[torch.zeros(3)])
    for tables in ([torch.zeros(2)], [torch.ones(3)], []):
        assert "already" in error_of(register, "own_worlds:Cue", sizes=(3, 3), tables=tables)


def test_what_a_class_gives_its_base_is_not_asked_for(register, monkeypatch):
    class Sized(Cue):
        def __init__(self, size, time_limit=10, device="cpu"):
            super().__init__(time_limit, device)

    class Small(Sized):
        def __init__(self, **kwargs):
            super().__init__(size=1, **kwargs)

    monkeypatch.setattr(own_worlds, "Mine", Small, raising=False)
    register("own_worlds:Mine", time_limit=4)
    assert make_world(ID).time_limit == 4 and make_world(ID, time_limit=3).time_limit == 3
    monkeypatch.setattr(own_worlds, "Mine", Sized)
    assert "needs the keyword 'size'" in error_of(make_world, ID)


@pytest.mark.parametrize(("id", "keywords", "words"), [
    # the names and the time limit
    ("POMDP/CarFlg-v0", {}, "POMDP/CarFlag-v0"),
    ("nothing like it", {}, "none of the .* known names is near it"),
    ("POMDP/CarFlag-v0", {"time_limit": 0}, "time_limit must be at least 1"),
    ("POMDP/MemoryCards-v0", {"pairs": 1}, "pairs"),
    ("POMDP/CarFlag-v0", {"observe": "all"}, "observe of .* must be 'observation' or 'state', not 'all'"),
    ("Gridverse/Memory-7x7-v0", {"device": "gpu"}, "no device 'gpu'"),
    ("Gridverse/Memory-7x7-v0", {"time_limit": 2.5}, "a whole number"),
    ("Gridverse/Memory-7x7-v0", {"view": (2.5, 3)}, "whole numbers"),
    ("Gridverse/Memory-7x7-v0", {"encoding": 3}, "a name"),
    ("Gridverse/Memory-7x7-v0", {"dictionary": "yes"}, "True or False"),
    ("Gridverse/Yaml-v0", {"path": 5}, "the name of a file, not 5"),
    # grids
    ("Gridverse/Memory-5x5-v0", {"size": 3}, "odd and at least 5, not 3"),
    ("Gridverse/Memory-NineRooms-13x13-v0", {"size": 6}, "3 x 3 rooms do not fit into a grid of 6 x 6 cells"),
    ("Gridverse/Memory-NineRooms-13x13-v0", {"rooms": (0, 3)}, "two positive numbers"),
    ("Gridverse/Memory-NineRooms-13x13-v0", {"rooms": 3}, "rooms of .* must be whole numbers, such as .2, 3., not 3"),
    ("Gridverse/Memory-FourRooms-7x7-v0", {"beacons": 30}, "do not fit on 20 cells of floor"),
    ("Gridverse/Memory-FourRooms-7x7-v0", {"exits": 0}, "at least 1 exit"),
    ("Gridverse/Memory-FourRooms-7x7-v0", {"exits": 5}, "5 exits need as many different colours, but there are 4"),
    ("Gridverse/Keydoor-5x5-v0", {"size": 4}, "at least 4 x 5 cells"),
    ("Gridverse/Memory-FourRooms-7x7-v0", {"size": -3}, "A grid needs at least 3 x 3 cells"),
    ("Gridverse/Keydoor-5x5-v0", {"view": (2, 4)}, "odd number of columns, not 2 x 4"),
    ("Gridverse/Keydoor-5x5-v0", {"view": (3,)}, "two numbers"),
    ("Gridverse/Keydoor-5x5-v0", {"phantom_rooms": (3, 3)}, "do not fit into a grid of 5 x 5 .* at least 7 x 7"),
    ("Gridverse/Keydoor-5x5-v0", {"encoding": "defaults"}, "grid encoding 'defaults'; did you mean 'default'"),
    ("Gridverse/Yaml-v0", {"path": "empty.4x4", "view": (2, 3)}, "The view of empty.4x4 is in the file"),
    ("Gridverse/Keydoor-5x5-v0", {"veiw": (7, 7)}, "did you mean 'view'"),
    # other environments
    ("Pixel/BlinkingCatch-v0", {"size": 7}, "size of Blinking Catch must be from 8"),
    ("Pixel/BlinkingCatch-v0", {"grid": 2}, "from 3 to 16 cells, not 2"),
    ("Pixel/BlinkingCatch-v0", {"balls": 0}, "balls of Blinking Catch must be at least 1"),
    ("Pixel/BlinkingCatch-v0", {"blink": 0}, "blink of Blinking Catch must be at least 1"),
    ("POMDP/HeavenHell-v0", {"n": 0}, "n of HeavenHell must be at least 1 cell, not 0"),
    ("POMDP/HeavenHell-v0", {"n": 10**9}, "HeavenHell with n=1000000000: found .* entries"),
    ("POMDP/File-v0", {}, "Environment 'POMDP/File-v0' needs the keyword 'path'"),
    ("POMDP/File-v0", {"path": "tigre.pomdp"}, "tigre.pomdp: found no readable file"),
])  # fmt: skip
def test_an_environment_that_cannot_be_made_says_why(id, keywords, words):
    assert re.search(words, error_of(make_world, id, **keywords))
