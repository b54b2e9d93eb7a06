"""Shared helpers: recorded scans computed by any backend, and Triton in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from dqn_memory.blocks.kernels.selective_scan import selective_scan

FOLDER = Path(__file__).parent
DATA = FOLDER.parent / "data" / "mamba"
SCANS = sorted(path.stem for path in DATA.glob("scan_*.npz"))
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6}
OVER_TIME = ("u", "delta", "B", "C", "z")
NAMES = {"u": "u", "delta": "delta", "A": "decay", "B": "write", "C": "read", "D": "skip", "z": "gate"}


def load(name):
    with np.load(DATA / f"{name}.npz") as file:
        return dict(file)


def off(ours, theirs):
    """Compute the max difference over the max number; NaN counts as an infinite difference."""
    ours, theirs = (torch.as_tensor(x).detach().cpu().double() for x in (ours, theirs))
    difference = (ours - theirs).abs().nan_to_num(nan=torch.inf).max()
    # one position without a past: the gradient of the decay is exactly zero
    return float(difference / (theirs.abs().max() or 1.0))


def errors(name, dtype, core, device="cpu"):
    """Compute the errors of outputs, last state and all gradients of one recorded scan."""
    data = load(name)
    inputs = {
        key: torch.tensor(data[key], dtype=dtype, device=device).requires_grad_()
        for key in (*NAMES, "delta_bias")
        if key in data
    }
    given = {NAMES.get(key, key): value.mT if key in OVER_TIME else value for key, value in inputs.items()}
    y, last = selective_scan(**given, softplus=bool(data["softplus"]), core=core)
    (y * torch.tensor(data["grad_y"], dtype=dtype, device=device).mT).sum().backward()
    found = {"y": off(y.mT, data["y"]), "last": off(last, data["last_state"])}
    return found | {key: off(value.grad, data[f"d_{key}"]) for key, value in inputs.items()}


def drawn(batch, time, channels, states, dtype=torch.float64, device="cpu", seed=0):
    """Draw random inputs of a `Scan`, all with gradients."""
    draws = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, time, channels), (batch, time, channels), (channels, states), (batch, time, states),
        (batch, time, states), (batch, channels, states),
    )  # fmt: skip
    values = [torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes]
    values[1], values[2] = values[1].abs(), -values[2].abs()
    return [value.to(device, dtype).requires_grad_() for value in values]


def resets(batch, time, dtype=torch.float64, device="cpu", seed=1):
    """Draw the mask `keep` of a `Scan`: a third of the positions begin an episode, the first of row 0 among them."""
    keep = (torch.rand(batch, time, generator=torch.Generator().manual_seed(seed)) > 1 / 3).to(device, dtype)
    keep[0, 0] = 0
    return keep


def numbers(scan, inputs, *rest):
    """Compute outputs, last state and the gradients of a sum over both."""
    y, last = scan(*inputs, *rest)
    weights = torch.linspace(-1, 1, last.numel(), dtype=last.dtype, device=last.device).view_as(last)
    return [y, last, *torch.autograd.grad(y.square().sum() + (weights * last).sum(), inputs)]


def gradients(function, inputs, grad=None):
    """Compute outputs, and gradients of their sum weighted by `grad`, or by a different number each."""
    y = function(*inputs)
    weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y).to(y.dtype) if grad is None else grad
    return [y, *torch.autograd.grad(y, [x for x in inputs if x is not None and x.requires_grad], weight)]


def on_threads(function):
    """Call a function on one, two and three threads."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(function())
    finally:
        torch.set_num_threads(before)
    return found


def machine_code(kernel, number, constants, integers, architecture=90):
    """Measure a Triton kernel's machine code for an accelerator, which need not exist; pointers are to `number`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = dict.fromkeys(integers, "i32") | dict.fromkeys(constants, "constexpr")
    signature = {parameter.name: kinds.get(parameter.name, f"*{number}") for parameter in kernel.params}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return len(triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm["cubin"])


def run_alone(file, *words, interpret, cache):
    """Run a test file as a script and read the JSON that it prints: Triton chooses its form at import."""
    settings = {"TRITON_INTERPRET": "1" if interpret else "0", "TRITON_CACHE_DIR": str(cache)}
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, file, *words], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **settings, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
