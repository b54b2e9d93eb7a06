"""The CPU's own GRU against nn.GRU: outputs, gradients, and what an operator must promise to the compiler."""

import pytest
import torch
from torch import nn

from dqn_memory.blocks.kernels.gru import gru_scan, gru_scan_backward, scan

SHAPES = [(1, 1), (1, 7), (5, 1), (5, 7)]  # (B, T); with one row or position some views become contiguous
UNITS = [4, 8, 24]  # multiples of eight are computed in vectors in float32


def cells_and_inputs(directions, batch, time, dtype, units=8):
    torch.manual_seed(0)
    cells = [nn.GRU(6, units, batch_first=True).to(dtype) for _ in range(directions)]
    return cells, [torch.randn(batch, time, 6, dtype=dtype).requires_grad_() for _ in cells]


def results(function, cells, inputs):
    for tensor in (*inputs, *(p for cell in cells for p in cell.parameters())):
        tensor.grad = None
    outputs = function(cells, inputs)
    generator = torch.Generator().manual_seed(1)
    sum((y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum() for y in outputs).backward()
    return [*outputs, *(x.grad for x in inputs), *(p.grad for cell in cells for p in cell.parameters())]


@pytest.mark.parametrize("units", UNITS)
def test_what_is_no_number_stays_none(units):
    cells, inputs = cells_and_inputs(1, 3, 7, torch.float32, units)
    with torch.no_grad():
        inputs[0][1, 4] = torch.nan
        ours = scan(cells, inputs)[0].isnan()
    assert ours[1, 4:].all() and not ours[1, :4].any() and not ours[0].any()


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("batch,time", [*SHAPES, (2, 3), (8, 3), (9, 3), (17, 3)])
@pytest.mark.parametrize("units", UNITS)
def test_equals_torch(directions, batch, time, units, dtype, tolerance):
    cells, inputs = cells_and_inputs(directions, batch, time, dtype, units)
    expected = results(lambda c, x: [cell(part)[0] for cell, part in zip(c, x, strict=True)], cells, inputs)
    for _ in range(2):  # twice: an operator that writes to its inputs is right only once
        for ours, theirs in zip(results(scan, cells, inputs), expected, strict=True):
            assert ours.dtype == dtype
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=10 * tolerance)


@pytest.mark.parametrize("units", UNITS[:2])  # with more, float32 itself is further from float64 than this
def test_saturated_gates(units):
    """tanh is computed through a sigmoid; far from zero both must still agree, and gradients stay finite."""
    cells, inputs = cells_and_inputs(2, 3, 9, torch.float32, units)
    inputs = [(1e3 * x).detach().requires_grad_() for x in inputs]
    expected = results(lambda c, x: [cell(part)[0] for cell, part in zip(c, x, strict=True)], cells, inputs)
    for ours, theirs in zip(results(scan, cells, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_results_do_not_depend_on_the_threads():
    cells, _ = cells_and_inputs(2, 10, 5, torch.float32)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            gates = torch.randn(2, 10, 5, 3, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
            weight, bias = torch.stack([cell.weight_hh_l0 for cell in cells]).detach(), torch.zeros(2, 8)
            hidden = gru_scan(gates, weight, bias)[0]
            found.append((hidden.detach(), *torch.autograd.grad(hidden.square().sum(), [gates])))
    finally:
        torch.set_num_threads(before)
    for hidden, grad in found[1:]:
        assert torch.equal(hidden, found[0][0])
        torch.testing.assert_close(grad, found[0][1], atol=1e-6, rtol=0)  # torch's own sums depend on its threads


def test_autocast_keeps_the_state_in_float32():
    cells, inputs = cells_and_inputs(2, 3, 9, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = scan(cells, inputs)
    for ours, theirs in zip(outputs, scan(cells, inputs), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("batch,time", SHAPES)
def test_operators_are_well_formed(batch, time):
    """Schema, shape functions and autograd registration, as torch itself checks them."""
    torch.manual_seed(0)
    inputs = (torch.randn(2, batch, time, 3, 8), torch.randn(2, 24, 8), torch.randn(2, 8))
    torch.library.opcheck(gru_scan, inputs, test_utils=("test_schema", "test_faketensor"))
    gates = torch.randn(2, batch, time, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 12, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *args: gru_scan(*args)[0], (gates, weight, bias))
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(gru_scan, (gates, weight, bias), test_utils=checks)
    saved = [part.detach() for part in gru_scan(gates, weight, bias)]
    arguments = (torch.randn_like(saved[0]), *saved, weight.detach())
    torch.library.opcheck(gru_scan_backward, arguments, test_utils=checks)
