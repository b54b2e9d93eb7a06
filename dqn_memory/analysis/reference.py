"""The yardsticks of the benchmark: the published update as its reference computes it, and the Mamba of mambapy.

Nothing here is used to train. The update is written from its description: attention is `nn.MultiheadAttention` with its
weights materialised and an additive causal mask; every update runs three full forwards, an unmasked squared error, and
an unfused Adam (DTQN, Esslinger et al. 2022; DBGFQN: the feed-forward sublayer replaced by a bidirectional GRU). Our
Mamba stands beside that of the package mambapy: the whole mixer and the scan alone, on every backend that runs here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dqn_memory.analysis.timing import Timer, Work
from dqn_memory.blocks.kernels.scan import selective_scan
from dqn_memory.blocks.kernels.select import BACKENDS, Choice, Unavailable, choose
from dqn_memory.blocks.mamba import Mamba
from dqn_memory.network import QNetwork
from dqn_memory.replay import WindowBatch
from envs.tables import Table, Value

GAMMA = 0.99


def shifted_windows(batch: WindowBatch, padding: float) -> tuple[Tensor, Tensor]:
    """Split windows of K + 1 observations into two of K, (B, T, d): the first one's own, and those one step later."""
    real = torch.arange(batch.action.shape[1]) < batch.lengths[:, None]  # (B, T)
    return batch.observation[:, :-1].masked_fill(~real[..., None], padding), batch.observation[:, 1:].contiguous()


