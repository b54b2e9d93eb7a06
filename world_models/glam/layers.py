"""Layers over sequences of several episodes, and Mamba's last output over short windows.

`age` (B, T) int64 counts the positions since an episode began: a position of age a depends on the a positions before
it. A selective state space can forget: as the step size grows, exp(dt A) goes to 0 (Gu & Dao 2023, section 3.5.2,
"boundary resetting"). A position of age 0 therefore takes a step so long that the decay is exactly 0. Its input is
divided by the same factor, so that the state gets the same input. Every backend of the scan can do that.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dqn_memory.blocks import State
from dqn_memory.blocks.feed_forward import FeedForward
from dqn_memory.blocks.kernels.selective_scan import selective_scan
from dqn_memory.blocks.mamba import Mamba
from dqn_memory.blocks.positions import rotate
from world_models.distributions import upcast
from world_models.glam.config import GlamModelConfig

EPSILON = 1e-6  # of the LayerNorms in a layer; all others have PyTorch's 1e-5
FORGETTING = 1e3  # exp(-1000) is 0 in float64


class MambaLayer(nn.Module):
    """x + norm(mixer(norm(x))), Eq. 6 and 7; without the outer norm as released."""

    def __init__(self, config: GlamModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, eps=EPSILON)
        self.mixer = Mamba(config.width, states=config.state_size)
        self.post_norm = nn.LayerNorm(config.width, eps=EPSILON) if config.post_norm else nn.Identity()

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return two tensors: see Mamba."""
        return self.mixer.initial_state(batch, like.device, like.dtype)

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D) of x (B, T, D) from `state`, and the state after it."""
        y, state = mix(self.mixer, self.norm(x), age, state)
        return x + self.post_norm(y), state

    def whole(self, x: Tensor) -> Tensor:
        """Compute outputs (M, W, D) of windows x (M, W, D), each from a zero state."""
        return x + self.post_norm(self.mixer(self.norm(x)))

    def enter(self, x: Tensor) -> Tensor:
        """Project x (..., D) to the inputs of the convolution (..., E)."""
        weight = self.mixer.in_proj.weight[: self.mixer.inner]
        return F.linear(self.norm(x), weight)

    def last(self, entered: Tensor, x: Tensor) -> Tensor:
        """Compute the last outputs (M, D) of windows `entered` (M, W, E) with last inputs x (M, D).

        They equal those of `whole` at the last position. Gate and output maps are computed there alone.
        """
        gate = F.linear(self.norm(x), self.mixer.in_proj.weight[self.mixer.inner :])
        return x + self.post_norm(last_of_window(self.mixer, entered, gate))


def mix(mixer: Mamba, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
    """Run `mixer` over x (B, T, D) from `state`; positions with `age` (B, T) 0 forget everything before them."""
    u, gate = mixer.in_proj(x).chunk(2, dim=-1)  # (B, T, E)
    inputs = torch.cat([state[0].to(u.dtype), u.mT], -1)  # (B, E, W + T), oldest first
    u = F.silu(_convolve(mixer.conv1d, inputs[..., 1:], age)).mT  # (B, T, E)
    low, enter, leave = mixer.x_proj(u).split([mixer.rank, mixer.states, mixer.states], dim=-1)
    decay = _decay(mixer)
    u, step = u.to(decay.dtype), _steps(mixer, low, decay)
    longest = (FORGETTING / decay.detach().abs().amin(-1)).expand_as(step)  # (B, T, E)
    opens = (age == 0)[..., None]
    driven = torch.where(opens, u * step / longest, u)
    y, last = selective_scan(driven, torch.where(opens, longest, step), decay, enter, leave, softplus=False,
                             initial=state[1], core=mixer.core)  # fmt: skip
    y = _gated(mixer, y, u, gate)
    return mixer.out_proj(y.to(x.dtype)), (inputs[..., -mixer.taps :], last)


def last_of_window(mixer: Mamba, entered: Tensor, gate: Tensor) -> Tensor:
    """Compute the mixer's last output (M, D) of windows `entered` (M, W, E) after zeros, with `gate` (M, E)."""
    padded = F.pad(entered.mT, (mixer.taps - 1, 0))
    u = F.silu(mixer.conv1d(padded)).mT  # (M, W, E)
    low, enter = F.linear(u, mixer.x_proj.weight[: mixer.rank + mixer.states]).split([mixer.rank, mixer.states], -1)
    leave = F.linear(u[:, -1], mixer.x_proj.weight[mixer.rank + mixer.states :])  # (M, N)
    decay = _decay(mixer)
    u, step = u.to(decay.dtype), _steps(mixer, low, decay)
    nowhere = torch.zeros_like(enter)  # the scan's outputs are not used
    _, state = selective_scan(u, step, decay, enter, nowhere, softplus=False, core=mixer.core)  # (M, E, N)
    with torch.autocast(state.device.type, enabled=False):
        y = (state @ leave.to(decay.dtype)[..., None])[..., 0]
    return mixer.out_proj(_gated(mixer, y, u[:, -1], gate).to(gate.dtype))


