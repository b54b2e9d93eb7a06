"""What a trainer steps: worlds of this package and any Gymnasium environment behind one interface."""

import io

import gymnasium
import numpy as np
import pytest
import torch
from foreign import Corridor, Odd, Promising
from gymnasium import spaces
from run_folders import error_of
from world_keywords import IDS, actions, keywords, roll, same

from envs.actions import InterfaceConfig
from envs.gymnasium import GymnasiumVector
from envs.registry import make_world
from envs.seeding import restore_generator
from envs.spaces import discrete_actions, encoder, only_box
from envs.vector import TensorVector, make_vector

CAR, SMALL = "POMDP/CarFlag-v0", "Gridverse/Memory-5x5-v0"
CLIP = InterfaceConfig(form="clip")


@pytest.mark.parametrize(("id", "kwargs", "shape", "dtype"), [
    ("CartPole-v1", {"max_episode_steps": 12}, (4,), torch.float32),
    ("FrozenLake-v1", {"max_episode_steps": 9}, (1,), torch.int64),
])  # fmt: skip
def test_steps_are_those_of_the_environments(id, kwargs, shape, dtype):
    """Step by step equal to separate environments that are seeded once and reset by hand."""
    vector = make_vector(id, 3, seed=4, env_kwargs=kwargs)
    singles = [gymnasium.make(id, **kwargs) for _ in range(3)]
    first = np.stack([np.atleast_1d(env.reset(seed=s)[0]) for env, s in zip(singles, vector.seeds, strict=True)])
    current = vector.reset()
    assert (current.dtype, current.shape) == (dtype, (3, *shape))
    assert np.array_equal(current.numpy(), first)
    totals, lengths, ended, cut = np.zeros(3), np.zeros(3), 0, 0
    for action in actions(vector, 60):
        step = vector.step(action)
        for row, env in enumerate(singles):
            observation, reward, terminated, truncated, _ = env.step(int(action[row]))
            totals[row] += reward
            lengths[row] += 1
            truncated = truncated and not terminated
            assert np.array_equal(step.final_observation[row].numpy(), np.atleast_1d(observation))
            assert (step.terminated[row], step.truncated[row]) == (terminated, truncated)
            assert (step.episode_return[row], step.episode_length[row]) == (totals[row], lengths[row])
            assert step.success[row] == ((terminated or truncated) and totals[row] > 0)
            if terminated or truncated:
                observation, _ = env.reset()
                totals[row] = lengths[row] = 0
            assert np.array_equal(step.observation[row].numpy(), np.atleast_1d(observation))
            ended, cut = ended + terminated, cut + truncated
    assert ended > 0 and (cut > 0 or id == "FrozenLake-v1")


def corridors(key, workers=None):
    vector = GymnasiumVector(
        lambda: Corridor(key, "rgb_array"), 2, seed=0, interface=InterfaceConfig("image"), workers=workers
    )
    first = vector.reset()
    assert (first.shape, first.dtype) == ((2, 4, 5, 3), torch.uint8)
    return vector


@pytest.mark.parametrize(("key", "reported", "workers"), [
    ("success", True, None), ("is_success", True, None), ("won", False, None),
    pytest.param("is_success", True, 2, marks=pytest.mark.long),
])  # fmt: skip
def test_the_environments_own_verdict_a_factory_and_a_shifted_action_set(key, reported, workers):
    vector = corridors(key, workers)
    for time in (1, 2, 3):
        assert vector.reports_success  # no episode has ended, so none was counted
        step = vector.step(torch.tensor([0, 1]))
        assert step.success.tolist() == [False, time == 3 and reported]  # each return is -3
        assert step.final_observation[0, 0, 0, 0] == time
    assert step.terminated.all() and not step.truncated.any()  # both flags at once mean an end
    assert (step.observation == 0).all()
    assert vector.reports_success is reported
    again = corridors(key, workers)
    again.load_state_dict(vector.state_dict())
    assert again.reports_success is reported


def test_a_key_chooses_a_part_of_the_observation():
    vector = GymnasiumVector(Corridor, 1, seed=0, interface=InterfaceConfig("mission"))
    assert vector.observation_space == spaces.MultiDiscrete([3])
    assert vector.reset().tolist() == [[0]]
    assert vector.step(torch.tensor([0])).observation.tolist() == [[1]]
    assert "did you mean 'image'" in error_of(GymnasiumVector, Corridor, 1, seed=0, interface=InterfaceConfig("imag"))
    for id in ("CartPole-v1", CAR, "ALE/Pong-v5"):
        assert "observation_key 'image'" in error_of(make_vector, id, 1, 0, interface=InterfaceConfig("image"))


