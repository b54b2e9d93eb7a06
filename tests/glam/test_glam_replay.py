"""Replay of frames: what was stored comes back, windows never straddle the write head, draws, exact continuation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import assert_goes_on_exactly

from dqn_memory.runs.errors import UserError
from world_models.glam.config import ReplayConfig
from world_models.glam.replay import Replay

T, N, SCREEN = 4, 3, 8
CPU = torch.device("cpu")


def column(step):
    """Cell (step, world) holds numbers that name it; world w opens an episode every 3 + w steps."""
    worlds = torch.arange(N)
    return {
        "frames": ((step * N + worlds) % 256)[:, None, None, None].expand(N, 3, SCREEN, SCREEN),
        "action": (step + worlds) % 5,
        "reward": step + worlds / 10,
        "terminated": (step + 1) % (3 + worlds) == 0,
        "first": step % (3 + worlds) == 0,
    }


def filled(columns, capacity=1000, longest=T, recent=0):
    replay = Replay(ReplayConfig(capacity * N, recent), SCREEN, N, CPU, longest)
    for step in range(columns):
        replay.add(**column(step))
    return replay


def expected(drawn, length):
    """Windows, cell by cell."""
    rows = [[column(int(at) // N + t) for t in range(length)] for at in drawn]
    return {
        name: torch.stack(
            [torch.stack([cell[name][int(at) % N] for cell in row]) for at, row in zip(drawn, rows, strict=True)]
        )
        for name in column(0)
    }


@settings(max_examples=40, deadline=None)
@given(
    columns=st.integers(T, 40), capacity=st.integers(T, 30), length=st.integers(1, T), seed=st.integers(0, 9),
    recent=st.integers(0, 4),
)  # fmt: skip
def test_windows_are_what_was_stored(columns, capacity, length, seed, recent):
    """Also after the ring has wrapped: every window is of consecutive steps that are still there."""
    replay = filled(columns, capacity, recent=recent)
    drawn = replay.draw(12, length, torch.Generator().manual_seed(seed))
    assert (drawn // N >= max(columns - capacity, 0)).all()
    assert (drawn // N + length <= columns).all()
    windows = replay.windows(drawn, length)
    for name, wanted in expected(drawn, length).items():
        ours = getattr(windows, name)
        assert ours.shape[:2] == (12, length)
        assert torch.equal(ours, wanted.to(ours.dtype)), name


def test_the_batch_has_the_forms_that_the_model_reads():
    windows = filled(20).windows(torch.tensor([0, 7]), T)
    assert {name: each.dtype for name, each in vars(windows).items()} == {
        "frames": torch.uint8, "action": torch.int64, "reward": torch.float32, "terminated": torch.bool,
        "first": torch.bool,
    }  # fmt: skip
    assert windows.first[0].tolist() == [True, False, False, True]
    assert windows.terminated[0].tolist() == [False, False, True, False]
    assert not windows.first[1, 0]  # a window that begins inside an episode says so


@pytest.mark.parametrize(("columns", "capacity"), [(30, 1000), (50, 20)])
def test_draws_are_uniform_over_all_windows(columns, capacity):
    replay = filled(columns, capacity)
    drawn = replay.draw(40_000, T, torch.Generator().manual_seed(0))
    count = replay.drawable(T)
    assert count == (min(columns, capacity) - T + 1) * N
    counts = torch.bincount(drawn - drawn.min(), minlength=count).double()
    assert len(counts) == count and int(drawn.max() - drawn.min()) + 1 == count
    wanted = 40_000 / count
    assert float(((counts - wanted) ** 2 / wanted).sum()) < count + 5 * (2 * count) ** 0.5


def test_the_newest_windows_are_in_every_draw():
    replay = filled(50, 20, recent=5)
    last = 50 * N - T * N + N - 1  # the newest window of the last world
    for seed in range(5):
        drawn = replay.draw(8, T, torch.Generator().manual_seed(seed))
        assert drawn[3:].tolist() == [last - i for i in range(5)]
    assert replay.draw(2, T, torch.Generator()).tolist() == [last, last - 1]
    few = filled(T, recent=5)
    assert sorted(set(few.draw(8, T, torch.Generator().manual_seed(0)).tolist())) == [0, 1, 2]


def test_a_draw_is_decided_by_its_generator_and_nothing_else():
    replay = filled(30)
    state = torch.random.get_rng_state()
    ours, same, other = (replay.draw(9, T, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(ours, same) and not torch.equal(ours, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@settings(max_examples=25, deadline=None)
@given(capacity=st.integers(T, 12), saves=st.lists(st.integers(0, 15), min_size=1, max_size=5))
def test_a_restored_replay_is_the_same(capacity, saves):
    def drawn(replay):
        if replay.drawable(T):
            return vars(replay.windows(replay.draw(10, T, torch.Generator().manual_seed(0)), T))

    assert_goes_on_exactly(lambda: filled(0, capacity), column, saves, drawn)


def test_misuse_is_one_clear_sentence():
    with pytest.raises(UserError, match="--capacity 11 is too small: 3 environments with windows of 4 steps need at"):
        Replay(ReplayConfig(11), SCREEN, N, CPU, T)
    with pytest.raises(ValueError, match="no window of 4 steps"):
        filled(T - 1).draw(2, T, torch.Generator())
