"""TTT-Linear: a memory that is a linear model, which learns from every input by one step of gradient descent."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from dqn_memory.blocks import chunks
from dqn_memory.blocks.block import Device, Memory, State, Tail, carried, fresh, wide, wide_dtype
from dqn_memory.blocks.chunks import join_heads, split_heads
from dqn_memory.blocks.kernels.custom_operator import without_autocast

CHUNK = 32  # positions whose changes stay apart from W
SMALLEST = 1e-5  # added to the variance in LN


class TTTLinear(Memory):
    """TTT-Linear (Sun et al. 2024, Learning to (learn at test time)), H heads of d = D / H.

        W_t = W_{t-1} - eta_t grad l(W_{t-1}; k_t, v_t)        y_t = W_o f(q_t; W_t)
        l(W; k, v) = |f(k; W) - v|^2 / 2 d        f(x; W) = x + LN(W x)        eta = sigmoid(W_eta x), one a head

    with q, k, v = W_q x, W_k x, W_v x. A head has its own W, W_0, which is learned, and weight w and bias of LN. With
    n = (W k - mean) r, where 1 / r is the standard deviation of W k, the gradient is h k^T / d with

        h = r (g - mean(g) - n mean(n * g)),        g = w * (f(k; W) - v)

    The paper writes |f - v|^2; the 1 / 2 d is the public implementation's. The inner mini-batch is 1. So a step needs
    nothing but W, and equals the whole sequence wherever an episode begins; the paper's 16 would carry a sum and a
    count for each row. A rotation of q and k by the place in a mini-batch, and a learned weight of that place, have
    nothing to do here. The loop over positions is inherent, because the gradient reads W through LN; it goes over
    vectors alone, in the paper's dual form. Left out are what the equations of the paper do not have (an inner bias
    beside W, a bias in eta, a LayerNorm before W_o), and the gates and convolutions of its backbones. Choices: W_0 of
    variance 1 / d, and two heads by default, because LN leaves little but signs of a few features. 4 D^2 + D d + H D +
    2 D parameters; 4 D^2 + H D + 5 D d multiply-adds a position, state O(D d): W_t - W_0. Over any length q + LN bounds
    the read. A change of W is orthogonal to W but for the 1e-5 in LN, so the length of W never falls, and grows at most
    as the root of time.
    """

    degree = 6  # LN squares W k, where W has grown by products of k and k - v

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 2) -> None:
        super().__init__()
        self.width, self.heads, self.head = width, heads, chunks.head_width(width, heads)
        self.project_in = nn.Linear(width, 3 * width + heads, bias=False)  # W_q, W_k, W_v, W_eta
        self.start = nn.Parameter(torch.randn(heads, self.head, self.head) / math.sqrt(self.head))  # W_0^T
        self.scale = nn.Parameter(torch.ones(heads, self.head))  # of LN
        self.bias = nn.Parameter(torch.zeros(heads, self.head))
        self.project_out = nn.Linear(width, width, bias=False)  # W_o
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (B, H, d, d) in float32 or wider: (W - W_0)^T."""
        return (torch.zeros(batch, self.heads, self.head, self.head, device=device, dtype=wide_dtype(dtype)),)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed, rate = self.project_in(x).tensor_split((3 * self.width,), -1)
        with without_autocast(x):
            query, key, value = wide(split_heads(packed, 3 * self.heads))[0].chunk(3, 1)  # (B, H, T, d)
            start, scale, bias = wide(self.start, self.scale, self.bias)
            rest = key + bias[:, None] - value  # f(k; W) - v without w * n
            rates = wide(rate)[0].sigmoid().mT[..., None] / -self.head  # (B, H, T, 1)
            part, inputs = partial(_part, scale), (query, key, key @ start, rest, rates)
            read, after = chunks.in_chunks(part, CHUNK, inputs, carried(state, x), reset)
            quotient, _ = _standardised(query @ start + read)
            y = join_heads(query + scale[:, None] * quotient + bias[:, None]).to(x.dtype)
        return self.tail(self.project_out(y)), after

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        y, after = self.run(x[:, None], fresh(state, reset), None)
        return y[:, 0], after


def _part(
    scale: Tensor, query: Tensor, key: Tensor, known: Tensor, rest: Tensor, rates: Tensor, state: State,
    reset: Tensor | None,
) -> tuple[Tensor, State]:  # fmt: skip
    """Learn from the C positions of one chunk (B, H, C, d), one after the other, and read W - W_0 after each.

    This is the dual form: a change c k^T moves what W reads at a later key by (k . key) c, so that only C x d numbers
    change at a position, and W itself once a chunk. `known` is W_0 k, `rates` -eta / d.
    """
    weights, state_weights = chunks.constant_weights(query.shape[2], reset, query)
    reads = known + chunks.weighted(key @ state[0], state_weights)
    changes, parts = [], (rest.unbind(2), rates.unbind(2), (key @ key.mT * weights).unbind(3))
    for at, (other, eta, scores) in enumerate(zip(*parts, strict=True)):
        change = eta * _gradient(reads[:, :, 0], other, scale)
        reads = reads[:, :, 1:] + scores[:, :, at + 1 :, None] * change[:, :, None]
        changes.append(change)
    written = torch.stack(changes, 2)
    y = chunks.read_chunk(query, query @ key.mT * weights, written, state[0], state_weights)
    return y, (chunks.write_chunk(key, written, state[0], weights, state_weights),)


def _standardised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute n, x (..., d) less its mean and divided by its standard deviation, and the inverse of the latter."""
    centred = x - x.mean(-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + SMALLEST)
    return centred * inverse, inverse


def _gradient(read: Tensor, rest: Tensor, scale: Tensor) -> Tensor:
    """Compute h (B, H, d), the gradient of half of |f - v|^2 by the read W k, with f - v = w * n + rest."""
    quotient, inverse = _standardised(read)
    change = scale * (scale * quotient + rest)  # g
    along = (quotient * change).mean(-1, keepdim=True)
    return inverse * (change - change.mean(-1, keepdim=True) - quotient * along)
