"""Gates, positions, initial values, bidirectional recurrences and the layer's own arithmetic."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dqn_memory.blocks import GATES, MEMORY, POSITIONS, LayerConfig, PriorConfig, initialise

CELLS = {"birnn": nn.RNN, "bigru": nn.GRU, "bilstm": nn.LSTM}


def seeded(shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_gru_gate_is_the_papers():
    gate = GATES["gru"](5).double()
    x, y = seeded((3, 5)), seeded((3, 5), 1)
    w_r, w_z, w_g = gate.from_output.weight.chunk(3)
    u_r, u_z = gate.from_stream.weight.chunk(2)
    u_g = gate.from_reset.weight
    reset = torch.sigmoid(y @ w_r.T + x @ u_r.T)
    update = torch.sigmoid(y @ w_z.T + x @ u_z.T - 2.0)
    candidate = torch.tanh(y @ w_g.T + (reset * x) @ u_g.T)
    torch.testing.assert_close(gate(x, y), (1 - update) * x + update * candidate)


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", GATES)
def test_gates_keep_the_streams_precision_under_autocast(name, stream):
    gate, x, y = GATES[name](5), seeded((3, 5), dtype=stream), seeded((3, 5), 1, dtype=stream)
    with torch.autocast("cpu", torch.bfloat16):
        joined = gate(x, y)
    assert joined.dtype == stream
    torch.testing.assert_close(joined.float(), gate(x.float(), y.float()), atol=0.05, rtol=0)


@pytest.mark.parametrize("activation", ["relu", "none"])
@pytest.mark.parametrize("order", ["post", "identity"])
@pytest.mark.parametrize("gate", GATES)
def test_layer_arithmetic(gate, order, activation):
    layer = LayerConfig(memory="gru", heads=2, gate=gate, order=order, activation=activation).build(8, 6).double()
    first, second = layer.sublayers
    act = F.relu if activation == "relu" else lambda value: value
    x = seeded((2, 6, 8))
    if order == "post":
        middle = first.norm(first.gate(x, act(first.block(x))))
        expected = second.norm(second.gate(middle, act(second.block.cell(middle)[0])))
    else:
        middle = first.gate(x, act(first.block(first.norm(x))))
        expected = second.gate(middle, act(second.block.cell(second.norm(middle))[0]))
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("memory", CELLS)
@pytest.mark.parametrize("training", [True, False])
def test_bidirectional_equals_torch(memory, training):
    """Packed by lengths in torch, reversed by a gather here: the same outputs and the same gradients."""
    ours = MEMORY[memory](8, 0.0, False).double().train(training)
    theirs = CELLS[memory](8, 4, bidirectional=True, batch_first=True).double().train(training)
    pairs = [(value, getattr(theirs, name)) for name, value in ours.ahead.named_parameters()]
    pairs += [(value, getattr(theirs, name + "_reverse")) for name, value in ours.behind.named_parameters()]
    with torch.no_grad():
        for value, other in pairs:
            other.copy_(value)
    x, lengths = seeded((4, 7, 8)).requires_grad_(), torch.tensor([1, 3, 7, 5])
    again = x.detach().clone().requires_grad_()
    packed = nn.utils.rnn.pack_padded_sequence(again, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    real = (torch.arange(7) < lengths[:, None])[..., None]
    y = ours(x, lengths)
    torch.testing.assert_close(y * real, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(ours(x), theirs(x)[0], atol=1e-12, rtol=1e-12)
    weight = seeded((4, 7, 8), 1) * real
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    for value, other in [(x, again), *pairs]:
        torch.testing.assert_close(value.grad, other.grad, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("memory", ["darqn", "darqn_released"])
def test_darqn_attends_to_features(memory):
    block = MEMORY[memory](6, 0.0, False).double()
    x = seeded((2, 3, 6))
    hidden = cell = torch.zeros(2, 6, dtype=torch.float64)
    for t in range(3):
        score = block.to_score(torch.tanh(block.from_input(x[:, t]) + block.from_hidden(hidden)))
        attention = score.softmax(-1)
        seen = attention if memory == "darqn_released" else attention * x[:, t]
        hidden, cell = block.cell(seen, (hidden, cell))
    torch.testing.assert_close(block(x)[:, -1], hidden, atol=1e-12, rtol=1e-12)


def test_positions():
    x = seeded((2, 5, 6))
    learned = POSITIONS["learned"](9, 6).double()
    assert [tuple(p.shape) for p in learned.parameters()] == [(9, 6)]
    assert torch.equal(learned(x), x)
    with torch.no_grad():
        learned.table.copy_(torch.arange(9)[:, None].expand(9, 6))
    torch.testing.assert_close(learned(x) - x, torch.arange(5.0, dtype=torch.float64)[:, None].expand(2, 5, 6))
    assert torch.equal(POSITIONS["none"](9, 6)(x), x)
    for kind in ("learned", "sinusoidal"):
        assert POSITIONS[kind](9, 6)(x.float()).dtype == torch.float32
        with pytest.raises(ValueError, match="9 position rows"):
            POSITIONS[kind](9, 6)(seeded((1, 10, 6)))


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoidal_table(width):
    positions = POSITIONS["sinusoidal"](9, width)
    assert not list(positions.parameters()) and not positions.state_dict()
    for column in range(width):
        angle = 4 / 1e4 ** ((column - column % 2) / width)
        expected = math.cos(angle) if column % 2 else math.sin(angle)
        assert positions.table[4, column].item() == pytest.approx(expected, abs=1e-6)


def test_initial_values():
    layer = nn.ModuleList([LayerConfig(memory="bigru", gate="gru").build(64, 20), nn.Embedding(50, 64)])
    recurrent = {name: p.clone() for name, p in layer.named_parameters() if "ahead" in name or "behind" in name}
    prior = PriorConfig(kind="gaussian").build(4, 20)
    initialise(layer)
    initialise(prior)
    for name, parameter in layer.named_parameters():
        if name in recurrent:
            assert torch.equal(parameter, recurrent[name])
        elif "norm" in name:
            assert (parameter == (1.0 if name.endswith("weight") else 0.0)).all()
        elif name.endswith("gate.bias"):
            assert (parameter == 2.0).all()
        elif name.endswith("bias"):
            assert (parameter == 0.0).all()
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1)
    assert len(recurrent) == 8
    torch.testing.assert_close(prior.mu(), torch.full((4,), 6.0))


@pytest.mark.parametrize("change,word", [
    ({"memory": "bigruu"}, "bigru"), ({"gate": "gruu"}, "gru"), ({"order": "pre"}, "identity"),
    ({"activation": "gelu"}, "relu"), ({"heads": 5}, "heads is 5"), ({"attention": False, "memory": "none"}, "empty"),
    ({"prior": PriorConfig(kind="locl")}, "local"), ({"memory": "bigru", "heads": 1, "width": 7}, "even"),
])  # fmt: skip
def test_wrong_layers_are_named(change, word):
    width = change.pop("width", 16)
    with pytest.raises(ValueError, match=word):
        LayerConfig(**change).build(width, 10)


def test_regularisation_and_projection_reach_the_prior():
    prior = PriorConfig(kind="adaptive", span=4.0, regulariser="l1", regulariser_weight=0.5, max_norm=3.0)
    layer = LayerConfig(prior=prior, heads=2).build(8, 10)
    assert layer.regularisation().item() == pytest.approx(0.5 * 8.0)
    layer.project()
    assert layer.regularisation().item() == pytest.approx(0.5 * 6.0, rel=1e-5)
    assert LayerConfig().build(8, 10).regularisation().item() == 0.0
