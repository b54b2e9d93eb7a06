"""Mamba-1 (Gu & Dao 2023, section 3): a causal convolution and a selective state space between two gates.

Parameters have the names and shapes of the public implementation's mixer, so each can load the other's state dict. The
defaults are the same too: N = 16 states a channel, convolution over 4, inner width 2 D, step-size rank D/16.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks.block import Device, Memory, State, fresh, wide, wide_dtype
from dqn_memory.blocks.kernels.custom_operator import without_autocast
from dqn_memory.blocks.kernels.selective_scan import Scan, scan_torch, selective_scan

SLOWEST, FASTEST, FLOOR = 1e-3, 1e-1, 1e-4  # range of the first step sizes


class CausalConvolution(nn.Conv1d):
    """A convolution over the last W inputs of each channel, inside their episode, then a SiLU. State: those inputs."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__(channels, channels, taps, groups=channels)
        self.taps = taps  # W

    def sequence(self, u: Tensor, before: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """Map u (B, T, E) after the inputs `before` (B, E, W); returns (B, T, E), and the last inputs (B, E, W)."""
        inputs = torch.cat([before.to(u.dtype), u.mT], -1)  # (B, E, W + T), raw inputs, oldest first
        after = inputs[..., -self.taps :]
        if reset is None:
            return F.silu(self(inputs[..., 1:])).mT, after
        episode = F.pad(reset.cumsum(1), (self.taps, 0))  # (B, W + T): 0 before the first reset
        ended = episode[:, None, -self.taps :] != episode[:, None, -1:]
        return F.silu(self._within(inputs[..., 1:], episode[:, 1:])).mT, after.masked_fill(ended, 0)

    def step(self, u: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Map one position u (B, E), likewise."""
        inputs = torch.cat([before[..., 1:].to(u.dtype), u[..., None]], -1)  # (B, E, W)
        return F.silu(self(inputs)[..., 0]), inputs

    def _within(self, inputs: Tensor, episode: Tensor) -> Tensor:
        """Convolve inputs (B, E, W - 1 + T) within each episode, numbered by `episode` (B, W - 1 + T): (B, E, T)."""
        time = inputs.shape[-1] - self.taps + 1
        assert self.bias is not None
        total = self.bias[:, None]
        for tap, weight in enumerate(self.weight[:, 0].unbind(1)):  # (E,)
            same = episode[:, tap : tap + time] == episode[:, self.taps - 1 :]
            total = total + weight[:, None] * inputs[..., tap : tap + time] * same[:, None]
        return total


class Mamba(Memory):
    """One mixer. Its state: the last inputs of the convolution (B, E, W) and the scan's state (B, E, N) in float32.

        u, g = W_in x_t, u then convolved, silu; d, B, C = maps of u, d through a softplus: a step size a channel
        h_t = exp(d A) h_{t-1} + d B u      y_t = W_out ((C h_t + s u) silu(g))       (algorithm 2, equation 2)

    d B replaces the zero-order hold of equation 4, as in the public implementation. With E = `expand` D, N, W = `taps`
    and R = `rank`: E (3 D + W + 3 N + 2 R + 3) parameters, about E (3 D + W + 6 N + 2 R) multiply-adds a token, a
    state of O(E (W + N)). Stable at any length: A < 0. W_out is its projection; `projection` adds no other.

    `core` computes the recurrence: torch's scan, which runs everywhere, unless `kernels.select.set_scan` replaces it.
    """

    initialises_itself = True
    degree = 4

    def __init__(
        self, width: int, dropout: float = 0.0, projection: bool = False, *, states: int = 16, taps: int = 4,
        expand: int = 2, rank: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.width, self.states, self.taps = width, states, taps
        self.inner = expand * width
        self.rank = math.ceil(width / 16) if rank is None else rank
        if min(states, taps, expand, self.rank) < 1:
            raise ValueError(f"{states=}, {taps=}, {expand=}, rank={self.rank}; mamba needs at least 1 of each")
        self.in_proj = nn.Linear(width, 2 * self.inner, bias=False)
        self.conv1d = CausalConvolution(self.inner, taps)
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(self.rank, self.inner)
        self.A_log = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(self.inner, 1))  # (E, N)
        self.D = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.core: Scan = scan_torch
        self._start_steps()

    @torch.no_grad()
    def _start_steps(self) -> None:
        """Draw step sizes log-uniformly from [0.001, 0.1]; the bias is their inverse softplus."""
        bound = self.rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        low, high = math.log(SLOWEST), math.log(FASTEST)
        step = torch.exp(torch.rand(self.inner) * (high - low) + low).clamp(min=FLOOR)
        self.dt_proj.bias.copy_(step + torch.log(-torch.expm1(-step)))

    def initial_state(self, batch: int, device: Device = None, dtype: torch.dtype | None = None) -> State:
        """Make zeros (B, E, W) and (B, E, N)."""
        inputs = torch.zeros(batch, self.inner, self.taps, device=device, dtype=dtype)
        return inputs, torch.zeros(batch, self.inner, self.states, device=device, dtype=wide_dtype(dtype))

    def run(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        u, gate = self.in_proj(x).chunk(2, dim=-1)  # (B, T, E)
        u, after = self.conv1d.sequence(u, state[0], reset)
        keep = None if reset is None else (~reset).to(wide_dtype(u.dtype))
        y, last = self._scan(u.contiguous(), gate, state[1], keep)  # the scan reads channels side by side
        return self.dropout(self.out_proj(y)), (after, last)

    def advance(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Compute one position x (B, D) by torch's own operators, so that a step can be exported."""
        before, hidden = fresh(state, reset)
        entered, gate = self.in_proj(x).chunk(2, dim=-1)  # (B, E)
        u, inputs = self.conv1d.step(entered, before)
        low, write, read = self.x_proj(u).split([self.rank, self.states, self.states], dim=-1)
        delta, decay = F.linear(low, self.dt_proj.weight), self._decay()
        with without_autocast(x):
            kind = decay.dtype
            step = F.softplus(delta.to(kind) + self.dt_proj.bias.to(kind))[..., None]  # (B, E, 1)
            driven = u.to(kind)
            hidden = torch.exp(step * decay) * hidden.to(kind) + step * driven[..., None] * write.to(kind)[:, None]
            y = (hidden @ read.to(kind)[..., None])[..., 0] + self.D.to(kind) * driven
            y = (y * F.silu(gate.to(kind))).to(u.dtype)
        return self.dropout(self.out_proj(y)), (inputs, hidden)

    def _decay(self) -> Tensor:
        return -torch.exp(*wide(self.A_log))  # (E, N)

    def _scan(self, u: Tensor, gate: Tensor, initial: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run the selective state space over convolved inputs u (B, T, E); return y (B, T, E) and the last state."""
        low, write, read = self.x_proj(u).split([self.rank, self.states, self.states], dim=-1)
        delta = F.linear(low, self.dt_proj.weight)  # (B, T, E); its bias joins in float32
        return selective_scan(
            u, delta, self._decay(), write, read, skip=self.D, gate=gate, delta_bias=self.dt_proj.bias,
            initial=initial, keep=keep, core=self.core,
        )  # fmt: skip