class BaselineLayer(nn.Module):
    """x <- LN(x + relu(attention x)); x <- LN(x + relu(memory x)), with a memory of feed-forward 4 D or a BiGRU."""

    def __init__(self, width: int, heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_attention = nn.LayerNorm(width)
        self.memory: nn.Module = (
            nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
            if bidirectional
            else nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        )
        self.norm_memory = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode x (B, T, D) under an additive mask (T, T)."""
        mixed, _ = self.attention(x, x, x, attn_mask=mask, need_weights=True)
        x = self.norm_attention(x + F.relu(mixed))
        y = self.memory(x)
        return self.norm_memory(x + F.relu(y[0] if isinstance(y, tuple) else y))


class BaselineNetwork(nn.Module):
    """Q-values (B, T, A) of observations (B, T, d), with the sizes and the weights of a dtqn4 or a dbgfqn of ours.

    Parameters are registered in the order of ours, in which data meets them.
    """

    mask: Tensor  # (K, K)

    def __init__(self, ours: QNetwork) -> None:
        super().__init__()
        config, spec = ours.config, ours.spec
        width, context, self.discrete = config.width, config.context, spec.kind == "discrete"
        self.table = nn.Embedding(spec.vocabulary, 8) if self.discrete else nn.Identity()
        self.embed = nn.Linear(spec.shape[0] * (8 if self.discrete else 1), width)
        self.positions = nn.ParameterList([torch.zeros(1, context, width)])
        bidirectional = config.row().memory == "bigru"
        self.layers = nn.ModuleList(BaselineLayer(width, config.heads, bidirectional) for _ in ours.layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ours.num_actions))
        self.register_buffer("mask", torch.full((context, context), -math.inf).triu(1), persistent=False)
        with torch.no_grad():
            for left, right in zip(self.parameters(), ours.parameters(), strict=True):
                left.copy_(right.view_as(left))

    def forward(self, observation: Tensor) -> Tensor:
        """Every position of every window."""
        time = observation.shape[1]
        tokens = self.table(observation.long()).flatten(2) if self.discrete else observation
        x = self.embed(tokens) + self.positions[0][:, :time]  # (B, T, D)
        for layer in self.layers:
            x = layer(x, self.mask[:time, :time])
        return self.head(self.norm(x))  # (B, T, A)


def baseline_loss(
    network: BaselineNetwork, target: BaselineNetwork, seen: Tensor, following: Tensor, batch: WindowBatch
) -> Tensor:
    """Mean squared error over all positions, padding too; the target is read from the window one step later."""
    chosen = network(seen).gather(2, batch.action.unsqueeze(2)).squeeze(2)  # (B, T)
    with torch.no_grad():
        best = network(following).argmax(2, keepdim=True)  # (B, T, 1)
        value = target(following).gather(2, best).squeeze(2)
        goal = batch.reward + GAMMA * (1 - batch.terminated.float()) * value
    return F.mse_loss(chosen, goal)


def baseline_work(ours: QNetwork, batch: WindowBatch) -> Callable[[], Tensor]:
    """Make an update of a network with our weights that gives its loss; Adam takes one operation at a time."""
    network, target = BaselineNetwork(ours), BaselineNetwork(ours)
    seen, following = shifted_windows(batch, ours.spec.padding)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4, foreach=False, fused=False)

    def update() -> Tensor:
        loss = baseline_loss(network, target, seen, following, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        return loss.detach()

    return update


# ---- Mamba beside mambapy --------------------------------------------------------------------------------------------
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


def mamba_tables(timer: Timer, max_rows: int, device: str = "cpu") -> list[Table]:
    """Measure the mixer and the scan on every backend that runs on the device, beside mambapy where it is installed."""
    choices, note = [], (
        f"Width {WIDTH}, inner width {2 * WIDTH}, {STATES} states a channel, float32, on {device}. `speed_up`: median "
        f"over neighbouring repetitions of mambapy's time over ours. mambapy is "
        f"{mambapy_version() or 'not installed, so ours stands alone'}; the bar speaks of version {MAMBAPY}."
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
        rows = [row for shape in shapes for row in _mamba_rows(shape, choices, timer, max_rows, device, make)]
        tables.append(Table.from_records(rows, title, f"{about} {note}"))
    return tables


def mambapy_version() -> str | None:
    """Give the version of mambapy; None where it is not installed."""
    try:
        return version("mambapy")
    except PackageNotFoundError:
        return None


def _mamba_rows(
    full: Shape, choices: Sequence[Choice], timer: Timer, max_rows: int, device: str, make: MakeWork
) -> list[dict[str, Value]]:
    shape = full._replace(batch=min(full.batch, max_rows))
    works = {choice.name: make(shape, choice, device) for choice in choices}
    if mambapy_version() is not None:
        works["mambapy"] = make(shape, None, device)
    # the bar is judged on all repetitions; the large shapes take seconds each
    times = (timer if full == MIXER else replace(timer, repetitions=min(timer.repetitions, 5)))(works)
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
    draws, channels = torch.Generator().manual_seed(0), 2 * WIDTH
    u, delta, enter, leave = (
        torch.randn(shape.batch, shape.time, size, generator=draws) for size in (channels, channels, STATES, STATES)
    )
    values = (u, delta - 3, -torch.arange(1.0, STATES + 1).repeat(channels, 1), enter, leave, torch.ones(channels))
    inputs = [value.to(device).requires_grad_() for value in values]
    _, delta, decay, enter, leave, skip = inputs
    if choice is not None:
        ours = partial(selective_scan, skip=skip, core=choice.scan)
        return _gradients(lambda x: ours(x, delta, decay, enter, leave)[0], inputs, shape.backward)
    scan = make_mixer(None).to(device).selective_scan
    return _gradients(lambda x: scan(x, F.softplus(delta), decay, enter, leave, skip), inputs, shape.backward)


def _gradients(function: Callable[[Tensor], Tensor], inputs: list[Tensor], backward: bool) -> Work:
    """Call a function of `inputs[0]` with gradients of all inputs, or without any."""
    if not backward:
        return torch.no_grad()(lambda: function(inputs[0]))
    with torch.no_grad():
        grad = torch.ones_like(function(inputs[0]))
    return lambda: torch.autograd.grad(function(inputs[0]), inputs, grad)
