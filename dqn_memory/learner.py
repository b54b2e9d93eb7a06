"""One double-DQN update on windows of history (van Hasselt et al. 2016; DTQN, Esslinger et al. 2022, section 3).

Everything here is a function of tensors with static shapes: eager, compiled and graph-captured runs share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dqn_memory.errors import UserError
from dqn_memory.networks import QNetwork
from dqn_memory.replay import Prefixes, Replay, Windows

BUCKETS = (8, 16, 24, 32)

Metrics = dict[str, Tensor]
LossFunction = Callable[..., tuple[Tensor, Metrics]]


@dataclass(frozen=True)
class LearnerConfig:
    """The update. The defaults are the corrected form; configs/paper.toml holds the published one."""

    batch: int = 32
    """Windows per update."""
    gamma: float = 0.99
    """Discount per environment step."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    final_rate: float = 1.0
    """Share of every step size that is left at the end of the run, reached on a straight line (1: constant)."""
    prior_lr: float | None = None
    """Step size of learned attention priors (None: as all other parameters)."""
    clip_norm: float = 1.0
    """Largest global L2 norm of the gradient."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss on the temporal-difference error."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network values it."""
    n_step: int = 1
    """Steps of reward before the bootstrap (uncorrected for exploration)."""
    target_every: int = 10_000
    """Updates between hard copies into the target network."""
    average: float = 0.0
    """Decay per update of averaged weights, which evaluations and the saved agent use (0: the online weights). The
    greedy policy of a Q-network swings from update to update; the average of its weights does so less."""
    positions: str = "auto"
    """Positions that the loss trains: all | last | ends:M (M acting contexts a window, each as its own sequence) |
    auto (all for causal networks, ends:4 for others, whose inner positions would see the future)."""
    targets: Literal["full", "shifted"] = "full"
    """`full` keeps the oldest observation in every target's context; `shifted` reads the window that starts one step
    later, as published, so that a cue seen only in the first observation never reaches a target."""
    placement: Literal["around", "ending"] = "around"
    """Where a drawn step lies in its window: `around` anywhere in it, so that all steps are learned from about equally
    often; `ending` at its end, as published, where a terminal step is in one window and all others in K."""
    terminal_share: float = 0.0
    """Share of windows that are drawn to end at a terminal step (0: as often as they happen)."""
    terminal_weight: float = 1.0
    """Weight of terminal steps in the loss, others have 1. Where only the end pays, what it depends on is told by one
    position in a window's K, and the comparison it takes is learned late."""
    weight_updates: int = 0
    """Updates over which that weight falls to 1, by equal factors (0: it stays). What an end pays by chance is noise to
    all steps before it, so a weight that helps at first is in the way of values later."""
    mask_padding: bool = True
    """Leave padding out of the loss (published: it is in the loss)."""
    lengths: bool = True
    """Tell the network where padding begins (published: it does not know)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Autocast precision of the forward passes."""

    def ends(self, causal: bool) -> int | None:
        """Acting contexts a window, or None for losses on all positions; a UserError names a malformed word."""
        if self.positions == "auto":
            return None if causal else 4
        if self.positions in ("all", "last"):
            return None if self.positions == "all" else 1
        kind, _, number = self.positions.partition(":")
        if kind != "ends" or not number.isdigit() or int(number) < 1:
            raise UserError(f"--positions {self.positions!r} is not known; use all, last, ends:M (M >= 1) or auto")
        return int(number)

    def weight_at(self, updates: int) -> float:
        """Weight of terminal steps after that many updates."""
        left = max(0.0, 1 - updates / self.weight_updates) if self.weight_updates else 1.0
        return float(self.terminal_weight**left)

    def check(self, causal: bool) -> None:
        """One sentence for every combination that cannot work."""
        ends = self.ends(causal)
        if ends is not None and self.targets == "shifted":
            raise UserError(f"--targets shifted needs --positions all, but --positions is {self.positions}")
        if ends is not None and not (self.mask_padding and self.lengths):
            raise UserError(
                f"--positions {self.positions} trains acting contexts, which have no padding to keep in the loss; "
                "leave --mask-padding and --lengths on"
            )
        if self.n_step > 1 and self.targets == "shifted":
            raise UserError(f"--n-step {self.n_step} needs --targets full (shifted windows hold one step each)")
        if not 0 <= self.final_rate <= 1:
            raise UserError(f"--final-rate {self.final_rate} must lie between 0 and 1")
        if not 0 <= self.average < 1:
            raise UserError(f"--average {self.average} must be at least 0 and below 1")
        if self.terminal_weight <= 0:
            raise UserError(f"--terminal-weight {self.terminal_weight} must be above 0")
        if self.terminal_weight != 1 and (ends is not None or not self.mask_padding):
            raise UserError(
                f"--terminal-weight {self.terminal_weight} weighs steps among all positions of a window; it needs "
                "--positions all and --mask-padding"
            )
        if self.weight_updates < 0:
            raise UserError(f"--weight-updates {self.weight_updates} must not be negative")
        if not 0 <= self.terminal_share <= 1:
            raise UserError(f"--terminal-share {self.terminal_share} must lie between 0 and 1")
        for name in ("batch", "n_step", "target_every"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1")


def optimizer_for(network: QNetwork, config: LearnerConfig, capturable: bool = False) -> torch.optim.Adam:
    """Adam with default moments, fused; learned priors are a group of their own where they have their own rate.

    Step sizes are tensors where a graph captures them, so that `set_rate` reaches the graph.
    """
    priors = network.prior_parameters()
    known = {id(p) for p in priors}
    groups = [([p for p in network.parameters() if id(p) not in known], config.learning_rate)]
    groups += [(priors, config.prior_lr or config.learning_rate)] if priors else []
    device = next(network.parameters()).device

    def rate(value: float) -> float | Tensor:
        return torch.tensor(value, device=device) if capturable else value

    named = [{"params": params, "lr": rate(value), "first_lr": value} for params, value in groups]
    return torch.optim.Adam(named, lr=rate(config.learning_rate), fused=True, capturable=capturable)


class Fading(Protocol):
    """What a learner's config says of the end of a run."""

    @property
    def final_rate(self) -> float:
        """Step size at the end, as a share of the first."""
        ...


def set_rate(optimizer: torch.optim.Optimizer, config: Fading, share: float) -> None:
    """Step sizes after `share` of the run; every group has its `first_lr`."""
    for group in optimizer.param_groups:
        value = group["first_lr"] * (1 + (config.final_rate - 1) * min(share, 1.0))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def bucket(longest: int, context: int) -> int:
    """The narrowest width that holds `longest` transitions and the observation after them, or the context."""
    return next((width for width in BUCKETS if longest < width < context), context)


def sample(
    replay: Replay,
    config: LearnerConfig,
    context: int,
    ends: int | None,
    generator: torch.Generator,
    trim: bool = True,
    updates: int = 0,
) -> Windows | Prefixes:
    """One batch, drawn uniformly over environment steps and trimmed to the bucket of its longest window.

    `updates` counts those before it.
    """
    if ends is not None:
        drawn, _ = replay.draw(config.batch * ends, context, generator, terminal_share=config.terminal_share)
        return replay.prefixes(drawn, context, config.gamma, config.n_step)
    around = config.placement == "around"
    drawn, longest = replay.draw(config.batch, context, generator, around, config.terminal_share)
    # an unmasked loss is a mean over padding too, and a shifted window reads one observation more
    fixed = not config.mask_padding or config.targets == "shifted" or not trim
    tokens = context if fixed else bucket(longest, context)
    windows = replay.windows(drawn, context, tokens, None if config.mask_padding else generator)
    windows.terminal_weight.fill_(config.weight_at(updates))
    return windows


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
    q = network(observation, previous, lengths)  # (B, T, A)
    with torch.no_grad():
        value = _value(q, target(observation, previous, lengths), config.double)  # (B, T)
        if batch.observation.shape[1] > tokens:
            value = torch.cat([value, _tail_value(network, target, batch, config)], 1)  # (B, T + 1)
        goal = n_step_target(batch, value, config)
    return _loss(q, batch, goal, config)


def _tail_value(network: QNetwork, target: QNetwork, batch: Windows, config: LearnerConfig) -> Tensor:
    """Value after a full window, (B, 1): the network acts there on the newest K observations, so it reads those."""
    context = batch.action.shape[1]
    observation, previous = batch.observation[:, 1:], batch.previous_action[:, 1:]
    lengths = batch.lengths if config.lengths else None
    last = torch.full_like(batch.lengths, context - 1)
    ours = network.at(observation, previous, lengths, last)  # (B, A)
    theirs = target.at(observation, previous, lengths, last)
    return _value(ours, theirs, config.double).unsqueeze(1)


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


def _loss(q: Tensor, batch: Windows, goal: Tensor, config: LearnerConfig) -> tuple[Tensor, Metrics]:
    chosen = _wide(q.gather(2, batch.action.unsqueeze(2)).squeeze(2))  # (B, T)
    error = _distance(config)(chosen, goal)
    if not config.mask_padding:
        return error.mean(), _metrics(error.mean(), chosen, goal)
    position = torch.arange(chosen.shape[1], device=chosen.device)
    real = (position < batch.lengths.unsqueeze(1)).float()  # (B, T)
    weight = torch.where(batch.terminated, batch.terminal_weight, 1.0) * real
    share = weight / weight.sum()
    loss = (error * share).sum()
    return loss, _metrics(loss, chosen * share * share.numel(), goal * share * share.numel())


def _metrics(loss: Tensor, chosen: Tensor, goal: Tensor) -> Metrics:
    return {
        "losses/td_loss": loss.detach(),
        "losses/q_values": chosen.detach().mean(),
        "losses/targets": goal.mean(),
    }


def update(
    network: QNetwork,
    target: QNetwork,
    optimizer: torch.optim.Optimizer,
    batch: Windows | Prefixes,
    config: LearnerConfig,
    loss_function: LossFunction = td_loss,
) -> Metrics:
    """One gradient step on `network`; metrics stay on the device."""
    with torch.autocast(batch.action.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        loss, metrics = loss_function(network, target, batch, config)
    penalty = network.regularisation()
    optimizer.zero_grad(set_to_none=True)
    (loss + penalty).backward()
    norm = nn.utils.clip_grad_norm_(network.parameters(), config.clip_norm, foreach=True)
    optimizer.step()
    network.project()
    return metrics | {"losses/regularisation": penalty.detach(), "grad/norm": norm.detach()}


@torch.no_grad()
def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Hard copy of all parameters, in place, so that captured graphs keep their addresses."""
    torch._foreach_copy_(list(target.parameters()), list(source.parameters()))


@torch.no_grad()
def average_parameters(source: nn.Module, average: nn.Module, decay: float, updates: int) -> None:
    """Move `average` towards `source` after update number `updates`; early on faster, to forget the first weights."""
    decay = min(decay, (1 + updates) / (10 + updates))
    torch._foreach_lerp_(list(average.parameters()), list(source.parameters()), 1 - decay)
