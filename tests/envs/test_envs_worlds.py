"""The World contract, for every world in the registry."""

import copy

import numpy as np
import pytest
import torch
from world_keywords import IDS, build, check_same, play, random_action, same, uniforms

from envs.gymnasium import Engine, on_numpy
from envs.registry import make_world
from envs.vector import advance, advance_finished, advance_on_numpy, arrays_of
from envs.worlds.memory_cards import MAX_TABLED_PAIRS, MemoryCards


def slice_state(state, row):
    return type(state)(**{name: value[row : row + 1] for name, value in vars(state).items()})


FILES = [("Gridverse/Yaml-v0", {"path": name}) for name in ("crossing.7x7", "teleport.5x5", "four_rooms.7x7")]


@pytest.mark.parametrize(("id", "kwargs"), [*((id, {}) for id in IDS), *FILES])
def test_n_worlds_are_n_single_worlds(id, kwargs):
    world, n = build(id, time_limit=9, **kwargs), 4
    generator = torch.Generator().manual_seed(1)
    u = uniforms(n, world.reset_draws, generator=generator)
    together, apart = world.reset(u), [world.reset(row[None]) for row in u]
    for _ in range(30):
        action = random_action(world, n, generator)
        u = uniforms(n, world.step_draws + world.reset_draws, generator=generator)
        together, step = advance(world, together, action, u)
        for row in range(n):
            apart[row], alone = advance(world, apart[row], action[row : row + 1], u[row : row + 1])
            assert same(apart[row], slice_state(together, row))
            assert torch.equal(alone.reward[0], step.reward[row])
            assert torch.equal(alone.final_observation[0], step.final_observation[row])


@pytest.mark.parametrize("id", IDS)
def test_time_limit_truncates_and_never_together_with_termination(id):
    world = build(id, time_limit=12)
    steps = [step for _, step in play(world, 256, 60)]
    names = ("terminated", "truncated", "episode_length", "success")
    terminated, truncated, length, success = (torch.stack([getattr(step, name) for step in steps]) for name in names)
    assert truncated.any() and not (terminated & truncated).any()
    assert (length[truncated] == 12).all() and length.max() == 12
    assert not (success & ~terminated).any()


@pytest.mark.parametrize(("id", "keywords"), [
    ("Gridverse/Memory-7x7-v0", {}),
    ("Gridverse/Memory-NineRooms-13x13-3Beacons-v0", {}),
    ("Gridverse/Memory-13x13-Hallucinated-v0", {"encoding": "default"}),
    ("Gridverse/Keydoor-5x5-v0", {"view": (7, 7), "dictionary": True}),
    ("POMDP/CarFlag-v0", {}),
    ("POMDP/MemoryCards-v0", {}),
])  # fmt: skip
def test_the_step_is_one_graph(id, keywords):
    """Traced as a whole without a break, and the traced form gives the same numbers."""
    world = build(id, time_limit=10, **keywords)
    torch._dynamo.reset()
    traced = torch.compile(advance, backend="eager", fullgraph=True, dynamic=False)
    check_same((play(world, 8, 25, traced), play(world, 8, 25)))


@pytest.mark.parametrize("id", IDS)
def test_resetting_the_finished_rows_alone_gives_the_same_numbers(id):
    world = build(id, time_limit=7)
    path = play(world, 48, 40)
    check_same((play(world, 48, 40, advance_finished), path))
    if world.runs_on_numpy:
        twin = on_numpy(world)

        def on_arrays(_, state, *given):
            after, step = advance_on_numpy(twin, arrays_of(state), *given)
            return type(after)(**{name: torch.from_numpy(value) for name, value in vars(after).items()}), step

        check_same((play(world, 48, 40, on_arrays), path))


@pytest.mark.parametrize("observe", ["observation", "state"])
@pytest.mark.parametrize("id", [id for id in IDS if build(id).runs_on_numpy])
def test_a_world_on_numpy_arrays_gives_the_numbers_of_tensors(id, observe):
    """Also its restarts, and nothing is written into an earlier state."""
    engines = [Engine(build(id, time_limit=20, observe=observe), on_arrays) for on_arrays in (False, True)]
    world, draws, generator = engines[0].world, np.random.default_rng(0), torch.Generator().manual_seed(0)
    u = draws.random((64, world.reset_draws))
    states = [engine.reset(u) for engine in engines]
    for _ in range(50):
        action, u = random_action(world, 64, generator).numpy(), draws.random((64, world.step_draws))
        kept = [copy.deepcopy(state) for state in states]
        (ours, *numbers), (theirs, *others) = (
            engine.step(state, action, u) for engine, state in zip(engines, states, strict=True)
        )
        for pair in zip([*numbers, *vars(ours).values()], [*others, *vars(theirs).values()], strict=True):
            mine, other = map(np.asarray, pair)
            assert mine.dtype == other.dtype and mine.tobytes() == other.tobytes()
        rows = np.flatnonzero(numbers[1] | numbers[2])
        u = draws.random((len(rows), world.reset_draws))
        after = [engine.restart(state, rows, u) for engine, state in zip(engines, (ours, theirs), strict=True)]
        for before, state in zip(kept, states, strict=True):
            assert all(np.array_equal(vars(before)[name], vars(state)[name]) for name in vars(state))
        states = after


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares a CPU with a CUDA device; none is here")
@pytest.mark.parametrize("id", IDS)
def test_cpu_and_cuda_agree(id):
    worlds = [build(id, device, time_limit=20) for device in ("cpu", "cuda")]
    check_same([play(world, 64, 60, device=world.device) for world in worlds])


