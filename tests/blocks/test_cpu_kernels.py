"""The compiled kernels of a CPU against torch in float64: values, gradients, threads, views, and when they are used."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from scans import TOLERANCE, drawn, gradients, numbers, off, on_threads
from torch.nn import functional as F

from dqn_memory.blocks import MEMORY, LayerConfig
from dqn_memory.blocks.feed_forward import Gelu
from dqn_memory.blocks.gates import GruGate
from dqn_memory.blocks.kernels import cpu_attention, cpu_gate, cpu_gelu, cpu_matrix, recurrent, simd
from dqn_memory.blocks.kernels.cpu_bidirectional import bidirectional_scan as both
from dqn_memory.blocks.kernels.cpu_selective_scan import scan_simd
from dqn_memory.blocks.kernels.selective_scan import scan_torch
from dqn_memory.blocks.positions import rotary_table, rotate
from dqn_memory.blocks.recurrence import CELLS, run
from dqn_memory.blocks.registry import build

ROOT = Path(__file__).resolve().parents[2]
RULES = ("test_schema", "test_faketensor", "test_aot_dispatch_static")


def draw(*shape, seed=0, scale=1.0):
    values = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.float().requires_grad_()


def attention(x, heads):
    query, key, value = x.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def make_cell(kind, units=8, dtype=torch.float32):
    torch.manual_seed(0)
    return CELLS[kind](6, units, batch_first=True).to(dtype)


def scan_inputs(kind, batch, time, units=8):
    """Draw the inputs of `recurrent`'s operators: x, weight_in, weight, bias, a GRU's inner bias, states, keep."""
    gates, states = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}[kind]
    shapes = [(time, batch, 6), (gates * units, 6), (gates * units, units), (gates * units,)]
    shapes += [(units,)] * (kind == "gru") + [(batch, units)] * states
    keep = (draw(time, batch, 1, seed=99) > -0.5).float()
    return [*(draw(*shape, seed=seed) for seed, shape in enumerate(shapes)), keep]


def scan_of(kind):
    operator = getattr(recurrent, f"{kind}_scan")
    return lambda *given: operator(*given) if kind == "rnn" else operator(*given)[0]


def heads(count):
    """Attention of packed inputs with that many heads, here and in torch."""
    return lambda x: cpu_attention.cpu_attention(x, count), lambda x: attention(x, count)


def streamed(packed, past, begin):
    """Attention of two heads that follows past keys and values, in a kernel."""
    table = rotary_table(past.shape[1] + packed.shape[1], past.shape[2] // 4)
    return cpu_attention.streamed_attention(packed, past, begin, table, 2)


def streamed_by_torch(packed, past, begin):
    query, *own = packed.unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    earlier = past.unflatten(-1, (2, 2, -1)).permute(2, 0, 3, 1, 4)
    key, value = (torch.cat(pair, 2) for pair in zip(earlier, own, strict=True))
    place = torch.arange(key.shape[2])
    index, before = place[past.shape[1] :], past.shape[1]
    first = torch.maximum(begin, index - before)[..., None]  # (B, T, 1)
    seen = ((place >= first) & (place <= index[:, None]))[:, None]
    mixed = F.scaled_dot_product_attention(rotate(query, index), rotate(key), value, attn_mask=seen)
    return mixed.transpose(1, 2).flatten(2)


def streamed_inputs(batch, before=7, time=20, units=8):
    """Draw packed inputs, past ones, and where the episode of each position begins."""
    places = before + torch.arange(time)
    resets = (torch.arange(time) + 3 * torch.arange(batch)[:, None]) % 11 == 10
    begun = torch.where(resets, places, torch.arange(batch)[:, None] % (before + 1)).cummax(1).values
    return [draw(batch, time, 6 * units), draw(batch, before, 4 * units, seed=1), begun]


def of_one(before):
    """Both forms as functions of one tensor (3, P + T, 6 h)."""

    def split(function, x):
        begun = streamed_inputs(3, before, x.shape[1] - before)[2]
        return function(x[:, before:], x[:, :before, x.shape[2] // 3 :], begun)

    return partial(split, streamed), partial(split, streamed_by_torch)


def gate_inputs(batch):
    """Draw the inputs of a gate of width 16: x, y, from_output, from_stream, from_reset, bias."""
    shapes = [(batch, 16), (batch, 16), (48, 16), (32, 16), (16, 16), (16,)]
    return [draw(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def both_inputs(batch):
    """Draw the inputs of a GRU of 8 units in both directions: x, weight_in, weight, bias, inner, lengths."""
    shapes = [(batch, 7, 6), (48, 6), (48, 8), (48,), (16,)]
    return [*(draw(*shape, seed=seed) for seed, shape in enumerate(shapes)), 1.0 + torch.arange(batch) % 7]


def delta_inputs(batch, time=20, heads=2, head=8, gated=True):
    """Draw the inputs of the delta rule: maps, scale, decay, initial, reset."""
    maps = draw(batch, time, heads * (4 * head + 2 if gated else 3 * head + 1))
    decay = draw(2, heads, seed=1).detach().abs().requires_grad_() if gated else None
    reset = draw(batch, time, seed=2) > 1.2
    return [maps, draw(head, seed=3), decay, draw(batch, heads, head, head, seed=4), reset]


def joined(operator):
    """Join y and the last state of the delta rule."""
    return lambda *inputs: torch.cat([each.flatten() for each in operator(*inputs)[:2]])


DELTA = joined(lambda *inputs: cpu_matrix.cpu_delta(*inputs))
attend_two, attention_of_two = heads(2)
BEFORE_LAST = (True, True, False, True, True, True)  # which inputs of a scan have a row for each row of the batch
# function, reference, inputs of a batch, which of them are batched, the operator and small inputs of it
KERNELS = {
    "attention": (
        *heads(2), lambda batch: [draw(batch, 20, 48)], (True,),
        lambda: (cpu_attention.attend, (draw(3, 9, 48), None, None, None, 2)),
    ),
    "streamed attention": (
        streamed, streamed_by_torch, streamed_inputs, (True, True, True),
        lambda: (cpu_attention.attend, (*(x.float() for x in streamed_inputs(3)), rotary_table(27, 8), 2)),
    ),
    "gelu": (
        cpu_gelu.cpu_gelu, gelu, lambda batch: [draw(batch, 12, 8)], (True,),
        lambda: (cpu_gelu.cpu_gelu, (draw(4, 6),)),
    ),
    "gate": (
        lambda *inputs: cpu_gate.cpu_gate(*inputs)[0], lambda *inputs: cpu_gate.cpu_gate.reference(*inputs)[0],
        gate_inputs, (True, True, False, False, False, False), lambda: (cpu_gate.cpu_gate, tuple(gate_inputs(5))),
    ),
    "both directions": (
        lambda *inputs: both(*inputs)[0], lambda *inputs: both.reference(*inputs)[0], both_inputs,
        (True, False, False, False, False, True), lambda: (both, tuple(both_inputs(3))),
    ),
    "delta": (
        lambda *inputs: cpu_matrix.cpu_delta(*inputs)[0], lambda *inputs: cpu_matrix.cpu_delta.reference(*inputs)[0],
        delta_inputs, (True, False, False, True, True), lambda: (cpu_matrix.cpu_delta, tuple(delta_inputs(3, 18))),
    ),
    "scan": (
        lambda *inputs: scan_simd(*inputs)[0], lambda *inputs: scan_torch(*inputs)[0],
        lambda batch: drawn(batch, 6, 16, 4, dtype=torch.float32), BEFORE_LAST,
        lambda: (torch.ops.dqn_memory.cpu_scan, drawn(2, 3, 11, 2, dtype=torch.float32)),
    ),
}  # fmt: skip
WITH_PRODUCTS = ("gate", "both directions")  # of torch
EQUAL = {
    **{
        f"{count} heads of {units}, {time} positions": (*heads(count), draw(3, time, 3 * count * units), 3e-6)
        for count, units, time in [
            *((2, 8, time) for time in (1, 7, 8, 9, 16, 31, 50, 128)),
            *((1, 8, 20), (8, 8, 20), (3, 16, 20), (2, 24, 20), (4, 32, 20)),
        ]
    },
    **{
        f"{before} keys, {time} positions of {units}": (*of_one(before), draw(3, before + time, 6 * units), 3e-6)
        for before, time, units in [(0, 9, 8), (1, 1, 8), (5, 40, 8), (49, 64, 8), (90, 20, 8), (9, 30, 16), (9, 9, 32)]
    },
    "large scores": (*heads(2), draw(3, 9, 48, scale=10.0), 1e-3),
    "gelu where it bends": (cpu_gelu.cpu_gelu, gelu, torch.linspace(-8, 8, 4000), 1e-6),
    "gelu where it is straight": (
        cpu_gelu.cpu_gelu, gelu, torch.cat((torch.linspace(-100, -8, 400), torch.linspace(8, 100, 400))), 1e-6,
    ),
    "gelu near zero": (
        cpu_gelu.cpu_gelu, gelu, torch.tensor([0.0, -0.0, 1e-38, -1e-38, 1e-20, -1e-7, 1e-4, -1e-3]), 1e-6,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run", "reference", "x", "tolerance"), EQUAL.values(), ids=EQUAL)
def test_values_and_gradients_are_those_of_torch(run, reference, x, tolerance):
    exact = gradients(reference, [x.detach().double().requires_grad_()])
    for ours, known in zip(gradients(run, [x.detach().requires_grad_()]), exact, strict=True):
        torch.testing.assert_close(ours.double(), known, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", [(9, 120, 8), (130, 64), (8, 7, 3, 56), (128, 64)])
def test_a_gate_is_that_of_its_equations(shape):
    """In float32, where its kernel runs, as in float64, where torch runs."""
    gate, given = GruGate(shape[-1]), [draw(*shape), draw(*shape, seed=1)]
    assert given[0].numel() >= cpu_gate.FEWEST
    exact = GruGate(shape[-1]).double()
    exact.load_state_dict(gate.state_dict())
    wide = [each.detach().double().requires_grad_() for each in given]
    ours, known = (
        gradients(lambda x, y, *_, each=each: each(x, y), [*inputs, *each.parameters()])
        for each, inputs in ((gate, given), (exact, wide))
    )
    assert max(map(off, ours, known)) <= 1e-5  # torch's own form in float32 is off by 5e-6


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("batch", "time", "heads", "head"), [
    *((3, time, 2, 8) for time in (1, 2, 15, 16, 17, 33)),
    *((1, 20, 1, 16), (2, 40, 4, 16), (2, 20, 3, 24), (2, 9, 1, 64)),
])  # fmt: skip
def test_the_delta_rule_is_that_of_torch(batch, time, heads, head, gated):
    inputs = delta_inputs(batch, time, heads, head, gated)
    exact = [x.detach().double().requires_grad_() if x is not None and x.requires_grad else x for x in inputs]
    ours, known = gradients(DELTA, inputs), gradients(joined(cpu_matrix.cpu_delta.reference), exact)
    assert max(map(off, ours, known)) <= 3e-6  # torch in float32 is off by 2e-6


def test_second_derivatives_of_the_delta_rule_are_those_of_torch():
    def second(function):
        inputs = delta_inputs(2, 18)
        first = torch.autograd.grad(function(*inputs).square().sum(), inputs[:4], create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), inputs[:4])

    assert max(map(off, second(DELTA), second(joined(cpu_matrix.cpu_delta.reference)))) <= 1e-4


def test_a_delta_rule_begins_anew_after_nan():
    maps, scale, decay, initial, _ = delta_inputs(3, 40)
    bad, late = maps.detach().clone(), torch.zeros(3, 40, dtype=torch.bool)
    bad[1, 5], late[1, 20] = torch.nan, True
    ours = cpu_matrix.cpu_delta(bad, scale, decay, initial, late)[0].isnan().all(-1)
    assert ours[1, 5:20].all() and ours.sum() == 15
    first = torch.ones(3, 40, dtype=torch.bool)
    nothing = torch.full_like(initial, torch.nan).requires_grad_()
    y, last, _ = cpu_matrix.cpu_delta(maps, scale, decay, nothing, first)
    (change,) = torch.autograd.grad(y.sum() + last.sum(), nothing)
    assert y.isfinite().all() and last.isfinite().all() and change.eq(0).all()


def test_a_strong_decay_forgets_exactly():
    maps, scale, decay, initial, _ = delta_inputs(2, 1)
    decay = torch.full_like(decay, 1e4)
    now = cpu_matrix.cpu_delta(maps, scale, decay, initial, None)[0]
    assert torch.equal(now, cpu_matrix.cpu_delta(maps, scale, decay, 1e6 * initial, None)[0])


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet"])
@pytest.mark.parametrize(("width", "dtype", "autocast", "fits"), [
    (32, torch.float32, False, True), (16, torch.float32, False, False), (32, torch.float64, False, False),
    (32, torch.bfloat16, False, False), (32, torch.float32, True, False),
])  # fmt: skip
def test_the_delta_rule_is_used_for_float32(name, width, dtype, autocast, fits, monkeypatch):
    calls, original = [], cpu_matrix.cpu_delta
    monkeypatch.setattr(cpu_matrix, "cpu_delta", lambda *given: (calls.append(given), original(*given))[1])
    block, x = build(name, width).to(dtype), draw(2, 5, width).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, (last,) = block.sequence(x)
        after, _ = block.step(x[:, 0], None)
    assert len(calls) == 2 * fits and last.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert y.shape == x.shape and after.shape == x[:, 0].shape


def test_attention_of_the_largest_scores_stays_finite():
    assert all(each.isfinite().all() for each in gradients(attend_two, [draw(3, 9, 48, scale=300.0)]))


@pytest.mark.parametrize("first", [0, 16, 32])  # of queries, keys, values
def test_attention_reads_no_future_and_passes_nan_on(first):
    x = draw(3, 30, 48).detach()
    other = x.clone()
    other[:, 13:] = -7.0
    assert torch.equal(attend_two(x)[:, :13], attend_two(other)[:, :13])
    x[:, 5, first : first + 16] = torch.nan
    ours, theirs = attend_two(x).isnan().all(-1), attention_of_two(x).isnan().all(-1)
    assert torch.equal(ours, theirs) and ours[:, 5].all()


def test_gelu_of_the_largest_numbers_stays_finite():
    x = torch.tensor([1e30, -1e30, 3e38, -3e38, 1e6, -1e6, 11.0, -11.0], requires_grad=True)
    y = cpu_gelu.cpu_gelu(x)
    y.sum().backward()
    assert torch.equal(y[::2], x[::2]) and y.isfinite().all()
    assert x.grad[::2].eq(1).all() and x.grad[1::2].abs().max() < 1e-20


def compare_scans(shape, **changes):
    """Compare outputs, last state and all gradients, relative to the max number of each."""
    inputs = drawn(*shape, dtype=torch.float32)
    for name, value in changes.items():
        inputs[("u", "delta", "decay").index(name)] = value.requires_grad_()
    exact = numbers(scan_torch, [value.detach().double().requires_grad_() for value in inputs])
    assert max(map(off, numbers(scan_simd, inputs), exact)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    "shape", [(1, 1, 8, 1), (3, 5, 16, 16), (2, 7, 12, 4), (1, 4, 3, 2), (16, 3, 8, 8), (17, 3, 8, 8), (40, 2, 24, 5)]
)
def test_scans_at_every_size(shape):
    compare_scans(shape)


def test_a_step_of_any_length_forgets_exactly():
    before = drawn(2, 1, 8, 4, dtype=torch.float32)
    before[1], before[2] = torch.full((2, 1, 8), 1e4), -torch.ones(8, 4)
    with torch.no_grad():
        now = scan_simd(*before)[0]
        before[5] = before[5] * 1e6
        assert torch.equal(scan_simd(*before)[0], now)
    compare_scans((2, 3, 8, 4), delta=torch.full((2, 3, 8), 1e3), decay=-torch.ones(8, 4))


def test_kernels_compile_without_a_folder_for_the_cache(monkeypatch):
    refused = Mock(side_effect=[RuntimeError("cannot cache function: no locator available"), lambda function: function])
    monkeypatch.setattr(simd.numba, "njit", refused)
    assert simd.compiled(len) is len
    assert [call.kwargs.get("cache", False) for call in refused.call_args_list] == [True, False]


def test_scans_of_other_numbers_than_float32_are_refused():
    with pytest.raises(ValueError, match=r"float32 alone, not in torch\.float64; use torch"):
        scan_simd(*drawn(1, 2, 8, 2))


# ---- recurrences: the loops of torch serve float64, and widths that are no multiple of eight


SHAPES = [(1, 1), (1, 7), (5, 1), (5, 7)]  # (B, T); with one row or position some views become contiguous
UNITS = [4, 8, 24]
KINDS = pytest.mark.parametrize("kind", CELLS)


def compare_with_torch(kind, units, x, atol, rtol):
    cell = make_cell(kind, units, x.dtype)
    inputs = [x, *cell.parameters()]
    expected = gradients(lambda x, *_: cell(x)[0], inputs)
    for _ in range(2):  # twice: an operator that writes to its inputs is right only once
        torch.testing.assert_close(gradients(lambda x, *_: run(cell, x), inputs), expected, atol=atol, rtol=rtol)


@KINDS
@pytest.mark.parametrize(("batch", "time", "dtype", "tolerance"), [
    *((*shape, torch.float64, 1e-12) for shape in SHAPES),
    *((*shape, torch.float32, 2e-6) for shape in (*SHAPES, (8, 3), (9, 3), (17, 3))),  # a kernel takes eight rows
])  # fmt: skip
@pytest.mark.parametrize("units", UNITS)
def test_recurrences_at_every_size(kind, batch, time, units, dtype, tolerance):
    x = draw(batch, time, 6).detach().to(dtype).requires_grad_()
    compare_with_torch(kind, units, x, tolerance, 10 * tolerance)


@KINDS
@pytest.mark.parametrize("batch,time", [*SHAPES, (17, 9)])
def test_recurrences_from_a_state_with_resets(kind, batch, time):
    """In float32 as in float64, where the loops are torch's."""
    given = scan_inputs(kind, batch, time)
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in given]
    for ours, known in zip(gradients(scan_of(kind), given), gradients(scan_of(kind), exact), strict=True):
        torch.testing.assert_close(ours.double(), known, atol=1e-5, rtol=1e-5)


