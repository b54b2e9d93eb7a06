"""Sequence models map samples and actions to the features that the heads read; there are six forms.

A form has branches that read features e (B, T, D), and a branch has stacks of layers. Branches, stacks and layers have
`initial_state(batch, like)`, a tuple of tensors, batch first, and `forward(e, age, state) -> (y, state)`. `age` (B, T)
counts the known positions since the episode began. A single step is T = 1.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import State
from world_models.glam.config import GlamModelConfig
from world_models.glam.layers import EPSILON, MambaLayer, TransformerLayer


class LayerStack(nn.Module):
    """Layers in sequence; `chained=False` runs the last layer alone, which equals the released loop."""

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None, chained: bool = True) -> None:
        super().__init__()
        self.norm = nn.Identity() if norm is None else norm
        self.layers = nn.ModuleList(layers)
        self.chained = chained

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return two tensors for each running layer."""
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


def mamba_stack(config: GlamModelConfig, chained: bool = True) -> LayerStack:
    """Make the Mamba layers that read all positions of an episode."""
    return LayerStack((MambaLayer(config) for _ in range(config.global_layers)), chained=chained)


def transformer_stack(config: GlamModelConfig) -> LayerStack:
    """Make STORM's causal Transformer (Zhang et al. 2023): LayerNorm, then the layers."""
    norm = nn.LayerNorm(config.width, eps=EPSILON)
    return LayerStack((TransformerLayer(config) for _ in range(config.attention_layers)), norm)


class Direct(nn.Module):
    """A stack that reads the features, and a linear map of its output."""

    def __init__(self, stack: LayerStack, project: nn.Module) -> None:
        super().__init__()
        self.stack, self.project = stack, project

    def initial_state(self, batch: int, like: Tensor) -> State:
        return self.stack.initial_state(batch, like)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = self.stack(e, age, state)
        return self.project(y), state


class GlobalMamba(Direct):
    """GMamba (Eq. 7): a stack that reads the differences d_t = e_t - e_{t-1}, then Linear, LayerNorm and SiLU.

    The first frame of an episode has difference 0. The stack starts from a zero state at the second frame, which has
    the first real difference.
    """

    def __init__(self, config: GlamModelConfig) -> None:
        self.width = width = config.width
        stack = mamba_stack(config, config.chained)
        super().__init__(stack, nn.Sequential(nn.Linear(width, width, bias=False), nn.LayerNorm(width), nn.SiLU()))

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the features e of the frame before, (B, D), and the stack's state."""
        return like.new_zeros(batch, self.width), *super().initial_state(batch, like)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        before = torch.cat([state[0].to(e.dtype)[:, None], e[:, :-1]], 1)
        difference = torch.where((age > 0)[..., None], e - before, 0)
        y, stack = super().forward(difference, (age - 1).clamp(min=0), state[1:])
        return y, (e[:, -1], *stack)


