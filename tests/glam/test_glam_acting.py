"""Acting: what the policy is shown, memories of episodes, the blind order, exact continuation."""

import io

import glam_models
import pytest
import torch

from world_models.glam.acting import Player
from world_models.glam.imagination import choose, make_memory

ROWS, T, K = 3, 9, 4
KINDS = pytest.mark.parametrize("kind", ["window", "carried"])


class Recorder:
    """A policy that keeps what it was shown."""

    def __init__(self):
        self.agent, self.shown = glam_models.agent(), []

    def __call__(self, features):
        self.shown.append(features)
        return self.agent.policy(features)


def opened(seed=0):
    first = torch.rand(ROWS, T, generator=torch.Generator().manual_seed(seed)) < 0.25
    first[:, 0] = True
    return first


def make(model, kind, policy=None, rows=ROWS, blind=False):
    return Player(model, policy or glam_models.agent().policy, make_memory(model, kind, K), rows, blind)


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def noises(model, seed=0):
    """For the latent of each frame, the guess and the action of each of T steps."""
    numbers = source(seed)
    shapes = (ROWS, 3, 4), (ROWS, 3, 4), (ROWS, glam_models.ACTIONS)
    return [tuple(torch.rand(shape, generator=numbers) for shape in shapes) for _ in range(T)]


def played(model, kind, act_before_observing=False, greedy=False, seed=0):
    """T steps: what the policy was shown (T, B, Z + D), what it did (T, B), and on what."""
    frames, *_ = glam_models.steps(ROWS, T, seed)
    first, numbers, recorder = opened(seed), source(seed), Recorder()
    player = make(model, kind, recorder, ROWS, act_before_observing)
    actions = [player.act(frames[:, t], first[:, t], numbers, greedy) for t in range(T)]
    return torch.stack(recorder.shown), torch.stack(actions), frames, first, noises(model, seed)


def memories(model, kind, sample, action, first):
    """h_{t-1} by the training form: of the whole past, or of the K steps before; 0 where an episode opens."""
    expected = [torch.zeros(ROWS, 8, dtype=torch.float64)]
    for t in range(1, T):
        low = max(0, t - K) if kind == "window" else 0
        h = model.sequence(sample[:, low:t], action[:, low:t], first[:, low:t]).h[:, -1]
        expected.append(torch.where(first[:, t, None], 0, h))
    return torch.stack(expected)


@KINDS
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("sequence", "blind"), [("glam", False), ("storm", False), ("glam", True)])
def test_the_policy_sees_the_newest_frame_or_a_guess_and_the_memory_before_it(kind, sequence, blind, greedy):
    """Also a policy that acts blind takes the frame in afterwards."""
    model, policy = glam_models.model(sequence=sequence), glam_models.agent().policy
    shown, actions, frames, first, drawn = played(model, kind, blind, greedy)
    sample = torch.stack([model.sample(model.encode(frames[:, t]), drawn[t][0]) for t in range(T)])
    guess = torch.stack([model.sample(model.prior_head(shown[t, :, 12:]), drawn[t][1]) for t in range(T)])
    close = 0 if blind else 1e-7
    torch.testing.assert_close(shown[..., :12], guess if blind else sample, rtol=close, atol=close)
    expected = memories(model, kind, sample.transpose(0, 1), actions.T, first)
    torch.testing.assert_close(shown[..., 12:], expected, rtol=1e-9, atol=1e-9)
    if greedy and not blind:
        assert torch.equal(actions, policy(shown).argmax(-1))
    elif not blind:
        assert torch.equal(actions, torch.stack([choose(policy(shown[t]), drawn[t][2]) for t in range(T)]))


def test_who_has_seen_nothing_acts_at_random_when_blind():
    model, rows = glam_models.model(), 6_000
    frames, first = torch.zeros(rows, 3, 8, 8, dtype=torch.uint8), torch.ones(rows, dtype=torch.bool)

    def biased(features):
        return torch.tensor([9.0, 0.0, 0.0]).expand(len(features), 3)

    for greedy in (False, True):
        player = make(model, "carried", biased, rows, blind=True)
        counts = torch.bincount(player.act(frames, first, source(), greedy), minlength=3)
        assert ((counts - 2_000).abs() < 160).all()  # 4.4 standard errors
        assert (torch.bincount(player.act(frames, ~first, source(), greedy), minlength=3)[0]) > 5_900


@KINDS
@pytest.mark.parametrize("preset", ["paper", "code"])
def test_a_saved_player_continues_exactly(kind, preset):
    model = glam_models.model(preset)
    frames, *_ = glam_models.steps(ROWS, T)
    first = opened()
    whole, resumed, file = make(model, kind), make(model, kind), io.BytesIO()
    for t in range(4):
        whole.act(frames[:, t], first[:, t], source(t))
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for t in range(4, T):
        ours, theirs = (player.act(frames[:, t], first[:, t], source(t)) for player in (whole, resumed))
        assert torch.equal(ours, theirs)
        assert torch.equal(whole.h, resumed.h)


@KINDS
def test_a_model_that_never_resets_remembers_earlier_episodes(kind):
    """And before it has seen K frames, its window is filled with the first one."""
    model = glam_models.model("code")
    shown, actions, frames, _, drawn = played(model, kind)
    sample = torch.stack([model.sample(model.encode(frames[:, t]), drawn[t][0]) for t in range(T)], 1)
    never, past, done = torch.zeros(ROWS, T + K, dtype=torch.bool), sample, actions.T
    if kind == "window":
        past = torch.cat((sample[:, :1].expand(-1, K - 1, -1), sample), 1)
        done = torch.cat((done[:, :1].expand(-1, K - 1), done), 1)
    for t in range(1, T):
        steps = slice(t - 1, t - 1 + K) if kind == "window" else slice(0, t)
        h = model.sequence(past[:, steps], done[:, steps], never[:, steps]).h[:, -1]
        torch.testing.assert_close(shown[t, :, 12:], h, rtol=1e-9, atol=1e-9)


def test_acting_uses_running_statistics():
    model = glam_models.model().train()
    before = {name: each.clone() for name, each in model.named_buffers()}
    played(model, "carried")
    assert not model.training and all(torch.equal(before[name], each) for name, each in model.named_buffers())


@KINDS
@pytest.mark.parametrize("preset", ["code", "fast"])
def test_who_forgets_before_each_step_acts_as_if_each_opened_an_episode(kind, preset):
    """Also with a model that never forgets on its own."""
    model = glam_models.model(preset)
    frames, *_ = glam_models.steps(ROWS, T)
    recorder = Recorder()
    player = make(model, kind, recorder)
    for t in range(T):
        player.reset()
        action = player.act(frames[:, t], torch.zeros(ROWS, dtype=torch.bool), source(t))
        fresh = make(model, kind)
        assert torch.equal(action, fresh.act(frames[:, t], torch.ones(ROWS, dtype=torch.bool), source(t)))
        assert torch.equal(player.h, fresh.h)
    assert not torch.stack(recorder.shown)[:, :, 12:].any()
