"""Rotary positions by hand, drawn weights."""

import math

import pytest
import torch

from dqn_memory.blocks import PRIORS, Attention, PriorConfig
from dqn_memory.blocks.positions import rotate


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
