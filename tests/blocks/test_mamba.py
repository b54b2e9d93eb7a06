"""The Mamba mixer and its scan against recorded float64 runs of the public implementation."""

import numpy as np
import pytest
import torch
from scans import SCANS, TOLERANCE, drawn, errors, load, numbers, off

from dqn_memory.blocks import initialise
from dqn_memory.blocks.kernels import selective_scan as module
from dqn_memory.blocks.kernels.cpu_selective_scan import scan_simd
from dqn_memory.blocks.kernels.selective_scan import scan_torch, selective_scan
from dqn_memory.blocks.mamba import Mamba


def close(ours, theirs, dtype):
    assert off(ours, theirs) <= TOLERANCE[dtype]


def whole(data):
    """Restore the parameters of a shortened record.

    It stores the part of in_proj that acts on the inputs' span, whose rows are `seen`, and the first rows of out_proj.
    """
    if "seen" not in data:
        return data
    missing = int(data["d_model"]) - len(data["param.out_proj.weight"])
    return data | {
        "param.in_proj.weight": data["in_proj.seen"] @ data["seen"],
        "param.out_proj.weight": np.pad(data["param.out_proj.weight"], ((0, missing), (0, 0))),
    }


def mixer(data, dtype):
    parameters = {key[6:]: torch.tensor(value, dtype=dtype) for key, value in whole(data).items() if "param." in key}
    width, states, taps, expand = (int(data[key]) for key in ("d_model", "d_state", "d_conv", "expand"))
    block = Mamba(width, states=states, taps=taps, expand=expand).to(dtype)
    block.load_state_dict(parameters, strict=True)
    return block


@pytest.mark.parametrize(
    ("core", "dtype"), [(scan_torch, torch.float64), (scan_torch, torch.float32), (scan_simd, torch.float32)]
)
@pytest.mark.parametrize("name", SCANS)
def test_recorded_scans_and_their_gradients(name, core, dtype):
    assert all(error <= TOLERANCE[dtype] for error in errors(name, dtype, core).values())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["block_tiny", "block_short_L2"])
def test_recorded_mixers(name, dtype):
    data = load(name)
    block, x = mixer(data, dtype), torch.tensor(data["x"], dtype=dtype).requires_grad_()
    y, (inputs, states) = block.sequence(x)
    (y * torch.tensor(data["grad_y"], dtype=dtype)).sum().backward()
    for ours, key in ((y, "y"), (inputs, "conv_state"), (states, "ssm_state"), (x.grad, "d_x")):
        close(ours, data[key], dtype)
    for key, parameter in block.named_parameters():
        close(parameter.grad, data[f"grad.{key}"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["block_tiny", "block_short_L2", "block_lmamba_d256_L4"])
def test_recorded_sequences_then_steps(name, dtype):
    """GLAM's own size among them: 256 wide, a window of 4."""
    data = load(name)
    block, x, cut = mixer(data, dtype), torch.tensor(data["x"], dtype=dtype), int(data["prefill_len"])
    kept, never = data["y"].shape[-1], torch.zeros(len(x), dtype=torch.bool)
    begun, state = block.sequence(x[:, :cut])
    parts = [begun]
    for t in range(cut, x.shape[1]):
        y, state = block.step(x[:, t], state, never)
        parts.append(y.unsqueeze(1))
    close(torch.cat(parts, 1)[..., :kept], data["y_prefill_then_step"], dtype)
    close(block.sequence(x)[0][..., :kept], data["y"], dtype)
    close(state[0], data["conv_state"], dtype)
    close(state[1][:, :: int(data.get("ssm_every", 1))], data["ssm_state"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["block_tiny", "block_short_L2"])
def test_recorded_states_after_every_position(name, dtype):
    data = load(name)
    block, x = mixer(data, dtype), torch.tensor(data["x"], dtype=dtype)
    state, never = block.initial_state(len(x), dtype=dtype), torch.zeros(len(x), dtype=torch.bool)
    for t in range(x.shape[1]):
        y, state = block.step(x[:, t], state, never)
        close(y, data["y_step"][:, t], dtype)
        close(state[0], data["conv_states"][t], dtype)
        close(state[1], data["ssm_states"][t], dtype)


def test_gradients_of_the_initial_state_and_of_the_last_one():
    assert torch.autograd.gradcheck(lambda *x: selective_scan(*x[:5], initial=x[5]), drawn(2, 4, 3, 2))


@pytest.mark.parametrize("batch", [1, 4, 7])
def test_blocks_of_rows_give_the_same_numbers(batch, monkeypatch):
    inputs = drawn(batch, 5, 6, 3)
    whole = numbers(scan_torch, inputs)
    monkeypatch.setattr(module, "BLOCK", 2 * 6 * 3)  # two rows
    torch.testing.assert_close(numbers(scan_torch, inputs), whole, atol=1e-13, rtol=1e-13)


def test_operators_keep_the_rules_of_torch():
    inputs = [x.detach().requires_grad_() for x in drawn(2, 3, 4, 2)]
    keep = torch.tensor([[1.0, 0.0, 1.0]] * 2, dtype=torch.float64)
    for mask in (None, keep):
        torch.library.opcheck(torch.ops.dqn_memory.selective_scan.default, (*inputs, mask))


def test_first_values_survive_the_initialisation_of_a_network():
    torch.manual_seed(4)
    network = torch.nn.ModuleList([torch.nn.Linear(16, 16), Mamba(16)])
    before = {name: value.clone() for name, value in network[1].state_dict().items()}
    initialise(network)
    assert network[0].bias.abs().max() == 0
    assert all(torch.equal(value, before[name]) for name, value in network[1].state_dict().items())
    step = torch.nn.functional.softplus(before["dt_proj.bias"])
    assert (step >= 0.999e-3).all() and (step <= 0.1001).all() and step.std() > 0.01
    assert torch.allclose(before["A_log"].exp(), torch.arange(1.0, 17).expand(32, 16))
