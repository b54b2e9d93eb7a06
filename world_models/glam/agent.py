"""The actor-critic that learns from imagined rollouts (Zhang et al. 2023, STORM, section 3.3, which GLAM keeps)."""

import copy

import torch
from torch import Tensor, nn

from world_models.distributions import cross_entropy, entropy, symlog_code, upcast
from world_models.glam.config import ActorCriticConfig
from world_models.glam.encoder import mlp
from world_models.glam.imagination import Rollouts
from world_models.glam.learner import Metrics, descend


class ActorCritic(nn.Module):
    """Policy and value of a state: of a sampled latent and the memory of all steps before it, (..., Z + D).

    3,020,286 + 513 A parameters at full size, of which the slow critic's 1,050,367 are not trained.
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


def losses(agent: ActorCritic, rollouts: Rollouts) -> tuple[Tensor, Metrics]:
    """Compute policy gradient with baseline, entropy, and two cross-entropies of the critic, means over H x B steps.

    - mean(log pi(a) sg((R - V) / max(1, S))) - entropy weight mean(H[pi]) + CE(V, sg(R)) + CE(V, sg(R_slow)), with R
    the lambda returns of the critic and R_slow those of the slow critic (Hafner et al. 2023; STORM, eq. 9 to 11). Moves
    the averages behind S by these returns.
    """
    config, features = agent.config, rollouts.features()  # (H + 1, B, Z + D)
    logits, value = agent.values(features)
    returns, slow_returns = (
        lambda_return(rollouts.reward, each, rollouts.terminated, config.gamma, config.lam, config.returns)
        for each in (value.detach(), agent.values(features, slow=True)[1])
    )  # (H, B)
    scale = agent.scale.update(returns)
    advantage = (returns - value[:-1].detach()) / scale
    policy = agent.policy(features[:-1])  # (H, B, A)
    chosen = policy.log_softmax(-1).gather(-1, rollouts.action.unsqueeze(-1)).squeeze(-1)
    parts = {
        "losses/actor": -(chosen * advantage).mean(),
        "losses/critic": cross_entropy(logits[:-1], agent.code.encode(returns)).mean(),
        "losses/slow_critic": cross_entropy(logits[:-1], agent.code.encode(slow_returns)).mean(),
    }
    policy_entropy = entropy(policy).mean()
    total = torch.stack(list(parts.values())).sum() - config.entropy_weight * policy_entropy
    extra = {"agent/entropy": policy_entropy, "agent/return": returns.mean(), "agent/return_scale": scale}
    return total, {name: each.detach() for name, each in (parts | extra).items()}


def update(agent: ActorCritic, optimizer: torch.optim.Optimizer, rollouts: Rollouts) -> Metrics:
    """Take one gradient step of actor and critic and move the slow critic; metrics stay on the device."""
    total, metrics = losses(agent, rollouts)
    norm = descend(total, agent, optimizer, agent.config.max_grad_norm)
    with torch.no_grad():  # the slow critic moves towards the critic by its moving average
        slow: list[Tensor] = list(agent.slow_critic.parameters())
        torch._foreach_lerp_(slow, list(agent.critic.parameters()), 1 - agent.config.slow_decay)
    return metrics | {"losses/agent": total.detach(), "grad/agent_norm": norm}


def lambda_return(
    reward: Tensor, value: Tensor, terminated: Tensor, gamma: float, lam: float, form: str = "textbook"
) -> Tensor:
    """Compute returns of H steps: R_t = r_t + gamma c_t ((1 - lam) V_{t+1} + lam R_{t+1}), from R_H = V_H backwards.

    c_t is 0 where the step ended the episode (`terminated`) and 1 elsewhere (Sutton and Barto 2018, section 12.1;
    Hafner et al. 2021, eq. 4). `released` has V_t in the place of V_{t+1}, as the code of STORM and GLAM does.

    Rewards (H, ...), values (H + 1, ...) of the states before each step and after the last, ends (H, ...) as truth
    values or as numbers from 0 to 1: returns (H, ...), float32 or wider.
    """
    value = upcast(value)
    discount = gamma * (1 - terminated.to(value.dtype))  # (H, ...)
    next_value = value[:-1] if form == "released" else value[1:]
    short = upcast(reward) + discount * (1 - lam) * next_value  # all of R_t but the part of R_{t+1}
    later, returns = value[-1], []
    for t in reversed(range(len(reward))):
        later = short[t] + discount[t] * lam * later
        returns.append(later)
    return torch.stack(returns[::-1])


def percentile(x: Tensor, share: float) -> Tensor:
    """Find the int(share n)-th smallest of all n entries, at least the first: an entry of x, not an interpolation."""
    x = x.flatten()
    return x.kthvalue(max(int(share * x.numel()), 1)).values


class ReturnScale(nn.Module):
    """max(1, S), S = moving 95th minus moving 5th percentile of the returns (Hafner et al. 2023, eq. 11).

    Both averages start at 0 and are not corrected for it, as in the code of STORM and GLAM; they are buffers, so that
    a checkpoint has them.
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
