"""The CPU's own GRU against nn.GRU: outputs, gradients, and what an operator must promise to the compiler."""

import pytest
import torch
from torch import nn

from dqn_memory.blocks.gru_scan import gru_scan, gru_scan_backward, scan

SHAPES = [(1, 1), (1, 7), (5, 1), (5, 7)]  # (B, T); with one row or position some views become contiguous


def cells_and_inputs(directions, batch, time, dtype):
    torch.manual_seed(0)
    cells = [nn.GRU(6, 4, batch_first=True).to(dtype) for _ in range(directions)]
    return cells, [torch.randn(batch, time, 6, dtype=dtype).requires_grad_() for _ in cells]


def results(function, cells, inputs):
    for tensor in (*inputs, *(p for cell in cells for p in cell.parameters())):
        tensor.grad = None
    outputs = function(cells, inputs)
    generator = torch.Generator().manual_seed(1)
    sum((y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum() for y in outputs).backward()
    return [*outputs, *(x.grad for x in inputs), *(p.grad for cell in cells for p in cell.parameters())]


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("batch,time", SHAPES)
def test_equals_torch(directions, batch, time, dtype, tolerance):
    cells, inputs = cells_and_inputs(directions, batch, time, dtype)
    expected = results(lambda c, x: [cell(part)[0] for cell, part in zip(c, x, strict=True)], cells, inputs)
    for _ in range(2):  # twice: an operator that writes to its inputs is right only once
        for ours, theirs in zip(results(scan, cells, inputs), expected, strict=True):
            assert ours.dtype == dtype
            torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=10 * tolerance)


def test_saturated_gates():
    """tanh is computed through a sigmoid; far from zero both must still agree, and gradients stay finite."""
    cells, inputs = cells_and_inputs(2, 3, 9, torch.float32)
    inputs = [(1e3 * x).detach().requires_grad_() for x in inputs]
    expected = results(lambda c, x: [cell(part)[0] for cell, part in zip(c, x, strict=True)], cells, inputs)
    for ours, theirs in zip(results(scan, cells, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


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
    gates = torch.randn(2, batch, time, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 12, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *args: gru_scan(*args)[0], (gates, weight, bias))
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(gru_scan, (gates, weight, bias), test_utils=checks)
    saved = [part.detach() for part in gru_scan(gates, weight, bias)]
    arguments = (torch.randn_like(saved[0]), *saved, weight.detach())
    torch.library.opcheck(gru_scan_backward, arguments, test_utils=checks)