@KINDS
def test_a_transposed_state_has_the_same_gradient(kind):
    """A kernel reads such a view in a copy."""
    given = scan_inputs(kind, 5, 7)
    expected = gradients(scan_of(kind), given)

    def turned(*inputs):
        states = (x.t().contiguous().t() if x is not None and x.shape == (5, 8) else x for x in inputs)
        return scan_of(kind)(*states)

    for ours, known in zip(gradients(turned, given), expected, strict=True):
        assert torch.equal(ours, known)


@KINDS
@pytest.mark.parametrize("units", UNITS[:2])  # with more, float32 itself is further from float64 than this
def test_saturated_gates(kind, units):
    """tanh is computed through a sigmoid; far from zero both must still agree, and gradients stay finite."""
    compare_with_torch(kind, units, draw(3, 9, 6, scale=1e3), 1e-4, 1e-4)


@KINDS
@pytest.mark.parametrize("units", UNITS)
def test_nan_in_a_recurrence_stays_in_its_row_and_future(kind, units):
    x = draw(3, 7, 6).detach()
    x[1, 4] = torch.nan
    with torch.no_grad():
        ours = run(make_cell(kind, units), x).isnan()
    assert ours[1, 4:].all() and not ours[1, :4].any() and not ours[0].any()


@KINDS
def test_the_state_of_a_recurrence_is_float32_under_autocast(kind):
    cell, x = make_cell(kind), draw(3, 9, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = run(cell, x)
    assert torch.equal(y, run(cell, x))


@KINDS
@pytest.mark.parametrize("batch,time", SHAPES)
def test_operators_of_recurrences_keep_the_rules_of_torch(kind, batch, time):
    operator, inputs = getattr(recurrent, f"{kind}_scan"), scan_inputs(kind, batch, time)
    torch.library.opcheck(operator, [x.detach() for x in inputs], test_utils=RULES[:2])
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in scan_inputs(kind, batch, time, 4)]
    assert torch.autograd.gradcheck(scan_of(kind), exact)
    torch.library.opcheck(operator, exact, test_utils=RULES[:2])


