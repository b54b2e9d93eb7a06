"""Parameter counts in closed form (attention 4 D^2 + 4 D, two norms 4 D, memory S)."""

import math

import pytest
import torch

from dqn_memory.blocks import GATES, MEMORY, PRIORS, LayerConfig, PriorConfig

PRINTED = {  # S at D = 64 and 128
    "feedforward_x1": (8320, 33024),
    "feedforward_x2": (16576, 65920),
    "feedforward_x3": (24832, 98816),
    "feedforward_x4": (33088, 131712),
    "rnn": (8320, 33024),
    "lstm": (33280, 132096),
    "gru": (24960, 99072),
    "birnn": (6272, 24832),
    "bilstm": (25088, 99328),
    "bigru": (18816, 74496),
}


def memory_count(name, d):
    gates = {"rnn": 1, "gru": 3, "lstm": 4}
    if name.startswith("feedforward_x"):
        k = int(name[-1])
        return 2 * k * d * d + (k + 1) * d
    if name in gates:
        return gates[name] * (2 * d * d + 2 * d)
    if name.startswith("bi"):
        return gates[name[2:]] * (3 * d * d // 2 + 2 * d)
    if name == "mamba":  # inner width 2d, 16 states, 4 taps
        rank = math.ceil(d / 16)
        return 6 * d * d + 10 * d + 2 * d * (rank + 32) + 2 * d * (rank + 1) + 32 * d + 2 * d
    return {"linear": d * d + d, "none": -2 * d}.get(name, 11 * d * d + 10 * d)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("memory", [*MEMORY, "none"])
@pytest.mark.parametrize("d", [16, 64, 128])
def test_layer(memory, d):
    layer = LayerConfig(memory=memory).build(d, 50)
    assert count(layer) == 4 * d * d + 4 * d + 4 * d + memory_count(memory, d)
    assert all(parameter.requires_grad for parameter in layer.parameters())
    if memory in PRINTED and d in (64, 128):
        assert count(layer) == {64: 16896, 128: 66560}[d] + PRINTED[memory][d == 128]


@pytest.mark.parametrize(
    "memory", [name for name in MEMORY if "feedforward" not in name and name not in ("linear", "mamba")]
)
def test_projection_adds_one_linear(memory):
    plain, projected = (LayerConfig(memory=memory, projection=on).build(64, 50) for on in (False, True))
    assert count(projected) - count(plain) == 64 * 64 + 64


@pytest.mark.parametrize("memory,kind", [("birnn", torch.nn.RNN), ("bigru", torch.nn.GRU), ("bilstm", torch.nn.LSTM)])
def test_bidirectional_counts_as_torch(memory, kind):
    assert count(MEMORY[memory](64, 0.0, False)) == count(kind(64, 32, bidirectional=True))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("order", ["post", "identity"])
def test_gates_are_counted_per_sublayer(gate, order):
    plain, gated = (LayerConfig(gate=name, order=order).build(64, 50) for name in ("residual", gate))
    assert count(gated) - count(plain) == (2 * (6 * 64 * 64 + 64) if gate == "gru" else 0)


@pytest.mark.parametrize("prior", PRIORS)
def test_prior_parameters(prior):
    layer = LayerConfig(prior=PriorConfig(kind=prior)).build(64, 50)
    learned = sum(value.numel() for value in layer.attention.prior.learned().values())
    assert count(layer) - 16896 - 33088 == learned
    assert not [name for name in layer.state_dict() if "distance" in name]


def test_a_mamba_mixer_of_width_256_counts_as_published():
    assert count(MEMORY["mamba"](256, 0.0, False)) == 437_760
