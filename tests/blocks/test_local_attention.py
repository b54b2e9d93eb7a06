"""Blocks of a local window against the form that masks all scores, values and gradients."""

import math

import pytest
import torch
from torch.nn import functional as F

from dqn_memory.blocks import PRIORS, Attention, PriorConfig, attention
from dqn_memory.blocks.attention import attend, block_size, is_local_faster, local_attention


def heads(time, dtype=torch.float64, batch=2, width=6):
    draws = torch.Generator().manual_seed(time)
    return [torch.randn(batch, 3, time, width, generator=draws, dtype=dtype).requires_grad_() for _ in range(3)]


def table(window, time):
    """The prior's bias by distance, (H, T)."""
    distance = torch.arange(time)
    return torch.zeros(3, time, dtype=torch.float64).masked_fill(distance > window, -math.inf)


def masked(query, key, value, window):
    time = query.shape[2]
    distance = torch.arange(time)[:, None] - torch.arange(time)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.masked_fill((distance < 0) | (distance > window), -math.inf).softmax(-1) @ value


def compare(time, window, dtype, tolerance):
    """Outputs, and gradients of a sum in which every output counts differently."""
    ours, theirs = heads(time, dtype), heads(time, dtype)
    weight = torch.linspace(-1, 2, ours[0].numel(), dtype=dtype).view_as(ours[0])
    outputs = local_attention(*ours, window), masked(*theirs, window)
    for output in outputs:
        (output * weight).sum().backward()
    torch.testing.assert_close(*outputs, atol=tolerance, rtol=tolerance)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("window", [0, 1, 7, 8, 9, 30, 80])
@pytest.mark.parametrize("time", [1, 7, 8, 16, 17, 63, 64, 65])
def test_equals_the_masked_form_in_double_precision(time, window):
    compare(time, window, torch.float64, 1e-12)


def test_equals_the_masked_form_in_single_precision():
    compare(65, 10, torch.float32, 2e-5)


def test_large_scores_and_later_infinities_stay_apart():
    """A position's output does not know what comes after it, nor what lies before its window."""
    query, key, value = (x.detach() for x in heads(40))
    before = local_attention(1e3 * query, key, value, 5)
    key[:, :, 30:], value[:, :, 30:] = 1e6, 1e6
    key[:, :, :10], value[:, :, :10] = -1e6, 1e6
    after = local_attention(1e3 * query, key, value, 5)
    assert before.isfinite().all() and torch.equal(before[:, :, 15:30], after[:, :, 15:30])
    assert not torch.equal(before[:, :, 30], after[:, :, 30]) and not torch.equal(before[:, :, 14], after[:, :, 14])


def test_dropout_keeps_the_mean_and_drops_its_share():
    query, key, value = (x.detach() for x in heads(64))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = [local_attention(query, key, value, 5, 0.5) for _ in range(2000)]
    assert not torch.equal(draws[0], draws[1])
    exact = local_attention(query, key, value, 5)
    assert (torch.stack(draws).mean(0) - exact).abs().max() < 0.25
    alone = torch.stack([draw[:, :, 0].eq(0).all(-1).double().mean() for draw in draws]).mean()
    assert abs(alone - 0.5) < 0.03  # the first position sees itself alone


def test_blocks_are_as_long_as_the_window():
    assert [block_size(window) for window in (0, 1, 8, 9, 10, 64)] == [8, 8, 8, 16, 16, 64]
    assert is_local_faster(128, 10) and not is_local_faster(127, 10) and not is_local_faster(128, 20)


def block(kind="local", window=10, time=160):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        prior = PriorConfig(kind=kind, local_window=window).build(2, time)
        return Attention(16, 2, prior).double()


@pytest.fixture
def calls(monkeypatch):
    """Lengths of the sequences that were given to the blocks."""
    seen = []

    def spy(query, *rest):
        seen.append(query.shape[2])
        return local_attention(query, *rest)

    monkeypatch.setattr(attention, "local_attention", spy)
    return seen


def test_long_sequences_of_the_local_prior_take_it_and_give_the_same(calls, monkeypatch):
    net, x = block(), torch.randn(2, 160, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    lengths = torch.tensor([160, 90])
    ours = net(x, lengths)
    assert calls == [160]
    monkeypatch.setattr(attention, "is_local_faster", lambda length, window: False)
    torch.testing.assert_close(ours, net(x, lengths), atol=1e-12, rtol=1e-12)
    assert calls == [160]
    at = net.at(x, lengths, lengths - 1)
    torch.testing.assert_close(at, ours[torch.arange(2), lengths - 1], atol=1e-12, rtol=1e-12)


def test_short_sequences_and_other_priors_do_not(calls):
    x = torch.randn(1, 160, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    block()(x[:, :127])
    block(window=40)(x)
    for kind in PRIORS:
        if kind != "local":
            assert block(kind).prior.fixed_window is None
            block(kind)(x)
    assert not calls


def test_it_computes_in_float32_under_autocast(calls):
    net, x = block().float(), torch.randn(1, 160, 16, generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", torch.bfloat16):
        coarse = net(x)
    assert calls == [160] and coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), net(x), atol=0.02, rtol=0.02)


def test_attend_drops_out_in_blocks_too(calls):
    query, key, value = (x.detach() for x in heads(128))
    bias = table(10, 128)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = attend(query, key, value, None, bias, dropout=0.5, window=10)
    whole = attend(query, key, value, None, bias, window=10)
    assert calls == [128, 128] and not torch.allclose(dropped, whole)
    torch.testing.assert_close(whole, attend(query, key, value, None, bias), atol=1e-12, rtol=1e-12)
    assert F.mse_loss(dropped, whole) > 1e-3
