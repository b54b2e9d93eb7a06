"""Branches that read a sequence of features e (B, T, D), and the stacks of layers inside them.

Every class here has `initial_state(batch, like)`, a tuple of tensors, batch first, and
`forward(e, age, state) -> (y, state)`, where `age` (B, T) counts the positions since the episode opened, as far as it
is known. One position at a time is T = 1.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from dqn_memory.blocks import State
from world_models.glam.architecture import ModelConfig
from world_models.glam.layers import EPSILON, MambaLayer, TransformerLayer


class MambaStack(nn.Module):
    """Layers that read one another; `chained=False` keeps the released loop, which amounts to the last layer alone."""

    def __init__(self, config: ModelConfig, layers: int, chained: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_mamba(config) for _ in range(layers))
        self.chained = chained

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return two tensors a running layer: see Mamba."""
        mixers = [layer.mixer for layer in self._running()]
        return sum((mixer.initial_state(batch, like.device, like.dtype) for mixer in mixers), ())

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D) of x (B, T, D)."""
        after: State = ()
        for index, layer in enumerate(self._running()):
            x, part = layer(x, age, state[2 * index : 2 * index + 2])
            after += part
        return x, after

    def _running(self) -> list[MambaLayer]:
        layers = cast(list[MambaLayer], list(self.layers))
        return layers if self.chained else layers[-1:]


class TransformerStack(nn.Module):
    """STORM's causal Transformer (Zhang et al. 2023): LayerNorm, then the layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, eps=EPSILON)
        self.layers = nn.ModuleList(
            TransformerLayer(config.width, config.heads, config.attention_window, config.dropout)
            for _ in range(config.attention_layers)
        )

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return keys and values of every layer."""
        layers = cast(list[TransformerLayer], list(self.layers))
        return sum((layer.attention.initial_state(batch, like) for layer in layers), ())

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D) of x (B, T, D)."""
        x, after = self.norm(x), ()
        for index, layer in enumerate(self.layers):
            x, part = layer(x, age, state[2 * index : 2 * index + 2])
            after += part
        return x, after


class Direct(nn.Module):
    """A stack that reads the features themselves, and a linear map of its output."""

    def __init__(self, stack: MambaStack | TransformerStack, project: nn.Module) -> None:
        super().__init__()
        self.stack, self.project = stack, project

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the stack's initial state."""
        return self.stack.initial_state(batch, like)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D)."""
        y, state = self.stack(e, age, state)
        return self.project(y), state


class GlobalMamba(nn.Module):
    """GMamba (Eq. 7): a stack that reads the differences d_t = e_t - e_{t-1}, then Linear, LayerNorm and SiLU.

    The first frame of an episode has the difference 0, which leaves no trace: the stack is fresh at the second frame,
    whose difference is the first real one.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.stack = MambaStack(config, config.global_layers, config.chained)
        self.width = width = config.width
        self.project = nn.Sequential(nn.Linear(width, width, bias=False), nn.LayerNorm(width), nn.SiLU())

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the features e of the frame before, (B, D), and the stack's state."""
        return like.new_zeros(batch, self.width), *self.stack.initial_state(batch, like)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D)."""
        before = torch.cat([state[0].to(e.dtype)[:, None], e[:, :-1]], 1)
        difference = torch.where((age > 0)[..., None], e - before, 0)
        y, stack = self.stack(difference, (age - 1).clamp(min=0), state[1:])
        return self.project(y), (e[:, -1], *stack)


class LocalMamba(nn.Module):
    """LMamba (Eq. 6): layers over the last W features, from a zero state, then a linear map of the last output.

    Features from before the episode's first frame are 0. A frame's way into a single layer is computed once and
    shared by the W windows it lies in; deeper layers see other numbers in every window.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.window = config.local_window
        self.layers = nn.ModuleList(_mamba(config) for _ in range(config.local_layers))
        self.project = nn.Linear(config.width, config.width, bias=False)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the last W - 1 rows: see `_rows`."""
        return (like.new_zeros(batch, self.window - 1, self._blank().shape[-1]),)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D)."""
        rows = self._rows(e)
        rows = torch.cat([state[0].to(rows.dtype), rows], 1)  # (B, W - 1 + T, R)
        windows = rows.unfold(1, self.window, 1).mT  # (B, T, W, R)
        older = torch.arange(self.window - 1, -1, -1, device=e.device)  # positions before the window's last
        known = (age[..., None] >= older)[..., None]  # (B, T, W, 1)
        windows = torch.where(known, windows, self._blank().to(rows.dtype)).flatten(0, 1)
        y = self._last(windows, e.flatten(0, 1)).unflatten(0, age.shape)
        return self.project(y), (rows[:, rows.shape[1] - self.window + 1 :],)

    def _rows(self, e: Tensor) -> Tensor:
        """Compute what windows are made of: the features, or what the only layer's convolution reads of them."""
        first, *deeper = self._stack()
        return e if deeper else first.enter(e)

    def _blank(self) -> Tensor:
        """Compute the row of the feature 0."""
        weight = self.project.weight
        return self._rows(weight.new_zeros(weight.shape[1]))

    def _last(self, windows: Tensor, e: Tensor) -> Tensor:
        """Compute the last outputs (M, D) of windows (M, W, R), whose last features are e (M, D)."""
        *inner, outer = self._stack()
        if not inner:
            return outer.last(windows, e)
        for layer in inner:
            windows = layer.whole(windows)
        return outer.last(outer.enter(windows), windows[:, -1])

    def _stack(self) -> list[MambaLayer]:
        return cast(list[MambaLayer], list(self.layers))


Branch = Direct | GlobalMamba | LocalMamba


def _mamba(config: ModelConfig) -> MambaLayer:
    return MambaLayer(config.width, config.state_size, config.post_norm)
