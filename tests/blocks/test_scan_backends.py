"""The backend of Mamba: choice, refusal, trial, and its record in a run; a double replaces mamba_ssm."""

import json
import pickle
import sys
import types
from unittest.mock import Mock

import pytest
import torch
from run_folders import refused
from scans import TOLERANCE, drawn, numbers, off, resets
from trained import CAR, contents, training_flags

from dqn_memory.blocks.kernels import select
from dqn_memory.blocks.kernels.select import BACKENDS, Unavailable, choose, load_scan, mixers, set_scan
from dqn_memory.blocks.kernels.selective_scan import scan_torch
from dqn_memory.blocks.mamba import Mamba
from dqn_memory.runs import backend
from dqn_memory.size import gigaflop
from dqn_memory.train import QTrainer, main

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ADAPTER = "dqn_memory.blocks.kernels.mamba_ssm_selective_scan"


def kernel(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """Compute as the extension does, in its own layout: from zero, in float32, last state without gradient."""
    assert u.dtype == torch.float32 and all(x.stride(-1) == 1 for x in (u, delta, B, C))
    assert (D, z, delta_bias, delta_softplus, return_last_state) == (None, None, None, False, True)
    state, outputs = torch.zeros(*u.shape[:2], A.shape[1]), []
    for t in range(u.shape[2]):
        state = torch.exp(delta[:, :, t, None] * A) * state + (delta * u)[:, :, t, None] * B[:, None, :, t]
        outputs.append((state * C[:, None, :, t]).sum(2))
    return torch.stack(outputs, 2), state.detach()


@pytest.fixture
def extension(monkeypatch):
    """Install the double of the extension and give our adapter to it."""
    interface = types.ModuleType("mamba_ssm.ops.selective_scan_interface")
    interface.selective_scan_fn = kernel
    for name, module in {
        "selective_scan_cuda": types.ModuleType("selective_scan_cuda"), "mamba_ssm": types.ModuleType("mamba_ssm"),
        "mamba_ssm.ops": types.ModuleType("mamba_ssm.ops"), interface.__name__: interface,
    }.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    from dqn_memory.blocks.kernels.mamba_ssm_selective_scan import scan_mamba_ssm

    yield scan_mamba_ssm
    sys.modules.pop(ADAPTER, None)


# --- choosing


@pytest.mark.parametrize(("device", "there", "taken", "why"), [
    (CPU, (), "torch", "auto; not simd, it is not here"),
    (CUDA, ("triton", "mamba_ssm"), "triton", "auto"),
    (CUDA, ("mamba_ssm",), "mamba_ssm", "auto; not triton, it is not here"),
    (CUDA, (), "torch", "auto; not triton, it is not here; not mamba_ssm, it is not here"),
])  # fmt: skip
def test_auto_takes_the_first_backend_that_works_and_names_the_others(device, there, taken, why, monkeypatch):
    def only(name, device):
        if name not in there:
            raise Unavailable("it is not here")
        return scan_torch

    monkeypatch.setattr(select, "load_scan", only)
    assert choose("auto", device) == select.Choice(taken, scan_torch, why)


@pytest.mark.parametrize(("name", "device", "words"), [
    ("simd", CUDA, "run on a CPU alone and the device is cuda"),
    ("triton", CPU, "run on CUDA alone and the device is cpu"),
    ("mamba_ssm", CPU, "run on CUDA alone and the device is cpu"),
    ("triton", CUDA, "cannot be imported: .*triton"),
    ("mamba_ssm", CUDA, "cannot be imported: .*selective_scan_cuda"),
    ("cuda", CPU, "known: torch, simd, triton, mamba_ssm"),
])  # fmt: skip
def test_a_backend_that_cannot_run_is_refused(name, device, words, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for missing in ("triton", "selective_scan_cuda"):
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"dqn_memory.blocks.kernels.{name}", raising=False)
    with pytest.raises(Unavailable, match=words):
        choose(name, device)


# --- the trial


@pytest.mark.parametrize("wrong", ["y", "last", "gradient", "resets", "broken"])
def test_a_backend_with_other_numbers_or_with_none_is_refused(wrong, monkeypatch):
    def bent(*inputs):
        u = inputs[0]
        if wrong == "broken":
            raise RuntimeError("no kernel image\nand many more lines")
        if wrong == "gradient":
            u = 1.01 * u - (0.01 * u).detach()
        y, last = scan_torch(u, *inputs[1 : 6 if wrong == "resets" else None])
        return (1.01 * y if wrong == "y" else y), (1.01 * last if wrong == "last" else last)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(
        sys.modules, "dqn_memory.blocks.kernels.triton_selective_scan", types.SimpleNamespace(scan_triton=bent)
    )
    words = r"trial on cpu failed: RuntimeError: no kernel image$" if wrong == "broken" else "is off by"
    with pytest.raises(Unavailable, match=words):
        load_scan("triton", CPU)


# --- resets


def one_by_one(u, delta, decay, write, read, initial, keep):
    """Run the torch scan over one position at a time, from zero in the rows where `keep` (B, T) is 0."""
    state, outputs = initial, []
    for t in range(u.shape[1]):
        state = torch.where(keep[:, t, None, None] > 0, state, 0)
        now, step, into, out = (x[:, t : t + 1] for x in (u, delta, write, read))
        y, state = scan_torch(now, step, decay, into, out, state)
        outputs.append(y)
    return torch.cat(outputs, 1), state


@pytest.mark.parametrize(
    ("name", "dtype"), [("torch", torch.float64), ("torch", torch.float32), ("simd", torch.float32)]
)
def test_nothing_crosses_a_reset(name, dtype):
    """The channels are more than a vector and no multiple of it, the rows more than a group."""
    scan, keep = load_scan(name, CPU), resets(19, 7)
    ours, known = numbers(scan, drawn(19, 7, 11, 3, dtype), keep.to(dtype)), drawn(19, 7, 11, 3)
    assert max(map(off, ours, numbers(one_by_one, known, keep))) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["torch", "simd"])
