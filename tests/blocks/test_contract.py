"""What every layer over the registries promises: its causal label, blindness to padding, independent rows, dtypes."""

import itertools

import pytest
import torch

from dqn_memory.blocks import GATES, MEMORY, PRIORS, LayerConfig, PriorConfig

WIDTH, HEADS, TIME = 8, 2, 6
ORDERS = ["post", "identity"]
GRAMMAR = list(itertools.product([*MEMORY, "none"], PRIORS, GATES, ORDERS))
NAMES = ["-".join(row) for row in GRAMMAR]


def build(memory, prior="causal", gate="residual", order="post", dtype=torch.float64, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        # Small spans and centres, so that every prior has something to hide within TIME positions.
        config = LayerConfig(
            memory=memory,
            heads=HEADS,
            prior=PriorConfig(kind=prior, mu=1.6, sigma=0.9, span=2.3, ramp=1.5, local_window=2),
            gate=gate,
            order=order,
            **options,
        )
        return config.build(WIDTH, TIME).to(dtype)


def sequences(rows=3, seed=0, dtype=torch.float64):
    return torch.randn(rows, TIME, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def leaks(layer):
    """Largest change at positions before t, over all t, when the inputs from t on are replaced."""
    x, other = sequences(1), sequences(1, seed=1)
    replaced = [torch.cat((x[:, :t], other[:, t:]), 1) for t in range(1, TIME)]
    with torch.no_grad():
        y = layer(torch.cat([x, *replaced]))
    return max((y[t, :t] - y[0, :t]).abs().max().item() for t in range(1, TIME))


@pytest.mark.parametrize("row", GRAMMAR, ids=NAMES)
def test_causal_label_is_true(row):
    layer = build(*row)
    if layer.causal:
        assert leaks(layer) < 1e-12
    else:
        assert leaks(layer) > 1e-6


def test_causal_labels():
    """The labels themselves, so that a block cannot pass by calling itself not causal."""
    pairs = list(itertools.product([*MEMORY, "none"], PRIORS))
    labelled = {row for row in pairs if not build(*row).causal}
    expected = {
        row
        for row in pairs
        if row[0] in ("birnn", "bilstm", "bigru") or row[1] in ("adaptive_gate", "gaussian_adaptive_gate")
    }
    assert labelled == expected


@pytest.mark.parametrize("row", GRAMMAR, ids=NAMES)
def test_padding_and_rows(row):
    """Garbage behind a sequence changes nothing: each row equals that row alone, cut to its length."""
    layer, lengths = build(*row), torch.tensor([1, 4, TIME])
    x = sequences()
    padding = torch.arange(TIME) >= lengths[:, None]
    x = torch.where(padding[..., None], 1e3 * sequences(seed=2), x).requires_grad_()
    y = layer(x, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = layer(x[b : b + 1, :length])
        torch.testing.assert_close(y[b : b + 1, :length], alone, atol=1e-10, rtol=1e-10)
    y.masked_fill(padding[..., None], 0).square().sum().backward()
    assert (x.grad[padding] == 0).all()
    assert x.grad.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    assert y.isfinite().all()


@pytest.mark.parametrize("memory", [*MEMORY, "none"])
@pytest.mark.parametrize("prior", PRIORS)
def test_all_gradients_are_finite_when_padding_is_trained(memory, prior):
    """The published loss has padding in it; that must not produce NaN, nor must an empty row."""
    layer = build(memory, prior, dtype=torch.float32)
    layer(sequences(dtype=torch.float32), torch.tensor([0, 2, TIME])).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("memory", ["feedforward_x1", "bigru", "gru"])
@pytest.mark.parametrize("gate", GATES)
def test_dtype_is_kept(memory, prior, gate, dtype):
    layer = build(memory, prior, gate, dtype=dtype)
    assert layer(sequences(dtype=dtype), torch.tensor([2, 3, 4])).dtype == dtype


@pytest.mark.parametrize("memory", MEMORY)
def test_float64_is_not_computed_in_float32(memory):
    layer = build(memory)
    y = layer(sequences())
    assert y.dtype == torch.float64
    single = build(memory, dtype=torch.float32)(sequences().float())
    assert 0 < (y - single).abs().max() < 1e-4


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("memory", MEMORY)
def test_step_equals_sequence(memory, gate, order, projection):
    layer = build(memory, gate=gate, order=order, attention=False, projection=projection)
    if not layer.stateful:
        with pytest.raises(TypeError, match="forward"):
            layer.initial_state(3)
        with pytest.raises(TypeError, match="forward"):
            layer.step(sequences()[:, 0], (), torch.zeros(3, dtype=torch.bool))
        return
    x, reset = sequences(), torch.zeros(TIME, 3, dtype=torch.bool)
    reset[3, 1] = True  # row 1 starts a new episode at position 3
    state, outputs = layer.initial_state(3, dtype=torch.float64), []
    for t in range(TIME):
        y, state = layer.step(x[:, t], state, reset[t])
        outputs.append(y)
    stepped, whole = torch.stack(outputs, 1), layer(x)
    torch.testing.assert_close(stepped[[0, 2]], whole[[0, 2]], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(stepped[1, :3], whole[1, :3], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(stepped[1:2, 3:], layer(x[1:2, 3:]), atol=1e-12, rtol=1e-12)
    assert all(part.shape[0] == 3 for part in state)


def remembers(layer):
    """Whether later outputs depend on the first input."""
    x = sequences(1)
    other = torch.cat((sequences(1, seed=1)[:, :1], x[:, 1:]), 1)
    with torch.no_grad():
        return (layer(other) - layer(x))[:, 1:].abs().max().item() > 1e-6


def test_stateful_memories():
    """The labels themselves, so that none of these passes by calling itself stateless; others may have a state, too."""
    layers = {name: build(name, attention=False) for name in MEMORY}
    stateful = {name for name, layer in layers.items() if layer.stateful}
    assert stateful >= {"rnn", "lstm", "gru", "darqn", "darqn_released", "mamba"}
    assert {name for name, layer in layers.items() if layer.causal and remembers(layer)} >= stateful
    assert not build("gru").stateful


@pytest.mark.parametrize("memory", MEMORY)
def test_dropout_acts_in_training_only(memory):
    layer, x = build(memory, dropout=0.5), sequences()
    assert (layer(x) != layer(x)).any()
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), atol=0, rtol=0)
