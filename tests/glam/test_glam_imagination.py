"""Imagining and acting: both memories are the training form on what they saw; starts, noise, modes, episodes."""

from unittest.mock import Mock

import glam_models
import pytest
import torch
from torch.nn import functional as F

from world_models.glam.acting import Player
from world_models.glam.imagination import Noise, WindowMemory, encode_context, imagine, make_memory, sample_action
from world_models.glam.sequences import SEQUENCES

ROWS, K, HORIZON = 3, 5, 6
FORMS = pytest.mark.parametrize("form", ["window", "carried"])


def dream(model, form, start="posterior", opens=0.15, seed=0):
    """A context of K steps, the frame behind it if it has been seen, and the trajectory from there."""
    length = K + (start == "posterior")
    begin = encode_context(model, *glam_models.steps(ROWS, length, seed, opens), start_from=start)
    noise = Noise.draw(model, ROWS, HORIZON, torch.Generator().manual_seed(seed + 1))
    agent = glam_models.agent(seed)
    return begin, imagine(model, agent.policy, begin, noise, form), noise


def lived(begin, imagined):
    """Context and dream as one sequence (B, K + H, ...)."""
    opens = torch.zeros(ROWS, HORIZON, dtype=torch.bool)
    if begin.opens is not None:
        opens[:, 0] = begin.opens
    return (
        torch.cat((begin.sample, imagined.sample[:-1].transpose(0, 1)), 1),
        torch.cat((begin.action, imagined.action.T), 1),
        torch.cat((begin.first, opens), 1),
    )


@FORMS
@pytest.mark.parametrize(("preset", "sequence"), [*(("paper", name) for name in SEQUENCES), ("code", "glam")])
@pytest.mark.parametrize("start", ["posterior", "prior"])
def test_both_forms_are_the_training_form_on_the_whole_prefix_or_on_each_window_alone(preset, sequence, start, form):
    """The released code never resets, and knows no openings."""
    model = glam_models.model(preset, sequence=sequence, dropout=0.5)
    begin, imagined, _ = dream(model, form, start, opens=0.3)
    opens = torch.zeros(ROWS, dtype=torch.bool) if begin.opens is None else begin.opens
    assert opens.any() == (start == "posterior" and preset == "paper") and not opens.all()
    whole = lived(begin, imagined)
    for t in range(HORIZON + 1):
        low = t if form == "window" else 0
        h = model.sequence(*(each[:, low : t + K] for each in whole)).h[:, -1]
        if t == 0:
            h = torch.where(opens[:, None], 0, h)  # where an episode opens nothing was seen before
        torch.testing.assert_close(imagined.h[t], h, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("known", [1, 2, K - 1, K, K + 2])
def test_a_window_behind_any_past_is_the_training_form_on_the_last_steps(sequence, known):
    """Of fewer than K steps too: the window then grows to K steps before it forgets any."""
    model, steps = glam_models.model(sequence=sequence), known + 2 * K
    frames, action, first, noise = glam_models.steps(ROWS, steps, 5, 0.1)
    sample = model.sample(model.encode(frames), noise)
    remember = WindowMemory(model, K)
    h, state = remember.prefill(sample[:, :known], action[:, :known], first[:, :known])
    for end in range(known, steps + 1):
        if end > known:
            h, state = remember.push(sample[:, end - 1], action[:, end - 1], first[:, end - 1], state)
        last = (each[:, max(0, end - K) : end] for each in (sample, action, first))
        torch.testing.assert_close(h, model.sequence(*last).h[:, -1], rtol=1e-9, atol=1e-9)
        assert state.action.shape == (ROWS, K)


@FORMS
@pytest.mark.parametrize("start", ["posterior", "prior"])
def test_what_a_trajectory_says_is_what_the_heads_say(form, start):
    model, agent = glam_models.model(), glam_models.agent()
    begin, imagined, noise = dream(model, form, start)
    frames, _, _, encoding = glam_models.steps(ROWS, K + (start == "posterior"))
    seen = model.sample(model.encode(frames), encoding)
    guessed = model.sample(model.prior_head(imagined.h[0]), noise.latent[0])
    assert torch.equal(begin.sample, seen[:, :K]) and (begin.newest is None) == (start == "prior")
    assert torch.equal(imagined.sample[0], seen[:, -1] if start == "posterior" else guessed)
    assert torch.equal(imagined.sample[1:], model.sample(model.prior_head(imagined.h[1:]), noise.latent[1:]))
    assert torch.equal(imagined.action, sample_action(agent.policy(imagined.features()[:-1]), noise.action))
    assert torch.equal(imagined.reward, model.reward(imagined.h[1:]))
    assert torch.equal(imagined.terminated, model.termination(imagined.h[1:]) > 0)
    assert imagined.action.shape == imagined.reward.shape == imagined.terminated.shape == (HORIZON, ROWS)
    assert imagined.terminated.any() and not imagined.terminated.all()


def test_dreams_and_acting_use_running_statistics_no_gradient_and_never_decode(monkeypatch):
    for act in (lambda model: dream(model, "window")[1].h, lambda model: played(model, "carried")[0]):
        model = glam_models.model().train()
        before = {name: each.clone() for name, each in model.named_buffers()}
        monkeypatch.setattr(model.decoder, "forward", lambda sample: pytest.fail("decoded"))
        state = torch.random.get_rng_state()
        assert not act(model).requires_grad and not model.training
        assert torch.equal(torch.random.get_rng_state(), state)
        assert all(torch.equal(before[name], each) for name, each in model.named_buffers())


def test_actions_are_drawn_from_the_policy():
    logits = torch.tensor([0.5, -1.0, 2.0])
    noise = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0))
    noise[0] = 0.0  # the smallest uniform there is
    counts = torch.bincount(sample_action(logits.expand(40_000, 3), noise), minlength=3) / 40_000
    torch.testing.assert_close(counts, F.softmax(logits, -1), atol=0.01, rtol=0)


