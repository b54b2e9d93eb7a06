"""The two memories of xLSTM (Beck et al. 2024), whose input gate is an exponential: sLSTM and mLSTM.

The paper's residual blocks around them are not part of the memories: projections up and down, convolutions and a
normalisation of each head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import chunks
from dqn_memory.blocks.block import Device, Memory, State, Tail, carried, fresh, wide, wide_dtype
from dqn_memory.blocks.chunks import join_heads, split_heads
from dqn_memory.blocks.kernels.custom_operator import without_autocast

CHUNK = 32  # positions whose scores are computed at once
NOTHING = -1e15  # stands for the logarithm of 0, without its infinite differences; its square is finite too
FIRST, LAST = 3.0, 6.0  # initial biases of forget gates: half-lives of 14 to 280 positions


class SLSTM(Memory):
    """sLSTM (Beck et al. 2024, equations 8-17), whose units are mixed inside each of H heads of d = D / H.

        z, i, f, o = tanh(z~), exp(i~), sigmoid(f~), sigmoid(o~),        g~_t = W_g x_t + R_g h_{t-1} + b_g for each g
        c_t = f_t c_{t-1} + i_t z_t        n_t = f_t n_{t-1} + i_t        h_t = o_t c_t / n_t

    R_g is block-diagonal, a block a head; of the paper's two forget gates, this is the sigmoid. The state is h, c / n
    and log n. In these no exponential can overflow, so the paper's stabiliser m is not needed:

        p_t = i_t / n_t = sigmoid(i~_t - log f_t - log n_{t-1})        log n_t = i~_t - log p_t
        c_t / n_t = (1 - p_t) c_{t-1} / n_{t-1} + p_t z_t

    Initial values, which are choices: W and R as in torch's LSTM, b_f evenly from 3 to 6 over a head's units, other
    biases 0. 4 D^2 + 4 D d + 4 D parameters; 4 D^2 + 4 D d + 2 D multiply-adds a position, state 3 D. Stable over any
    length: c / n is an average of the z, and log n is at most the largest i~ plus the logarithm of the length.
    """

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head = heads, chunks.head_width(width, heads)
        self.weight_in = nn.Parameter(torch.empty(4 * width, width).uniform_(-1, 1) / math.sqrt(width))
        self.weight = nn.Parameter(torch.empty(heads, self.head, 4 * self.head).uniform_(-1, 1) / math.sqrt(self.head))
        self.bias = nn.Parameter(torch.zeros(4 * width))  # of z, i, f and o, as in both weights
        with torch.no_grad():
            self.bias[2 * width : 3 * width] = torch.linspace(FIRST, LAST, self.head).repeat(heads)
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make h, c / n and log n, (B, H, d) in float32 or wider: zeros, but -1e15 for the logarithm of 0."""
        dtype, shape = wide_dtype(dtype), (batch, self.heads, self.head)
        return tuple(torch.full(shape, value, device=device, dtype=dtype) for value in (0.0, 0.0, NOTHING))

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed = F.linear(x, self.weight_in, self.bias).unflatten(-1, (4, self.heads, -1))
        with without_autocast(x):
            inputs, weight = wide(packed.permute(1, 3, 0, 2, 4).flatten(3), self.weight)  # (T, H, B, 4 d), (H, d, 4 d)
            hidden, mean, log_count = (part.transpose(0, 1) for part in carried(state, x))  # (H, B, d)
            resets = [None] * x.shape[1] if reset is None else reset.mT[..., None].unbind()  # T of (B, 1)
            if resets[0] is not None:  # a NaN in the given state would pass through lerp
                mean = mean.masked_fill(resets[0], 0)
            outputs = []
            # The loop is inherent: the gates read the previous output.
            for given, begins in zip(inputs.unbind(), resets, strict=True):
                if begins is not None:  # with n = 0, p is 1 and nothing is left of c / n
                    hidden, log_count = hidden.masked_fill(begins, 0), log_count.masked_fill(begins, NOTHING)
                candidate, enter, forget, out = torch.baddbmm(given, hidden, weight).split(self.head, -1)
                log_share = F.logsigmoid(enter - F.logsigmoid(forget) - log_count)  # log p
                mean = torch.lerp(mean, candidate.tanh(), log_share.exp())
                log_count = enter - log_share
                hidden = out.sigmoid() * mean
                outputs.append(hidden)
            y = torch.stack(outputs).permute(2, 0, 1, 3).flatten(2).to(x.dtype)  # (B, T, D)
        return self.tail(y), tuple(part.transpose(0, 1) for part in (hidden, mean, log_count))


