"""Branches that read a sequence of features e (B, T, D), and the stacks of layers inside them.

Every class here has `initial_state(batch, like)`, a tuple of tensors, batch first, and
`forward(e, age, state) -> (y, state)`, where `age` (B, T) counts the positions since the episode opened, as far as it
is known. One position at a time is T = 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dqn_memory.blocks import State
from world_models.glam.architecture import ModelConfig
from world_models.glam.layers import EPSILON, MambaLayer, TransformerLayer


class Stack(nn.Module):
    """Layers that read one another; `chained=False` keeps the released loop, which amounts to the last layer alone."""

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None, chained: bool = True) -> None:
        super().__init__()
        self.norm = nn.Identity() if norm is None else norm
        self.layers = nn.ModuleList(layers)
        self.chained = chained

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return two tensors a running layer."""
        return sum((layer.initial_state(batch, like) for layer in self._running()), ())

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D) of x (B, T, D)."""
        x, after = self.norm(x), ()
        for index, layer in enumerate(self._running()):
            x, part = layer(x, age, state[2 * index : 2 * index + 2])
            after += part
        return x, after

    def _running(self) -> list[MambaLayer | TransformerLayer]:
        layers: Any = list(self.layers)
        return layers if self.chained else layers[-1:]


def mamba_stack(config: ModelConfig, chained: bool = True) -> Stack:
    """Make the Mamba layers that read the whole past."""
    return Stack((MambaLayer(config) for _ in range(config.global_layers)), chained=chained)


def transformer_stack(config: ModelConfig) -> Stack:
    """Make STORM's causal Transformer (Zhang et al. 2023): LayerNorm, then the layers."""
    norm = nn.LayerNorm(config.width, eps=EPSILON)
    return Stack((TransformerLayer(config) for _ in range(config.attention_layers)), norm)


class Direct(nn.Module):
    """A stack that reads the features themselves, and a linear map of its output."""

    def __init__(self, stack: Stack, project: nn.Module) -> None:
        super().__init__()
        self.stack, self.project = stack, project

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the stack's initial state."""
        return self.stack.initial_state(batch, like)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D)."""
        y, state = self.stack(e, age, state)
        return self.project(y), state


class GlobalMamba(Direct):
    """GMamba (Eq. 7): a stack that reads the differences d_t = e_t - e_{t-1}, then Linear, LayerNorm and SiLU.

    The first frame of an episode has the difference 0, which leaves no trace: the stack is fresh at the second frame,
    whose difference is the first real one.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.width = width = config.width
        stack = mamba_stack(config, config.chained)
        super().__init__(stack, nn.Sequential(nn.Linear(width, width, bias=False), nn.LayerNorm(width), nn.SiLU()))

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the features e of the frame before, (B, D), and the stack's state."""
        return like.new_zeros(batch, self.width), *super().initial_state(batch, like)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D)."""
        before = torch.cat([state[0].to(e.dtype)[:, None], e[:, :-1]], 1)
        difference = torch.where((age > 0)[..., None], e - before, 0)
        y, stack = super().forward(difference, (age - 1).clamp(min=0), state[1:])
        return y, (e[:, -1], *stack)


class LocalMamba(nn.Module):
    """LMamba (Eq. 6): layers over the last W features, from a zero state, then a linear map of the last output.

    Features from before the episode's first frame are 0. A frame's way into a single layer is computed once and
    shared by the W windows it lies in; deeper layers see other numbers in every window.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.window, self.width = config.local_window, config.width
        self.layers = nn.ModuleList(MambaLayer(config) for _ in range(config.local_layers))
        self.project = nn.Linear(config.width, config.width, bias=False)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the last W - 1 rows: features, or what the only layer's convolution reads of them."""
        outer, inner = self._split()
        return (like.new_zeros(batch, self.window - 1, self.width if inner else outer.mixer.inner),)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D)."""
        outer, inner = self._split()
        zero = self.project.weight.new_zeros(self.width)
        rows, blank = (e, zero) if inner else (outer.enter(e), outer.enter(zero))
        rows = torch.cat([state[0].to(rows.dtype), rows], 1)  # (B, W - 1 + T, R)
        windows = rows.unfold(1, self.window, 1).mT  # (B, T, W, R)
        older = torch.arange(self.window - 1, -1, -1, device=e.device)  # positions before the window's last
        known = (age[..., None] >= older)[..., None]  # (B, T, W, 1)
        windows, last = torch.where(known, windows, blank.to(rows.dtype)).flatten(0, 1), e.flatten(0, 1)
        for layer in inner:
            windows = layer.whole(windows)
        if inner:
            windows, last = outer.enter(windows), windows[:, -1]
        y = outer.last(windows, last).unflatten(0, age.shape)
        return self.project(y), (rows[:, rows.shape[1] - self.window + 1 :],)

    def _split(self) -> tuple[MambaLayer, list[MambaLayer]]:
        layers: Any = list(self.layers)
        return layers[-1], layers[:-1]


Branch = Direct | LocalMamba
