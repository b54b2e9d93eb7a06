"""Replay of frames: what was stored comes back, windows never straddle the write head, draws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqn_memory.runs.errors import UserError
from world_models.glam.config import GlamReplayConfig
from world_models.glam.replay import FrameReplay

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
    replay = FrameReplay(GlamReplayConfig(capacity * N, recent), SCREEN, N, CPU, longest)
    for step in range(columns):
        replay.add(**column(step))
    return replay


def expected(name, drawn, length):
    """Windows, cell by cell."""
    return torch.stack(
        [torch.stack([column(int(at) // N + t)[name][int(at) % N] for t in range(length)]) for at in drawn]
    )


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
    dtypes = {"frames": torch.uint8, "action": torch.int64, "reward": torch.float32}
    for name, ours in vars(windows).items():
        assert ours.dtype == dtypes.get(name, torch.bool) and ours.shape[:2] == (12, length)
        assert torch.equal(ours, expected(name, drawn, length).to(ours.dtype)), name


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


def test_misuse_is_one_clear_sentence():
    with pytest.raises(UserError, match="--capacity 11 is too small: 3 environments with windows of 4 steps need at"):
        FrameReplay(GlamReplayConfig(11), SCREEN, N, CPU, T)
    with pytest.raises(ValueError, match="no window of 4 steps"):
        filled(T - 1).draw(2, T, torch.Generator())
