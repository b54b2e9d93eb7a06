"""Blocks with unusual inputs: not finite, of other dtypes, empty, or views of other memory."""

import itertools
import math

import pytest
import torch

from dqn_memory.blocks import MEMORY, PRIORS, LayerConfig, PriorConfig, build
from dqn_memory.blocks.kernels import recurrent
from dqn_memory.blocks.kernels.cpu_selective_scan import scan_simd
from dqn_memory.blocks.kernels.linear_scan import linear_scan
from dqn_memory.blocks.kernels.selective_scan import scan_torch
from dqn_memory.network import ARCHITECTURES, NetworkConfig, ObservationSpec

BATCH, TIME, WIDTH = 2, 6, 8
OPTIONS = {"attention": {"heads": 2, "context": 3}, "gated_deltanet": {"heads": 1}}  # its kernel takes 8 features
BAD = [math.nan, math.inf, -math.inf, 1e30]
STATEFUL = [name for name in MEMORY if build(name, WIDTH).stateful]
EACH = pytest.mark.parametrize("name", STATEFUL)


def made(name, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name in MEMORY:
            return build(name, WIDTH, **OPTIONS.get(name, {})).to(dtype)
        memory, _, order = name.partition(" ")
        own = {"memory": "gru", "attention": True, "streamed": True} if memory == "streamed" else {"memory": memory}
        config = LayerConfig(**{"attention": False, "heads": 2, "gate": "gru", "order": order, **own})
        return config.build(WIDTH, 3).to(dtype)


def drawn(*shape, seed=1, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def begun(block, dtype=torch.float32):
    """Make a state after some inputs."""
    with torch.no_grad():
        return tuple(part.clone() for part in block.sequence(drawn(BATCH, 4, WIDTH, seed=2, dtype=dtype))[1])


def whole(block, x, state, reset):
    return block.sequence(x, state, reset)


def chunks(block, x, state, reset):
    first, state = block.sequence(x[:, :2], state, reset[:, :2])
    second, state = block.sequence(x[:, 2:], state, reset[:, 2:])
    return torch.cat((first, second), 1), state


def steps(block, x, state, reset):
    outputs = []
    for t in range(x.shape[1]):
        y, state = block.step(x[:, t], state, reset[:, t])
        outputs.append(y)
    return torch.stack(outputs, 1), state


FORMS = [whole, chunks, steps]
BLOCKS = [*STATEFUL, "gru post", "mlstm identity", "mlp post", "streamed identity"]


def loss(y):
    return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()


def damaged(bad, at):
    """Draw inputs with a bad one in row 0 at 1, and resets: row 0 at 3, row 1 at `at`."""
    x, reset = drawn(BATCH, TIME, WIDTH), torch.zeros(BATCH, TIME, dtype=torch.bool)
    x[0, 1, 3] = bad
    reset[0, 3], reset[1, at] = True, True
    return x.requires_grad_(), reset


def spoilt(state, bad):
    parts = [part.contiguous().clone() for part in state]
    for part in parts:
        if part.is_floating_point() and part.numel():
            part.flatten(1)[1, 0] = bad
    return tuple(part.requires_grad_(part.is_floating_point()) for part in parts)


RESETS = [  # every block with every number and every form
    (name, FORMS[index % len(FORMS)], bad) for index, (name, bad) in enumerate(itertools.product(BLOCKS, BAD))
]
OTHER_RESETS = [row for row in itertools.product(BLOCKS, FORMS, BAD) if row not in RESETS]


@pytest.mark.parametrize(
    ("name", "form", "bad"), [*RESETS, *(pytest.param(*row, marks=pytest.mark.long) for row in OTHER_RESETS)]
)
def test_a_reset_clears_every_number_from_values_and_gradients(name, form, bad):
    for at in (0, 2):
        block, (x, reset) = made(name), damaged(bad, at)
        state = spoilt(begun(block), bad)
        fresh = [block.sequence(x[row : row + 1, start:]) for row, start in ((0, 3), (1, at))]
        known = torch.autograd.grad(loss(fresh[0][0]) + loss(fresh[1][0]), [*block.parameters()], allow_unused=True)
        y, after = form(block, x, state, reset)
        parts = [part for part in state if part.requires_grad]
        found = torch.autograd.grad(
            loss(y[:1, 3:]) + loss(y[1:, at:]), [x, *parts, *block.parameters()], materialize_grads=True
        )
        torch.testing.assert_close([y[:1, 3:], y[1:, at:]], [each[0] for each in fresh], atol=1e-5, rtol=1e-5)
        assert all(part.isfinite().all() for part in after)
        assert (found[0][0, :3] == 0).all() and (found[0][1, :at] == 0).all() and found[0].isfinite().all()
        assert all((each == 0).all() for each in found[1 : 1 + len(parts)])
        for ours, theirs in zip(found[1 + len(parts) :], known, strict=True):
            torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", BLOCKS)
def test_nan_shows_until_the_episode_ends(name):
    block, (x, reset) = made(name), damaged(math.nan, 0)
    for form in (whole, chunks, steps):
        y, _ = form(block, x, begun(block), reset)
        assert y[0, 1].isnan().all() and y[0, 0].isfinite().all() and y[1].isfinite().all()
        with torch.no_grad():
            assert form(block, x, begun(block), reset)[0].isnan().equal(y.isnan())


# ---- windows and networks


WINDOWS = [
    *[(memory, "causal") for memory in [*MEMORY, "none"]],
    *[("feedforward_x2", prior) for prior in PRIORS if prior != "causal"],
]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("memory", "prior"), WINDOWS)
def test_padding_of_any_number_reaches_no_real_position(memory, prior, bad):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kind = PriorConfig(kind=prior, mu=1.6, sigma=0.9, span=2.3, ramp=1.5, local_window=2)
        layer = LayerConfig(memory=memory, heads=2, prior=kind).build(WIDTH, TIME)
    lengths, index = torch.tensor([4, TIME]), torch.tensor([3, 5])
    blocks = [layer, *(part.block for part in layer.sublayers)]
    for block in blocks:
        clean, dirty = drawn(BATCH, TIME, WIDTH), drawn(BATCH, TIME, WIDTH)
        dirty[0, 4:] = bad
        calls = [lambda x, of=block: of(x, lengths), lambda x, of=block: of.at(x, lengths, index)[:, None]]
        if block.supports_prefixes:
            calls.append(lambda x, of=block: of.at_every_prefix(x, lengths))
        for call in calls:
            found = []
            for x in (clean.clone().requires_grad_(), dirty.clone().requires_grad_()):
                y = call(x)
                y = y if y.shape[1] == 1 else torch.cat((y[0, :4], y[1]))
                wanted = [x, *block.parameters()]
                found.append([y, *torch.autograd.grad(loss(y), wanted, materialize_grads=True)])
            torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_nan_changes_no_earlier_output_of_causal_attention():
    layer, x = LayerConfig(memory="none", heads=2).build(WIDTH, TIME), drawn(BATCH, TIME, WIDTH)
    before = layer(x)[:, :3]
    x[:, 3] = math.nan
    assert torch.equal(layer(x)[:, :3], before) and layer(x)[:, 3:].isnan().all()


def network(architecture):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        own = {"action_embedding": 2} if ARCHITECTURES[architecture].action_embedding else {}
        config = NetworkConfig(architecture, WIDTH, heads=2, context=TIME, initialisation="torch", **own)
        return config.build(ObservationSpec("continuous", (3,)), 2)


CARRIED = [name for name in ARCHITECTURES if network(name).stateful]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", CARRIED)
def test_a_reset_clears_every_number_from_a_network(name, bad):
    net, observation = network(name), drawn(1, TIME, 3)
    observation[0, 1, 1] = bad
    action, reset = torch.ones(1, TIME, dtype=torch.int64), torch.zeros(1, TIME, dtype=torch.bool)
    reset[0, 3] = True
    parameters = list(net.parameters())

    def in_steps():
        state, outputs = None, []
        for t in range(TIME):
            y, state = net.step(observation[:, t], action[:, t], state, reset[:, t])
            outputs.append(y)
        return torch.stack(outputs, 1)

    fresh = net.sequence(observation[:, 3:], action[:, 3:], None, reset[:, 3:])[0]  # an episode has no action before it
    known = torch.autograd.grad(loss(fresh), parameters, materialize_grads=True)
    for y in (net.sequence(observation, action, None, reset)[0], in_steps()):
        torch.testing.assert_close(y[:, 3:], fresh, atol=1e-5, rtol=1e-5)
        found = torch.autograd.grad(loss(y[:, 3:]), parameters, materialize_grads=True)
        torch.testing.assert_close(found, known, atol=1e-4, rtol=1e-4)
    if math.isnan(bad):
        assert y[:, 1].isnan().all()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_padding_of_any_number_reaches_no_q_value(name):
    net, action, lengths = network(name), torch.ones(1, TIME, dtype=torch.int64), torch.tensor([4])
    found = []
    for padding in (0.5, math.nan):
        observation = drawn(1, TIME, 3)
        observation[:, 4:] = padding
        for y in (net(observation, action, lengths)[:, :4], net.at(observation, action, lengths, lengths - 1)):
            found.append([y, *torch.autograd.grad(loss(y), [*net.parameters()], materialize_grads=True)])
    torch.testing.assert_close(found[2:], found[:2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CARRIED)
def test_a_network_starts_from_its_initial_state_as_from_none(name):
    net, observation, action = network(name), drawn(BATCH, TIME, 3), torch.zeros(BATCH, TIME, dtype=torch.int64)
    start, reset = net.initial_state(BATCH, torch.device("cpu")), torch.zeros(BATCH, dtype=torch.bool)
    found = [net.sequence(observation, action, state)[0] for state in (None, start)]
    found += [net.step(observation[:, 0], action[:, 0], state, reset)[0] for state in (None, start)]
    assert torch.equal(found[0], found[1]) and torch.equal(found[2], found[3]) and found[0].isfinite().all()


# ---- memory, dtypes, sizes


@pytest.mark.parametrize("form", [whole, steps])
@pytest.mark.parametrize("time", [1, TIME])
@pytest.mark.parametrize("name", BLOCKS)
def test_an_output_changed_in_place_changes_neither_state_nor_input_nor_gradient(name, time, form):
    block, reset = made(name), torch.zeros(BATCH, time, dtype=torch.bool)
    for dropout in (0.0, 0.5):
        for part in block.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = dropout
        block.eval()
        x, state = drawn(BATCH, time, WIDTH), begun(block)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                held = x.clone().requires_grad_(grad)
                given = held * 1
                y, after = (
                    form(block, given, state, reset) if form is whole else block.step(given[:, 0], state, reset[:, 0])
                )
                wanted = [given.clone(), *(part.clone() for part in (*state, *after))]
                y.add_(1)
                assert all(map(torch.equal, [given, *state, *after], wanted))
                if grad:
                    y.sum().backward()
                kept = y.detach().clone()
                for part in after:
                    part.detach().add_(1)
                assert torch.equal(y, kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_module_of_any_dtype_gives_outputs_of_it(name, dtype):
    block, exact = made(name, dtype), made(name, dtype).double()
    x, reset = drawn(BATCH, TIME, WIDTH, dtype=dtype).requires_grad_(), damaged(0.0, 2)[1]
    known = exact.sequence(x.double(), None, reset)[0]
    for given in (None, dtype, torch.float32):
        state = block.initial_state(BATCH, dtype=given)
        for form in (whole, chunks, steps):
            y, after = form(block, x, state, reset)
            assert y.dtype == dtype
            found = torch.autograd.grad(loss(y).float(), [x, *block.parameters()], materialize_grads=True)
            assert all(each.isfinite().all() for each in (y, *found))
            assert (y.double() - known).abs().max() <= (1e-6 if dtype == torch.float64 else 0.1)
            form(block, x, after, reset)
    assert block(x).dtype == dtype


@EACH
def test_under_autocast_steps_equal_the_sequence(name):
    block, x, reset = made(name), drawn(BATCH, TIME, WIDTH).requires_grad_(), damaged(0.0, 2)[1]
    found = []
    for form in (whole, chunks, steps):
        with torch.autocast("cpu", torch.bfloat16):
            y, after = form(block, x, block.initial_state(BATCH), reset)
        gradients = torch.autograd.grad(loss(y.float()), [x, *block.parameters()], materialize_grads=True)
        found.append(([y.dtype, *(part.dtype for part in after)], [y.float(), *gradients]))
    tolerance = 1e-5 if name in ("rnn", "gru", "lstm") else 3e-2
    for dtypes, numbers in found[1:]:
        assert dtypes == found[0][0]
        for ours, known in zip(numbers, found[0][1], strict=True):
            assert (ours - known).abs().max() <= tolerance * max(1, known.abs().max())


@pytest.mark.parametrize("name", [*MEMORY, "gru post", "streamed identity"])
def test_no_rows_give_no_rows(name):
    block, x = made(name), torch.zeros(0, 3, WIDTH, requires_grad=True)
    outputs = [block(x), block(x, torch.zeros(0, dtype=torch.int64))]
    if block.stateful:
        reset = torch.zeros(0, 3, dtype=torch.bool)
        outputs += [block.sequence(x)[0], *(form(block, x, None, reset)[0] for form in (whole, chunks, steps))]
    for y in outputs:
        assert y.shape == (0, 3, WIDTH)
        found = torch.autograd.grad(y.sum(), [x, *block.parameters()], materialize_grads=True)
        assert all((each == 0).all() for each in found)


@pytest.mark.parametrize("name", [*MEMORY, "gru post", "streamed identity", "window", "network"])
def test_no_positions_are_refused(name):
    block = LayerConfig(memory="bigru", heads=2).build(WIDTH, 4) if name == "window" else None
    if name == "network":
        net = network("dgfqn")
        calls = [lambda: net(torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.int64))]
    else:
        block, x = block or made(name), torch.zeros(2, 0, WIDTH)
        calls = [lambda: block(x), *([lambda: block.sequence(x)] if block.stateful else [])]
    for call in calls:
        with pytest.raises(ValueError, match="one position"):
            call()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_step_without_a_state_begins_one(name):
    block, x = made(name), drawn(BATCH, 2, WIDTH)
    y, state = block.sequence(x[:, :1])
    first, begins = block.step(x[:, 0], None)
    torch.testing.assert_close([first, *begins], [y[:, 0], *state], atol=1e-5, rtol=1e-5)
    second = block.step(x[:, 1], begins, None)[0]
    torch.testing.assert_close(second, block.sequence(x)[0][:, 1], atol=1e-5, rtol=1e-5)


def turned(x):
    """Store the same numbers in another order of memory."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else torch.stack((x, x), -1)[..., 0]


@pytest.mark.parametrize("name", BLOCKS)
def test_views_and_other_integer_dtypes_give_the_same_numbers(name):
    block, x, reset = made(name), drawn(BATCH, TIME, WIDTH), damaged(0.0, 2)[1]
    state = begun(block)
    other = tuple(turned(part if part.is_floating_point() else part.int()) for part in state)
    same = drawn(1, TIME, WIDTH).expand(BATCH, -1, -1)
    for known, view in ((x, turned(x)), (x, x.flip(1).flip(1)), (same.clone(), same)):
        for form in (whole, chunks, steps):
            found = []
            for numbers, begins, mask in ((known, state, reset), (view, other, turned(reset))):
                leaf = numbers.detach().requires_grad_()
                y, after = form(block, leaf, begins, mask)
                wanted = [leaf, *block.parameters()]
                found.append([y, *after, *torch.autograd.grad(loss(y), wanted, materialize_grads=True)])
            torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5, check_dtype=False)


# ---- kernels


@pytest.mark.parametrize("units", [8, 3])
@pytest.mark.parametrize("kind", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_recurrent_kernels_clear_states_at_a_reset(kind, units):
    cell, x, reset = kind(4, units, batch_first=True), drawn(BATCH, TIME, 4), damaged(0.0, 2)[1]
    reset[0, 0] = True
    states = [torch.full((BATCH, units), math.nan).requires_grad_() for _ in range(1 + (kind is torch.nn.LSTM))]
    y, _ = recurrent.scan(cell, x, tuple(states), reset)
    zeros = tuple(torch.zeros(BATCH, units) for _ in states)
    known, _ = recurrent.scan(cell, x, zeros, reset)
    assert torch.equal(y[0], known[0]) and torch.equal(y[1, 2:], known[1, 2:])
    for change in torch.autograd.grad(y[0].sum(), states):
        assert (change[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("pairs", [False, True])
def test_linear_scans_clear_states_at_a_reset(pairs, dtype):
    shape = (5, 2) if pairs else (5,)
    for varies in (False, True):
        decay = drawn(*((BATCH, TIME) if varies else ()), *shape, dtype=dtype).requires_grad_()
        drive, keep = drawn(BATCH, TIME, *shape, dtype=dtype), torch.ones(BATCH, TIME, dtype=dtype)
        keep[:, 2] = 0
        drive[:, 1] = math.inf
        start = torch.full((BATCH, *shape), math.nan, dtype=dtype).requires_grad_()
        states = linear_scan(decay, drive, start, keep)
        known = linear_scan(decay, drive[:, 2:], torch.zeros_like(start), None) if not varies else None
        assert states[:, 2:].isfinite().all() and (known is None or torch.equal(states[:, 2:], known))
        assert (torch.autograd.grad(states[:, 2:].sum(), start)[0] == 0).all()


@pytest.mark.parametrize("scan", [scan_torch, scan_simd])
def test_selective_scans_clear_states_at_a_reset(scan):
    inputs = [drawn(BATCH, TIME, 8), drawn(BATCH, TIME, 8).abs(), -drawn(8, 4).abs(), drawn(BATCH, TIME, 4)]
    inputs += [drawn(BATCH, TIME, 4, seed=3), torch.full((BATCH, 8, 4), math.inf).requires_grad_()]
    keep = torch.ones(BATCH, TIME)
    keep[:, 2] = 0
    inputs[0][:, 1] = math.nan
    y, last = scan(*inputs, keep)
    cut = [each[:, 2:] if each.shape[:2] == (BATCH, TIME) else each for each in inputs[:5]]
    known = scan(*cut, None)
    torch.testing.assert_close([y[:, 2:], last], list(known), atol=1e-6, rtol=1e-6)
    assert (torch.autograd.grad(y[:, 2:].sum() + last.sum(), inputs[5])[0] == 0).all()
