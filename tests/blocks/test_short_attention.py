"""The CPU form of causal attention against PyTorch's own, values and gradients."""

import pytest
import torch
from torch.nn import functional as F

from dqn_memory.blocks import LayerConfig
from dqn_memory.blocks.short_attention import short_attention, suits

HEADS, WIDTH = 2, 6


def packed(time, dtype=torch.float64, batch=3):
    generator = torch.Generator().manual_seed(time)
    return torch.randn(batch, time, 3 * WIDTH, generator=generator, dtype=dtype).requires_grad_()


def reference(x):
    query, key, value = x.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("time", [1, 7, 8, 9, 31, 50])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_equals_scaled_dot_product_attention(time, dtype, tolerance):
    x, y = packed(time, dtype), packed(time, dtype)
    weight = torch.linspace(-1, 1, time * WIDTH, dtype=dtype).view(time, WIDTH)
    ours, theirs = short_attention(x, HEADS), reference(y)
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(x.grad, y.grad, atol=tolerance, rtol=tolerance)


def test_gradients_are_those_of_finite_differences():
    assert torch.autograd.gradcheck(lambda x: short_attention(x, HEADS), packed(5, batch=2))


def test_large_scores_stay_finite():
    x = (1e3 * packed(9)).detach().requires_grad_()
    short_attention(x, HEADS).sum().backward()
    torch.testing.assert_close(short_attention(x, HEADS), reference(x))
    assert x.grad.isfinite().all()


def test_it_is_used_for_many_narrow_heads_only():
    narrow, wide = LayerConfig(heads=8).build(64, 50), LayerConfig(heads=4).build(128, 50)
    name = "_ShortAttentionBackward"
    assert uses(narrow, torch.randn(8, 50, 64), name)
    assert not uses(narrow, torch.randn(1, 50, 64), name)
    assert not uses(wide, torch.randn(16, 50, 128), name)
    assert suits(torch.empty(8, 50, 384, requires_grad=True), 8)
    assert not suits(torch.empty(8, 50, 384), 8)
    assert not suits(torch.empty(8, 50, 192, dtype=torch.bfloat16), 8)


def uses(layer, x, name):
    """Whether a node of that name is in the graph behind the layer's output."""
    nodes, seen = [layer(x).grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [parent for parent, _ in node.next_functions]
    return any(name in node.name() for node in seen)
