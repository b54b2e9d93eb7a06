"""Linear attention as a recurrence over a matrix."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import chunks
from dqn_memory.blocks.block import Device, Memory, State, Tail, carried, fresh, wide, wide_dtype
from dqn_memory.blocks.chunks import join_heads, split_heads
from dqn_memory.blocks.kernels.custom_operator import without_autocast

CHUNK = 32  # positions whose scores are computed at once
SMALLEST = 1e-6  # added to the normaliser, which can round to 0


class LinearAttention(Memory):
    """Linear attention (Katharopoulos et al. 2020, equations 7 and 16-20), H heads of width d = D / H, phi = elu + 1.

        S_t = S_{t-1} + phi(k_t) v_t^T        z_t = z_{t-1} + phi(k_t)
        y_t = W_o (S_t^T phi(q_t) / (z_t . phi(q_t) + 1e-6)),        q, k, v = W_q x, W_k x, W_v x

    The paper's f_l and its residual connection belong to the layer around the memory. Linear maps have no biases,
    as in the equations. 4 D^2 parameters; 4 D^2 + 2 D d + 2 D multiply-adds a position, state O(D d).
    S and z are sums without a decay: float32 keeps 4 binary digits of a summand after 10^6 positions, and none
    after 1.7 x 10^7.
    """

    degree = 3

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head = heads, chunks.head_width(width, heads)
        self.project_in = nn.Linear(width, 3 * width, bias=False)  # W_q, W_k, W_v
        self.project_out = nn.Linear(width, width, bias=False)  # W_o
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (B, H, d, d + 1) in float32 or wider: S, and z in the last column."""
        return (torch.zeros(batch, self.heads, self.head, self.head + 1, device=device, dtype=wide_dtype(dtype)),)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed = self.project_in(x)
        with without_autocast(x):
            inputs = self._maps(split_heads(packed, 3 * self.heads))
            y, after = chunks.in_chunks(_part, CHUNK, inputs, carried(state, x), reset)
        return self.tail(self.project_out(join_heads(y).to(x.dtype))), after

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed = self.project_in(x)
        with without_autocast(x):
            query, key, value = self._maps(packed.unflatten(-1, (3 * self.heads, -1)))
            memory = chunks.write_one(key, value, *fresh(carried(state, x), reset))
            y = _normalised(chunks.read_one(query, memory)).flatten(1)
        return self.tail(self.project_out(y.to(x.dtype))), (memory,)

    def _maps(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute phi(q), phi(k) (B, H, ..., d) and (v, 1) (B, H, ..., d + 1) from q, k and v (B, 3 H, ..., d)."""
        (packed,) = wide(packed)
        pair, value = packed.split((2 * self.heads, self.heads), 1)
        query, key = (F.elu(pair) + 1).chunk(2, 1)
        return query, key, F.pad(value, (0, 1), value=1.0)


def _part(query: Tensor, key: Tensor, value: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
    """Read and write one chunk (B, H, C, ...)."""
    weights, state_weights = chunks.constant_weights(query.shape[2], reset, query)
    scores = query @ key.mT * weights  # (B, H, C, C)
    y = _normalised(chunks.read_chunk(query, scores, value, state[0], state_weights))
    return y, (chunks.write_chunk(key, value, state[0], weights, state_weights),)


def _normalised(sums: Tensor) -> Tensor:
    """Divide by the last column: (..., d + 1) -> (..., d)."""
    return sums[..., :-1] / (sums[..., -1:] + SMALLEST)
