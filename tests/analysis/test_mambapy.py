"""The tables of Mamba: what stands beside what, with and without mambapy, and the page that the script writes."""

import sys
import types

import pytest
import torch

from dqn_memory.analysis import mambapy as module
from dqn_memory.analysis.mambapy import MIXER, MIXERS, SCANS, Shape, mamba_tables, mixer_work, scan_inputs, scan_work
from dqn_memory.analysis.timing import BenchmarkConfig
from dqn_memory.blocks.kernels.select import choose
from dqn_memory.blocks.mamba import Mamba

QUICK = BenchmarkConfig(repetitions=2, warm_up=1)
TORCH = choose("torch", torch.device("cpu"))


class Block(Mamba):
    """Stands in for mambapy's block: its constructor, its names, its scan."""

    def __init__(self, config):
        super().__init__(config.d_model, states=config.d_state)

    def selective_scan(self, x, delta, decay, enter, leave, skip):
        state, outputs = x.new_zeros(len(x), *decay.shape), []
        for t in range(x.shape[1]):
            state = torch.exp(delta[:, t, :, None] * decay) * state + (delta * x)[:, t, :, None] * enter[:, t, None]
            outputs.append((state * leave[:, t, None]).sum(2))
        return torch.stack(outputs, 1) + skip * x


@pytest.fixture
def mambapy(monkeypatch):
    package = types.ModuleType("mambapy.mamba")
    package.MambaBlock = Block
    package.MambaConfig = lambda **keywords: types.SimpleNamespace(**keywords)
    monkeypatch.setitem(sys.modules, "mambapy", types.ModuleType("mambapy"))
    monkeypatch.setitem(sys.modules, "mambapy.mamba", package)
    monkeypatch.setattr(module, "mambapy_version", lambda: "1.2.0")


@pytest.mark.parametrize("work", [scan_work, mixer_work])
@pytest.mark.parametrize("backward", [True, False])
def test_both_compute_the_same(mambapy, work, backward):
    shape = Shape(2, 5, backward)
    ours, theirs = (work(shape, choice, "cpu")() for choice in (TORCH, None))
    ours, theirs = (found if backward else (found,) for found in (ours, theirs))
    parameters = 6 if work is scan_work else 1 + len(list(Mamba(8).parameters()))
    assert len(ours) == (parameters if backward else 1)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_a_forward_pass_keeps_no_gradients():
    assert not scan_work(Shape(1, 2, backward=False), TORCH, "cpu")().requires_grad
    assert all(value.requires_grad for value in scan_inputs(MIXER, "cpu"))


def test_the_bar_stands_at_the_shape_it_speaks_of(mambapy):
    mixers, scans = mamba_tables(QUICK, 2)
    for backend in ("torch", "simd"):
        whole, alone = ([row for row in table.records() if row["backend"] == backend] for table in (mixers, scans))
        assert [(row["length"], row["bar"]) for row in whole] == [(64, 3.5), (4, None), (1, None)]
        assert [(row["length"], row["pass"]) for row in alone] == [
            (64, "forward+backward"), (4, "forward+backward"), (4, "forward+backward"), (16, "forward+backward"),
            (16, "forward"), (4, "forward"),
        ]  # fmt: skip
    rows = [*mixers.records(), *scans.records()]
    assert len(rows) == 2 * (len(MIXERS) + len(SCANS))
    assert all(row["ms"] > 0 and row["mambapy_ms"] > 0 and row["speed_up"] > 0 and row["batch"] == 2 for row in rows)
    assert "triton is not measured: its kernels run on CUDA alone" in mixers.note
    assert "mambapy is version 1.2.0." in mixers.note


def test_another_version_is_named(monkeypatch):
    monkeypatch.setattr(module, "mambapy_version", lambda: "1.1.0")
    assert module.mambapy_note() == "mambapy is version 1.1.0, while the bar speaks of 1.2.0."
