"""The linear recurrence: every form against a loop in float64; Triton's form is interpreted.

As in test_scan_triton.py, Triton's part runs this file in a process of its own.
"""

import importlib.util
import itertools
import json
import sys

import pytest
import torch
from scans import TOLERANCE, machine_code, off, on_threads, run_alone

from dqn_memory.blocks.kernels import linear_scan
from dqn_memory.blocks.kernels.cpu_linear_scan import cpu_gradients, cpu_states
from dqn_memory.size import gigaflop

TORCH, SIMD = (linear_scan.torch_states, linear_scan.torch_gradients), (cpu_states, cpu_gradients)
SHAPES = ((3, 7, 11), (2, 1, 8), (1, 9, 2), (5, 4, 70))  # (B, T, F)
CASES = list(itertools.product(SHAPES, *[(False, True)] * 3))  # complex, constant decay, resets


def drawn(shape, pairs, constant, resets, dtype):
    """Draw random inputs: decay, drive, initial, keep."""
    (batch, time, width), draws, part = shape, torch.Generator().manual_seed(0), (2,) if pairs else ()
    decay = torch.rand(*(() if constant else (batch, time)), width, *part, generator=draws, dtype=torch.float64) - 0.5
    drive, initial = (torch.randn(*each, width, *part, generator=draws, dtype=torch.float64)
                      for each in ((batch, time), (batch,)))  # fmt: skip
    keep = (torch.rand(batch, time, generator=draws) > 0.3).to(dtype) if resets else None
    return *(x.to(dtype).requires_grad_() for x in (decay, drive, initial)), keep


def loop(decay, drive, initial, keep):
    """Compute the recurrence by its equation, differentiated by autograd."""
    pairs = drive.dim() == 4
    decay, drive, state = (torch.view_as_complex(x) if pairs else x for x in (decay, drive, initial))
    states = []
    for t in range(drive.shape[1]):
        state = state if keep is None else torch.where(keep[:, t, None] > 0, state, 0)
        state = (decay if decay.dim() == 1 else decay[:, t]) * state + drive[:, t]
        states.append(state)
    states = torch.stack(states, 1)
    return torch.view_as_real(states) if pairs else states


def weights(states):
    return torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)


def expected(case):
    inputs = drawn(*case, torch.float64)
    states = loop(*inputs)
    return [states, *torch.autograd.grad((weights(states) * states).sum(), inputs[:3])]


def found(form, case, dtype):
    decay, drive, initial, keep = (x if x is None else x.detach() for x in drawn(*case, dtype))
    states = form[0](decay, drive, initial, keep)
    return [states, *form[1](weights(states), states, decay, initial, keep)]


def errors(form, case, dtype):
    """Compute the errors of the states and of the three gradients."""
    return [off(*pair) for pair in zip(found(form, case, dtype), expected(case), strict=True)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("form", "dtype"), [(TORCH, torch.float64), (TORCH, torch.float32), (SIMD, torch.float32)])
def test_states_and_gradients(form, dtype, case):
    assert max(errors(form, case, dtype)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("pairs", [False, True])
def test_a_mask_of_ones_gives_the_same_bits_as_none(pairs):
    decay, drive, initial, _ = drawn((3, 7, 11), pairs, False, False, torch.float32)
    both = (linear_scan.linear_scan(decay, drive, initial, keep) for keep in (None, torch.ones(3, 7)))
    assert torch.equal(*both)


def test_threads_change_no_number():
    first, *others = on_threads(lambda: found(SIMD, ((19, 7, 11), True, True, True), torch.float32))
    torch.testing.assert_close(others, [first] * 2, atol=0, rtol=0)


@pytest.mark.parametrize(("form", "dtype"), [(TORCH, torch.float64), (SIMD, torch.float32)])
def test_the_operator_uses_the_fastest_form(form, dtype):
    assert linear_scan._kernel(torch.zeros(1, dtype=dtype)) == form
    assert max(errors((linear_scan.states, linear_scan.gradients), CASES[-1], dtype)) <= TOLERANCE[dtype]


def test_without_numba_torch_computes(monkeypatch):
    monkeypatch.setattr(linear_scan, "NUMBA", False)
    assert linear_scan._kernel(torch.zeros(1)) == TORCH


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_operator_keeps_the_rules_of_torch(dtype):
    torch.library.opcheck(torch.ops.dqn_memory.linear_scan.default, drawn((2, 3, 5), True, False, True, dtype))


@pytest.mark.parametrize(("pairs", "forward", "both"), [(False, 2, 6), (True, 8, 24)])
def test_its_operations_are_counted(pairs, forward, both):
    inputs = drawn((2, 3, 5), pairs, True, True, torch.float32)
    assert gigaflop(lambda: linear_scan.linear_scan(*inputs)) == forward * 30 / 1e9
    assert gigaflop(lambda: linear_scan.linear_scan(*inputs).sum().backward()) == pytest.approx(both * 30 / 1e9)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed (make test-triton)")
@pytest.mark.parametrize("what", ["numbers", "binaries"])
def test_triton(what, tmp_path):
    values = run_alone(__file__, what, interpret=what == "numbers", cache=tmp_path)
    assert max(values) <= 1 if what == "numbers" else min(values) > 1000, values


def interpreted():
    """Divide every error by its tolerance."""
    from dqn_memory.blocks.kernels.triton_linear_scan import triton_gradients, triton_states

    form = (triton_states, triton_gradients)
    return [max(errors(form, case, dtype)) / allowed for dtype, allowed in TOLERANCE.items() for case in CASES]


def binaries():
    from dqn_memory.blocks.kernels.triton_linear_scan import BLOCK, linear_scan_back_kernel, linear_scan_kernel

    sizes = []
    for kernel, number, flags in itertools.product(
        (linear_scan_kernel, linear_scan_back_kernel), ("fp32", "fp64"), itertools.product((False, True), repeat=3)
    ):
        fixed = dict(zip(("VARIES", "PAIRS", "RESETS"), flags, strict=True)) | {"BLOCK": BLOCK}
        sizes.append(machine_code(kernel, number, fixed, ("time", "width")))
    return sizes


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(interpreted() if sys.argv[1] == "numbers" else binaries()))
