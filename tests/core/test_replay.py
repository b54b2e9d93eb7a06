"""The replay gives back exactly what happened, from any cell, without crossing episodes or the ring's seam."""

import numpy as np
import pytest
import torch
from helpers import NUM_ACTIONS, TOKENS, action_of, filled_replay
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import error_of

from dqn_memory.replay import Replay

PAD = TOKENS.padding


def cells(replay, columns, world):
    return torch.tensor([column * replay.num_envs + world for column in columns])


def check_window(windows, row, context):
    length = int(windows.lengths[row])
    observation = windows.observation[row].tolist()
    episode, start = observation[0]
    assert observation[: length + 1] == [[episode, start + j] for j in range(length + 1)]
    assert all(entry == [PAD, PAD] for entry in observation[length + 1 :])
    for j in range(length):
        assert windows.action[row, j] == action_of(episode, start + j)
        assert windows.reward[row, j] == pytest.approx(episode + 0.1 * (start + j))
        led = action_of(episode, start + j)
        assert windows.previous_action[row, j + 1] == led
    first = windows.previous_action[row, 0]
    assert first == (NUM_ACTIONS if start == 0 else action_of(episode, start - 1))
    assert windows.terminated[row, length:].all() and not windows.reward[row, length:].any()
    assert not windows.terminated[row, : length - 1].any()
    assert start == 0 or length == context


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=8), min_size=1, max_size=3),
    context=st.integers(1, 6),
    capacity=st.sampled_from([30, 10_000]),
    seed=st.integers(0, 99),
    around=st.booleans(),
)
def test_windows_hold_consecutive_steps_of_one_episode(lengths, context, capacity, seed, around):
    replay = filled_replay(lengths, capacity * len(lengths))
    generator = torch.Generator().manual_seed(seed)
    drawn, longest = replay.draw(40, context, generator, around=around)
    windows = replay.windows(drawn, context, context)
    assert windows.lengths.max() == longest
    for row in range(40):
        check_window(windows, row, context)


def test_every_step_is_drawn_equally_often():
    replay = filled_replay([[1, 7, 2, 5], [3, 3, 9]])
    drawn, _ = replay.draw(30_000, 4, torch.Generator().manual_seed(0))
    counts = np.bincount(drawn.numpy(), minlength=30)
    assert counts.shape == (30,)  # 15 columns of 2 worlds
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-square, 29 degrees of freedom: p < 0.001


@pytest.mark.parametrize(("around", "least"), [(True, 0.45), (False, 0.1)])
def test_how_often_each_step_is_in_a_window(around, least):
    """Around: ends of episodes at least half as often as inner steps; ending: a terminal step 1/K as often."""
    context, length = 8, 40
    replay = filled_replay([[length] * 5])
    drawn, _ = replay.draw(40_000, context, torch.Generator().manual_seed(0), around=around)
    inside = np.zeros(length)
    end = drawn.numpy() % length
    for offset in range(context):
        np.add.at(inside, (end - offset)[end >= offset], 1)
    share = inside / np.median(inside)
    assert share[8:-8].min() > 0.9
    assert share[-1] == pytest.approx((context + 1) / 2 / context if around else 1 / context, rel=0.1)
    assert share.min() > least


@pytest.mark.parametrize("capacity", [10_000, 60])
def test_a_share_of_the_windows_ends_at_terminal_steps(capacity):
    replay = filled_replay([[7, 9, 5, 8, 11], [20, 20]], capacity)
    drawn, _ = replay.draw(2000, 4, torch.Generator().manual_seed(0), terminal_fraction=0.5)
    windows = replay.windows(drawn, 4, 4)
    rows = torch.arange(2000)
    assert windows.terminated[rows[:1000], windows.lengths[:1000] - 1].all()
    share = windows.terminated[rows[1000:], windows.lengths[1000:] - 1].float().mean()
    assert 0.05 < share < 0.15  # 7 of 80 steps
    few, _ = replay.draw(8, 4, torch.Generator().manual_seed(0), terminal_fraction=0.01)  # less than one
    assert replay.windows(few, 4, 4).terminated[0].any()
    fresh = filled_replay([[50]], truncate=True)
    assert len(fresh.draw(8, 4, torch.Generator().manual_seed(0), terminal_fraction=1.0)[0]) == 8


