"""Memories that write by the delta rule: a write replaces the value that its key reads."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import chunks
from dqn_memory.blocks.block import Device, Memory, State, Tail, carried, fresh, wide, wide_dtype
from dqn_memory.blocks.chunks import join_heads, split_heads
from dqn_memory.blocks.kernels.custom_operator import NUMBA, call, without_autocast

CHUNK = 32  # positions whose writes are solved for at once
SMALLEST = 1e-6  # added to a key's squared length, which can be 0
EPSILON = 1e-5  # added to the mean square of an output
SLOWEST, FASTEST = 1e-3, 1e-1  # initial decay a position, of the first and of the last head


class DeltaNet(Memory):
    """DeltaNet (Schlag et al. 2021, section 4.2, in the form of Yang et al. 2024, section 2), H heads of d = D / H.

        S_t = S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T        y_t = W_o RMSNorm(S_t q_t)
        q, k = silu(W_q x), silu(W_k x), each divided by its length; v = silu(W_v x); b = sigmoid(W_b x), one a head

    RMSNorm has one weight for each feature of a head, the same in all heads. The short convolutions that Yang et al.
    put before q, k and v are left out: they are a memory of their own. No linear map has a bias; the length of k is
    sqrt(k . k + 1e-6). 4 D^2 + H D + d parameters; 4 D^2 + H D + 3 D d multiply-adds a position, state O(D d).
    Stable over any length: as |k| <= 1 and 0 < b < 1, the sum of squares of a head's S grows by less than |v|^2 a
    position.
    """

    mapped = 1  # linear maps of x besides q, k and v, numbers a head

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 4) -> None:
        super().__init__()
        self.width, self.heads, self.head = width, heads, chunks.head_width(width, heads)
        self.project_in = nn.Linear(width, 3 * width + self.mapped * heads, bias=False)  # W_q, W_k, W_v, W_b
        self.scale = nn.Parameter(torch.ones(self.head))  # of RMSNorm
        self.project_out = nn.Linear(width, width, bias=False)  # W_o
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (B, H, d, d) in float32 or wider: S^T."""
        return (torch.zeros(batch, self.heads, self.head, self.head, device=device, dtype=wide_dtype(dtype)),)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        maps = F.linear(x, self._weight())
        with without_autocast(x):
            form: Callable[..., Any] = delta_kernel(maps, self.head) or delta_torch
            y, after, *_ = form(maps, self.scale, self._decay(), *carried(state, x), reset)
        return self.tail(self.project_out(y.to(x.dtype))), (after,)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        maps = F.linear(x, self._weight())
        with without_autocast(x):
            (before,), decay = carried(state, x), self._decay()
            # no exported file has operators of ours
            kernel = None if torch.compiler.is_exporting() else delta_kernel(maps, self.head)
            if kernel is None:
                y, after = _step(maps, self.scale, decay, *fresh((before,), reset))
            else:
                begins = None if reset is None else reset[:, None]
                y, after, *_ = kernel(maps[:, None], self.scale, decay, before, begins)
        return self.tail(self.project_out(y.view(x.shape).to(x.dtype))), (after,)

    def _weight(self) -> Tensor:
        """Join the weights of all linear maps of x."""
        return self.project_in.weight

    def _decay(self) -> Tensor | None:
        """Compute A and c (2, H)."""
        return None


class GatedDeltaNet(DeltaNet):
    """Gated DeltaNet (Yang et al. 2025, equation 10): a `DeltaNet` whose memory decays, and whose output is gated.

        S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T        y_t = W_o (RMSNorm(S_t q_t) * silu(W_g x_t))
        a = exp(-A softplus(W_a x + c)), one a head

    Else as DeltaNet, without the short convolutions too. The paper leaves the initial values open. Here A = 1, and c
    spaces the heads' decay evenly in its logarithm, from 0.001 to 0.1 a position. 5 D^2 + 2 H D + 2 H + d parameters;
    5 D^2 + 2 H D + 4 D d multiply-adds a position, state O(D d). Stable over any length, as DeltaNet, because a < 1.
    """

    mapped = 2  # W_b and W_a

    def __init__(self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 4) -> None:
        super().__init__(width, dropout, projection, heads=heads)
        self.project_gate = nn.Linear(width, width, bias=False)  # W_g
        self.A_log = nn.Parameter(torch.zeros(heads))
        step = torch.logspace(math.log10(SLOWEST), math.log10(FASTEST), heads)
        self.decay_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # c, the inverse of softplus

    def _weight(self) -> Tensor:
        return torch.cat((self.project_in.weight, self.project_gate.weight))

    def _decay(self) -> Tensor:
        return torch.stack((self.A_log.exp(), self.decay_bias))


