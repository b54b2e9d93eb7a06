"""The compiled scan of a CPU against the recorded numbers, and against torch's scan in float64."""

import pytest
import torch
from scans import SCANS, TOLERANCE, drawn, errors, numbers

from dqn_memory.blocks.kernels.cpu_scan import scan_simd
from dqn_memory.blocks.kernels.scan import scan_torch
from dqn_memory.blocks.mamba import Mamba


def compare(shape, tolerance=TOLERANCE[torch.float32], **changes):
    """Outputs, last state and all gradients, relative to the largest number of each."""
    inputs = drawn(*shape, dtype=torch.float32)
    for name, value in changes.items():
        index = ("u", "delta", "decay", "enter", "leave", "initial").index(name)
        inputs[index] = value.requires_grad_()
    wide = [value.detach().double().requires_grad_() for value in inputs]
    for ours, known in zip(numbers(scan_simd, inputs), numbers(scan_torch, wide), strict=True):
        assert (ours - known).abs().max() <= tolerance * known.abs().max().clamp(min=1e-30)


@pytest.mark.parametrize("name", SCANS)
def test_recorded_scans_with_gradients(name):
    assert max(errors(name, torch.float32, scan_simd).values()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    "shape", [(1, 1, 8, 1), (3, 5, 16, 16), (2, 7, 12, 4), (1, 4, 3, 2), (16, 3, 8, 8), (17, 3, 8, 8), (40, 2, 24, 5)]
)
def test_equals_torch_at_every_size(shape):
    compare(shape)


def test_a_step_of_any_length_forgets_exactly():
    before = drawn(2, 1, 8, 4, dtype=torch.float32)
    before[1] = torch.full((2, 1, 8), 1e4)
    before[2] = -torch.ones(8, 4)
    with torch.no_grad():
        now = scan_simd(*before)[0]
        before[5] = before[5] * 1e6
        assert torch.equal(scan_simd(*before)[0], now)
    compare((2, 3, 8, 4), delta=torch.full((2, 3, 8), 1e3), decay=-torch.ones(8, 4))


def test_no_initial_state_is_zeros():
    inputs = drawn(3, 4, 8, 4, dtype=torch.float32)[:5]
    zero = torch.zeros(3, 8, 4)
    for ours, known in zip(
        numbers(lambda *given: scan_simd(*given, None), inputs),
        numbers(lambda *given: scan_simd(*given, zero), inputs),
        strict=True,
    ):
        assert torch.equal(ours, known)


def test_results_do_not_depend_on_the_threads():
    inputs, before, results = drawn(50, 6, 16, 4, dtype=torch.float32), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(numbers(scan_simd, inputs))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(other, results[0], strict=True))


def test_rows_do_not_know_of_each_other():
    inputs = [value.detach() for value in drawn(20, 6, 16, 4, dtype=torch.float32)]
    alone = [value if index == 2 else value[7:8] for index, value in enumerate(inputs)]
    for ours, known in zip(scan_simd(*alone), scan_simd(*inputs), strict=True):
        assert torch.equal(ours[0], known[7])


def test_views_and_gradients_that_are_not_contiguous():
    inputs = drawn(6, 5, 16, 4, dtype=torch.float32)
    halves = [value if index == 2 else value[::2] for index, value in enumerate(inputs)]
    grad = torch.ones(1, 1, 1).expand(3, 5, 16)
    ours = torch.autograd.grad(scan_simd(*halves)[0], inputs, grad)
    known = torch.autograd.grad(scan_torch(*halves)[0], inputs, grad)
    for one, other in zip(ours, known, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("channels", [8, 11])
def test_the_operator_keeps_the_rules_of_torch(channels):
    rules = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    inputs = drawn(2, 3, channels, 2, dtype=torch.float32)
    torch.library.opcheck(torch.ops.dqn_memory.cpu_scan, inputs, test_utils=rules)


def test_other_numbers_than_float32_are_refused():
    with pytest.raises(ValueError, match=r"float32 alone, not in torch\.float64; use torch"):
        scan_simd(*drawn(1, 2, 8, 2))


def test_a_mixer_runs_on_it_under_autocast():
    torch.manual_seed(0)
    mixer, x = Mamba(8), torch.randn(3, 5, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        known = mixer(x)
        mixer.core = scan_simd
        torch.testing.assert_close(mixer(x), known)