@pytest.mark.parametrize("pairs", [2, MAX_TABLED_PAIRS + 1])
def test_turn_up_skips_removed_cards(pairs):
    world = MemoryCards(pairs)
    removed = torch.full((4,), int(world.all_removed) - 0b1010)
    u = torch.tensor([0.0, 0.49, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert world.turn_up(removed, u).tolist() == [1, 1, 3, 3]
    assert world.turn_up(torch.full((4,), int(world.all_removed)), u).tolist() == [0] * 4


@pytest.mark.parametrize("pairs", [2, 3, 5, 6])
def test_the_tables_of_cards_are_what_they_stand_for(pairs):
    quick, plain = MemoryCards(pairs), MemoryCards(pairs)
    plain.tabled = False
    generator = torch.Generator().manual_seed(0)
    removed = torch.randint(0, int(quick.all_removed) + 1, (5000,), generator=generator)
    u = uniforms(5000, generator=generator)
    u[:500], u[500:1000] = 1 - 2**-53, 0.0
    current = quick.turn_up(removed, u)
    cards = quick.reset(uniforms(5000, quick.reset_draws, generator=generator)).cards
    assert torch.equal(current, plain.turn_up(removed, u))
    assert torch.equal(quick.observe(cards, removed, current), plain.observe(cards, removed, current))


def test_a_removed_or_the_same_card_never_matches():
    world = make_world("POMDP/MemoryCards-v0", pairs=2)
    u = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0]], dtype=torch.float64)  # cards 1 2 1 2, the first face up
    state, none = world.reset(u), torch.zeros(1, 1, dtype=torch.float64)
    for action, reward, seen in ((0, -1, [1, 0, 0, 0]), (2, 0, [3, 2, 3, 0]), (2, -1, [3, 2, 3, 0])):
        state, observation, given, _, _ = world.step(state, torch.tensor([action]), none)
        assert (given.item(), observation[0].tolist()) == (reward, seen)
    _, observation, given, terminated, success = world.step(state, torch.tensor([3]), none)
    assert (given.item(), observation[0].tolist()) == (0, [3, 3, 3, 3])
    assert terminated.all() and success.all()


@pytest.mark.parametrize("id", IDS)
def test_frames_are_pictures_and_texts_lines_that_change(id):
    world = build(id)
    path = play(world, 1, 12)
    frames, texts = [world.frame(state, 0) for state, _ in path], [world.text(state, 0) for state, _ in path]
    assert all(f.dtype == np.uint8 and f.ndim == 3 and f.shape[2] == 3 for f in frames)
    assert all(line.isprintable() for text in texts for line in text.split("\n"))
    assert all(text and text == text.rstrip("\n") for text in texts)
    assert len({f.tobytes() for f in frames}) > 1 and len(set(texts)) > 1


def test_the_texts_of_car_flag_and_memory_cards():
    world = make_world("POMDP/CarFlag-v0")
    state = world.reset(torch.tensor([[0.1, 0.5], [0.9, 0.5]], dtype=torch.float64))
    left, right = (world.text(state, row).splitlines() for row in (0, 1))
    assert left == ["+" + "." * 19 + "o" + "." * 5 + "=" * 9 + "." * 5 + "-", "position +0.000, velocity +0.0000"]
    assert right[0] == left[0].translate(str.maketrans("+-", "-+"))
    world = make_world("POMDP/MemoryCards-v0", pairs=2)
    state = world.reset(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.3]], dtype=torch.float64))  # 1 2 1 2, the second face up
    assert world.text(state, 0).split() == ["#", "2", "#", "#"]
    state, *_ = world.step(state, torch.tensor([3]), uniforms(1, 1) * 0)
    assert world.text(state, 0).split() == ["1", ".", "#", "."]
