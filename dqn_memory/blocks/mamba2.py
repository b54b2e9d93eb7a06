"""Mamba-2: a selective state space with one decay for each head, computed in chunks as masked attention."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import chunks
from dqn_memory.blocks.block import Device, Memory, State, Tail, carried, fresh, wide, wide_dtype
from dqn_memory.blocks.chunks import join_heads, split_heads
from dqn_memory.blocks.kernels.custom_operator import without_autocast
from dqn_memory.blocks.mamba import FASTEST, SLOWEST, CausalConvolution

CHUNK = 32  # positions whose scores are computed at once


class Mamba2(Memory):
    """Mamba-2 (Dao and Gu 2024), H heads of P = E / H, inner width E = `expand` D, N = `states`.

        z, u, B, C, s = W_in x, then u, B, C = silu(their convolution over the last W = `taps` positions)
        h_t = exp(dt A) h_{t-1} + dt B_t u_t^T,        dt = softplus(s + c), one a head
        y_t = W_out RMSNorm((C_t^T h_t + D u_t) * silu(z_t))

    All heads share B and C (N,), so that h is (N, P) for each; A < 0, c and D are one number a head, and RMSNorm covers
    all heads, after the gate. A sequence is computed by the blocks of the paper's matrix form. dt has no limits, and h
    begins at 0, as by default in the public implementation. That has heads of 64 or 128 features and draws A from -16
    to -1 and dt log-uniformly; here a narrow layer has `heads` heads, and because they are few, no draw leaves a gap:
    A = -1, D = 1, and c spaces their dt evenly in its logarithm from 0.001 to 0.1. D (3 E + 2 N + H) + (E + 2 N) (W +
    1) + E + 3 H parameters; D (3 E + 2 N + H) + (E + 2 N) W + 3 E N multiply-adds a position, a state of O(E N): h, and
    the last inputs of the convolution, (E + 2 N) W. Stable at any length: A < 0.
    """

    initialises_itself = True
    degree = 5

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, heads: int = 4, states: int = 64,
        taps: int = 4, expand: int = 2,
    ) -> None:  # fmt: skip
        super().__init__()
        if min(states, taps, expand) < 1:
            raise ValueError(f"{states=}, {taps=}, {expand=}; mamba2 needs at least 1 of each")
        self.heads, self.states, self.taps, self.inner = heads, states, taps, expand * width
        chunks.head_width(self.inner, heads)
        self.sizes = self.inner, self.inner + 2 * states, heads  # of z; of u, B and C; of s
        self.in_proj = nn.Linear(width, sum(self.sizes), bias=False)
        self.conv1d = CausalConvolution(self.sizes[1], taps)
        step = torch.logspace(math.log10(SLOWEST), math.log10(FASTEST), heads)
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # c, the inverse of softplus
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.scale = nn.Parameter(torch.ones(self.inner))  # of RMSNorm
        self.out_proj = nn.Linear(self.inner, width, bias=False)
        self.tail = Tail(width, projection, dropout)

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros in float32 or wider: (B, E + 2 N, W), and h (B, H, N, P)."""
        shapes = (self.sizes[1], self.taps), (self.heads, self.states, self.inner // self.heads)
        return tuple(torch.zeros(batch, *shape, device=device, dtype=wide_dtype(dtype)) for shape in shapes)

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        gate, packed, step = self.in_proj(x).split(self.sizes, -1)
        packed, inputs = self.conv1d.sequence(packed, state[0], reset)
        with without_autocast(x):
            u, write, read = self._parts(packed)
            step, decay = self._steps(step.mT)  # (B, H, T)
            u = split_heads(u, self.heads)  # (B, H, T, P)
            given = read[:, None], write[:, None], u * step[..., None], decay  # B and C (B, 1, T, N)
            y, after = chunks.in_chunks(_part, CHUNK, given, carried(state[1:], x), reset)
            y = join_heads(y + wide(self.D)[0].view(-1, 1, 1) * u)
            y = self._normalise(y, gate)
        return self.tail(self.out_proj(y)), (*carried((inputs,), x), *after)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        before, memory = fresh(carried(state, x), reset)
        gate, packed, step = self.in_proj(x).split(self.sizes, -1)
        packed, inputs = self.conv1d.step(packed, before)
        with without_autocast(x):
            u, write, read = self._parts(packed)
            step, decay = self._steps(step)  # (B, H)
            u = u.unflatten(-1, (self.heads, -1))  # (B, H, P)
            memory = memory * decay.exp()[..., None, None]
            memory = chunks.write_one(write[:, None], u * step[..., None], memory)
            y = chunks.read_one(read[:, None], memory) + wide(self.D)[0][:, None] * u
            y = self._normalise(y.flatten(1), gate)
        return self.tail(self.out_proj(y)), (*carried((inputs,), x), memory)

    def _parts(self, packed: Tensor) -> tuple[Tensor, ...]:
        """Separate u (..., E), B and C (..., N)."""
        return wide(packed)[0].split((self.inner, self.states, self.states), -1)

    def _steps(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Compute dt and dt A (B, H, ...) from the map s."""
        maps, bias, decay = wide(maps, self.dt_bias, self.A_log)
        like = (self.heads, *[1] * (maps.dim() - 2))
        step = F.softplus(maps + bias.view(like))
        return step, -decay.exp().view(like) * step

    def _normalise(self, y: Tensor, gate: Tensor) -> Tensor:
        """Apply the gate and RMSNorm to reads y (..., E)."""
        gated = y * F.silu(wide(gate)[0])
        return (gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + 1e-5) * self.scale).to(gate.dtype)


def _part(
    read: Tensor, write: Tensor, value: Tensor, decay: Tensor, state: State, reset: Tensor | None
) -> tuple[Tensor, State]:
    """Read and write one chunk: C and B (B, 1, C, N), dt u (B, H, C, P)."""
    weights, state_weights = chunks.decay_weights(decay, reset)
    y = chunks.read_chunk(read, read @ write.mT * weights, value, state[0], state_weights)
    return y, (chunks.write_chunk(write, value, state[0], weights, state_weights),)
