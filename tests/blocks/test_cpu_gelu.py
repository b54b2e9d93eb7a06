"""The compiled GELU against torch's in float64, values and gradients."""

import pytest
import torch
from torch.nn import functional as F

from dqn_memory.blocks.feed_forward import Gelu
from dqn_memory.blocks.kernels.cpu_gelu import FEWEST, cpu_gelu, is_faster


def compare(x, tolerance=2e-7):
    """Within ulps of the larger of the number and one."""
    ours, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    y, known = cpu_gelu(ours), F.gelu(wide, approximate="tanh")
    weight = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view_as(x)
    (y * weight.float()).sum().backward()
    (known * weight).sum().backward()
    torch.testing.assert_close(y.double(), known, atol=tolerance, rtol=5 * tolerance)
    torch.testing.assert_close(ours.grad.double(), wide.grad, atol=5 * tolerance, rtol=5 * tolerance)


def test_equals_torch_where_it_bends():
    compare(torch.linspace(-8, 8, 4000))


def test_equals_torch_where_it_is_straight():
    compare(torch.cat((torch.linspace(-100, -8, 400), torch.linspace(8, 100, 400))))


def test_equals_torch_near_zero():
    compare(torch.tensor([0.0, -0.0, 1e-38, -1e-38, 1e-20, -1e-7, 1e-4, -1e-3]))


def test_the_largest_numbers_stay_finite():
    x = torch.tensor([1e30, -1e30, 3e38, -3e38, 1e6, -1e6, 11.0, -11.0], requires_grad=True)
    y = cpu_gelu(x)
    y.sum().backward()
    assert torch.equal(y[::2], x[::2]) and y.isfinite().all()
    assert x.grad[::2].eq(1).all() and x.grad[1::2].abs().max() < 1e-20


def test_views_and_gradients_that_are_not_contiguous():
    x = torch.randn(16, 12, requires_grad=True)
    (ours,) = torch.autograd.grad(cpu_gelu(x.mT), x, torch.ones(1, 1).expand(12, 16))
    (known,) = torch.autograd.grad(F.gelu(x.mT, approximate="tanh"), x, torch.ones(12, 16))
    torch.testing.assert_close(ours, known)


def test_results_do_not_depend_on_the_threads():
    x, before, results = torch.randn(1000, 8), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(cpu_gelu(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_the_operator_keeps_the_rules_of_torch():
    rules = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(cpu_gelu, (torch.randn(4, 6, requires_grad=True),), test_utils=rules)


@pytest.mark.parametrize(
    ("x", "fits"),
    [
        (torch.empty(FEWEST), True), (torch.empty(FEWEST - 8), False), (torch.empty(FEWEST + 4), False),
        (torch.empty(FEWEST, dtype=torch.float64), False), (torch.empty(FEWEST, dtype=torch.bfloat16), False),
        (torch.empty(FEWEST, device="meta"), False),
    ],
)  # fmt: skip
def test_it_is_used_for_many_float32_numbers_on_a_cpu(x, fits):
    assert is_faster(x) is fits
    x = x.requires_grad_()
    assert ("cpu_gelu" in Gelu()(x).grad_fn.name()) is fits