@pytest.mark.parametrize(("batch", "time", "width"), [
    (1, 1, 16), (1, 7, 16), (5, 1, 16), (9, 7, 48), (17, 3, 16), (20, 50, 128),  # more than the cache holds at once
])  # fmt: skip
@pytest.mark.parametrize("padded", [True, False])
def test_both_directions_at_every_size(batch, time, width, padded):
    """In float32, where the kernel runs, as in float64, where it does not: outputs, gradients, the newest position."""
    torch.manual_seed(0)
    ours, exact, x = MEMORY["bigru"](width), MEMORY["bigru"](width).double(), draw(batch, time, width)
    exact.load_state_dict(ours.state_dict())
    lengths = 1 + torch.arange(batch) % time if padded else None
    wide = x.detach().double().requires_grad_()
    for method in ("forward", "newest"):
        found, known = (
            gradients(lambda x, *_, of=block, by=method: getattr(of, by)(x, lengths), [given, *block.parameters()])
            for block, given in ((ours, x), (exact, wide))
        )
        assert max(map(off, found, known)) <= 2e-5


# ---- all of them


@pytest.mark.parametrize("name", [*KERNELS, *CELLS])
def test_results_do_not_depend_on_the_threads(name):
    kernel = KERNELS.get(name)
    loop, inputs = (kernel[0], kernel[2](50)) if kernel else (scan_of(name), scan_inputs(name, 20, 5))
    first, *others = on_threads(lambda: gradients(loop, inputs))
    # torch's own products and sums, with which a recurrence and a gate begin and end, depend on its threads
    tolerance = 0 if name in KERNELS and name not in WITH_PRODUCTS else 1e-5
    for other in others:
        torch.testing.assert_close(other, first, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_rows_are_independent(name):
    run, _, make, batched, _ = KERNELS[name]
    inputs = [x.detach() for x in make(20)]
    alone = [x[7:8] if row else x for x, row in zip(inputs, batched, strict=True)]
    tolerance = 1e-6 if name in WITH_PRODUCTS else 0  # torch's products depend on the number of rows
    torch.testing.assert_close(run(*alone)[0], run(*inputs)[7], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_views_and_gradients_that_are_not_contiguous(kernel):
    run, reference, make, batched, _ = kernel
    inputs = make(6)

    def halves(function):
        return lambda *given: function(*(x[::2] if row else x for x, row in zip(given, batched, strict=True)))

    ones = torch.ones(()).expand(halves(reference)(*inputs).shape)
    ours, known = (gradients(halves(each), inputs, ones) for each in (run, reference))
    torch.testing.assert_close(ours, known, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_operators_keep_the_rules_of_torch(kernel):
    operator, inputs = kernel[-1]()
    torch.library.opcheck(operator, inputs, test_utils=RULES)


@pytest.mark.parametrize(("shape", "dtype", "fits"), [
    ((8, 50, 192), torch.float32, True), ((8, 50, 768), torch.float32, True), ((1, 50, 192), torch.float32, False),
    ((8, 50, 192), torch.bfloat16, False), ((8, 50, 192), torch.float64, False), ((8, 129, 192), torch.float32, False),
    ((8, 50, 3 * 8 * 12), torch.float32, False), ((8, 50, 3 * 8 * 40), torch.float32, False),
])  # fmt: skip
def test_attention_is_used_for_many_short_windows_of_float32(shape, dtype, fits, monkeypatch):
    calls, original = [], cpu_attention.cpu_attention
    monkeypatch.setattr(cpu_attention, "cpu_attention", lambda *given: (calls.append(given), original(*given))[1])
    LayerConfig(heads=8).build(shape[2] // 3, 200).to(dtype)(torch.zeros(*shape[:2], shape[2] // 3, dtype=dtype))
    assert bool(calls) is fits


@pytest.mark.parametrize(("number", "dtype", "device", "fits"), [
    (0, torch.float32, "cpu", True), (-8, torch.float32, "cpu", False), (4, torch.float32, "cpu", False),
    (0, torch.float64, "cpu", False), (0, torch.bfloat16, "cpu", False), (0, torch.float32, "meta", False),
])  # fmt: skip
def test_gelu_is_used_for_many_float32_numbers_on_a_cpu(number, dtype, device, fits):
    x = torch.empty(cpu_gelu.FEWEST + number, dtype=dtype, device=device, requires_grad=True)
    assert ("cpu_gelu" in Gelu()(x).grad_fn.name()) is fits


SCRIPT = """
import hashlib
import torch
from dqn_memory.blocks.kernels import cpu_recurrent, recurrent

torch.set_num_threads(1)
draws = torch.Generator().manual_seed(0)
grad, x = (torch.randn(9, 11, 16, generator=draws) for _ in range(2))
weight_in, weight = (torch.randn(48, 16, generator=draws) for _ in range(2))
given = x, weight_in, weight, *(torch.randn(n, generator=draws) for n in (48, 16)), torch.zeros(11, 16), None
outputs = recurrent.gru_forward(*given)
for result in (*outputs, *recurrent.gru_backward(grad, *outputs, *given)):
    print(hashlib.sha256(result.contiguous().numpy().tobytes()).hexdigest())
print(cpu_recurrent._gru_backward.stats.cache_hits.total())
"""


@pytest.mark.long
def test_compiled_and_cached_kernels_round_equally(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    hashes = [
        subprocess.check_output([sys.executable, "-c", SCRIPT], env=environment, text=True).split() for _ in range(2)
    ]
    assert (hashes[0].pop(), hashes[1].pop()) == ("0", "1")  # compiled, then loaded
    assert hashes[0] == hashes[1]
