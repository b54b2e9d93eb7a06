"""Rotary positions by hand, and the attention that uses them."""

import math

import pytest
import torch

from dqn_memory.blocks import Attention, PriorConfig
from dqn_memory.blocks.positions import rotate


def test_by_hand():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 3, dtype=torch.float64)  # pairs (1, 3) and (2, 4)
    turned = rotate(x)
    torch.testing.assert_close(turned[0], x[0])
    slow = 1e4**-0.5
    want = [
        math.cos(2) - 3 * math.sin(2), 2 * math.cos(2 * slow) - 4 * math.sin(2 * slow),
        math.sin(2) + 3 * math.cos(2), 2 * math.sin(2 * slow) + 4 * math.cos(2 * slow),
    ]  # fmt: skip
    torch.testing.assert_close(turned[2], torch.tensor(want, dtype=torch.float64))
    torch.testing.assert_close(rotate(x[:1], torch.tensor([2])), turned[2:])


def test_products_depend_on_the_difference_of_positions():
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = lambda x, place: rotate(x, torch.tensor([place]))  # noqa: E731
    torch.testing.assert_close(at(q, 9) @ at(k, 4).T, at(q, 5) @ at(k, 0).T)


@pytest.mark.parametrize("prior", ["causal", "gaussian", "adaptive_gate"])
def test_one_query_equals_the_sequence(prior):
    torch.manual_seed(0)
    block = Attention(8, 2, PriorConfig(kind=prior).build(2, 6), rotary=True).double().eval()
    x, lengths = torch.randn(3, 6, 8, dtype=torch.float64), torch.tensor([6, 3, 1])
    y = block(x, lengths)
    index = lengths - 1
    torch.testing.assert_close(block.at(x, lengths, index), y[torch.arange(3), index])


def test_rotary_heads_have_an_even_width():
    with pytest.raises(ValueError, match="heads of width 3 cannot be rotary"):
        Attention(6, 2, PriorConfig().build(2, 4), rotary=True)
