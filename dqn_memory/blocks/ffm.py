"""Fast and Forgetful Memory: traces of the inputs that decay and turn at fixed rates."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import Tail, wide
from dqn_memory.blocks.minimal import LinearRecurrence

FORGOTTEN = 0.01  # share of an input that is left at the end of a trace's span


class FFM(LinearRecurrence):
    """Fast and Forgetful Memory (Morad et al. 2023: its aggregator and its cell).

        u_t = l1(x_t) sigmoid(l2(x_t))                                           input gate, (m,)
        S_t = gamma S_{t-1} + u_t 1^T,  gamma_jk = exp(-alpha_j + i omega_k)     aggregator, complex (m, c)
        z_t = l3(Re S_t, Im S_t)
        y_t = LN(z_t) sigmoid(l4(x_t)) + l5(x_t) (1 - sigmoid(l4(x_t)))          output gate

    with linear maps l1 .. l5 and a LayerNorm without parameters. The paper multiplies by powers of gamma and of its
    inverse, which limits the length. Here S is carried, which is stable at any length because alpha = exp(.) > 0; a
    reset replaces gamma by 0. The initial values are a choice: alpha leaves 1 % after spans of 1 to `span` positions,
    evenly in their logarithm; the periods 2 pi / omega go evenly from 1 to `span`. 2 D^2 + 2 D m + 2 m c D + 3 D + 3 m
    + c parameters; one multiply-add for each weight of a linear map and 4 m c more a token, a state of O(m c).
    """

    degree = 2  # LayerNorm squares its input

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, memory: int = 32, context: int = 4,
        span: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__()
        if min(memory, context) < 1:
            raise ValueError(f"memory is {memory} and context {context}; ffm needs at least 1 of both")
        if span < 2:
            raise ValueError(f"span is {span}; ffm needs at least 2 positions")
        self.memory, self.context, self.shape = memory, context, (memory * context, 2)
        self.enter = nn.Linear(width, 2 * memory)  # l1, l2
        self.beside = nn.Linear(width, 2 * width)  # l4, l5
        self.leave = nn.Linear(2 * memory * context, width)  # l3
        spans = torch.logspace(0, math.log10(span), memory)
        self.alpha = nn.Parameter(torch.log(-math.log(FORGOTTEN) / spans))  # log alpha
        self.omega = nn.Parameter(2 * math.pi / torch.linspace(1, span, context))
        self.tail = Tail(width, projection, dropout)

    def recurrence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        alpha, omega = wide(self.alpha, self.omega)
        size = torch.exp(-torch.exp(alpha))[:, None]  # (m, 1)
        decay = torch.stack((size * omega.cos(), size * omega.sin()), -1).flatten(0, 1)  # (m c, 2)
        (outputs,) = wide(self.enter(x))
        value, gate = outputs.chunk(2, -1)
        given = (value * gate.sigmoid()).repeat_interleave(self.context, -1)  # (..., m c)
        return decay, torch.stack((given, torch.zeros_like(given)), -1)

    def read(self, states: Tensor, x: Tensor) -> Tensor:
        recalled = self.leave(states.flatten(-2).to(self.leave.weight.dtype))
        gate, own = self.beside(x).chunk(2, -1)
        return torch.lerp(own, F.layer_norm(recalled, recalled.shape[-1:]).to(own.dtype), gate.sigmoid())
