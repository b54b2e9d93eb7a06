"""Local windows in blocks against the form that masks all scores, rotary positions by hand, drawn weights."""

import math
from functools import partial

import pytest
import torch
from scans import gradients

from dqn_memory.blocks import PRIORS, Attention, PriorConfig, attention
from dqn_memory.blocks.attention import attend, block_size, is_local_faster, local_attention
from dqn_memory.blocks.positions import rotate


def heads(time, dtype=torch.float64, batch=2, width=6):
    draws = torch.Generator().manual_seed(time)
    return [torch.randn(batch, 3, time, width, generator=draws, dtype=dtype).requires_grad_() for _ in range(3)]


def masked(query, key, value, window):
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(query.shape[2])
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.masked_fill((distance < 0) | (distance > window), -math.inf).softmax(-1) @ value


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("window", [0, 1, 8, 9, 80])
@pytest.mark.parametrize("time", [1, 8, 17, 64, 65])
def test_blocks_equal_the_masked_form(time, window, dtype, tolerance):
    both = [gradients(partial(form, window=window), heads(time, dtype)) for form in (local_attention, masked)]
    torch.testing.assert_close(*both, atol=tolerance, rtol=tolerance)


def test_an_output_depends_on_its_window_alone():
    """Even beside large scores: neither later positions nor those before the window change it."""
    query, key, value = (x.detach() for x in heads(40))
    before = local_attention(1e3 * query, key, value, 5)
    key[:, :, 30:], value[:, :, 30:] = 1e6, 1e6
    key[:, :, :10], value[:, :, :10] = -1e6, 1e6
    after = local_attention(1e3 * query, key, value, 5)
    assert before.isfinite().all() and torch.equal(before[:, :, 15:30], after[:, :, 15:30])
    assert not torch.equal(before[:, :, 30], after[:, :, 30]) and not torch.equal(before[:, :, 14], after[:, :, 14])


def test_dropout_keeps_the_mean_and_drops_its_share():
    query, key, value = (x.detach() for x in heads(64))
    repeated = [x.repeat(2000, 1, 1, 1) for x in (query, key, value)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = local_attention(*repeated, 5, 0.5).unflatten(0, (2000, 2))
    assert not torch.equal(draws[0], draws[1])
    assert (draws.mean(0) - local_attention(query, key, value, 5)).abs().max() < 0.25
    alone = draws[:, :, :, 0].eq(0).all(-1).double().mean()
    assert abs(alone - 0.5) < 0.03  # the first position sees itself alone


def test_blocks_are_as_long_as_the_window():
    assert [block_size(window) for window in (0, 1, 8, 9, 10, 64)] == [8, 8, 8, 16, 16, 64]
    assert is_local_faster(128, 10) and not is_local_faster(127, 10) and not is_local_faster(128, 20)


def block(kind="local", window=10):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Attention(16, 2, PriorConfig(kind=kind, local_window=window).build(2, 160)).double()


def sequence(rows=1, dtype=torch.float64):
    return torch.randn(rows, 160, 16, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.fixture
def calls(monkeypatch):
    """Lengths of the sequences that were given to the blocks."""
    seen = []

    def spy(query, *rest):
        seen.append(query.shape[2])
        return local_attention(query, *rest)

    monkeypatch.setattr(attention, "local_attention", spy)
    return seen


def test_long_sequences_of_the_local_prior_run_in_blocks_with_equal_outputs(calls, monkeypatch):
    net, x, lengths = block(), sequence(2), torch.tensor([160, 90])
    ours = net(x, lengths)
    assert calls == [160]
    at = net.at(x, lengths, lengths - 1)
    torch.testing.assert_close(at, ours[torch.arange(2), lengths - 1], atol=1e-12, rtol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert block().float()(x.float()).dtype == torch.bfloat16  # and inside in float32
    assert calls == [160, 160]
    monkeypatch.setattr(attention, "is_local_faster", lambda length, window: False)
    torch.testing.assert_close(ours, net(x, lengths), atol=1e-12, rtol=1e-12)
    assert calls == [160, 160]


def test_short_sequences_and_other_priors_do_not_run_in_blocks(calls):
    block()(sequence()[:, :127])
    block(window=40)(sequence())
    for kind in set(PRIORS) - {"local"}:
        assert block(kind).prior.fixed_window is None
        block(kind)(sequence())
    assert not calls


def test_attend_drops_out_in_blocks_too(calls):
    query, key, value = (x.detach() for x in heads(128))
    bias = torch.zeros(3, 128, dtype=torch.float64).masked_fill(torch.arange(128) > 10, -math.inf)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = attend(query, key, value, None, bias, dropout=0.5, window=10)
    whole = attend(query, key, value, None, bias, window=10)
    assert calls == [128, 128] and (dropped - whole).square().mean() > 1e-3
    torch.testing.assert_close(whole, attend(query, key, value, None, bias), atol=1e-12, rtol=1e-12)


# ---- rotary positions


def test_rotation_by_hand():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 3, dtype=torch.float64)  # pairs (1, 3) and (2, 4)
    turned, slow = rotate(x), 1e4**-0.5
    torch.testing.assert_close(turned[0], x[0])
    want = [
        math.cos(2) - 3 * math.sin(2), 2 * math.cos(2 * slow) - 4 * math.sin(2 * slow),
        math.sin(2) + 3 * math.cos(2), 2 * math.sin(2 * slow) + 4 * math.cos(2 * slow),
    ]  # fmt: skip
    torch.testing.assert_close(turned[2], torch.tensor(want, dtype=torch.float64))
    torch.testing.assert_close(rotate(x[:1], torch.tensor([2])), turned[2:])


@pytest.mark.parametrize("prior", ["causal", "gaussian", "adaptive_gate"])
def test_one_rotary_query_equals_the_sequence(prior):
    torch.manual_seed(0)
    net = Attention(8, 2, PriorConfig(kind=prior).build(2, 6), rotary=True).double().eval()
    x, lengths = torch.randn(3, 6, 8, dtype=torch.float64), torch.tensor([6, 3, 1])
    torch.testing.assert_close(net.at(x, lengths, lengths - 1), net(x, lengths)[torch.arange(3), lengths - 1])


def test_heads_of_odd_width_cannot_be_rotary():
    with pytest.raises(ValueError, match="heads of width 3 cannot be rotary"):
        Attention(6, 2, PriorConfig().build(2, 4), rotary=True)


@pytest.mark.parametrize("kind", PRIORS)
def test_drawn_weights_are_those_of_the_forward_pass(kind):
    torch.manual_seed(5)
    net = Attention(12, 3, PriorConfig(kind=kind, span=3.0, mu=2.0).build(3, 9)).double()
    x, lengths = torch.randn(2, 9, 12, dtype=torch.float64), torch.tensor([5, 9])
    maps = net.weights(x, lengths)
    value = net.project_in(x)[..., 24:].unflatten(-1, (3, 4)).transpose(1, 2)
    mixed = net.project_out((maps @ value).transpose(1, 2).flatten(2))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(mixed[row, :length], net(x, lengths)[row, :length])
    torch.testing.assert_close(maps[0, :, :5].sum(-1), torch.ones(3, 5, dtype=torch.float64))
    assert (maps[0, :, 5:] == 0).all() and (maps[0, :, :, 5:] == 0).all() and not maps.requires_grad