def delta_kernel(maps: Tensor, head: int) -> Callable[..., Any] | None:
    """Choose a kernel that is faster than `delta_torch` for these maps, if there is one."""
    if not NUMBA or maps.device.type != "cpu":
        return None
    from dqn_memory.blocks.kernels import cpu_matrix  # loads numba

    return functools.partial(call, cpu_matrix.cpu_delta) if cpu_matrix.fits_delta(maps, head) else None


def delta_torch(
    maps: Tensor, scale: Tensor, decay: Tensor | None, initial: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the input y (B, T, D) of W_o and the last state (B, H, d, d).

    maps (B, T, 3 D + H) holds linear maps for q, k, v and b. With a decay (2, H), which is A and c, maps
    (B, T, 4 D + 2 H) holds those for a and the gate too.
    """
    packed, numbers, gate = _split(maps, decay, initial)
    inputs = *_directions(split_heads(packed, 3 * initial.shape[1])), *_rates(numbers.mT, decay)
    y, (last,) = chunks.in_chunks(_part, CHUNK, inputs, (initial,), reset)
    return gated(join_heads(normalised(y, scale)), gate), last


def _step(maps: Tensor, scale: Tensor, decay: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `delta_torch` for one position, maps (B, ...)."""
    packed, numbers, gate = _split(maps, decay, memory)
    query, key, value = _directions(packed.unflatten(-1, (3 * memory.shape[1], -1)))  # (B, H, d)
    rate, *log_decay = _rates(numbers, decay)  # (B, H)
    if log_decay:
        memory = memory * log_decay[0].exp()[..., None, None]
    change = rate[..., None] * (value - chunks.read_one(key, memory))
    memory = chunks.write_one(key, change, memory)
    return gated(normalised(chunks.read_one(query, memory), scale).flatten(1), gate), memory


def _split(maps: Tensor, decay: Tensor | None, state: Tensor) -> tuple[Tensor, ...]:
    """Split maps into those for q, k and v (..., 3 D), for b and a (..., n H), and for the gate (..., D or 0)."""
    (_, heads, head, _), (maps,) = state.shape, wide(maps)
    first = 3 * heads * head
    return maps.tensor_split((first, first + (1 if decay is None else 2) * heads), -1)


def _directions(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute q, k and v (B, H, ..., d) from their linear maps (B, 3 H, ..., d)."""
    heads = packed.shape[1] // 3
    pair, value = F.silu(packed).split((2 * heads, heads), 1)
    query, key = _divided(pair, SMALLEST).chunk(2, 1)
    return query, key, value


def _rates(numbers: Tensor, decay: Tensor | None) -> tuple[Tensor, ...]:
    """Compute b (B, H, ...), and the logarithm of a if there is a decay, from their linear maps (B, n H, ...)."""
    if decay is None:
        return (numbers.sigmoid(),)
    rate, step = numbers.chunk(2, 1)
    pace, bias = decay.view(*decay.shape, *[1] * (numbers.dim() - 2))
    return rate.sigmoid(), -pace * F.softplus(step + bias)


def _divided(x: Tensor, smallest: float) -> Tensor:
    """Divide x (..., d) by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + smallest)


def normalised(y: Tensor, scale: Tensor) -> Tensor:
    """Divide y (..., d) by the root of its mean square, and scale."""
    head = y.shape[-1]
    return _divided(y, EPSILON * head) * (scale * math.sqrt(head))


def gated(y: Tensor, gate: Tensor) -> Tensor:
    """Multiply y by silu of the gate, if there is one."""
    return y * F.silu(gate) if gate.shape[-1] else y


def _part(query: Tensor, key: Tensor, value: Tensor, rate: Tensor, *rest: Any) -> tuple[Tensor, State]:
    """Read and write one chunk (B, H, C, ...).

    Position i writes u_i = b_i (v_i - enter_i S_0 k_i - sum_{j<i} pair_ij (k_i . k_j) u_j): a triangular system in the
    products of keys. This is the WY form (Yang et al. 2024, section 3). The reads of S_0 are subtracted before it is
    solved, so that there is one right-hand side instead of two.
    """
    *decay, (memory,), reset = rest
    weights, state_weights = (
        chunks.decay_weights(decay[0], reset) if decay else chunks.constant_weights(query.shape[2], reset, query)
    )
    known = chunks.weighted(key @ memory, state_weights)
    system = key @ key.mT * weights * rate[..., None]  # the solver takes its diagonal as 1
    written = torch.linalg.solve_triangular(system, rate[..., None] * (value - known), upper=False, unitriangular=True)
    y = chunks.read_chunk(query, query @ key.mT * weights, written, memory, state_weights)
    return y, (chunks.write_chunk(key, written, memory, weights, state_weights),)