def test_a_mask_of_ones_gives_the_same_bits_as_none(name):
    scan, inputs = load_scan(name, CPU), drawn(3, 7, 11, 4, torch.float32)
    both = numbers(scan, inputs, torch.ones(3, 7)), numbers(scan, inputs, None)
    assert all(torch.equal(ours, known) for ours, known in zip(*both, strict=True))


@pytest.mark.parametrize("name", ["torch", "simd"])
def test_its_operations_are_counted_and_a_network_with_it_can_be_pickled(name):
    block, inputs = Mamba(4), drawn(3, 7, 11, 4, torch.float32)
    block.core = load_scan(name, CPU)
    assert pickle.loads(pickle.dumps(block)).core is block.core
    size = 3 * 7 * 11 * 4 / 1e9
    assert gigaflop(lambda: block.core(*inputs)) == pytest.approx(6 * size)
    assert gigaflop(lambda: block.core(*inputs)[0].sum().backward()) == pytest.approx(22 * size)


# --- mamba_ssm


@pytest.mark.parametrize("rest", [[], [None]], ids=["given", "zero"])  # its initial state
def test_the_extension_is_a_scan_like_any_other(extension, rest):
    inputs = drawn(3, 7, 5, 4, torch.float32)[: 6 - len(rest)]
    both = [numbers(lambda *given, scan=scan: scan(*given, *rest), inputs) for scan in (extension, scan_torch)]
    assert max(map(off, *both)) <= TOLERANCE[torch.float32]


def test_a_sequence_with_resets_is_computed_by_the_torch_scan(extension):
    inputs, keep = drawn(3, 7, 5, 4, torch.float32), resets(3, 7, torch.float32)
    both = [numbers(scan, inputs, keep) for scan in (extension, scan_torch)]
    assert all(torch.equal(ours, known) for ours, known in zip(*both, strict=True))


def test_the_extension_refuses_float64(extension):
    with pytest.raises(ValueError, match=r"float32 alone, not in torch\.float64; use torch or triton"):
        extension(*drawn(1, 2, 3, 2))


def test_the_extension_refuses_second_derivatives(extension):
    inputs = drawn(3, 7, 5, 4, torch.float32)
    for output in extension(*inputs):
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(output.sum(), inputs[2], create_graph=True)


# --- a network and a run


def test_set_scan_changes_every_mixer():
    network = torch.nn.Sequential(Mamba(8), torch.nn.Linear(8, 8), torch.nn.Sequential(Mamba(8)))
    set_scan(network, spy := Mock(side_effect=scan_torch))
    network(torch.randn(2, 3, 8))
    assert len(mixers(network)) == spy.call_count == 2


def flags(run, architecture):
    quick = ("--time-limit", "10", "--final-episodes", "2")
    return training_flags(run, "--env", CAR, "--architecture", architecture, *quick, steps=80)


def test_a_run_without_mamba_is_silent_about_it(tmp_path, capsys):
    assert set(backend.Backend.__args__) == {"auto", *BACKENDS}
    QTrainer.start(flags(tmp_path / "run", "drqn"))[1].close()
    assert "mamba runs" not in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["mamba_backend"] is None


@pytest.mark.long
def test_a_run_reports_its_backend_and_a_resumed_one_keeps_it_or_reports_the_change(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    run, longer = tmp_path / "run", ["--resume", str(tmp_path / "run"), "--total-steps"]
    main(flags(run, "mamba"))
    assert capsys.readouterr().out.count("mamba runs on its simd backend on cpu (auto)") == 1
    facts = json.loads((run / "environment.json").read_text())
    assert facts["mamba_backend"] == "simd"
    main([*longer, "100"])
    assert capsys.readouterr().out.count("mamba runs on its simd backend on cpu (as the run began)") == 1
    (run / "environment.json").write_text(json.dumps(facts | {"mamba_backend": "triton"}))
    before = contents(run)
    said = refused(capsys, [*longer, "120"], main)
    assert "--backend triton of mamba cannot be used" in said and "--backend torch" in said and contents(run) == before
    main([*longer, "120", "--backend", "torch"])
    assert "began on the triton backend of mamba: the continued run is not exact" in capsys.readouterr().out