def test_only_a_single_box_is_chosen_unasked():
    assert only_box(Corridor.observation_space) == "image"
    box = spaces.Box(0, 1, (2,))
    for others in (box, spaces.Dict(a=box, b=box), spaces.Dict(a=spaces.Discrete(2))):
        assert only_box(others) is None


@pytest.mark.parametrize(("space", "count", "fifth"), [
    (spaces.Discrete(7, start=-2), 7, 3),
    (spaces.MultiDiscrete([2, 3]), 6, [1, 2]),
    (spaces.MultiDiscrete([[2, 2], [2, 2]], start=[[0, 5], [0, 0]]), 16, [[0, 6], [0, 1]]),
])  # fmt: skip
def test_every_action_has_one_number(space, count, fifth):
    found, decode = discrete_actions(space)
    assert found == count and np.array_equal(decode(5), fifth)
    every = [decode(number) for number in range(count)]
    assert all(space.contains(action) for action in every)
    assert len({np.asarray(each).tobytes() for each in every}) == count
    assert np.array_equal(decode(np.arange(count)), np.stack(every))


@pytest.mark.parametrize(("space", "observation", "encoded"), [
    (spaces.Discrete(4, start=2), 5, np.array([3])),
    (spaces.MultiDiscrete([[3, 4], [5, 6]]), np.array([[2, 3], [4, 5]]), np.array([2, 3, 4, 5])),
    (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), np.array([1, 0, 1])),
    (spaces.Box(-1, 1, (2,), np.float64), np.array([0.5, -1]), np.array([0.5, -1], np.float32)),
    (spaces.Box(0, 9, (2, 2), np.int64), np.array([[1, 2], [3, 4]]), np.array([1, 2, 3, 4], np.float32)),
    (spaces.Box(0, 255, (2, 1, 3), np.uint8), np.ones((2, 1, 3), np.uint8), np.ones((2, 1, 3), np.uint8)),
])  # fmt: skip
def test_observations_have_one_form(space, observation, encoded):
    inner, encode = encoder(space)
    result = encode(observation)
    assert result.dtype == encoded.dtype and np.array_equal(result, encoded) and inner.contains(result)


UNMAKEABLE = [  # an id, its keywords, and what the sentence says
    ("CartPol-v1", {}, "did you mean 'CartPole-v1'"),
    ("POMDP/CarFlags-v0", {}, "POMDP/CarFlag-v0"),
    ("CartPole-v77", {}, "CartPole-v1"),
    ("no_such_module:Thing-v0", {}, "no_such_module"),
    ("CartPole-v1", {"colour": 1}, "colour"),
    ("Pendulum-v1", {}, "must be Discrete"),
    ("CartPole-v1", {"max_episode_steps": 0}, "max_episode_steps"),
    ("ALE/Pong-v5", {"sticky": "x"}, "sticky of environment 'ALE/Pong-v5' must be a number, not 'x'"),
]


@pytest.mark.parametrize(("make", "words"), [
    *((lambda _, row=row: make_vector(row[0], 1, 0, env_kwargs=row[1]), row[2]) for row in UNMAKEABLE),
    (lambda world: TensorVector(world, 8, 0, world.initial_draws()), "at most 8 rows of 2"),
    (lambda world: TensorVector(world, 8, 0).step(torch.zeros(8, dtype=torch.int64)), "reset"),
    (lambda world: make_vector("CartPole-v1", 8, 0).state_dict(), "reset"),
    (lambda world: TensorVector(world, 0, 0), "num_envs"),
    (lambda world: make_vector(SMALL, 4, 0, workers=2), "does not run in worker processes"),
    (lambda world: make_vector(CAR, 2, -1), "seed must not be negative, not -1"),
    (lambda world: make_vector("CartPole-v1", 0, 0), "num_envs"),
    (lambda world: make_vector("CartPole-v1", 1, 0).frame(0), "render_mode"),
    (lambda world: GymnasiumVector(Promising, 1, 0).reset(), "of shape (5,), its space is of shape (6,)"),
    (lambda world: GymnasiumVector(lambda: Promising(np.full(6, np.nan)), 1, 0).reset(), "holds nan, outside of"),
    (lambda world: GymnasiumVector(lambda: Promising(()), 1, 0).reset(), "reset must give two values"),
])  # fmt: skip
def test_misuse_is_one_clear_sentence(make, words):
    assert words in error_of(make, make_world(SMALL))


ENTRIES = spaces.Dict({
    "clock": spaces.Box(-np.inf, np.inf, (2,)),
    "bag": spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(4, start=3))),
})  # fmt: skip
BYTES = spaces.Dict({"cue": spaces.Discrete(50, start=1), "bits": spaces.MultiBinary(2)})  # a row of bytes