class MLSTM(Memory):
    """mLSTM (Beck et al. 2024, equations 19-27), H heads of width d = D / H.

        C_t = f_t C_{t-1} + i_t v_t k_t^T        n_t = f_t n_{t-1} + i_t k_t
        y_t = o_t * C_t q_t / max(|n_t . q_t|, 1),        i = exp(W_i x + b_i), f = sigmoid(W_f x + b_f), one a head
        q, k, v, o = W_q x + b_q, (W_k x + b_k) / sqrt(d), W_v x + b_v, sigmoid(W_o x + b_o)

    Of the paper's two forget gates, this is the sigmoid; b_k too is divided by sqrt(d). The state is C e^-m, n e^-m and
    the stabiliser m_t = max(log f_t + m_{t-1}, log i_t, 0), so that a write counts at most 1. The 0, not in the paper,
    lets m begin at 0 as C does. The 1 in y_t becomes e^-m, so that outputs do not depend on m.
    Initial values, which are choices: b_f evenly from 3 to 6 over the heads, other biases 0. 4 D^2 + 2 H D + 4 D + 2 H
    parameters; 4 D^2 + 2 H D + 3 D d + 3 D multiply-adds a position, state O(D d). Stable over any length, as f < 1;
    in float32 for i up to e^87.
    """

    degree = 3

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head = heads, chunks.head_width(width, heads)
        self.sizes = 3 * width, width, 2 * heads  # of W_q, W_k and W_v, W_o, W_i and W_f
        self.project_in = nn.Linear(width, sum(self.sizes), bias=False)
        self.bias = nn.Parameter(F.pad(torch.linspace(FIRST, LAST, heads), (4 * width + heads, 0)))
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros in float32 or wider: (B, H, d, d + 1), C^T and n in the last column, and m (B, H)."""
        dtype, shape = wide_dtype(dtype), (batch, self.heads)
        memory = torch.zeros(*shape, self.head, self.head + 1, device=device, dtype=dtype)
        return memory, torch.zeros(shape, device=device, dtype=dtype)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed, out, gates = F.linear(x, self.project_in.weight, self.bias).split(self.sizes, -1)
        with without_autocast(x):
            inputs = *self._maps(split_heads(packed, 3 * self.heads)), *_gates(gates.mT)
            y, after = chunks.in_chunks(_part, CHUNK, inputs, carried(state, x), reset)
        return self.tail(join_heads(y).to(x.dtype) * out.sigmoid()), after

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed, out, gates = F.linear(x, self.project_in.weight, self.bias).split(self.sizes, -1)
        with without_autocast(x):
            query, key, value = self._maps(packed.unflatten(-1, (3 * self.heads, -1)))
            (enter, forget), (memory, before) = _gates(gates), fresh(carried(state, x), reset)
            last = forget + before
            level = torch.maximum(last, enter).clamp(min=0)  # (B, H)
            kept = (last - level).exp()
            key = key * (enter - level).exp()[..., None]
            own = reset is not None and not torch.is_grad_enabled()  # `fresh` has made a copy
            memory = (memory.mul_ if own else memory.mul)(kept[..., None, None])
            memory = chunks.write_one(key, value, memory)
            y = _normalised(chunks.read_one(query, memory), level[..., None]).flatten(1)
        return self.tail(y.to(x.dtype) * out.sigmoid()), (memory, level)

    def _maps(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute q, k (B, H, ..., d) and (v, 1) (B, H, ..., d + 1) from their linear maps (B, 3 H, ..., d)."""
        query, key, value = wide(packed)[0].chunk(3, 1)
        return query, key / math.sqrt(self.head), F.pad(value, (0, 1), value=1.0)


def _gates(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log i and log f (B, H, ...) from their linear maps (B, 2 H, ...)."""
    enter, forget = wide(maps)[0].chunk(2, 1)
    return enter, F.logsigmoid(forget)


def _part(
    query: Tensor, key: Tensor, value: Tensor, enter: Tensor, forget: Tensor, state: State, reset: Tensor | None
) -> tuple[Tensor, State]:
    """Read and write one chunk (B, H, C, ...): the log weights of all writes to each position, less its m."""
    memory, before = state
    pair, last = chunks.log_decay_weights(forget, reset)
    pair, last = pair + enter[..., None, :], last + before[..., None, None]
    level = torch.maximum(last, pair.amax(-1, keepdim=True)).clamp(min=0)  # (B, H, C, 1)
    pair, last = (pair - level).exp(), (last - level).exp()
    y = _normalised(chunks.read_chunk(query, query @ key.mT * pair, value, memory, last), level)
    return y, (chunks.write_chunk(key, value, memory, pair, last), level[..., -1, 0])


def _normalised(sums: Tensor, level: Tensor) -> Tensor:
    """Divide by the last column, or by e^-m where that is larger: (..., d + 1), (..., 1) -> (..., d)."""
    return sums[..., :-1] / torch.maximum(sums[..., -1:].abs(), (-level).exp())
