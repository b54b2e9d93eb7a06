"""Every layer over the registries: labels, padding, rows, dtypes, single positions, steps, compiling."""

import itertools

import pytest
import torch

from dqn_memory.blocks import GATES, MEMORY, PRIORS, LayerConfig, PriorConfig
from dqn_memory.blocks.block import select

WIDTH, HEADS, TIME = 8, 2, 6
ORDERS = ["post", "identity"]
AHEAD = ("adaptive_gate", "gaussian_adaptive_gate")  # priors whose attention sees the future
FRAMES = [("residual", "post"), ("gru", "identity"), ("residual", "identity"), ("gru", "post")]
# Every memory and every prior with both gates and both orders; under `long` also every memory with every prior.
SHORT = [
    (memory, prior, *frame)
    for (memory, _), prior, frame in zip(
        itertools.product([*MEMORY, "none"], range(2)), itertools.cycle(PRIORS), itertools.cycle(FRAMES), strict=False
    )
]
FULL = [
    (memory, prior, *frame)
    for (memory, prior), frame in zip(
        itertools.product([*MEMORY, "none"], PRIORS), itertools.cycle(FRAMES), strict=False
    )
]
ROWS = [
    *(pytest.param(row, id="-".join(row)) for row in SHORT),
    *(pytest.param(row, id="-".join(row), marks=pytest.mark.long) for row in FULL if row not in SHORT),
]


def test_rows_cover_every_pair_of_parts():
    def pairs(rows):
        return {pair for row in rows for pair in itertools.combinations(enumerate(row), 2)}

    assert set(FRAMES) == set(itertools.product(GATES, ORDERS))
    every = pairs(itertools.product([*MEMORY, "none"], PRIORS, GATES, ORDERS))
    assert pairs(FULL) == every
    assert {pair for pair in every - pairs(SHORT) if pair[0][0] != 0 or pair[1][0] != 1} == set()


