"""N worlds of ours behind the trainer's interface."""

import io

import pytest
import torch
from world_keywords import IDS, keywords

from envs.errors import UserError
from envs.fleet import TensorFleet, make_fleet
from envs.registry import make_world
from envs.seeding import restore_generator


def roll(fleet, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [fleet.step(torch.randint(fleet.num_actions, (fleet.num_envs,), generator=generator)) for _ in range(steps)]


def equal(ours, theirs):
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in vars(ours))


@pytest.mark.parametrize("id", IDS)
def test_step_fields(id):
    fleet = make_fleet(id, 5, seed=1, env_kwargs=keywords(id, time_limit=8))
    assert isinstance(fleet, TensorFleet)
    observation = fleet.reset()
    assert observation.shape == (5, *(fleet.observation_space.shape or (1,)))
    total, length = torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    for step in roll(fleet, 40):
        assert step.reward.dtype == torch.float32
        assert step.observation.dtype == step.final_observation.dtype == observation.dtype
        total, length = total + step.reward.double(), length + 1
        assert torch.allclose(step.episode_return, total, atol=1e-5)
        assert torch.equal(step.episode_length, length)
        total, length = total * ~step.done, length * ~step.done
    assert (length < 8).all()


@pytest.mark.parametrize("id", IDS)
def test_the_final_observation_is_the_one_before_the_reset(id):
    fleet = make_fleet(id, 32, seed=2, env_kwargs=keywords(id, time_limit=6))
    fleet.reset()
    ended = []
    for _ in range(6):
        before, world = fleet.state, fleet.world
        stream = torch.Generator()
        stream.set_state(fleet.generator.get_state())
        action = torch.ones(32, dtype=torch.int64)
        step = fleet.step(action)
        draws = world.step_draws + world.reset_draws
        u = torch.rand(32, draws, dtype=torch.float64, generator=stream)
        _, observation, reward, *_ = world.step(before, action, u[:, : world.step_draws])
        assert torch.equal(step.final_observation, observation)
        assert torch.equal(step.reward, reward.float())
        ended.append((step.observation != step.final_observation)[step.done])
    assert any(changed.any() for changed in ended)


@pytest.mark.parametrize("id", IDS)
def test_a_saved_state_continues_bit_for_bit(id):
    fleet = make_fleet(id, 6, seed=3, env_kwargs=keywords(id, time_limit=9))
    fleet.reset()
    roll(fleet, 13)
    file = io.BytesIO()
    torch.save(fleet.state_dict(), file)
    file.seek(0)
    other = make_fleet(id, 6, seed=99, env_kwargs=keywords(id, time_limit=9))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert fleet.exact_resume
    assert all(map(equal, roll(fleet, 30, seed=5), roll(other, 30, seed=5)))


def test_a_saved_state_is_not_touched_by_later_steps():
    fleet = make_fleet("POMDP/CarFlag-v0", 2, seed=0)
    fleet.reset()
    saved = fleet.state_dict()
    kept = {name: value.clone() for name, value in saved["state"].items()}
    roll(fleet, 5)
    assert all(torch.equal(saved["state"][name], kept[name]) for name in kept)


def test_the_seed_decides_the_episodes():
    first, same, other = (make_fleet("POMDP/MemoryCards-v0", 4, seed).reset() for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_initial_draws_cover_every_initial_state_once():
    world = make_world("Gridverse/Memory-5x5-v0")
    fleet = TensorFleet(world, 26, seed=0, initial=world.initial_draws())
    fleet.reset()
    assert torch.equal(fleet.state.cells[:24], world.reset(world.initial_draws()).cells)
    assert len(torch.unique(fleet.state.cells[:24], dim=0)) == 24


def test_success_comes_with_the_final_step():
    world = make_world("Gridverse/Memory-5x5-v0")
    fleet = TensorFleet(world, 24, seed=0, initial=world.initial_draws())
    fleet.reset()
    first = fleet.step(torch.zeros(24, dtype=torch.int64))
    assert not first.success.any()
    last = fleet.step(torch.full((24,), 2))
    assert last.terminated.all()
    assert last.success.sum() == 12
    assert torch.equal(last.success, last.episode_return > 0)


def test_pictures_of_one_row():
    fleet = make_fleet("POMDP/CarFlag-v0", 2, seed=0)
    fleet.reset()
    assert fleet.frame(1).shape == (64, 360, 3)


def test_the_module_may_stand_in_the_id():
    assert isinstance(make_fleet("envs:POMDP/CarFlag-v0", 2, 0), TensorFleet)


def test_misuse_is_one_clear_sentence():
    world = make_world("Gridverse/Memory-5x5-v0")
    with pytest.raises(UserError, match="at most 8 rows of 2"):
        TensorFleet(world, 8, seed=0, initial=world.initial_draws())
    with pytest.raises(UserError, match="reset"):
        TensorFleet(world, 8, seed=0).step(torch.zeros(8, dtype=torch.int64))
    with pytest.raises(UserError, match="num_envs"):
        TensorFleet(world, 0, seed=0)
    small, car = make_fleet("Gridverse/Memory-5x5-v0", 2, 0), make_fleet("POMDP/CarFlag-v0", 2, 0)
    small.reset()
    for other in (
        car,
        make_fleet("Gridverse/Memory-7x7-v0", 2, 0),
        make_fleet("Gridverse/Memory-5x5-v0", 3, 0),
    ):
        with pytest.raises(UserError, match="does not fit"):
            other.load_state_dict(small.state_dict())


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