class LocalMamba(nn.Module):
    """LMamba (Eq. 6): layers over the last W features, from a zero state, then a linear map of the last output.

    Features from before the episode's first frame are 0. With a single layer, a frame's projection is computed once and
    shared by its W windows; the inputs of deeper layers differ between windows.
    """

    def __init__(self, config: GlamModelConfig) -> None:
        super().__init__()
        self.window, self.width = config.local_window, config.width
        self.layers = nn.ModuleList(MambaLayer(config) for _ in range(config.local_layers))
        self.project = nn.Linear(config.width, config.width, bias=False)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return the last W - 1 rows: features, or, with a single layer, the inputs of its convolution."""
        outer, inner = self._split()
        return (like.new_zeros(batch, self.window - 1, self.width if inner else outer.mixer.inner),)

    def forward(self, e: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
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


@dataclass(frozen=True)
class Features:
    """The outputs of a form at each position, after frame and action."""

    h: Tensor  # (B, T, D)
    variation: Tensor | None  # (B, T, D), from the differences alone; None in forms without GMamba


@dataclass(frozen=True)
class SequenceState:
    """The state that a form carries from one position to the next; all tensors are batch first."""

    age: Tensor  # (B,) int64, positions since the episode began, with the last one
    branches: tuple[State, ...]


class Stem(nn.Module):
    """The feature encoder f (Eq. 5) of samples and one-hot actions, without a last norm."""

    def __init__(self, config: GlamModelConfig, actions: int) -> None:
        super().__init__()
        self.latent, width = config.latent, config.width
        self.enter = nn.Linear(config.latent + actions, width, bias=False)
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width, bias=False))

    def forward(self, sample: Tensor, action: Tensor) -> Tensor:
        """Compute features (B, T, D) of samples (B, T, Z) and actions (B, T) int64."""
        of_sample, of_action = self.enter.weight.split([self.latent, self.enter.in_features - self.latent], 1)
        return self.leave(F.linear(sample, of_sample) + F.embedding(action, of_action.mT))


def _double(config: GlamModelConfig, stack: Callable[[GlamModelConfig], LayerStack]) -> list[Branch]:
    return [Direct(stack(config), nn.Linear(config.width, config.width, bias=False)) for _ in range(2)]


# The branches of each row of the paper's Table 2. `storm` is "w/o G&L", `lmamba` is "w/o G". A double form ("Dbl.") has
# two identical modules in parallel. `glam_no_variation` lacks only the variation loss.
SEQUENCES: dict[str, Callable[[GlamModelConfig], list[Branch]]] = {
    "storm": lambda config: [Direct(transformer_stack(config), nn.Identity())],
    "lmamba": lambda config: [LocalMamba(config)],
    "double_transformer": lambda config: _double(config, transformer_stack),
    "double_mamba": lambda config: _double(config, mamba_stack),
    "glam": lambda config: [GlobalMamba(config), LocalMamba(config)],
    "glam_no_variation": lambda config: [GlobalMamba(config), LocalMamba(config)],
}


class SequenceModel(nn.Module):
    """A stem, and the sum of the outputs of the branches of `config.sequence`, which read the stem's features.

    An episode's first position (`first`) forgets everything before it if `reset_at_episode_start` is True.
    """

    def __init__(self, config: GlamModelConfig, actions: int) -> None:
        super().__init__()
        self.resets = config.reset_at_episode_start
        branches = SEQUENCES[config.sequence](config)  # before the stem: the order fixes the random weights
        self.stem = Stem(config, actions)
        self.branches = nn.ModuleList(branches)

    def forward(
        self, sample: Tensor, action: Tensor, first: Tensor, state: SequenceState | None = None
    ) -> tuple[Features, SequenceState]:
        """Compute features (B, T, D) of samples (B, T, Z), actions (B, T) and `first` (B, T) bool.

        Continues from `state` (None: a new one) and returns also the state after the last position.
        """
        state = self.start(len(sample)) if state is None else state
        e, age = self.stem(sample, action), self._age(first, state.age)
        outputs, after = [], []
        variation = None
        for branch, part in zip(self.branches, state.branches, strict=True):
            y, part = branch(e, age, part)
            outputs.append(y)
            after.append(part)
            variation = y if isinstance(branch, GlobalMamba) else variation
        return Features(sum(outputs[1:], outputs[0]), variation), SequenceState(age[:, -1] + 1, tuple(after))

    def prefill(self, sample: Tensor, action: Tensor, first: Tensor) -> tuple[Tensor, SequenceState]:
        """Read positions (B, T); return the features (B, D) and the state after the last one."""
        features, state = self(sample, action, first)
        return features.h[:, -1], state

    def push(self, sample: Tensor, action: Tensor, first: Tensor, state: SequenceState) -> tuple[Tensor, SequenceState]:
        """Read one position: sample (B, Z), action (B,), first (B,); return features (B, D) and the state after it."""
        features, state = self(sample[:, None], action[:, None], first[:, None], state)
        return features.h[:, 0], state

    def start(self, batch: int) -> SequenceState:
        """Return the state of B rows before their first position, on the model's device."""
        like = self.stem.enter.weight.detach()
        age = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return SequenceState(age, tuple(branch.initial_state(batch, like) for branch in self.branches))  # type: ignore[operator]

    def _age(self, first: Tensor, before: Tensor) -> Tensor:
        """Count positions since the last episode start (B, T); `before` (B,) is the count before this sequence."""
        index = torch.arange(first.shape[1], device=first.device).expand(first.shape)
        if not self.resets:
            return index + before[:, None]
        opened = torch.where(first, index, -1).cummax(1).values
        return torch.where(opened < 0, index + before[:, None], index - opened)