@pytest.mark.parametrize(("space", "key", "given", "words"), [
    (ENTRIES, None, {"clock": [0, np.nan], "bag": ([0, 1], 3)}, ("'clock'", "nan", "Box(-inf, inf, (2,)")),
    (ENTRIES, None, {"clock": [0, 0], "bag": ([0, 1], 17)}, ("'bag.1'", "17", "Discrete(4, start=3)")),
    (ENTRIES, None, {"clock": [0, 0], "bag": ([0, 2], 3)}, ("'bag.0'", "2", "MultiBinary(2)")),
    (ENTRIES, "clock", {"clock": [np.nan, 0], "bag": ([0, 1], 3)}, ("'clock'", "nan", "Box(-inf, inf, (2,)")),
    (BYTES, None, {"cue": 257, "bits": [0, 1]}, ("'cue'", "257", "Discrete(50, start=1)")),  # 0 as a byte
    (BYTES, "cue", {"cue": 0, "bits": [0, 1]}, ("'cue'", "0", "Discrete(50, start=1)")),
])  # fmt: skip
def test_a_number_out_of_range_is_named_with_its_entry_and_its_own_space(space, key, given, words):
    given = {name: np.float32(entry) if name == "clock" else entry for name, entry in given.items()}
    vector = GymnasiumVector(lambda: Odd((given, {}), space=space), 2, 0, interface=InterfaceConfig(key))
    message = error_of(vector.reset)
    assert message.startswith("Odd: ") and all(word in message for word in words) and "MultiDiscrete" not in message, (
        message
    )


@pytest.mark.parametrize("space", [
    spaces.Dict({}), spaces.Tuple(()), spaces.Dict({"a": spaces.Tuple(())}), spaces.MultiDiscrete([]),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiDiscrete([])}),
])  # fmt: skip
def test_an_environment_without_a_number_to_see_is_refused(space):
    assert error_of(GymnasiumVector, lambda: Odd(space=space), 2, 0).startswith("Odd: ")


@pytest.mark.parametrize(("space", "count"), [
    (spaces.Discrete(2**15), "32768"), (spaces.MultiDiscrete([200, 300]), "60000"),
])  # fmt: skip
def test_more_actions_than_can_be_numbered_are_refused_by_their_number(space, count, monkeypatch):
    monkeypatch.setattr(Odd, "action_space", space)
    message = error_of(GymnasiumVector, Odd, 2, 0)
    assert message.startswith("Odd: ") and count in message


@pytest.mark.parametrize(("result", "words"), [
    ((0, 1.0, False, {}), "Wrong: step gives 4 values; Gymnasium's are five: observation, reward"),
    ((0, float("nan"), False, False, {}), "Wrong: step gives the reward nan; it must be a finite number"),
    ((0, np.array([-np.inf]), False, False, {}), "Wrong: step gives the reward -inf"),
    ((0, None, False, False, {}), "Wrong: step gives no reward; it must be a finite number"),
    ((0, 1.0, False, False, {"success": "no"}), "step gives the info 'success' as 'no'; it must be true or false"),
    ((2, 1.0, False, False, {}), "Wrong: an observation holds 2, outside of Discrete(2)"),
    ((-1, 1.0, True, False, {}), "Wrong: an observation holds -1, outside of Discrete(2)"),
])  # fmt: skip
def test_what_step_gives_is_checked(result, words):
    class Wrong(gymnasium.Env):
        observation_space = action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            return result

    for workers in (None, 1) if "reward nan" in words else (None,):  # starting a process takes a second
        vector = GymnasiumVector(Wrong, 2, 0, workers=workers)
        vector.reset()
        assert words in error_of(vector.step, torch.zeros(2, dtype=torch.int64))
        vector.close()


KINDS = [*((id, keywords(id, time_limit=9)) for id in IDS), ("CartPole-v1", {}), ("FrozenLake-v1", {})]


@pytest.mark.parametrize(("id", "kwargs"), KINDS)
def test_a_saved_state_continues_bit_for_bit(id, kwargs):
    vector = make_vector(id, 3, seed=8, env_kwargs=kwargs, interface=CLIP)
    vector.reset()
    early = make_vector(id, 3, seed=9, env_kwargs=kwargs, interface=CLIP)
    early.load_state_dict(vector.state_dict())  # before the first step
    assert all(map(same, roll(vector, 20), roll(early, 20)))
    vector.reset()  # an extra start of all episodes is kept too
    roll(vector, 13, seed=1)
    saved, file = vector.state_dict(), io.BytesIO()
    steps = roll(vector, 30, seed=2)  # does not touch what was saved before
    torch.save(saved, file)
    file.seek(0)
    other = make_vector(id, 3, seed=77, env_kwargs=kwargs, interface=CLIP)
    other.reset()
    roll(other, 5)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert all(map(same, steps, roll(other, 30, seed=2)))
    if id == "CartPole-v1":
        said = error_of(other.load_state_dict, {**saved, "observation_hash": 1})
        assert "'CartPole-v1' is not deterministic: replaying 34 steps" in said
    again = make_vector(id, 3, seed=0, env_kwargs=kwargs, interface=CLIP)
    again.load_state_dict(other.state_dict())  # a resumed run is saved and resumed like any other


