"""Value targets: the recorded ones, a loop over the definition, and what an end of an episode is worth."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from world_models.unizero.learner import bootstrap_values, make_batch, n_step_targets
from world_models.unizero.replay import Sequences

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "unizero" / "nstep.npz")
H, N, GAMMA = int(GOLDEN["H"]), int(GOLDEN["td"]), float(GOLDEN["gamma"])
CASES = [("terminal", p) for p in (0, 5, 8, 11)] + [("padded", p) for p in (0, 14, 19)]
DOUBLE = torch.float64


def recorded(case, position, steps):
    """A stored segment read as a sequence; observation i is the number i, so that its value can be looked up."""
    rewards, actions = torch.as_tensor(GOLDEN[f"{case}/rewards"]), int(GOLDEN[f"{case}/n_actions"])
    own = int(GOLDEN["padded/segment_length"]) if case == "padded" else actions
    place = position + torch.arange(steps + N)
    held = torch.cat((rewards, torch.zeros(steps + N, dtype=DOUBLE)))  # nothing is paid behind the last reward
    return Sequences(
        observation=place[None, :, None],
        action=place[None],
        reward=torch.where(place < len(rewards), held[place.clamp(max=len(held) - 1)], 0.0)[None],
        policy=torch.full((1, steps, 2), 0.5),
        mask=(place[:steps] < own)[None],
        left=torch.tensor([min(actions - position, steps + N)]),
        truncated=torch.tensor([False]),
    )


def stacked(parts):
    return Sequences(*(torch.cat([getattr(part, name) for part in parts]) for name in Sequences.__dataclass_fields__))


def values_of(case):
    return lambda observation, action, lengths: torch.as_tensor(GOLDEN[f"{case}/boot"])[observation[..., 0]]


@pytest.mark.parametrize("case", ["terminal", "padded"])
def test_targets_are_the_recorded_ones_in_one_batch(case):
    positions = [p for name, p in CASES if name == case]
    sequences = stacked([recorded(case, p, H + 1) for p in positions])
    batch = make_batch(sequences, values_of(case), GAMMA, N)
    for row, position in enumerate(positions):
        key = f"{case}/pos{position}"
        np.testing.assert_allclose(batch.value[row], GOLDEN[f"{key}/value"], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(batch.reward[row], GOLDEN[f"{key}/reward"])
        # the recorded mask marks its last entry, which the learner drops, as no step
        np.testing.assert_array_equal(batch.mask[row, :H], GOLDEN[f"{key}/mask"][:H] == 1)
        assert int(sequences.left[row].clamp(1, N)) == GOLDEN[f"{key}/td"]


def defined(rewards, values, left, truncated, gamma, n, steps):
    """One sequence by the definition; values[i] is that of observation i."""
    count = min(n, max(1, left))
    targets = []
    for c in range(steps):
        total = sum(gamma**i * rewards[c + i] for i in range(count) if c + i < left)
        if c + count < left:
            total += gamma**count * values[c + count]
        elif truncated and c < left:
            total += gamma ** (left - c) * values[left]
        targets.append(total)
    return targets


@settings(max_examples=80, deadline=None)
@given(
    steps=st.integers(1, 6),
    n=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([0.0, 0.5, 0.997, 1.0]),
)
def test_targets_are_the_definitions(steps, n, seed, gamma):
    generator = torch.Generator().manual_seed(seed)
    lefts = torch.arange(1, steps + n + 1).repeat(2)
    rows = len(lefts)
    truncated = (torch.arange(rows) >= rows // 2) & (lefts < steps + n)
    rewards = torch.randn(rows, steps + n, generator=generator, dtype=DOUBLE)  # garbage behind the end, too
    values = torch.randn(rows, steps + n + 1, generator=generator, dtype=DOUBLE)
    place = lefts.clamp(1, n)[:, None] + torch.arange(steps)
    behind = place >= lefts[:, None] + truncated[:, None].long()
    bootstrap = torch.where(behind, torch.nan, values.gather(1, place))  # nothing there may be used
    found = n_step_targets(rewards, bootstrap, lefts, truncated, gamma, n)
    for row in range(rows):
        expected = defined(
            rewards[row].tolist(), values[row].tolist(), int(lefts[row]), bool(truncated[row]), gamma, n, steps
        )
        assert found[row].tolist() == pytest.approx(expected, abs=1e-12)


def test_a_batch_row_is_what_the_sequence_gives_alone():
    parts = [recorded("terminal", p, H) for p in (0, 5, 8, 11)]
    whole = make_batch(stacked(parts), values_of("terminal"), GAMMA, N)
    for row, part in enumerate(parts):
        alone = make_batch(part, values_of("terminal"), GAMMA, N)
        assert torch.equal(alone.value[0], whole.value[row])


def test_the_bootstrap_sees_consecutive_observations_and_how_many_are_real():
    sequences = stacked([recorded("terminal", p, H) for p in (0, 5, 8, 11)])
    seen = {}

    def values(observation, action, lengths):
        seen.update(observation=observation[..., 0], action=action, lengths=lengths)
        return torch.zeros(action.shape, dtype=DOUBLE)

    assert bootstrap_values(sequences, N, values).shape == (4, H)
    assert seen["observation"][:, 0].tolist() == [0 + 5, 5 + 5, 8 + 4, 11 + 1]
    assert torch.equal(seen["observation"], seen["observation"][:, :1] + torch.arange(H))
    assert torch.equal(seen["action"], seen["observation"])
    assert seen["lengths"].tolist() == [H, 2, 1, 1]  # at least one, whose value is not used


def test_a_time_limit_is_worth_the_final_observations_value_and_an_end_nothing():
    reward, left = torch.ones(2, 6, dtype=DOUBLE), torch.tensor([2, 2])
    truncated = torch.tensor([False, True])
    bootstrap = torch.full((2, 4), 10.0, dtype=DOUBLE)
    found = n_step_targets(reward, bootstrap, left, truncated, 0.5, 3)
    assert found.tolist() == [[1.5, 1.0, 0.0, 0.0], [1.5 + 2.5, 1.0 + 5.0, 0.0, 0.0]]
