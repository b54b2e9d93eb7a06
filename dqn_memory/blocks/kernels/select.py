"""Choose the backend of Mamba's scan: `torch` everywhere, `simd` on a CPU, `triton` and `mamba_ssm` on CUDA.

`torch` is the reference. Another backend is used only after its numbers agree with the reference on the device.

choice = choose("auto", device)     # ValueError if the requested backend cannot run
set_scan(network, choice.scan)
"""

import os
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn

from dqn_memory.blocks.kernels.selective_scan import Scan, scan_torch
from dqn_memory.blocks.mamba import Mamba

# Modules of this package, imported when they are chosen: they need numba, triton or a CUDA extension.
MODULES = {"simd": "cpu_selective_scan", "triton": "triton_selective_scan", "mamba_ssm": "mamba_ssm_selective_scan"}
BACKENDS = ("torch", "simd", "triton", "mamba_ssm")
DEVICES = {"simd": "cpu", "triton": "cuda", "mamba_ssm": "cuda"}  # of the backends that do not run everywhere
CANDIDATES = {"cpu": ("simd",), "cuda": ("triton", "mamba_ssm")}  # for "auto", best first
TOLERANCE = 1e-4  # relative to the largest number, in a trial against torch


class Unavailable(ValueError):
    """A backend cannot run here; the message says why."""


@dataclass(frozen=True)
class Choice:
    """A backend that runs, and the reason for choosing it."""

    name: str
    scan: Scan
    why: str


def choose(backend: str, device: torch.device) -> Choice:
    """Load a backend, or for "auto" the first that works: triton, then mamba_ssm on CUDA; simd on a CPU; else torch.

    Triton comes before mamba_ssm because it alone computes initial states and gradients of last states in its kernels.

    Raises:
        Unavailable: the requested backend cannot run; the message says why.
    """
    if backend != "auto":
        return Choice(backend, load_scan(backend, device), "requested")
    refused: list[str] = []
    for name in CANDIDATES.get(device.type, ()):
        try:
            return Choice(name, load_scan(name, device), "; ".join(["auto", *refused]))
        except Unavailable as error:
            refused.append(f"not {name}, {error}")
    return Choice("torch", scan_torch, "; ".join(["auto", *refused]))


def load_scan(name: str, device: torch.device) -> Scan:
    """Load a backend by name and try it on the device; Unavailable if it cannot run."""
    if name not in BACKENDS:
        raise Unavailable(f"there is no such backend; known: {', '.join(BACKENDS)}")
    if name == "torch":
        return scan_torch
    interpreted = name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != DEVICES[name] and not interpreted:
        where = "a CPU" if DEVICES[name] == "cpu" else "CUDA"
        raise Unavailable(f"its kernels run on {where} alone and the device is {device}")
    try:
        scan = getattr(import_module(f"dqn_memory.blocks.kernels.{MODULES[name]}"), f"scan_{name}")
    except Exception as error:  # a broken extension may raise anything
        raise Unavailable(f"it cannot be imported: {_first_line(error)}") from error
    try:
        difference = trial(scan, device)
    except Exception as error:  # a driver too
        raise Unavailable(f"its trial on {device} failed: {_first_line(error)}") from error
    if not difference < TOLERANCE:
        raise Unavailable(f"its trial on {device} is off by {difference:.1e} of torch's numbers")
    return scan


def trial(scan: Scan, device: torch.device) -> float:
    """Measure the largest relative difference from torch on the CPU, over outputs and gradients of a small scan."""
    pairs = zip(_numbers(scan, device), _numbers(scan_torch, torch.device("cpu")), strict=True)
    return max(float((ours - known).abs().max() / known.abs().max()) for ours, known in pairs)


def _numbers(scan: Scan, device: torch.device) -> list[Tensor]:
    batch, time, channels, states = 2, 3, 40, 16
    by_channel, by_state = (batch, time, channels), (batch, time, states)
    draws = torch.Generator().manual_seed(0)
    shapes = (by_channel, by_channel, (channels, states), by_state, by_state, (batch, channels, states))
    u, delta, decay, write, read, initial = (torch.randn(shape, generator=draws) for shape in shapes)
    inputs = [x.to(device).requires_grad_() for x in (u, delta.abs(), -decay.abs(), write, read, initial)]
    numbers: list[Tensor] = []
    for keep in (None, torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], device=device)):  # without and with resets
        y, last = scan(*inputs, keep)
        numbers += [y, last, *torch.autograd.grad(y.square().sum() + last.square().sum(), inputs)]
    return [x.detach().cpu() for x in numbers]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}"


def mixers(network: nn.Module) -> list[Mamba]:
    """List every Mamba in a network."""
    return [part for part in network.modules() if isinstance(part, Mamba)]


def set_scan(network: nn.Module, scan: Scan) -> None:
    """Let every Mamba in a network run on `scan`."""
    for mixer in mixers(network):
        mixer.core = scan