def build(memory, prior="causal", gate="residual", order="post", dtype=torch.float64, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        # Small spans and centres, so that every prior hides some of TIME positions.
        kind = PriorConfig(kind=prior, mu=1.6, sigma=0.9, span=2.3, ramp=1.5, local_window=2)
        config = LayerConfig(memory=memory, heads=HEADS, prior=kind, gate=gate, order=order, **options)
        return config.build(WIDTH, TIME).to(dtype)


def sequences(rows=3, seed=0, dtype=torch.float64):
    return torch.randn(rows, TIME, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradients(layer, y, x):
    """Compute the gradients of a weighted sum of an output, and put the output before them."""
    wanted = [x, *layer.parameters()]
    return [y, *torch.autograd.grad((y * torch.arange(1.0, WIDTH + 1)).sum(), wanted, materialize_grads=True)]


def assert_close(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("row", ROWS)
def test_causal_label_is_true(row):
    """Replace the inputs from t on, for all t, and look at the positions before."""
    layer, x, other = build(*row), sequences(1), sequences(1, seed=1)
    replaced = [torch.cat((x[:, :t], other[:, t:]), 1) for t in range(1, TIME)]
    with torch.no_grad():
        y = layer(torch.cat([x, *replaced]))
    leak = max((y[t, :t] - y[0, :t]).abs().max().item() for t in range(1, TIME))
    assert leak < 1e-12 if layer.causal else leak > 1e-6


def test_labels():
    """The labels themselves, so that a block cannot pass by calling itself not causal, or stateless."""
    for memory, prior in itertools.product([*MEMORY, "none"], PRIORS):
        assert build(memory, prior).causal == (memory not in ("birnn", "bilstm", "bigru") and prior not in AHEAD)
    layers = {name: build(name, attention=False) for name in MEMORY}
    stateful = {name for name, layer in layers.items() if layer.stateful}
    assert stateful >= {"rnn", "lstm", "gru", "darqn", "darqn_released", "mamba"} and not build("gru").stateful
    x = sequences(1)
    other = torch.cat((sequences(1, seed=1)[:, :1], x[:, 1:]), 1)
    pointwise = {name for name in stateful if all(part.block.pointwise for part in layers[name].sublayers)}
    assert pointwise == {"linear", "mlp", *(f"feedforward_x{k}" for k in range(1, 5))}
    for name in stateful - pointwise:  # later outputs depend on the first input, those of a clock on none before
        changed = (layers[name](other) - layers[name](x))[:, 1:].abs().max()
        assert changed == 0 if name == "clock" else changed > 1e-6


@pytest.mark.parametrize("row", ROWS)
def test_padding_and_rows(row):
    """Numbers behind a sequence change nothing: each row equals that row alone, cut to its length."""
    layer, lengths = build(*row), torch.tensor([1, 4, TIME])
    x = sequences()
    padding = torch.arange(TIME) >= lengths[:, None]
    x = torch.where(padding[..., None], 1e3 * sequences(seed=2), x).requires_grad_()
    y = layer(x, lengths)
    for b, length in enumerate(lengths.tolist()):
        assert_close([y[b : b + 1, :length]], [layer(x[b : b + 1, :length])], 1e-10)
    y.masked_fill(padding[..., None], 0).square().sum().backward()
    assert (x.grad[padding] == 0).all()
    assert x.grad.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    assert y.isfinite().all()


@pytest.mark.parametrize("row", ROWS)
def test_all_gradients_are_finite_when_padding_is_trained(row):
    """The published loss trains padding: neither that nor an empty row may produce NaN or change the dtype."""
    layer = build(*row, dtype=torch.float32)
    y = layer(sequences(dtype=torch.float32), torch.tensor([0, 2, TIME]))
    y.square().sum().backward()
    assert y.dtype == torch.float32
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


STEPS = [  # every memory with both gates, orders and projections
    (memory, gate, ORDERS[(number + turn) % 2], (number // 2 + turn) % 2 == 1)
    for number, memory in enumerate(MEMORY)
    for turn, gate in enumerate(GATES)
]
OTHER_STEPS = [row for row in itertools.product(MEMORY, GATES, ORDERS, (False, True)) if row not in STEPS]


@pytest.mark.parametrize(
    ("memory", "gate", "order", "projection"),
    [*STEPS, *(pytest.param(*row, marks=pytest.mark.long) for row in OTHER_STEPS)],
)
def test_step_equals_sequence(memory, gate, order, projection):
    layer = build(memory, gate=gate, order=order, attention=False, projection=projection)
    if not layer.stateful:
        for call in (lambda: layer.initial_state(3), lambda: layer.step(sequences()[:, 0], (), torch.zeros(3).bool())):
            with pytest.raises(TypeError, match="forward"):
                call()
        return
    x, reset = sequences(), torch.zeros(TIME, 3, dtype=torch.bool)
    reset[3, 1] = True  # row 1 starts a new episode at position 3
    state, outputs = layer.initial_state(3, dtype=torch.float64), []
    for t in range(TIME):
        y, state = layer.step(x[:, t], state, reset[t])
        outputs.append(y)
    whole = layer(x)
    whole[1, 3:] = layer(x[1:2, 3:])[0]
    assert_close([torch.stack(outputs, 1)], [whole])
    assert all(part.shape[0] == 3 for part in state)


@pytest.mark.parametrize("row", ROWS)
def test_one_position_equals_the_sequence(row):
    layer, index, x = build(*row), torch.tensor([5, 1, 2, 0]), sequences(4).requires_grad_()
    for lengths in (None, torch.tensor([6, 2, 4, 1])):
        whole = select(layer(x, lengths), index)
        assert_close(gradients(layer, layer.at(x, lengths, index), x), gradients(layer, whole, x), 1e-11)


@pytest.mark.parametrize("row", ROWS)
def test_the_newest_position_equals_the_sequence(row):
    layer, x, all_of_it = build(*row), sequences(4).requires_grad_(), torch.full((4,), TIME)
    for lengths in (None, torch.tensor([6, 2, 4, 1])):
        whole = select(layer(x, lengths), (all_of_it if lengths is None else lengths) - 1)
        assert_close(gradients(layer, layer.newest(x, lengths), x), gradients(layer, whole, x), 1e-11)


@pytest.mark.parametrize("row", ROWS)
def test_every_end_equals_the_sequence_that_ends_there(row):
    layer, x, lengths = build(*row), sequences(), (6, 2, 4)
    expected = torch.stack([layer(x[:, : t + 1])[:, t] for t in range(TIME)], 1)
    if not layer.supports_prefixes:
        assert row[1] in AHEAD
        with pytest.raises(TypeError, match="encode each sequence by itself"):
            layer.at_every_prefix(x)
        return
    assert_close([layer.at_every_prefix(x)], [expected])
    inside = layer.at_every_prefix(x, torch.tensor(lengths))  # padding changes nothing before it
    cut = [[values[row, :length] for row, length in enumerate(lengths)] for values in (inside, expected)]
    assert_close(*cut)


@pytest.mark.parametrize("memory", MEMORY)
def test_dropout_acts_in_training_only(memory):
    layer, x = build(memory, dropout=0.5), sequences()
    assert (layer(x) != layer(x)).any()
    layer.eval()
    assert torch.equal(layer(x), layer(x))


COMPILED = SHORT[::2]  # compiling is slow


@pytest.mark.long
@pytest.mark.parametrize("row", COMPILED, ids="-".join)
def test_compiled_equals_eager(row):
    assert {each[0] for each in COMPILED} == {*MEMORY, "none"} and {each[1] for each in COMPILED} == set(PRIORS)
    layer, lengths = build(*row), torch.tensor([2, 5, 6])
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", dynamic=False)
    x = sequences().requires_grad_()
    assert_close(gradients(layer, compiled(x, lengths), x), gradients(layer, layer(x, lengths), x), 1e-10)


# ---- parameter counts: attention 4 D^2 + 4 D, two norms 4 D, memory S (in closed form in test_equations.py)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("memory", [*MEMORY, "none"])
def test_layers_have_so_many_parameters(memory):
    for width in (16, 64, 128):
        assert_counts(memory, width)


def assert_counts(memory, d):
    layer = LayerConfig(memory=memory).build(d, 50)
    alone = 4 * d * d + 6 * d  # attention and its norm
    for gate, order in itertools.product(GATES, ORDERS):
        added = (1 + (memory != "none")) * (6 * d * d + d) if gate == "gru" else 0  # to each sublayer
        assert count(LayerConfig(memory=memory, gate=gate, order=order).build(d, 50)) == count(layer) + added
    assert count(layer) == alone + (0 if memory == "none" else count(MEMORY[memory](d)) + 2 * d)
    assert all(parameter.requires_grad for parameter in layer.parameters())
    projected = "feedforward" not in memory and memory not in ("linear", "mamba", "mlp", "none")
    assert count(LayerConfig(memory=memory, projection=True).build(d, 50)) == count(layer) + projected * (d * d + d)
