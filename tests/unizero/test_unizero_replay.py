"""Replay of sequences: what was stored comes back, ends are masked, draws are uniform, checkpoints continue exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import unizero_models
from helpers import action_of, cells_of
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import assert_equal

from dqn_memory.network import ObservationSpec
from dqn_memory.runs.checkpoint import columns_from, next_span
from dqn_memory.runs.errors import UserError
from world_models.unizero.config import SearchConfig, UniZeroCollectionConfig, UniZeroReplayConfig
from world_models.unizero.mcts import SearchNumbers, draw_numbers, make_functions, tree_search
from world_models.unizero.replay import SequenceReplay
from world_models.unizero.train import search_again, search_roots

SPEC = ObservationSpec("discrete", (2,), 200, torch.uint8)
ACTIONS, T, N, W = 3, 4, 3, 2
CPU = torch.device("cpu")


def column(cells, final, truncated):
    """Step t of episode e observes (e, t), is paid e + t / 10 and was searched with visits (1, t, e)."""
    without = {"previous_action"} if final else {"previous_action", "next_observation"}
    kept = {name: values for name, values in cells_of(cells, truncated).items() if name not in without}
    return kept | {"policy": torch.tensor([[1, t, e] for e, t, _ in cells])}


def filled(worlds, capacity=10_000, segment=0, final=True, truncated=False, columns=None, terminal_fraction=0.0):
    """A world for each list of episode lengths."""
    config = UniZeroReplayConfig(capacity * len(worlds), final, terminal_fraction)
    replay = SequenceReplay(config, SPEC, ACTIONS, len(worlds), CPU, T, N, W, segment or 10_000)
    steps = [[(e, t, length) for e, length in enumerate(world) for t in range(length)] for world in worlds]
    for at in range(min(map(len, steps)) if columns is None else columns):
        replay.add(**column([world[at] for world in steps], final, truncated))
    return replay, steps


def check_sequence(sequences, row, steps, segment, truncated, final):
    """Compare one row with the world's list of (episode, time, length) from its first step on.

    Padding repeats the last observation: a frame that the world never showed would shift batch normalisation.
    """
    episode, first, length = steps[0]
    left = min(length - first, T + N)
    cut = truncated and final and length - first <= T + N
    assert int(sequences.left[row]) == left and bool(sequences.truncated[row]) == cut
    expected = [[episode, first + i] for i in range(left)]
    expected += [[episode, length]] * (cut and left < T + N)
    expected += expected[-1:] * (T + N - len(expected))
    assert sequences.observation[row].tolist() == expected
    assert sequences.action[row].tolist() == [action_of(episode, first + i) for i in range(left)] + [0] * (T + N - left)
    paid = [episode + 0.1 * (first + i) for i in range(left)] + [0.0] * (T + N - left)
    assert sequences.reward[row].tolist() == pytest.approx(paid, abs=1e-5)
    own = min(left, segment - first % segment if segment else T)
    assert sequences.mask[row].tolist() == [i < own for i in range(T)]
    for i in range(min(left, T)):
        visits = np.array([1, first + i, episode])
        np.testing.assert_allclose(sequences.policy[row, i], visits / visits.sum(), rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    worlds=st.lists(st.lists(st.integers(1, 11), min_size=6, max_size=9), min_size=1, max_size=3),
    capacity=st.sampled_from([T + N + W + 1, 20, 1000]),
    segment=st.sampled_from([0, 1, 3, 5]),
    truncated=st.booleans(),
    final=st.booleans(),
    seed=st.integers(0, 999),
)
def test_sequences_are_what_happened_and_contexts_the_steps_before(worlds, capacity, segment, truncated, final, seed):
    replay, steps = filled(worlds, capacity, segment, final, truncated)
    if not replay.drawable:
        return
    assert ("next_observation" in replay.cells) == final
    drawn = replay.draw(min(30, replay.drawable), torch.Generator().manual_seed(seed))
    sequences, contexts = replay.sequences(drawn), replay.contexts(drawn)
    history, current = search_roots(contexts, contexts.observation.double())
    for row, cell in enumerate(drawn.tolist()):
        at, world = divmod(cell, len(worlds))
        check_sequence(sequences, row, steps[world][at:], segment, truncated, final)
        for k in range(min(int(sequences.left[row]), T)):
            episode, t, _ = steps[world][at + k]
            held = int(history.count[row * T + k])
            assert held == min(t, W) and current[row * T + k].tolist() == [episode, t]
            before = [[episode, t - held + i] for i in range(held)]
            assert history.latent[row * T + k, :held].tolist() == before
            assert history.action[row * T + k, :held].tolist() == [action_of(episode, past) for _, past in before]
    assert torch.allclose(sequences.policy.sum(2), torch.ones(len(drawn), T))


def test_every_step_is_drawn_equally_often_and_none_beside_the_present():
    replay, _ = filled([[9, 9, 9, 9], [5, 20, 11]], columns=30)
    count = 2 * (30 - (T + N) + 1)
    assert replay.drawable == count
    generator = torch.Generator().manual_seed(0)
    draws = 4000
    times = torch.bincount(torch.cat([replay.draw(10, generator) for _ in range(draws)]), minlength=60)
    assert times[count:].sum() == 0
    expected = draws * 10 / count
    assert (times[:count] - expected).abs().max() < 5 * expected**0.5


@pytest.mark.parametrize("segment", [0, 3])
@pytest.mark.parametrize("columns", [27, 60])  # within the ring, and after it has wrapped
def test_a_share_of_the_sequences_ends_at_terminal_steps(columns, segment):
    lengths = [3, 8, 2, 20, 1, 9, 9, 20]
    whole, steps = filled([lengths, lengths[::-1]], 27, segment, columns=columns, terminal_fraction=1.0)
    oldest = max(columns - 27, 0)
    first, stop = oldest + (W if oldest else 0), columns - (T + N) + 1
    possible = {
        at * 2 + world
        for world in (0, 1)
        for at, (_, time, length) in enumerate(steps[world][:stop])
        if at >= first and time == max(0, length - T, (length - 1) // segment * segment if segment else 0)
    }
    many = torch.cat([whole.draw(40, torch.Generator().manual_seed(seed)) for seed in range(40)])
    assert set(many.tolist()) == possible
    found = whole.sequences(many)
    for row, cell in enumerate(many.tolist()):
        _, time, length = steps[cell % 2][cell // 2]
        assert int(found.left[row]) == length - time == int(found.mask[row].sum())  # the terminal step is trained
    half, _ = filled([lengths, lengths[::-1]], 27, segment, columns=columns, terminal_fraction=0.5)
    drawn = [half.draw(40, torch.Generator().manual_seed(seed)).tolist() for seed in range(40)]
    assert all(sum(cell in possible for cell in row) >= 20 for row in drawn)
    ahead = sum(cell in possible for row in drawn for cell in row[:20])  # of the others some end there by chance
    behind = sum(cell in possible for row in drawn for cell in row[20:])
    assert abs(ahead - behind) < 0.15 * (ahead + behind)  # they stand in no order


@pytest.mark.parametrize("terminal_fraction", [0.0, 0.5])  # of which there is none
def test_drawn_steps_differ_while_there_are_enough(terminal_fraction):
    replay, _ = filled([[50]], columns=40, terminal_fraction=terminal_fraction)
    for batch in (1, 20, replay.drawable):
        assert len(replay.draw(batch, torch.Generator().manual_seed(batch)).unique()) == batch
    repeated = replay.draw(replay.drawable + 5, torch.Generator().manual_seed(0))
    assert len(repeated) == replay.drawable + 5 and repeated.max() < replay.drawable


def test_misuse_is_one_clear_sentence():
    early, _ = filled([[50]], columns=T + N - 1)
    assert early.drawable == 0
    with pytest.raises(ValueError, match="no sequence of 7 steps"):
        early.draw(1, torch.Generator())
    with pytest.raises(UserError, match=r"--capacity 19 is too small: 2 environments .* need at least 20"):
        SequenceReplay(UniZeroReplayConfig(19), SPEC, ACTIONS, 2, CPU, T, N, W)
    with pytest.raises(ValueError, match="a column holds"):
        early.add(**column([(0, 0, 5)], final=False, truncated=False))


# checkpoints


@settings(max_examples=20, deadline=None)
@given(saves=st.lists(st.integers(0, 30), min_size=1, max_size=4), capacity=st.sampled_from([T + N + W + 1, 25, 100]))
def test_a_restored_replay_is_the_same(saves, capacity):
    """Saved in chunks, after so many columns each, as a run does it."""
    (ring, steps), (other, _) = (filled([[7, 60, 200], [61, 200]], capacity, columns=0) for _ in range(2))
    chunks, parts = [], {}

    def add(replay):
        replay.add(**column([world[replay.written] for world in steps], True, False))

    def drawn(replay):
        if replay.drawable:
            return vars(replay.sequences(replay.draw(8, torch.Generator().manual_seed(3))))

    for count in saves:
        for _ in range(count):
            add(ring)
        chunks, span = next_span(chunks, ring.oldest, ring.written)
        if span is not None:
            parts[span[0]] = {name: each.clone() for name, each in ring.columns(*span).items()}
            chunks = [*chunks, {"start": span[0], "stop": span[1]}]
    joined = columns_from([(chunk["start"], parts[chunk["start"]]) for chunk in chunks], ring.oldest)
    other.restore(joined.start, joined.data)
    assert (other.written, len(other)) == (ring.written, len(ring))
    assert_equal(drawn(ring), drawn(other))
    for _ in range(ring.num_columns):
        add(ring)
        add(other)
    assert_equal(ring.cells, other.cells)


# reanalysis


@given(st.integers(1, 200), st.floats(0, 1))
def test_the_share_searched_anew_is_exact_in_the_long_run(updates, share):
    due = [UniZeroCollectionConfig(reanalyse_fraction=share).reanalyses(update) for update in range(updates)]
    assert abs(sum(due) - updates * share) < 1 + 1e-6
    assert [update for update in range(200) if UniZeroCollectionConfig().reanalyses(update)] == [49, 99, 149, 199]


def test_searching_again_finds_what_acting_found():
    """The window of each stored step is rebuilt as the actor had it: pushed step by step, emptied with the episode."""
    model, config = unizero_models.model(), SearchConfig(simulations=6)
    functions, random = make_functions("eager", model), torch.Generator().manual_seed(0)
    replay = SequenceReplay(UniZeroReplayConfig(100), unizero_models.VECTOR, ACTIONS, 1, CPU, T, N, 3)
    for at in range(40):
        frame = torch.randn(1, 4, generator=random)
        cells = column([(0, at % 9, 9)], final=True, truncated=False)
        replay.add(**cells | {"observation": frame, "next_observation": frame})
    drawn = torch.tensor([5, 9, 16, 2])
    numbers = draw_numbers(config, len(drawn) * T, ACTIONS, torch.Generator().manual_seed(1))
    contexts = replay.contexts(drawn)
    policy = search_again(
        functions, replace(contexts, observation=contexts.observation.double()), numbers, config, 0.99
    )
    latents = model.encode(replay.cells["observation"][:40, 0].double())
    actions, found = replay.cells["action"][:40, 0].long(), {}
    for at in range(30):
        if at % 9 == 0:
            history = model.empty_history(1)
        found[at] = history
        history = history.push(latents[at : at + 1], actions[at : at + 1])
    for row, first in enumerate(drawn.tolist()):
        for k in range(T):
            own = SearchNumbers(*(part[[row * T + k]] for part in vars(numbers).values()))
            alone = tree_search(functions, found[first + k], latents[first + k][None], own, config, 0.99)
            assert torch.equal(alone.policy[0], policy[row, k])
    assert policy.sum(2).allclose(torch.ones(4, T, dtype=torch.float64))  # (4, T, A)
