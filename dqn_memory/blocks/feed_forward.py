"""Controls: blocks that remember nothing, a clock that counts steps, and a stack of the last few inputs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import Device, Memory, State, Tail, fresh, select, wide_dtype
from dqn_memory.blocks.finite import add_flags, are_finite, bad_flags, check_positions, contained_rows, finite
from dqn_memory.blocks.kernels.custom_operator import NUMBA, call


class Pointwise(Memory):
    """The same layers at every position; the state is empty."""

    pointwise = True
    contains = True

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Transform every position of x (B, T, D) by itself."""
        check_positions(x)
        # A Linear's output of three dimensions is a view, and autograd copies a view that is changed in place.
        return self._each(x.flatten(0, 1)).view_as(x)  # (B, T, D)

    def at(self, x: Tensor, lengths: Tensor | None, index: Tensor) -> Tensor:
        """Transform position `index` (B,) of x (B, T, D) alone: (B, D)."""
        return self._each(select(x, index))

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        return ()

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        return self(x), state

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        return self._each(x), state

    def _each(self, x: Tensor) -> Tensor:
        """Transform rows x (N, D); those that are not finite spoil no gradient of the others."""
        return contained_rows(self.layers, x)


class FeedForward(Pointwise):
    """Linear(D, kD), ReLU, Linear(kD, D), dropout: DTQN's second sublayer, 2 k D^2 + (k + 1) D parameters, no state.

    `activation` replaces the ReLU.
    """

    def __init__(
        self, width: int, multiple: int = 4, dropout: float = 0.0, activation: nn.Module | None = None
    ) -> None:
        middle = nn.ReLU(inplace=True) if activation is None else activation
        inner = multiple * width
        super().__init__(nn.Linear(width, inner), middle, nn.Linear(inner, width), nn.Dropout(dropout))


class LinearMap(Pointwise):
    """One Linear(D, D): D^2 + D parameters (the ablation of the DBGFQN paper's first research question)."""

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False) -> None:
        super().__init__(nn.Linear(width, width), nn.Dropout(dropout))


class StepClock(Memory):
    """The two layers of `FeedForward` over an input and the number of steps before it in its episode.

    The number t is given as sin(w_j t) and cos(w_j t) with w_j = 10000^(-j/n), j = 0 .. n - 1. No input is remembered,
    so an agent with this block does as well as is possible from the newest observation and the time alone.
    2 k D^2 + (2 n k + k + 1) D parameters, k = 4, and a state of one integer. Of windows the first step has number 0.
    """

    contains = True

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, waves: int = 16) -> None:
        super().__init__()
        if waves < 1:
            raise ValueError(f"waves is {waves}; clock needs at least 1")
        inner = 4 * width
        self.layers = nn.Sequential(nn.Linear(width + 2 * waves, inner), nn.ReLU(inplace=True), nn.Linear(inner, width))
        self.tail = Tail(width, projection, dropout)
        self.waves = waves

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (B,): the steps so far."""
        return (torch.zeros(batch, dtype=torch.int64, device=device),)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        place = torch.arange(x.shape[1], device=x.device)
        number = state[0][:, None] + place  # (B, T)
        if reset is not None:
            begun = torch.where(reset, place, -1).cummax(1).values  # (B, T): the newest reset, -1 before the first
            number = torch.where(begun < 0, number, place - begun)
        return self._each(x, number), (number[:, -1] + 1,)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        (number,) = fresh(state, reset)
        return self._each(x, number), (number + 1,)

    def _each(self, x: Tensor, number: Tensor) -> Tensor:
        """Transform x (..., D) beside the number of its step (...)."""
        power = torch.arange(self.waves, device=x.device, dtype=wide_dtype(x.dtype)) / self.waves
        angle = number[..., None] * 1e4**-power  # (..., n)
        time = torch.cat((angle.sin(), angle.cos()), -1).to(x.dtype)
        return contained_rows(lambda rows: self.tail(self.layers(torch.cat((rows, time), -1))), x)


class FrameStack(Memory):
    """One Linear(n D, D) over the last n inputs, zeros before the first (Mnih et al. 2015).

    n D^2 + D parameters, n D^2 multiply-adds a token, a state of O(n D), which forgets after n positions.
    """

    contains = True

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, frames: int = 4) -> None:
        super().__init__()
        if frames < 1:
            raise ValueError(f"frames is {frames}; frame_stack needs at least 1")
        self.width, self.frames = width, frames
        self.linear = nn.Linear(frames * width, width)
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (B, n - 1, D) for the last inputs, oldest first."""
        return (torch.zeros(batch, self.frames - 1, self.width, device=device, dtype=dtype),)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        inputs, frames = torch.cat((state[0].to(x.dtype), x), 1), self.frames  # (B, n - 1 + T, D)
        known = torch.compiler.is_exporting() or are_finite(inputs)
        stack = (inputs if known else finite(inputs)).unfold(1, frames, 1).mT  # (B, T, n, D), oldest first
        after, same = inputs[:, x.shape[1] :], None
        if reset is not None:
            episode = F.pad(reset.cumsum(1), (frames - 1, 0))  # (B, n - 1 + T): 0 before the first reset
            same = episode.unfold(1, frames, 1) == episode[:, frames - 1 :, None]  # (B, T, n)
            stack = stack * same[..., None]
            after = after.masked_fill((episode[:, x.shape[1] :] != episode[:, -1:])[..., None], 0)
        y = self.tail(self.linear(stack.flatten(2)))
        if not known:
            spoilt = bad_flags(inputs, 2).unfold(1, frames, 1)  # (B, T, n)
            y = add_flags(y, (spoilt if same is None else spoilt.masked_fill(~same, 0)).sum(-1))
        return y, (after,)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        inputs = torch.cat((fresh(state, reset)[0].to(x.dtype), x[:, None]), 1)  # (B, n, D)
        return contained_rows(lambda rows: self.tail(self.linear(rows)), inputs.flatten(1)), (inputs[:, 1:],)


class Gelu(nn.Module):
    """x Phi(x) in its tanh form, elementwise: torch's, or on a CPU the faster loops of kernels/cpu_gelu."""

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same shape."""
        if x.device.type == "cpu" and NUMBA:
            from dqn_memory.blocks.kernels import cpu_gelu  # at first use: it loads numba

            if cpu_gelu.gelu_is_faster(x):
                return call(cpu_gelu.cpu_gelu, x)
        return F.gelu(x, approximate="tanh")
