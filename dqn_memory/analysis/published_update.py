"""The baseline of the benchmark: the published update as its reference implementation computes it.

Nothing here is used to train. The update is written from its description: attention is `nn.MultiheadAttention` with its
weights materialised and an additive causal mask; every update runs three full forwards, an unmasked squared error, and
an unfused Adam (DTQN, Esslinger et al. 2022; DBGFQN: the feed-forward sublayer replaced by a bidirectional GRU).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dqn_memory.network import QNetwork
from dqn_memory.replay import WindowBatch

GAMMA = 0.99


def shifted_windows(batch: WindowBatch, padding: float) -> tuple[Tensor, Tensor]:
    """Split windows of K + 1 observations into two of K, (B, T, d): the first one's own, and those one step later."""
    real = torch.arange(batch.action.shape[1]) < batch.lengths[:, None]  # (B, T)
    return batch.observation[:, :-1].masked_fill(~real[..., None], padding), batch.observation[:, 1:].contiguous()


class BaselineLayer(nn.Module):
    """x <- LN(x + relu(attention x)); x <- LN(x + relu(memory x)), with a memory of feed-forward 4 D or a BiGRU."""

    def __init__(self, width: int, heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_attention = nn.LayerNorm(width)
        self.memory: nn.Module = (
            nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
            if bidirectional
            else nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        )
        self.norm_memory = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode x (B, T, D) under an additive mask (T, T)."""
        mixed, _ = self.attention(x, x, x, attn_mask=mask, need_weights=True)
        x = self.norm_attention(x + F.relu(mixed))
        y = self.memory(x)
        return self.norm_memory(x + F.relu(y[0] if isinstance(y, tuple) else y))


class BaselineNetwork(nn.Module):
    """Q-values (B, T, A) of observations (B, T, d), with the sizes and the weights of a dtqn4 or a dbgfqn of ours.

    Parameters are registered in the order of ours, which is that of the forward pass.
    """

    mask: Tensor  # (K, K)

    def __init__(self, ours: QNetwork) -> None:
        super().__init__()
        config, spec = ours.config, ours.spec
        width, context, self.discrete = config.width, config.context, spec.kind == "discrete"
        self.table = nn.Embedding(spec.vocabulary, 8) if self.discrete else nn.Identity()
        self.embed = nn.Linear(spec.shape[0] * (8 if self.discrete else 1), width)
        self.positions = nn.ParameterList([torch.zeros(1, context, width)])
        bidirectional = config.row().memory == "bigru"
        self.layers = nn.ModuleList(BaselineLayer(width, config.heads, bidirectional) for _ in ours.layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ours.num_actions))
        self.register_buffer("mask", torch.full((context, context), -math.inf).triu(1), persistent=False)
        with torch.no_grad():
            for left, right in zip(self.parameters(), ours.parameters(), strict=True):
                left.copy_(right.view_as(left))

    def forward(self, observation: Tensor) -> Tensor:
        """Compute Q at every position of every window."""
        time = observation.shape[1]
        tokens = self.table(observation.long()).flatten(2) if self.discrete else observation
        x = self.embed(tokens) + self.positions[0][:, :time]  # (B, T, D)
        for layer in self.layers:
            x = layer(x, self.mask[:time, :time])
        return self.head(self.norm(x))  # (B, T, A)


def baseline_loss(
    network: BaselineNetwork, target: BaselineNetwork, seen: Tensor, following: Tensor, batch: WindowBatch
) -> Tensor:
    """Average the squared error over all positions and padding; the target is read from the window one step later."""
    chosen = network(seen).gather(2, batch.action.unsqueeze(2)).squeeze(2)  # (B, T)
    with torch.no_grad():
        best = network(following).argmax(2, keepdim=True)  # (B, T, 1)
        value = target(following).gather(2, best).squeeze(2)
        goal = batch.reward + GAMMA * (1 - batch.terminated.float()) * value
    return F.mse_loss(chosen, goal)


def make_baseline_update(ours: QNetwork, batch: WindowBatch) -> Callable[[], Tensor]:
    """Make an update of a network with our weights that gives its loss; Adam takes one operation at a time."""
    network, target = BaselineNetwork(ours), BaselineNetwork(ours)
    seen, following = shifted_windows(batch, ours.spec.padding)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4, foreach=False, fused=False)

    def update() -> Tensor:
        loss = baseline_loss(network, target, seen, following, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        return loss.detach()

    return update
