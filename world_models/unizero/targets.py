"""Value targets: n steps of reward and the target network's value behind them, for a batch of sequences at once.

UniZero bootstraps every target anew from the target network, in one teacher-forced pass over the T observations that
begin n' steps after the sequence does. Shapes are static and nothing is read back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from world_models.unizero.losses import Batch
from world_models.unizero.replay import Sequences

# values (B, T) of T observations (B, T, ...), the actions (B, T) that followed and how many are real (B,)
Bootstrap = Callable[[Tensor, Tensor, Tensor], Tensor]


def step_count(left: Tensor, n: int) -> Tensor:
    """How many rewards n' = min(n, max(1, left)) a target sums: one number a sequence, (B,)."""
    return left.clamp(1, n)


def n_step_targets(reward: Tensor, bootstrap: Tensor, left: Tensor, truncated: Tensor, gamma: float, n: int) -> Tensor:
    """Targets (B, T) on the scale of returns.

    reward (B, T + n - 1 or more) starts at the sequence's first step; bootstrap (B, T) holds the values of the
    observations n' and more steps later; left (B,) counts the steps of the episode from the first one on, as far as
    they matter (T + n says: more than that). The target of step c sums the rewards of steps c .. c + n' - 1 and adds
    gamma^n' times the value after them. Behind the last step rewards and value are 0; but if the episode was
    `truncated` (B,), the value of its final observation takes their place.
    """
    steps = bootstrap.shape[1]
    count, left = step_count(left, n).unsqueeze(1), left.unsqueeze(1)  # (B, 1)
    place = torch.arange(reward.shape[1], device=reward.device)
    power = torch.arange(n, device=reward.device)
    paid = torch.where(place < left, reward, 0.0).unfold(1, n, 1)[:, :steps]  # (B, T, n)
    discount = torch.where(power < count, gamma ** power.to(reward.dtype), 0.0)  # (B, n)
    here = place[:steps]
    final = truncated.unsqueeze(1) & (here < left)
    ahead = count.minimum(left - here).clamp(min=0)  # (B, T): fewer than n' where the episode was cut
    value = bootstrap.gather(1, here.minimum((left - count).clamp(min=0)))
    value = torch.where((here + count < left) | final, value, 0.0)
    return (paid * discount.unsqueeze(1)).sum(2) + gamma ** ahead.to(reward.dtype) * value


def bootstrap_values(sequences: Sequences, n: int, values: Bootstrap) -> Tensor:
    """Values (B, T) of the observations n' .. n' + T - 1 steps after each sequence's first, in one call."""
    steps = sequences.mask.shape[1]
    count = step_count(sequences.left, n)
    place = count.unsqueeze(1) + torch.arange(steps, device=count.device)  # (B, T), below T + n
    row = torch.arange(len(count), device=count.device).unsqueeze(1)
    observation, action = sequences.observation, sequences.action
    held = sequences.left + sequences.truncated  # observations of the episode, a final one included
    real = (held - count).clamp(1, steps)  # at least one, whose value then counts for nothing
    return values(observation[row, place], action[row, place], real)


def make_batch(sequences: Sequences, values: Bootstrap, gamma: float, n: int) -> Batch:
    """What the learner takes: sequences of T steps with their value targets."""
    steps = sequences.mask.shape[1]
    bootstrap = bootstrap_values(sequences, n, values).to(torch.promote_types(sequences.reward.dtype, torch.float32))
    return Batch(
        observation=sequences.observation[:, :steps],
        action=sequences.action[:, :steps],
        reward=sequences.reward[:, :steps],
        value=n_step_targets(sequences.reward, bootstrap, sequences.left, sequences.truncated, gamma, n),
        policy=sequences.policy,
        mask=sequences.mask,
    )
