"""Every memory of the registry: its forms agree, nothing crosses a reset, errors are one sentence."""

import re
import subprocess
import sys

import pytest
import torch

from dqn_memory.blocks import build, names

WIDTH, BATCH, TIME = 8, 3, 21
OPTIONS = {"attention": {"heads": 2, "context": 5}, "gated_deltanet": {"heads": 1}}  # its kernel takes 8 features
STATEFUL = [name for name in names() if build(name, WIDTH).stateful]
EACH = pytest.mark.parametrize("name", STATEFUL)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # of the largest number
PRECISIONS = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])


def made(name, dtype=torch.float64, **more):
    torch.manual_seed(0)
    block = build(name, WIDTH, **OPTIONS.get(name, {}), **more)
    for parameter in block.parameters():  # zeros would hide errors
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return block.to(dtype)


def inputs(dtype=torch.float64, time=TIME, seed=1):
    return torch.randn(BATCH, time, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def resets(time=TIME):
    """Make resets: none in row 0, two in row 1 with one at the start, three in row 2 with two side by side."""
    reset = torch.zeros(BATCH, time, dtype=torch.bool)
    reset[1, [0, 9]] = True
    reset[2, [3, 4, 16]] = True
    return reset


def begun(block, dtype):
    """Make a state after some inputs, with gradients."""
    with torch.no_grad():
        state = block.sequence(inputs(dtype, 7, seed=2))[1]
    return tuple(part.detach().requires_grad_(part.is_floating_point()) for part in state)


def in_chunks(block, x, state, reset, ends):
    parts = []
    for start, end in zip((0, *ends), (*ends, x.shape[1]), strict=True):
        y, state = block.sequence(x[:, start:end], state, reset[:, start:end])
        parts.append(y)
    return torch.cat(parts, 1), state


def in_steps(block, x, state, reset):
    parts = []
    for t in range(x.shape[1]):
        y, state = block.step(x[:, t], state, reset[:, t])
        parts.append(y)
    return torch.stack(parts, 1), state


def numbers(block, x, state, result):
    """Compute outputs, states and gradients by inputs, parameters and the initial state."""
    y, after = result
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    floats = [part for part in after if part.is_floating_point()]
    total = (weights * y).sum() + sum((part * part.detach().cos()).sum() for part in floats)
    known = [x, *block.parameters(), *(part for part in state if part.requires_grad)]
    found = torch.autograd.grad(total, known, allow_unused=True)
    return [y, *after, *(torch.zeros(()) if each is None else each for each in found)]


def agree(ours, known, tolerance):
    assert len(ours) == len(known)
    for one, other in zip(ours, known, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= tolerance * max(1, other.abs().max()) if other.numel() else True


@EACH
@PRECISIONS
def test_sequence_steps_and_chunks_agree(name, dtype):
    block, x, reset = made(name, dtype), inputs(dtype).requires_grad_(), resets()
    state = begun(block, dtype)
    agree([block(x)], [block.sequence(x)[0]], TOLERANCE[dtype])
    whole = numbers(block, x, state, block.sequence(x, state, reset))
    agree(numbers(block, x, state, in_steps(block, x, state, reset)), whole, TOLERANCE[dtype])
    for ends in ((1, 2, 10), (9,), (4, 17, 18, 20)):
        agree(numbers(block, x, state, in_chunks(block, x, state, reset, ends)), whole, TOLERANCE[dtype])


@EACH
def test_nothing_crosses_a_reset_or_a_row(name):
    block, x, reset = made(name), inputs().requires_grad_(), resets()
    state = begun(block, torch.float64)
    y, _ = block.sequence(x, state, reset)
    at, row = 16, 2
    found = torch.autograd.grad(y[row, at:].sum(), [x, *(part for part in state if part.requires_grad)])
    assert (found[0][row, :at] == 0).all() and (found[0][:row] == 0).all() and (found[0][row, at:] != 0).any()
    assert all((each == 0).all() for each in found[1:])
    other = x.detach().clone()
    other[row, :at], other[:row] = 1e3, -1e3
    changed, _ = block.sequence(other, tuple(part * 3 for part in begun(block, torch.float64)), reset)
    assert torch.equal(changed[row, at:], y[row, at:])


@EACH
def test_states_keep_their_precision_under_autocast(name):
    block, x = made(name, torch.float32), inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = block.sequence(x, reset=resets())
        block.step(x[:, 0], state, resets()[:, 0])
    assert torch.allclose(y.float(), block.sequence(x, reset=resets())[0], atol=0.1)
    held = state[0:1] if name in ("attention", "frame_stack", "mamba") else ()  # recent inputs, not sums
    assert all(part.dtype in (torch.float32, torch.int64) for part in state[len(held) :])


@pytest.mark.long
@EACH
def test_compiled_sequences_and_steps_equal_eager_ones(name):
    block, x, reset = made(name), inputs().requires_grad_(), resets()
    state = begun(block, torch.float64)
    torch._dynamo.reset()
    run = torch.compile(lambda *given: block.sequence(*given), backend="aot_eager", dynamic=False)
    agree(
        numbers(block, x, state, run(x, state, reset)), numbers(block, x, state, block.sequence(x, state, reset)), 1e-10
    )
    step = torch.compile(lambda *given: block.step(*given), backend="aot_eager", dynamic=False)
    agree([step(x[:, 0], state, reset[:, 0])[0]], [block.step(x[:, 0], state, reset[:, 0])[0]], 1e-10)


@pytest.mark.parametrize("name", ["slstm", "mlstm"])
def test_exponentials_of_large_gates_do_not_overflow(name):
    block, x = made(name, torch.float32), 500 * inputs(torch.float32).requires_grad_()
    y, state = block.sequence(x)
    assert state[-1].max() > 200  # log n, or m
    found = torch.autograd.grad(y.sum(), [x, *block.parameters()])
    assert all(each.isfinite().all() for each in (y, *state, *found))


def test_gates_that_are_both_closed_still_average():
    block = build("minlstm", 4)
    with torch.no_grad():
        block.linear.bias[:8] = -110
    x = inputs(torch.float32)[..., :4]
    stepped = block.step(x[:, 0], block.initial_state(len(x)))
    assert all(each.isfinite().all() for each in (block.sequence(x)[0], stepped[0]))


@pytest.mark.parametrize("name", ["lru", "s5"])
def test_a_state_space_begins_on_its_ring(name):
    block = build(name, 64, r_min=0.5, r_max=0.6, max_phase=0.3)
    a = torch.view_as_complex(block.diagonal()[0])
    assert (a.abs() - 0.55).abs().max() <= 0.05 + 1e-6 and a.abs().max() - a.abs().min() > 0.05
    assert a.angle().min() > 0 and 0.15 < a.angle().max() <= 0.3 + 1e-6


def test_wrong_memories_are_one_sentence():
    cases = {
        "unknown memory 'gruu'; did you mean gru": lambda: build("gruu", 8),
        "width is 0; a memory needs at least 1": lambda: build("gru", 0),
        "memory 'gru' has no option 'heads'; it takes none": lambda: build("gru", 8, heads=2),
        "memory 'attention' has no option 'head'; it takes heads, context": lambda: build("attention", 8, head=2),
        "heads is 3, which does not divide the width 8": lambda: build("attention", 8, heads=3),
        "context is 0; attention needs at least the newest input, 1": lambda: build("attention", 8, context=0),
        "dropout is 1.5; it must be 0 or more and below 1": lambda: build("attention", 8, dropout=1.5),
        "frames is 0; frame_stack needs at least 1": lambda: build("frame_stack", 8, frames=0),
        "waves is 0; clock needs at least 1": lambda: build("clock", 8, waves=0),
        "states=0, taps=4, expand=2, rank=1; mamba needs at least 1": lambda: build("mamba", 8, states=0),
        "states=0, taps=4, expand=2; mamba2 needs at least 1": lambda: build("mamba2", 8, states=0),
        "heads is 3, which does not divide the width 16": lambda: build("mamba2", 8, heads=3),
        "steps is 0; deltaproduct needs at least 1": lambda: build("deltaproduct", 8, steps=0),
        "rank is 0; rwkv7 needs at least 1": lambda: build("rwkv7", 8, rank=0),
        "r_min=0.9, r_max=0.5, max_phase=1; 0 <= r_min < r_max": lambda: build("lru", 8, r_max=0.5, max_phase=1),
    }
    for sentence, call in cases.items():
        with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
            call()
        assert "\n" not in str(caught.value)


@EACH
def test_a_wrong_state_or_reset_is_one_sentence(name):
    block, x = made(name), inputs()
    _, state = block.sequence(x)
    shape = re.escape(f"it must be bool {(BATCH, TIME)}")
    for reset in (torch.zeros(BATCH, TIME), torch.zeros(BATCH, dtype=torch.bool)):
        with pytest.raises(ValueError, match=shape):
            block.sequence(x, state, reset)
    for wrong in (x[..., :-1], x[0]):
        with pytest.raises(ValueError, match=r"the input has shape .*; it must be \(B, T, 8\)"):
            block.sequence(wrong, state)
    with pytest.raises(ValueError, match=r"it must be \(B, 8\)"):
        block.step(x, state)
    other = (*state, torch.zeros(BATCH, 99))  # as of another block
    wrong = [other] if not state else [other, tuple(part[:1] for part in state)]
    for each in wrong:
        with pytest.raises(ValueError, match=f"for {BATCH} rows they must be") as caught:
            block.sequence(x, each)
        with pytest.raises(ValueError, match=f"for {BATCH} rows they must be"):
            block.step(x[:, 0], each)
        assert "\n" not in str(caught.value)


ALONE = """
import sys, warnings
warnings.simplefilter("ignore")  # torch says that numpy is missing
others = "numba numpy scipy gymnasium tyro rich matplotlib safetensors tensorboard PIL yaml".split()
sys.modules.update(dict.fromkeys(others))  # None: importing them fails
import torch
from dqn_memory.blocks import build, names
for name in names():
    block = build(name, 8)
    x = torch.randn(2, 5, 8, requires_grad=True)
    block(x).sum().backward()
    if block.stateful:
        y, state = block.sequence(x, reset=torch.rand(2, 5) < 0.3)
        y.sum().backward()
        block.step(x[:, 0], state, torch.tensor([True, False]))
mine = {name.split(".")[0] for name in sys.modules if name.startswith(("dqn_memory", "envs"))}
assert mine == {"dqn_memory"} and not [name for name in sys.modules if name.startswith("dqn_memory.runs")]
"""


def test_memories_need_torch_alone():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
