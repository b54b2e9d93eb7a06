"""The compiled form of causal attention against PyTorch's own, values and gradients."""

import pytest
import torch
from torch.nn import functional as F

from dqn_memory.blocks import LayerConfig
from dqn_memory.blocks.kernels.cpu_attention import attend, cpu_attention, is_faster


def packed(time, batch=3, heads=2, units=8, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(time)
    x = torch.randn(batch, time, 3 * heads * units, generator=generator, dtype=torch.float64) * scale
    return x.to(dtype).requires_grad_()


def reference(x, heads):
    query, key, value = x.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


def compare(x, heads, tolerance):
    """Values and the gradient of a weighted sum, against the reference in float64."""
    y = x.detach().double().requires_grad_()
    ours, theirs = cpu_attention(x, heads), reference(y, heads)
    weight = torch.linspace(-1, 1, theirs[0].numel(), dtype=torch.float64).view_as(theirs[0])
    (ours * weight.float()).sum().backward()
    (theirs * weight).sum().backward()
    torch.testing.assert_close(ours.double(), theirs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(x.grad.double(), y.grad, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("time", [1, 7, 8, 9, 16, 31, 50, 128])
def test_equals_scaled_dot_product_attention_at_every_length(time):
    compare(packed(time), 2, 3e-6)


@pytest.mark.parametrize(("heads", "units"), [(1, 8), (8, 8), (3, 16), (2, 24), (4, 32)])
def test_equals_scaled_dot_product_attention_at_every_width(heads, units):
    compare(packed(20, heads=heads, units=units), heads, 3e-6)


def test_large_scores_stay_finite():
    compare(packed(9, scale=10.0), 2, 1e-3)
    x = packed(9, scale=300.0)
    cpu_attention(x, 2).sum().backward()
    assert x.grad.isfinite().all()


def test_a_query_that_sees_one_key_repeats_its_value():
    x = packed(20)
    first = cpu_attention(x, 2)[:, 0]
    torch.testing.assert_close(first, x[:, 0, 32:])


@pytest.mark.parametrize("first", [0, 16, 32])  # of queries, keys, values
def test_what_is_no_number_stays_none(first):
    x = packed(20).detach()
    x[:, 5, first : first + 16] = torch.nan
    ours, theirs = cpu_attention(x, 2).isnan().all(-1), reference(x, 2).isnan().all(-1)
    assert torch.equal(ours, theirs) and ours[:, 5].all()


def test_the_future_is_not_read():
    x = packed(30).detach()
    other = x.clone()
    other[:, 13:] = -7.0
    assert torch.equal(cpu_attention(x, 2)[:, :13], cpu_attention(other, 2)[:, :13])


def test_results_do_not_depend_on_the_threads():
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            x = packed(50, batch=5)
            out = cpu_attention(x, 2)
            out.square().sum().backward()
            results.append((out.detach(), x.grad))
    finally:
        torch.set_num_threads(before)
    for out, grad in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(grad, results[0][1])


def test_the_operator_keeps_the_rules_of_torch():
    torch.library.opcheck(
        attend, (packed(9), 2), test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static")
    )


def test_views_and_gradients_that_are_not_contiguous():
    x = packed(10, batch=6)
    every_other = x[::2]
    assert not every_other.is_contiguous()
    torch.testing.assert_close(cpu_attention(every_other, 2), reference(every_other, 2), atol=1e-6, rtol=1e-5)
    grad = torch.ones(1, 1, 16).expand(3, 10, 16)
    (ours,) = torch.autograd.grad(cpu_attention(every_other, 2), x, grad)
    (theirs,) = torch.autograd.grad(reference(every_other, 2), x, grad)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_it_is_used_for_short_windows_of_float32_on_a_cpu():
    layer = LayerConfig(heads=8).build(64, 50)
    assert uses(layer, torch.randn(8, 50, 64)) and not uses(layer, torch.randn(1, 50, 64))
    assert is_faster(torch.empty(8, 50, 192), 8) and is_faster(torch.empty(8, 50, 768), 8)
    assert not is_faster(torch.empty(8, 50, 192, dtype=torch.bfloat16), 8)
    assert not is_faster(torch.empty(8, 50, 192, dtype=torch.float64), 8)
    assert not is_faster(torch.empty(8, 129, 192), 8)
    assert not is_faster(torch.empty(8, 50, 3 * 8 * 12), 8) and not is_faster(torch.empty(8, 50, 3 * 8 * 40), 8)


def uses(layer, x):
    """Whether the operator is in the graph behind the layer's output."""
    nodes, seen = [layer(x).grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [parent for parent, _ in node.next_functions]
    return any("cpu_attention" in node.name() for node in seen)
