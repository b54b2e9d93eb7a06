"""The temporal-difference loss of double Q-learning on windows of history (van Hasselt et al. 2016; DTQN, section 3).

Everything here is a function of tensors with static shapes: eager, compiled and graph-captured runs share it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dqn_memory.config import LearnerConfig
from dqn_memory.network import QNetwork
from dqn_memory.replay import Prefixes, Windows

Metrics = dict[str, Tensor]
LossFunction = Callable[..., tuple[Tensor, Metrics]]


def td_loss(
    network: QNetwork, target: QNetwork, batch: Windows | Prefixes, config: LearnerConfig
) -> tuple[Tensor, Metrics]:
    """The temporal-difference loss of a batch, a scalar, and its metrics (device tensors)."""
    if isinstance(batch, Prefixes):
        return prefix_loss(network, target, batch, config)
    if config.targets == "shifted":
        return shifted_loss(network, target, batch, config)
    return window_loss(network, target, batch, config)


def window_loss(network: QNetwork, target: QNetwork, batch: Windows, config: LearnerConfig) -> tuple[Tensor, Metrics]:
    """All positions of each window; the target of step j is read at position j + n of the same window."""
    tokens = batch.action.shape[1]
    observation, previous = batch.observation[:, :tokens], batch.previous_action[:, :tokens]
    lengths = (batch.lengths + 1).clamp(max=tokens) if config.lengths else None
    whole = config.loss_positions == "all"
    ours, theirs = (each if whole else each.at_every_prefix for each in (network, target))
    q = ours(observation, previous, lengths)  # (B, T, A)
    with torch.no_grad():
        value = _value(q, theirs(observation, previous, lengths), config.double)  # (B, T)
        steps = None
        if batch.observation.shape[1] > tokens:
            rows = max(1, round(config.tail_fraction * len(value)))
            tail = _tail_value(network, target, batch, rows, config)
            value = torch.cat([value, F.pad(tail, (0, 0, 0, len(value) - rows))], 1)  # (B, T + 1)
            steps = _tail_weight(batch, rows, config.n_step)
        goal = n_step_target(batch, value, config)
    return _loss(q, batch, goal, config, steps)


def _tail_value(network: QNetwork, target: QNetwork, batch: Windows, rows: int, config: LearnerConfig) -> Tensor:
    """Value after the first windows where they are full, (rows, 1): the network acts there on its newest K inputs."""
    context = batch.action.shape[1]
    observation, previous = batch.observation[:rows, 1:], batch.previous_action[:rows, 1:]
    lengths = batch.lengths[:rows] if config.lengths else None
    last = torch.full_like(batch.lengths[:rows], context - 1)
    ours = network.at(observation, previous, lengths, last)  # (rows, A)
    theirs = target.at(observation, previous, lengths, last)
    return _value(ours, theirs, config.double).unsqueeze(1)


def _tail_weight(batch: Windows, rows: int, n_step: int) -> Tensor:
    """Weight of each step, (B, T): those that bootstrap behind the window's end are known for the first rows alone.

    The rows of a batch stand in random order (`learner.sample`), so weighing the first ones by B / rows keeps every
    expectation.
    """
    count, context = batch.action.shape
    position = torch.arange(context, device=batch.action.device)
    full = (batch.lengths == context) & ~batch.terminated[:, -1]  # (B,)
    behind = full.unsqueeze(1) & (position + n_step >= context)  # (B, T)
    known = torch.arange(count, device=batch.action.device).unsqueeze(1) < rows  # (B, 1)
    return torch.where(behind, torch.where(known, count / rows, 0.0), 1.0)


def n_step_target(batch: Windows, value: Tensor, config: LearnerConfig) -> Tensor:
    """y_j = sum of gamma^i r_{j+i} + gamma^n V(o_0 .. o_{j+n}); n shrinks at the window's end. (B, T)

    `value` (B, T or T + 1) holds V of the context that ends at each observation.
    """
    tokens = batch.action.shape[1]
    position = torch.arange(tokens, device=value.device)  # (T,)
    distance = position.unsqueeze(0) - position.unsqueeze(1)  # (j, i): i - j
    inside = (distance >= 0) & (distance < config.n_step)
    weight = torch.where(inside, config.gamma ** distance.clamp(min=0).float(), 0.0)  # (j, i)
    reward = batch.reward.to(value.dtype) @ weight.to(value.dtype).T  # (B, T)
    final = batch.lengths.unsqueeze(1)  # (B, 1)
    at = (position + config.n_step).clamp(max=value.shape[1] - 1).minimum(final)  # (B, T)
    ended = batch.terminated.gather(1, final - 1) & (position + config.n_step >= final)
    ended = ended | (position >= final)  # padding, where it is trained: nothing follows
    discount = torch.where(ended, 0.0, config.gamma ** (at - position).float())
    return reward + discount * value.gather(1, at)


def shifted_loss(network: QNetwork, target: QNetwork, batch: Windows, config: LearnerConfig) -> tuple[Tensor, Metrics]:
    """The published form: the target of position j is read at position j of the window one step later."""
    tokens = batch.action.shape[1]
    real = torch.arange(tokens, device=batch.lengths.device) < batch.lengths.unsqueeze(1)  # (B, T)
    wide = real.reshape(*real.shape, *[1] * len(network.spec.shape))
    observation = torch.where(wide, batch.observation[:, :tokens], network.spec.padding)
    observation = observation.to(batch.observation.dtype)
    previous = torch.where(real, batch.previous_action[:, :tokens], network.num_actions)
    lengths = batch.lengths if config.lengths else None
    q = network(observation, previous, lengths)  # (B, T, A)
    with torch.no_grad():
        following = (batch.observation[:, 1:], batch.previous_action[:, 1:], lengths)
        ours = network(*following) if config.double else None
        value = _value(ours, target(*following), config.double)  # (B, T)
        goal = batch.reward + config.gamma * torch.where(batch.terminated, 0.0, value)
    return _loss(q, batch, goal, config)


def prefix_loss(network: QNetwork, target: QNetwork, batch: Prefixes, config: LearnerConfig) -> tuple[Tensor, Metrics]:
    """One position a sequence, the last: training reads exactly what acting reads, so nothing leaks."""
    q = network.at(batch.observation, batch.previous_action, batch.lengths, batch.lengths - 1)  # (B, A)
    with torch.no_grad():
        following = (batch.next_observation, batch.next_previous_action, batch.next_lengths)
        last = batch.next_lengths - 1
        ours = network.at(*following, last) if config.double else None
        value = _value(ours, target.at(*following, last), config.double)  # (B,)
        goal = batch.reward + batch.discount * value
    chosen = _wide(q.gather(1, batch.action.unsqueeze(1)).squeeze(1))
    loss = _distance(config)(chosen, goal)
    return loss.mean(), _metrics(loss.mean(), chosen, goal)


def _value(ours: Tensor | None, theirs: Tensor, double: bool) -> Tensor:
    """V of each context: the target's value of the online network's choice, or its own maximum. (..., A) -> (...)"""
    if not double or ours is None:
        return _wide(theirs.max(-1).values)
    return _wide(theirs.gather(-1, ours.argmax(-1, keepdim=True)).squeeze(-1))


def _wide(x: Tensor) -> Tensor:
    """At least float32: errors and targets are not formed in an autocast precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _distance(config: LearnerConfig) -> Callable[[Tensor, Tensor], Tensor]:
    function = F.mse_loss if config.loss == "mse" else F.smooth_l1_loss
    return lambda ours, goal: function(ours, goal, reduction="none")


def _loss(
    q: Tensor, batch: Windows, goal: Tensor, config: LearnerConfig, steps: Tensor | None = None
) -> tuple[Tensor, Metrics]:
    """Mean error over real steps, each weighed by `steps` (B, T) where that is given."""
    chosen = _wide(q.gather(2, batch.action.unsqueeze(2)).squeeze(2))  # (B, T)
    error = _distance(config)(chosen, goal)
    if not config.mask_padding:
        return error.mean(), _metrics(error.mean(), chosen, goal)
    position = torch.arange(chosen.shape[1], device=chosen.device)
    real = (position < batch.lengths.unsqueeze(1)).float()  # (B, T)
    weight = torch.where(batch.terminated, batch.terminal_weight, 1.0) * real  # (B, T)
    weight = weight if steps is None else weight * steps
    share = weight / weight.sum()
    loss = (error * share).sum()
    return loss, _metrics(loss, chosen * share * share.numel(), goal * share * share.numel())


def _metrics(loss: Tensor, chosen: Tensor, goal: Tensor) -> Metrics:
    return {
        "losses/td_loss": loss.detach(),
        "losses/q_values": chosen.detach().mean(),
        "losses/targets": goal.mean(),
    }