def test_a_narrow_bucket_holds_the_same_window():
    replay = filled_replay([[3, 4, 2]])
    drawn = cells(replay, [2, 5, 8], 0)
    wide, narrow = replay.windows(drawn, 12, 12), replay.windows(drawn, 12, 5)
    assert wide.observation.shape[1] == 13 and narrow.observation.shape[1] == 5
    assert torch.equal(wide.observation[:, :5], narrow.observation)
    assert torch.equal(wide.previous_action[:, :5], narrow.previous_action)
    for name in ("action", "reward", "terminated"):
        assert torch.equal(getattr(wide, name)[:, :5], getattr(narrow, name))


def test_published_padding_holds_one_random_action_a_window():
    replay = filled_replay([[2] * 40])
    drawn = cells(replay, range(1, 80, 2), 0)
    windows = replay.windows(drawn, 6, 6, torch.Generator().manual_seed(1))
    padding = windows.action[:, 2:]
    assert (padding == padding[:, :1]).all()
    assert set(padding[:, 0].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("truncate", [False, True])
def test_prefixes_are_what_acting_saw(steps, truncate):
    replay = filled_replay([[5, 3, 9]], truncate=truncate)
    gamma, context = 0.9, 4
    for column, (episode, t, length) in enumerate(
        [(0, t, 5) for t in range(5)] + [(1, t, 3) for t in range(3)] + [(2, t, 9) for t in range(9)]
    ):
        batch = replay.contexts(cells(replay, [column], 0), context, gamma, steps)
        taken = min(steps, length - t, 17 - column)
        seen = [[episode, s] for s in range(max(0, t - context + 1), t + 1)]
        later = [[episode, s] for s in range(max(0, t + taken - context + 1), t + taken + 1)]
        assert batch.observation[0, : len(seen)].tolist() == seen
        assert batch.lengths[0] == len(seen)
        assert batch.next_observation[0, : len(later)].tolist() == later
        assert batch.next_lengths[0] == len(later)
        assert (batch.observation[0, len(seen) :] == PAD).all()
        assert batch.action[0] == action_of(episode, t)
        reward = sum(gamma**i * (episode + 0.1 * (t + i)) for i in range(taken))
        assert batch.reward[0] == pytest.approx(reward, rel=1e-5)
        ended = t + taken == length and not truncate
        assert batch.discount[0] == pytest.approx(0 if ended else gamma**taken)
        assert batch.next_previous_action[0, len(later) - 1] == action_of(episode, t + taken - 1)


def test_the_end_of_the_next_episode_is_not_that_of_this_one():
    replay = filled_replay([[5, 3, 9]])
    replay.cells["terminated"][:5] = False  # the first episode ran out of time
    assert replay.contexts(cells(replay, [4], 0), 4, 0.9, 4).discount.item() == pytest.approx(0.9)


def test_the_ring_forgets_the_oldest_and_keeps_whole_histories():
    replay = filled_replay([[50]], capacity=20)
    assert len(replay) == 20
    drawn, _ = replay.draw(500, 6, torch.Generator().manual_seed(0))
    assert drawn.min() == 30 + 5 and drawn.max() == 49
    windows = replay.windows(drawn, 6, 6)
    assert (windows.lengths == 6).all()
    assert windows.observation[:, 0, 1].min() == 30


def test_restored_columns_give_the_same_batches():
    replay = filled_replay([[5, 3, 9, 4, 8], [4] * 8], capacity=50)
    start = max(0, replay.written - replay.num_columns)
    other = Replay(TOKENS, NUM_ACTIONS, 2, 50, torch.device("cpu"))
    other.restore(start, replay.columns(start, replay.written))
    draws = [r.draw(30, 5, torch.Generator().manual_seed(3)) for r in (replay, other)]
    assert torch.equal(draws[0][0], draws[1][0]) and draws[0][1] == draws[1][1]
    ours, theirs = (r.windows(draws[0][0], 5, 5) for r in (replay, other))
    assert torch.equal(ours.observation, theirs.observation) and torch.equal(ours.reward, theirs.reward)


def test_a_capacity_without_room_is_one_sentence():
    assert "--capacity 16" in error_of(Replay, TOKENS, NUM_ACTIONS, 16, 16, torch.device("cpu"))


def test_a_cut_ends_the_newest_episodes_on_the_host_too():
    replay = filled_replay([[4, 9], [20]])  # the last of 13 columns is in the middle of an episode of 20
    replay.cut()
    for done in (replay.cells["done"].numpy(), replay.host["done"]):
        assert done[12].all() and not done[11].any()
