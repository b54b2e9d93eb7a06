"""Imagined trajectories: both forms are the training form on what they saw, starts, noise, modes."""

import glam_models
import pytest
import torch
from torch.nn import functional as F

from world_models.glam.imagination import Context, Noise, WindowMemory, choose, encode_context, imagine
from world_models.glam.sequences import SEQUENCES

ROWS, K, HORIZON = 3, 5, 6
FORMS = pytest.mark.parametrize("form", ["window", "carried"])


def dream(model, form, start="posterior", opens=0.15, seed=0):
    """A context of K steps, the frame behind it if it has been seen, and the trajectory from there."""
    begin = begun(model, start, opens, seed)
    noise = Noise.draw(model, ROWS, HORIZON, torch.Generator().manual_seed(seed + 1))
    agent = glam_models.agent(seed)
    return begin, imagine(model, agent.policy, begin, noise, form), noise


def begun(model, start="posterior", opens=0.15, seed=0):
    length = K + (start == "posterior")
    return encode_context(model, *glam_models.steps(ROWS, length, seed, opens), start_from=start)


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
@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("start", ["posterior", "prior"])
def test_both_forms_are_the_training_form_on_the_whole_prefix_or_on_each_window_alone(sequence, start, form):
    model = glam_models.model(sequence=sequence, dropout=0.5)
    begin, imagined, _ = dream(model, form, start, opens=0.3)
    whole = lived(begin, imagined)
    for t in range(HORIZON):
        low = t + 1 if form == "window" else 0
        h = model.sequence(*(each[:, low : t + 1 + K] for each in whole)).h[:, -1]
        torch.testing.assert_close(imagined.h[t + 1], h, rtol=1e-9, atol=1e-9)


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
    assert imagined.sample.shape == (HORIZON + 1, ROWS, 12)
    assert imagined.h.shape == (HORIZON + 1, ROWS, 8)
    first = begin.newest if start == "posterior" else model.sample(model.prior_head(imagined.h[0]), noise.latent[0])
    assert torch.equal(imagined.sample[0], first)
    assert torch.equal(imagined.sample[1:], model.sample(model.prior_head(imagined.h[1:]), noise.latent[1:]))
    assert torch.equal(imagined.action, choose(agent.policy(imagined.features()[:-1]), noise.action))
    assert torch.equal(imagined.reward, model.reward(imagined.h[1:]))
    assert torch.equal(imagined.terminated, model.termination(imagined.h[1:]) > 0)
    assert imagined.action.shape == imagined.reward.shape == imagined.terminated.shape == (HORIZON, ROWS)
    assert imagined.terminated.any() and not imagined.terminated.all()


def test_a_dream_begins_with_the_memory_of_all_frames_before_the_one_it_sees():
    model = glam_models.model()
    frames, action, first, noise = glam_models.steps(ROWS, K + 1, 3, 0.0)
    first[1, -1] = True
    seen = encode_context(model, frames, action, first, noise)
    assert torch.equal(seen.newest, model.sample(model.encode(frames[:, -1:])[:, 0], noise[:, -1]))
    guessed = encode_context(model, *(each[:, :-1] for each in (frames, action, first, noise)), "prior")
    assert guessed.newest is None
    drawn = Noise.draw(model, ROWS, HORIZON, torch.Generator().manual_seed(0))
    for form in ("window", "carried"):
        h, whole = (imagine(model, glam_models.agent().policy, s, drawn, form).h[0] for s in (seen, guessed))
        sample = model.sample(model.encode(frames), noise)
        before = model.sequence(sample[:, :-1], action[:, :-1], first[:, :-1]).h[:, -1]
        torch.testing.assert_close(whole, before)
        torch.testing.assert_close(h[[0, 2]], before[[0, 2]])
        assert not h[1].any()  # an episode opens there: nothing was seen before


@FORMS
def test_rows_are_apart_and_noise_decides(form):
    model, agent = glam_models.model(), glam_models.agent()
    begin, imagined, noise = dream(model, form)
    one = Context(*(each[1:2] for each in (begin.sample, begin.action, begin.first, begin.newest, begin.opens)))
    alone = imagine(model, agent.policy, one, Noise(noise.latent[:, 1:2], noise.action[:, 1:2]), form)
    torch.testing.assert_close(alone.h[:, 0], imagined.h[:, 1])
    assert torch.equal(alone.action[:, 0], imagined.action[:, 1])
    other = Noise.draw(model, ROWS, HORIZON, torch.Generator().manual_seed(99))
    assert not torch.equal(imagine(model, agent.policy, begin, other, form).sample, imagined.sample)


def test_dreams_use_running_statistics_no_gradient_and_never_decode(monkeypatch):
    model = glam_models.model().train()
    before = {name: each.clone() for name, each in model.named_buffers()}
    monkeypatch.setattr(model.decoder, "forward", lambda sample: pytest.fail("decoded"))
    state = torch.random.get_rng_state()
    _, imagined, _ = dream(model, "window")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model.training
    assert all(torch.equal(before[name], each) for name, each in model.named_buffers())
    assert not imagined.h.requires_grad and not imagined.reward.requires_grad


def test_a_model_that_never_resets_knows_no_openings():
    model = glam_models.model("code")
    assert not begun(model, opens=1.0).opens.any()
    begin, imagined, _ = dream(model, "carried", opens=0.5)
    h = model.sequence(*lived(begin, imagined)).h[:, K - 1 :].transpose(0, 1)
    torch.testing.assert_close(imagined.h, h, rtol=1e-9, atol=1e-9)


def test_actions_are_drawn_from_the_policy():
    logits = torch.tensor([0.5, -1.0, 2.0])
    noise = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0))
    noise[0] = 0.0  # the smallest uniform there is
    counts = torch.bincount(choose(logits.expand(40_000, 3), noise), minlength=3) / 40_000
    torch.testing.assert_close(counts, F.softmax(logits, -1), atol=0.01, rtol=0)