T, W = 9, 4  # steps that are acted, and of the window


def shown_to(policy):
    return torch.stack([features for (features,), _ in policy.call_args_list])


def make(model, form, policy=None, rows=ROWS, blind=False):
    return Player(model, policy or glam_models.agent().policy, make_memory(model, form, W), rows, blind)


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def noises(model, seed=0):
    """For the latent of each frame, the guess and the action of each of T steps."""
    numbers = source(seed)
    shapes = (ROWS, 3, 4), (ROWS, 3, 4), (ROWS, glam_models.ACTIONS)
    return [tuple(torch.rand(shape, generator=numbers) for shape in shapes) for _ in range(T)]


def played(model, form, act_before_observing=False, greedy=False, seed=0):
    """T steps: what the policy was shown (T, B, Z + D), what it did (T, B), and on what."""
    frames, *_ = glam_models.steps(ROWS, T, seed)
    numbers, recorder = source(seed), Mock(side_effect=glam_models.agent().policy)
    first = torch.rand(ROWS, T, generator=source(seed)) < 0.25
    first[:, 0] = True
    player = make(model, form, recorder, ROWS, act_before_observing)
    actions = [player.act(frames[:, t], first[:, t], numbers, greedy) for t in range(T)]
    return shown_to(recorder), torch.stack(actions), frames, first, noises(model, seed)


def memories(model, form, sample, action, first):
    """h_{t-1} by the training form: of the whole past, or of the W steps before; 0 where an episode opens.

    Released code opens none after the first, and fills a window that has not seen W frames with copies of that one.
    """
    keep, missing, released = W if form == "window" else T, 0, not model.config.reset_at_episode_start
    if released:
        first = torch.zeros_like(first)
    if released and form == "window":
        missing = W - 1
        sample, action, first = (
            torch.cat((each[:, :1].repeat_interleave(missing, 1), each), 1) for each in (sample, action, first)
        )
    expected = [torch.zeros(ROWS, 8, dtype=torch.float64)]
    for end in range(missing + 1, missing + T):
        low = max(0, end - keep)
        h = model.sequence(sample[:, low:end], action[:, low:end], first[:, low:end]).h[:, -1]
        expected.append(torch.where(first[:, end, None], 0, h))
    return torch.stack(expected)


@FORMS
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("preset", "sequence", "blind"), [
    ("paper", "glam", False), ("paper", "storm", False), ("paper", "glam", True), ("code", "glam", False),
])  # fmt: skip
def test_the_policy_sees_the_newest_frame_or_a_guess_and_the_memory_before_it(form, preset, sequence, blind, greedy):
    """Also a policy that acts blind takes the frame in afterwards."""
    model, policy = glam_models.model(preset, sequence=sequence), glam_models.agent().policy
    shown, actions, frames, first, drawn = played(model, form, blind, greedy)
    sample = torch.stack([model.sample(model.encode(frames[:, t]), drawn[t][0]) for t in range(T)])
    guess = torch.stack([model.sample(model.prior_head(shown[t, :, 12:]), drawn[t][1]) for t in range(T)])
    close = 0 if blind else 1e-7
    torch.testing.assert_close(shown[..., :12], guess if blind else sample, rtol=close, atol=close)
    expected = memories(model, form, sample.transpose(0, 1), actions.T, first)
    torch.testing.assert_close(shown[..., 12:], expected, rtol=1e-9, atol=1e-9)
    if greedy and not blind:
        assert torch.equal(actions, policy(shown).argmax(-1))
    elif not blind:
        assert torch.equal(actions, torch.stack([sample_action(policy(shown[t]), drawn[t][2]) for t in range(T)]))


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


@FORMS
@pytest.mark.parametrize("preset", ["code", "fast"])
def test_who_forgets_before_each_step_acts_as_if_each_opened_an_episode(form, preset):
    """Also with a model that never forgets on its own."""
    model = glam_models.model(preset)
    frames, *_ = glam_models.steps(ROWS, T)
    player = make(model, form, recorder := Mock(side_effect=glam_models.agent().policy))
    for t in range(T):
        player.reset()
        action = player.act(frames[:, t], torch.zeros(ROWS, dtype=torch.bool), source(t))
        fresh = make(model, form)
        assert torch.equal(action, fresh.act(frames[:, t], torch.ones(ROWS, dtype=torch.bool), source(t)))
        assert torch.equal(player.h, fresh.h)
    assert not shown_to(recorder)[:, :, 12:].any()
