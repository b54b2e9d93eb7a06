"""One position computed alone equals that position of the whole sequence, for every layer of the grammar."""

import itertools

import pytest
import torch

from dqn_memory.blocks import GATES, MEMORY, PRIORS, LayerConfig, PriorConfig
from dqn_memory.blocks.block import select

WIDTH, HEADS, TIME = 8, 2, 6
GRAMMAR = [
    *itertools.product([*MEMORY, "none"], ["causal", "gaussian_adaptive_gate"], ["residual"], ["post", "identity"]),
    *itertools.product(["feedforward_x2", "bigru"], PRIORS, GATES, ["post"]),
]


def build(memory, prior, gate, order):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        kind = PriorConfig(kind=prior, mu=1.6, sigma=0.9, span=2.3, ramp=1.5, local_window=2)
        config = LayerConfig(memory=memory, heads=HEADS, prior=kind, gate=gate, order=order)
        return config.build(WIDTH, TIME).double()


@pytest.mark.parametrize("lengths", [None, torch.tensor([6, 2, 4, 1])], ids=["whole", "padded"])
@pytest.mark.parametrize("row", GRAMMAR, ids="-".join)
def test_one_position_equals_the_sequence(row, lengths):
    layer = build(*row)
    x = torch.randn(4, TIME, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index = torch.tensor([5, 1, 2, 0])
    gradients = []
    for compute in (layer.at, lambda x, lengths, index: select(layer(x, lengths), index)):
        leaf = x.clone().requires_grad_()
        y = compute(leaf, lengths, index)
        layer.zero_grad()
        (y * torch.arange(1.0, WIDTH + 1)).sum().backward()
        gradients.append([y, leaf.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    for ours, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, whole, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("row", GRAMMAR, ids="-".join)
def test_every_end_equals_the_sequence_that_ends_there(row):
    layer = build(*row)
    x = torch.randn(3, TIME, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.stack([layer(x[:, : t + 1])[:, t] for t in range(TIME)], 1)
    if layer.supports_prefixes:
        torch.testing.assert_close(layer.at_every_prefix(x), expected, atol=1e-12, rtol=1e-12)
        inside = layer.at_every_prefix(x, torch.tensor([6, 2, 4]))  # padding changes nothing before it
        for row_, length in enumerate((6, 2, 4)):
            torch.testing.assert_close(inside[row_, :length], expected[row_, :length], atol=1e-12, rtol=1e-12)
    else:
        assert row[1] in ("adaptive_gate", "gaussian_adaptive_gate")  # attention that sees the future
        with pytest.raises(TypeError, match="encode each sequence by itself"):
            layer.at_every_prefix(x)
