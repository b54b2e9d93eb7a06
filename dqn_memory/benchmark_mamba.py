"""The benchmark's tables of Mamba: the whole mixer and the scan alone, beside `mambapy` where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from dqn_memory.analysis.timing import Timing, Work
from dqn_memory.benchmark_tables import Effort, Table, Value
from dqn_memory.blocks.kernels.scan import selective_scan
from dqn_memory.blocks.kernels.select import BACKENDS, Choice, Unavailable, choose
from dqn_memory.blocks.mamba import Mamba

MIXER_BAR = 3.5  # times faster than mambapy, forward and backward at `MIXER`, one thread
BASELINE = "1.2.0"  # of mambapy, which the bar speaks of
WIDTH, STATES = 256, 16


@dataclass(frozen=True)
class Shape:
    """Rows and positions of one measurement."""

    batch: int
    time: int
    backward: bool = True

    def place(self) -> dict[str, Value]:
        """First columns of its row."""
        return {"batch": self.batch, "length": self.time, "pass": "forward+backward" if self.backward else "forward"}


MIXER = Shape(32, 64)
MIXERS = (MIXER, Shape(2048, 4), Shape(1024, 1, backward=False))
SCANS = (
    Shape(32, 64), Shape(2048, 4), Shape(1024, 4), Shape(1024, 16), Shape(1024, 16, backward=False),
    Shape(1024, 4, backward=False),
)  # fmt: skip


def mamba_tables(effort: Effort, device: str = "cpu") -> list[Table]:
    """The mixer and the scan on every backend that runs on the device."""
    choices, refusals = backends(torch.device(device))
    note = (
        f"Width {WIDTH}, inner width {2 * WIDTH}, {STATES} states a channel, float32, on {device}. `speed_up`: median "
        f"over neighbouring repetitions of mambapy's time over ours. {beside()}"
    )
    note += "".join(f" {name} is not measured: {reason}." for name, reason in refusals.items())
    mixers = [row for shape in MIXERS for row in _rows(shape, choices, effort, device, mixer_work, _their_mixer)]
    scans = [row for shape in SCANS for row in _rows(shape, choices, effort, device, scan_work, _their_scan)]
    return [
        Table("Mamba mixer", f"The whole mixer, projections and convolution included. {note}", mixers),
        Table("Selective scan", f"The scan alone, with softplus and D. {note}", scans),
    ]


def beside() -> str:
    """What ours is measured beside."""
    found = baseline_version()
    if found is None:
        return f"mambapy is not installed, so ours stands alone (pip install --no-deps mambapy=={BASELINE})."
    other = "" if found == BASELINE else f", while the bar speaks of {BASELINE}"
    return f"mambapy is version {found}{other}."


def baseline_version() -> str | None:
    """Version of mambapy; None where it is not installed."""
    try:
        return version("mambapy")
    except PackageNotFoundError:
        return None


def backends(device: torch.device) -> tuple[list[Choice], dict[str, str]]:
    """Those that run on the device, and why the others do not."""
    choices, refusals = [], {}
    for name in BACKENDS:
        try:
            choices.append(choose(name, device))
        except Unavailable as error:
            refusals[name] = str(error)
    return choices, refusals


Make = Callable[[Shape, Choice, str], Work]


def _rows(
    full: Shape,
    choices: Sequence[Choice],
    effort: Effort,
    device: str,
    ours: Make,
    theirs: Callable[[Shape, str], Work],
) -> list[dict[str, Value]]:
    shape = replace(full, batch=min(full.batch, effort.rows))
    works = {choice.name: ours(shape, choice, device) for choice in choices}
    if baseline_version() is not None:
        works["mambapy"] = theirs(shape, device)
    # the bar is judged on all repetitions; the large shapes take seconds each
    repetitions = effort.repetitions if full == MIXER else min(effort.repetitions, 5)
    times = replace(effort, repetitions=repetitions).turns(works)
    bar = MIXER_BAR if (full, ours, device) == (MIXER, mixer_work, "cpu") else None
    return [_row(shape, choice.name, times, bar) for choice in choices]


def _row(shape: Shape, name: str, times: dict[str, Timing], bar: float | None) -> dict[str, Value]:
    ours, theirs = times[name], times.get("mambapy")
    return {
        **shape.place(), "backend": name, "ms": ours.median, "fastest_ms": ours.fastest, "spread": ours.spread,
        "mambapy_ms": None if theirs is None else theirs.median,
        "speed_up": None if theirs is None else ours.speed_up(theirs),
        "bar": None if theirs is None else bar,
    }  # fmt: skip


def mixer_work(shape: Shape, choice: Choice, device: str) -> Work:
    """Ours."""
    mixer = our_mixer().to(device)
    mixer.core = choice.scan
    return _work(mixer, list(mixer.parameters()), _drawn(shape, device, WIDTH), shape.backward)


def our_mixer() -> Mamba:
    """The same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Mamba(WIDTH, states=STATES)


def _their_mixer(shape: Shape, device: str) -> Work:
    mixer = their_mixer().to(device)
    return _work(mixer, list(mixer.parameters()), _drawn(shape, device, WIDTH), shape.backward)


def their_mixer() -> nn.Module:
    """Mambapy's block, whose parameters have our names, with our weights."""
    package = import_module("mambapy.mamba")
    mixer: nn.Module = package.MambaBlock(package.MambaConfig(d_model=WIDTH, n_layers=1, d_state=STATES))
    mixer.load_state_dict(our_mixer().state_dict())
    return mixer


def scan_work(shape: Shape, choice: Choice, device: str) -> Work:
    """Ours, with the step sizes that a fresh mixer has."""
    inputs = scan_inputs(shape, device)
    u, delta, decay, enter, leave, skip = inputs

    def scan(x: Tensor) -> Tensor:
        return selective_scan(x, delta, decay, enter, leave, skip=skip, core=choice.scan)[0]

    return _work(scan, inputs, u, shape.backward)


def _their_scan(shape: Shape, device: str) -> Work:
    mixer, inputs = their_mixer().to(device), scan_inputs(shape, device)
    u, delta, *others = inputs

    def scan(x: Tensor) -> Tensor:
        steps = nn.functional.softplus(delta)
        y: Tensor = mixer.selective_scan(x, steps, *others)  # type: ignore[operator]
        return y

    return _work(scan, inputs, u, shape.backward)


def scan_inputs(shape: Shape, device: str) -> list[Tensor]:
    """Input, raw step size, decay, enter, leave and skip."""
    draws, channels = torch.Generator().manual_seed(0), 2 * WIDTH
    wide, narrow = (shape.batch, shape.time, channels), (shape.batch, shape.time, STATES)
    u, delta, enter, leave = (torch.randn(size, generator=draws) for size in (wide, wide, narrow, narrow))
    decay = -torch.arange(1.0, STATES + 1).repeat(channels, 1)
    values = (u, delta - 3, decay, enter, leave, torch.ones(channels))
    return [value.to(device).requires_grad_() for value in values]


def _drawn(shape: Shape, device: str, width: int) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(shape.batch, shape.time, width, generator=draws).to(device).requires_grad_()


def _work(function: Callable[..., Any], leaves: list[Tensor], x: Tensor, backward: bool) -> Work:
    """Calls with gradients of everything, or without any."""
    wanted = [x, *(leaf for leaf in leaves if leaf is not x)]
    if not backward:
        return torch.no_grad()(lambda: function(x))
    with torch.no_grad():
        grad = torch.ones_like(function(x))
    return lambda: torch.autograd.grad(function(x), wanted, grad)
