"""Memories whose state follows a linear recurrence with gates that read the input alone: minGRU and minLSTM."""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import Device, Memory, State, Tail, fresh, wide, wide_dtype
from dqn_memory.blocks.finite import cast
from dqn_memory.blocks.kernels.linear_scan import linear_scan, mask, multiply


class LinearRecurrence(Memory):
    """A memory whose state is h_t = a_t h_{t-1} + b_t, with a and b from the input; each position is read by itself.

    A subclass sets `shape`, that of a row's state: (F,) or, for complex numbers as pairs of real ones, (F, 2).
    """

    shape: tuple[int, ...]
    tail: Tail

    @abstractmethod
    def recurrence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute a, (..., *shape) or `shape`, and b, (..., *shape), of inputs (..., D), in float32 or wider."""

    @abstractmethod
    def read(self, states: Tensor, x: Tensor) -> Tensor:
        """Compute the outputs (..., D) from states (..., *shape) and inputs (..., D), in the parameters' dtype."""

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (B, *shape)."""
        return (torch.zeros(batch, *self.shape, device=device, dtype=wide_dtype(dtype)),)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        decay, drive = self.recurrence(x)
        states = linear_scan(decay, drive, state[0].to(drive.dtype), mask(reset, drive.dtype))
        return self.tail(self.read(states, x)), (states[:, -1],)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        decay, drive = self.recurrence(x)
        before = cast(fresh(state, reset)[0], drive.dtype)
        after = (multiply(decay, before) if len(self.shape) == 2 else decay * before) + drive
        return self.tail(self.read(after, x)), (after,)


class MinGRU(LinearRecurrence):
    """minGRU (Feng et al. 2024, Were RNNs all we needed?, section 3.1).

        z_t = sigmoid(W_z x_t + c_z)    h~_t = W_h x_t + c_h    h_t = (1 - z_t) h_{t-1} + z_t h~_t

    The plain equations, without the g and the logarithms of the paper's appendix, which need positive states. The
    output is h_t. 2 D^2 + 2 D parameters; 2 D^2 + 2 D multiply-adds a token, a state of O(D). Stable at any length:
    h_t is an average of the candidates and the first state.
    """

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False) -> None:
        super().__init__()
        self.shape = (width,)
        self.linear = nn.Linear(width, 2 * width)  # gate, candidate
        self.tail = Tail(width, projection, dropout)

    def recurrence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (outputs,) = wide(self.linear(x))
        gate, candidate = outputs.chunk(2, -1)
        update = gate.sigmoid()
        return 1 - update, update * candidate

    def read(self, states: Tensor, x: Tensor) -> Tensor:
        return cast(states, self.linear.weight.dtype)


class MinLSTM(LinearRecurrence):
    """minLSTM with length independence scaling (Feng et al. 2024, section 3.2).

        f_t = sigmoid(W_f x_t + c_f)    i_t = sigmoid(W_i x_t + c_i)    h~_t = W_h x_t + c_h
        h_t = f_t / (f_t + i_t) h_{t-1} + i_t / (f_t + i_t) h~_t

    Without g. The ratio is sigmoid(log f_t - log i_t), which is defined for gates near 0 too. The output is h_t.
    3 D^2 + 3 D parameters; 3 D^2 + 2 D multiply-adds a token, a state of O(D). Stable at any length: h_t is an average
    of the candidates and the first state.
    """

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False) -> None:
        super().__init__()
        self.shape = (width,)
        self.linear = nn.Linear(width, 3 * width)  # forget gate, input gate, candidate
        self.tail = Tail(width, projection, dropout)

    def recurrence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        width = self.shape[0]
        (outputs,) = wide(self.linear(x))
        gates, candidate = outputs.split((2 * width, width), -1)
        forget, enter = F.logsigmoid(gates).chunk(2, -1)
        decay = (forget - enter).sigmoid()
        return decay, (1 - decay) * candidate

    def read(self, states: Tensor, x: Tensor) -> Tensor:
        return cast(states, self.linear.weight.dtype)
