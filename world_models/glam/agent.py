"""The actor-critic that learns from imagined rollouts: networks, returns and the scale of returns."""

import copy

import torch
from torch import Tensor, nn

from world_models.distributions import symlog_code, upcast
from world_models.glam.config import ActorCriticConfig
from world_models.glam.encoder import mlp


class ActorCritic(nn.Module):
    """Policy and value of features (..., Z + D): a sampled latent, and the memory of all steps before it.

    The published size has 3,020,286 + 513 A parameters; the 1,050,367 of the slow critic are not trained.
    """

    def __init__(self, config: ActorCriticConfig, features: int, actions: int) -> None:
        super().__init__()
        self.config, self.code = config, symlog_code(config.bins)
        self.actor = mlp(features, actions, config.hidden, config.layers)
        self.critic = mlp(features, config.bins, config.hidden, config.layers)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.scale = ReturnScale()

    def policy(self, features: Tensor) -> Tensor:
        """Compute action logits (..., A), float32 or wider."""
        with self._autocast(features):
            logits: Tensor = self.actor(features)
        return upcast(logits)

    def values(self, features: Tensor, slow: bool = False) -> tuple[Tensor, Tensor]:
        """Compute the critic's, or the slow critic's, logits (..., bins) and values (...), float32 or wider."""
        critic = self.slow_critic if slow else self.critic
        with self._autocast(features):
            logits = critic(features)
        return logits, self.code.decode(logits)

    def _autocast(self, like: Tensor) -> torch.autocast:
        return torch.autocast(like.device.type, torch.bfloat16, enabled=self.config.bfloat16)


def lambda_return(
    reward: Tensor, value: Tensor, terminated: Tensor, gamma: float, lam: float, form: str = "textbook"
) -> Tensor:
    """Compute returns of H steps: R_t = r_t + gamma c_t ((1 - lam) V_{t+1} + lam R_{t+1}), backwards from R_H = V_H.

    c_t is 0 if the step ended the episode (`terminated`), else 1 (Sutton and Barto 2018, section 12.1; Hafner et al.
    2021, eq. 4). `released` has V_t in place of V_{t+1}, as in the code of STORM and GLAM.

    Args:
        reward: (H, ...).
        value: (H + 1, ...), of the states before each step and after the last.
        terminated: (H, ...), bool or numbers from 0 to 1.
        gamma: discount of a step.
        lam: share of longer returns.
        form: `textbook` or `released`.

    Returns:
        Returns (H, ...), float32 or wider.
    """
    value = upcast(value)
    discount = gamma * (1 - terminated.to(value.dtype))  # (H, ...)
    next_value = value[:-1] if form == "released" else value[1:]
    short = upcast(reward) + discount * (1 - lam) * next_value  # R_t without the term of R_{t+1}
    later, returns = value[-1], []
    for t in reversed(range(len(reward))):
        later = short[t] + discount[t] * lam * later
        returns.append(later)
    return torch.stack(returns[::-1])


def percentile(x: Tensor, share: float) -> Tensor:
    """Return the int(share n)-th smallest of the n entries, at least the first: an entry of x, not an interpolation."""
    x = x.flatten()
    return x.kthvalue(max(int(share * x.numel()), 1)).values


class ReturnScale(nn.Module):
    """The scale max(1, S), S = moving 95th minus moving 5th percentile of the returns (Hafner et al. 2023, eq. 11).

    Both averages start at 0 without a correction, as in the code of STORM and GLAM. They are buffers, so that a
    checkpoint contains them.
    """

    low: Tensor
    high: Tensor

    decay = 0.99

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def update(self, returns: Tensor) -> Tensor:
        """Update both averages by returns of any shape; return the new scale, a scalar of at least 1."""
        returns = upcast(returns)
        for average, share in ((self.low, 0.05), (self.high, 0.95)):
            average.lerp_(percentile(returns, share).to(average.dtype), 1 - self.decay)
        return (self.high - self.low).clamp(min=1.0)