def _convolve(conv: nn.Conv1d, inputs: Tensor, age: Tensor) -> Tensor:
    """Convolve inputs (B, E, W - 1 + T) causally to (B, E, T); a position reads at most `age` (B, T) before it."""
    taps, time = conv.kernel_size[0], age.shape[1]
    total = conv.bias[:, None]  # type: ignore[index]
    for back in range(taps):
        here = inputs[..., taps - 1 - back :][..., :time]
        known = (age >= back)[:, None]
        total = total + torch.where(known, here, 0) * conv.weight[:, :, taps - 1 - back]
    return total.to(inputs.dtype)


def _decay(mixer: Mamba) -> Tensor:
    return -upcast(mixer.A_log).exp()


def _steps(mixer: Mamba, low: Tensor, decay: Tensor) -> Tensor:
    """Compute step sizes (B, T, E), in the precision of the scan."""
    raw = F.linear(low, mixer.dt_proj.weight)
    return F.softplus(raw.to(decay.dtype) + mixer.dt_proj.bias.to(decay.dtype))


def _gated(mixer: Mamba, y: Tensor, u: Tensor, gate: Tensor) -> Tensor:
    return (y + mixer.D.to(y.dtype) * u) * F.silu(gate.to(y.dtype))


class EpisodeAttention(nn.Module):
    """Attention to at most `memory` positions of the same episode, with the current one.

    Positions are rotary: only distances count, so that carried keys and values need no absolute position. (STORM adds
    learned positions, which end with its training sequence.)
    """

    def __init__(self, config: GlamModelConfig) -> None:
        super().__init__()
        width = config.width
        self.heads, self.memory, self.dropout = config.heads, config.attention_window, config.dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return keys and values, (B, H, memory - 1, hd) each."""
        shape = batch, self.heads, self.memory - 1, self.project_out.in_features // self.heads
        return like.new_zeros(shape), like.new_zeros(shape)

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute outputs (B, T, D) of x (B, T, D) from `state`; a position sees at most `age` (B, T) before it."""
        query, key, value = self.project_in(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keys = torch.cat([state[0].to(key.dtype), key], 2)  # (B, H, S, hd), before the rotation
        values = torch.cat([state[1].to(value.dtype), value], 2)
        position = torch.arange(keys.shape[2], device=x.device)  # (S,)
        here = position[self.memory - 1 :]  # (T,)
        distance = here[:, None] - position  # (T, S)
        seen = (distance >= 0) & (distance <= age.clamp(max=self.memory - 1)[..., None])  # (B, T, S)
        mixed = F.scaled_dot_product_attention(
            rotate(query, here), rotate(keys, position), values, attn_mask=seen[:, None],
            dropout_p=self.dropout if self.training else 0.0,
        )  # fmt: skip
        first = keys.shape[2] - self.memory + 1
        return self.project_out(mixed.transpose(1, 2).flatten(2)), (keys[:, :, first:], values[:, :, first:])


class TransformerLayer(nn.Module):
    """LayerNorm after each of two residual sums: attention, then a feed-forward of twice the width."""

    def __init__(self, config: GlamModelConfig) -> None:
        super().__init__()
        self.attention = EpisodeAttention(config)
        self.feed_forward = FeedForward(config.width, 2, config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width, eps=EPSILON) for _ in range(2))

    def initial_state(self, batch: int, like: Tensor) -> State:
        return self.attention.initial_state(batch, like)

    def forward(self, x: Tensor, age: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = self.attention(x, age, state)
        x = self.norms[0](x + self.dropout(mixed))
        return self.norms[1](x + self.feed_forward(x)), state