OTHERS = [
    (SMALL, CAR, 2), (SMALL, "Gridverse/Memory-7x7-v0", 2), (SMALL, "Gridverse/Keydoor-5x5-v0", 2), (SMALL, SMALL, 3),
    ("POMDP/Hallway-v0", "POMDP/HeavenHell-v0", 2), ("CartPole-v1", "CartPole-v1", 3),
]  # fmt: skip


@pytest.mark.parametrize(("saved", "other", "count"), OTHERS)
def test_a_state_of_another_vector_is_refused(saved, other, count):
    vector = make_vector(saved, 2, 0)
    vector.reset()
    assert f"does not fit {count}" in error_of(make_vector(other, count, 0).load_state_dict, vector.state_dict())


def test_pictures_of_one_row():
    vector = make_vector(f"envs:{CAR}", 2, seed=0)  # the module may stand in the id
    vector.reset()
    assert vector.frame(1).shape == (64, 360, 3)
    assert corridors("success").frame(0).shape == (2, 2, 3)


@pytest.mark.parametrize("id", IDS)
def test_a_step_reports_the_episode_and_its_observation_before_the_reset(id):
    vector = make_vector(id, 32, seed=2, env_kwargs=keywords(id, time_limit=6), interface=CLIP)
    first, world, action = vector.reset(), vector.world, torch.ones(32, *vector.actions.shape, dtype=torch.int64)
    taken = action if world.num_actions else vector.actions.reals(action.float())
    assert first.shape == (32, *(vector.observation_space.shape or (1,)))
    total, length, ended = torch.zeros(32, dtype=torch.float64), torch.zeros(32, dtype=torch.int64), []
    for _ in range(20):
        before, stream = vector.state, vector.generator.clone_state()
        step = vector.step(action)
        u = torch.rand(32, world.step_draws + world.reset_draws, dtype=torch.float64, generator=stream)
        _, observation, reward, *_ = world.step(before, taken, u[:, : world.step_draws])
        assert torch.equal(step.final_observation, observation)
        assert step.observation.dtype == observation.dtype == first.dtype
        assert step.reward.dtype == torch.float32 and torch.equal(step.reward, reward.float())
        total, length = total + reward, length + 1
        assert torch.allclose(step.episode_return, total) and torch.equal(step.episode_length, length)
        total, length = total * ~step.done, length * ~step.done
        ended.append((step.observation != step.final_observation)[step.done])
    assert (length < 6).all() and any(changed.any() for changed in ended)


def test_initial_draws_cover_every_initial_state_once_and_success_comes_with_the_final_step():
    world = make_world(SMALL, time_limit=2)
    vector = TensorVector(world, 26, seed=0, initial=world.initial_draws())
    vector.reset()
    assert torch.equal(vector.state.cells[:24], world.reset(world.initial_draws()).cells)
    assert len(torch.unique(vector.state.cells[:24], dim=0)) == 24
    first, last = vector.step(torch.zeros(26, dtype=torch.int64)), vector.step(torch.full((26,), 2))
    assert not first.success.any()
    assert last.terminated.all() and not last.truncated.any()  # at the time limit, too
    assert last.success[:24].sum() == 12
    assert torch.equal(last.success, last.episode_return > 0)


def test_a_generator_goes_on_where_it_was_or_with_numbers_of_its_own():
    first, second, third = (torch.Generator().manual_seed(seed) for seed in (1, 2, 1))
    beginning = torch.rand(5, generator=torch.Generator().manual_seed(1))
    torch.rand(7, generator=first)
    restore_generator(second, first.get_state())
    assert torch.equal(torch.rand(5, generator=second), torch.rand(5, generator=first))
    of_a_gpu = torch.arange(16, dtype=torch.uint8)  # its states have another size
    restore_generator(third, of_a_gpu)
    restore_generator(second, of_a_gpu)
    drawn = torch.rand(5, generator=third)
    assert torch.equal(drawn, torch.rand(5, generator=second)) and not torch.equal(drawn, beginning)
