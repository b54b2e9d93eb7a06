"""Our Mamba beside that of the package mambapy: the whole mixer and the scan alone, on every backend that runs here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dqn_memory.analysis.timing import BenchmarkConfig, Work
from dqn_memory.blocks.kernels.scan import selective_scan
from dqn_memory.blocks.kernels.select import BACKENDS, Choice, Unavailable, choose
from dqn_memory.blocks.mamba import Mamba
from envs.tables import Table, Value

MIXER_BAR = 3.5  # times faster than mambapy, forward and backward at `MIXER`, one thread
MAMBAPY = "1.2.0"  # the version that the bar speaks of
WIDTH, STATES = 256, 16


class Shape(NamedTuple):
    """Rows and positions of one measurement."""

    batch: int
    time: int
    backward: bool = True


MIXER = Shape(32, 64)
MIXERS = (MIXER, Shape(2048, 4), Shape(1024, 1, backward=False))
SCANS = (
    Shape(32, 64), Shape(2048, 4), Shape(1024, 4), Shape(1024, 16), Shape(1024, 16, backward=False),
    Shape(1024, 4, backward=False),
)  # fmt: skip
MakeWork = Callable[[Shape, Choice | None, str], Work]  # None: mambapy's


def mamba_tables(config: BenchmarkConfig, max_rows: int, device: str = "cpu") -> list[Table]:
    """Measure the mixer and the scan on every backend that runs on the device, beside mambapy where it is installed."""
    choices, note = [], (
        f"Width {WIDTH}, inner width {2 * WIDTH}, {STATES} states a channel, float32, on {device}. `speed_up`: median "
        f"over neighbouring repetitions of mambapy's time over ours. {mambapy_note()}"
    )  # fmt: skip
    for name in BACKENDS:
        try:
            choices.append(choose(name, torch.device(device)))
        except Unavailable as error:
            note += f" {name} is not measured: {error}."
    what: dict[str, tuple[str, Sequence[Shape], MakeWork]] = {
        "Mamba mixer": ("The whole mixer, projections and convolution included.", MIXERS, mixer_work),
        "Selective scan": ("The scan alone, with softplus and D.", SCANS, scan_work),
    }
    tables = []
    for title, (about, shapes, make) in what.items():
        rows = [row for shape in shapes for row in _mamba_rows(shape, choices, config, max_rows, device, make)]
        tables.append(Table.from_records(rows, title, f"{about} {note}"))
    return tables


def mambapy_version() -> str | None:
    """Give the version of mambapy; None where it is not installed."""
    try:
        return version("mambapy")
    except PackageNotFoundError:
        return None


def mambapy_note() -> str:
    """Say what ours is measured beside."""
    found = mambapy_version()
    if found is None:
        return f"mambapy is not installed, so ours stands alone (pip install --no-deps mambapy=={MAMBAPY})."
    return f"mambapy is version {found}{'' if found == MAMBAPY else f', while the bar speaks of {MAMBAPY}'}."


def _mamba_rows(
    full: Shape, choices: Sequence[Choice], config: BenchmarkConfig, max_rows: int, device: str, make: MakeWork
) -> list[dict[str, Value]]:
    shape = full._replace(batch=min(full.batch, max_rows))
    works = {choice.name: make(shape, choice, device) for choice in choices}
    if mambapy_version() is not None:
        works["mambapy"] = make(shape, None, device)
    # the bar is judged on all repetitions; the large shapes take seconds each
    repetitions = config.repetitions if full == MIXER else min(config.repetitions, 5)
    times = replace(config, repetitions=repetitions).compare(works)
    judged = (full, make, device) == (MIXER, mixer_work, "cpu") and "mambapy" in times
    return [
        {
            "batch": shape.batch, "length": shape.time, "pass": "forward+backward" if shape.backward else "forward",
            "backend": choice.name, **times[choice.name].against(times.get("mambapy"), "mambapy"),
            "bar": MIXER_BAR if judged else None,
        }
        for choice in choices
    ]  # fmt: skip


def make_mixer(choice: Choice | None) -> Any:
    """Build our mixer on a backend, or mambapy's block, whose parameters have our names; always the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ours = Mamba(WIDTH, states=STATES)
    if choice is not None:
        ours.core = choice.scan
        return ours
    from mambapy.mamba import MambaBlock, MambaConfig

    theirs = MambaBlock(MambaConfig(d_model=WIDTH, n_layers=1, d_state=STATES))
    theirs.load_state_dict(ours.state_dict())
    return theirs


def mixer_work(shape: Shape, choice: Choice | None, device: str) -> Work:
    """Run a whole mixer: ours on a backend, or mambapy's."""
    mixer, draws = make_mixer(choice).to(device), torch.Generator().manual_seed(1)
    x = torch.randn(shape.batch, shape.time, WIDTH, generator=draws).to(device).requires_grad_()  # (B, T, D)
    return _gradients(mixer, [x, *mixer.parameters()], shape.backward)


def scan_work(shape: Shape, choice: Choice | None, device: str) -> Work:
    """Run the scan alone, with the step sizes of a fresh mixer: ours on a backend, or mambapy's."""
    inputs = scan_inputs(shape, device)
    _, delta, decay, enter, leave, skip = inputs
    if choice is not None:
        ours = partial(selective_scan, skip=skip, core=choice.scan)
        return _gradients(lambda x: ours(x, delta, decay, enter, leave)[0], inputs, shape.backward)
    scan = make_mixer(None).to(device).selective_scan
    softplus = nn.functional.softplus
    return _gradients(lambda x: scan(x, softplus(delta), decay, enter, leave, skip), inputs, shape.backward)


def scan_inputs(shape: Shape, device: str) -> list[Tensor]:
    """Draw input, raw step size, decay, enter, leave and skip."""
    draws, channels = torch.Generator().manual_seed(0), 2 * WIDTH
    u, delta, enter, leave = (
        torch.randn(shape.batch, shape.time, size, generator=draws) for size in (channels, channels, STATES, STATES)
    )
    decay = -torch.arange(1.0, STATES + 1).repeat(channels, 1)
    values = (u, delta - 3, decay, enter, leave, torch.ones(channels))
    return [value.to(device).requires_grad_() for value in values]


def _gradients(function: Callable[[Tensor], Tensor], inputs: list[Tensor], backward: bool) -> Work:
    """Call a function of `inputs[0]` with gradients of all inputs, or without any."""
    if not backward:
        return torch.no_grad()(lambda: function(inputs[0]))
    with torch.no_grad():
        grad = torch.ones_like(function(inputs[0]))
    return lambda: torch.autograd.grad(function(inputs[0]), inputs, grad)
