"""DeltaProduct: several steps of the delta rule at each position."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import chunks
from dqn_memory.blocks.block import State, carried, fresh, wide
from dqn_memory.blocks.chunks import join_heads, split_heads
from dqn_memory.blocks.delta import SMALLEST, GatedDeltaNet, gated, normalised
from dqn_memory.blocks.kernels.custom_operator import without_autocast

CHUNK = 32  # steps whose writes are solved for at once


class DeltaProduct(GatedDeltaNet):
    """Gated DeltaProduct (Siems et al. 2025), H heads of d = D / H, n = `steps` a position.

        S_0 = a_t S_{t-1}        S_j = S_{j-1} (I - b_tj k_tj k_tj^T) + b_tj v_tj k_tj^T for j = 1 .. n        S_t = S_n
        k_j = silu(W_kj x) divided by its length, v_j = silu(W_vj x), b_j = 2 sigmoid(W_bj x), one a head
        y_t = W_o (RMSNorm(S_t q_t) * silu(W_g x_t)),        q and a as in `GatedDeltaNet`

    So the state is multiplied by a product of n generalised Householder matrices. This is the form with a forget gate
    a, and with eigenvalues from -1 to 1 (b below 2). The silu of v is the public implementation's. The short
    convolutions before q, k and v are left out, values are as wide as keys, and the initial values are a choice, all as
    in `GatedDeltaNet`. The implementation also divides q by sqrt(d), which RMSNorm would undo. There are two heads by
    default, because the n silus of few features are often all near 0, where their direction is ill-conditioned.
    (2 n + 3) D^2 + (n + 1) H D + 2 H + d parameters; (2 n + 3) D^2 + (n + 1) H D + (2 n + 2) D d multiply-adds a
    position, state O(D d). Stable over any length: as |k| <= 1 and 0 < b < 2, no Householder matrix lengthens a row of
    S, and a < 1.
    """

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 2, steps: int = 2
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps is {steps}; deltaproduct needs at least 1")
        super().__init__(width, dropout, projection, heads=heads)
        self.steps, self.vectors = steps, (2 * steps + 1) * heads  # q, k of every step, v of every step
        self.project_in = nn.Linear(width, self.vectors * self.head + (steps + 1) * heads, bias=False)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed, numbers = self.project_in(x).tensor_split((self.vectors * self.head,), -1)
        with without_autocast(x):
            query, keys, values = self._maps(split_heads(packed, self.vectors))  # (B, H, T, d), (B, n, H, T, d) twice
            rates, decay = self._numbers(numbers.mT)  # (B, n, H, T), (B, H, T)
            inputs = query, *(part.movedim(1, 3) for part in (keys, values, rates)), decay
            y, after = chunks.in_chunks(_part, max(1, CHUNK // self.steps), inputs, carried(state, x), reset)
            y = join_heads(normalised(y, self.scale)).to(x.dtype)
        return self.tail(self.project_out(gated(y, self.project_gate(x)))), after

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        packed, numbers = self.project_in(x).tensor_split((self.vectors * self.head,), -1)
        with without_autocast(x):
            query, keys, values = self._maps(packed.unflatten(-1, (self.vectors, -1)))  # (B, H, d), (B, n, H, d) twice
            rates, decay = self._numbers(numbers)  # (B, n, H), (B, H)
            (memory,) = fresh(carried(state, x), reset)
            memory = memory * decay.exp()[..., None, None]
            for key, value, rate in zip(keys.unbind(1), values.unbind(1), rates.unbind(1), strict=True):
                change = rate[..., None] * (value - chunks.read_one(key, memory))
                memory = chunks.write_one(key, change, memory)
            y = normalised(chunks.read_one(query, memory), self.scale).flatten(1).to(x.dtype)
        return self.tail(self.project_out(gated(y, self.project_gate(x)))), (memory,)

    def _maps(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute q (B, H, ..., d), k and v (B, n, H, ..., d) from their linear maps (B, (2 n + 1) H, ..., d)."""
        pair, values = F.silu(wide(packed)[0]).tensor_split(((self.steps + 1) * self.heads,), 1)
        pair = pair * torch.rsqrt(pair.square().sum(-1, keepdim=True) + SMALLEST)
        query, keys = pair.tensor_split((self.heads,), 1)
        return query, keys.unflatten(1, (self.steps, -1)), values.unflatten(1, (self.steps, -1))

    def _numbers(self, maps: Tensor) -> tuple[Tensor, ...]:
        """Compute b (B, n, H, ...) and the logarithm of a (B, H, ...) from linear maps of x."""
        (maps,), like = wide(maps), (self.heads, *[1] * (maps.dim() - 2))
        rates, decay = maps.tensor_split((self.steps * self.heads,), 1)
        step = F.softplus(decay + self.decay_bias.view(like))
        return 2 * rates.sigmoid().unflatten(1, (self.steps, -1)), -self.A_log.exp().view(like) * step


def _part(
    query: Tensor, keys: Tensor, values: Tensor, rates: Tensor, decay: Tensor, state: State, reset: Tensor | None
) -> tuple[Tensor, State]:
    """Read and write one chunk of C positions and n C steps: keys and values (B, H, C, n, d), rates (B, H, C, n).

    The writes of all steps solve a triangular system, as those of a DeltaNet. A reset and a decay belong to the first
    step of their position. The read follows its last step.
    """
    (memory,), steps = state, rates.shape[-1]
    key, value, rate = keys.flatten(2, 3), values.flatten(2, 3), rates.flatten(2)[..., None]
    decay = F.pad(decay[..., None], (0, steps - 1)).flatten(2)
    begins = None if reset is None else F.pad(reset[..., None], (0, steps - 1)).flatten(1)
    weights, state_weights = chunks.decay_weights(decay, begins)  # (B, H, n C, n C), (B, H, n C, 1)
    known = rate * (value - chunks.weighted(key @ memory, state_weights))
    system = key @ key.mT * weights * rate  # the solver takes its diagonal as 1
    written = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    last, state_last = weights[..., steps - 1 :: steps, :], state_weights[..., steps - 1 :: steps, :]
    y = chunks.read_chunk(query, query @ key.mT * last, written, memory, state_last)
    return y, (chunks.write_chunk(key, written, memory, weights, state_weights),)
