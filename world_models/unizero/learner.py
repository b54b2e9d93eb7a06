"""One update of the world model as a pure function of tensors, and its moving-average target.

Everything here has static shapes and reads nothing back: eager, compiled and graph-captured runs share it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from torch import Tensor, nn

from dqn_memory.runs.errors import UserError
from world_models.run_config import check_counts, check_not_negative
from world_models.unizero.losses import Batch, LossConfig, Metrics, losses
from world_models.unizero.networks import WorldModel
from world_models.unizero.replay import Sequences
from world_models.unizero.targets import make_batch

Loss = Callable[[WorldModel, Batch, Tensor, LossConfig], tuple[Tensor, Metrics]]


@dataclass(frozen=True)
class LearnerConfig:
    """The optimiser, the target network and the value targets."""

    batch_size: int = 64
    """Sequences per update."""
    gamma: float = 0.997
    """Discount per environment step."""
    n_step: int = 5
    """Steps of reward before the bootstrap."""
    learning_rate: float = 1e-4
    """AdamW's step size."""
    prior_learning_rate: float | None = None
    """Step size of learned attention priors (None: as all other parameters, with which 25,000 updates can move a
    prior by 2.5 tokens at most)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's moments."""
    weight_decay: float = 1e-4
    """Decay of tensors with two dimensions or more; biases, norms and priors have none."""
    max_grad_norm: float = 5.0
    """Largest global L2 norm of the gradient (5 in the paper, which is the default; 20 in the released code)."""
    target_update_rate: float = 0.05
    """Share by which the target's parameters move towards the model's after every update (0: they do not)."""
    target_update_every: int = 0
    """Updates between whole copies of the model's parameters into the target (0: none). The paper's table has 100
    beside the moves of 0.05, the released code never copies: moves alone are the default, which both have, and behind
    which a copy finds little left to do. `--target-update-rate 0 --target-update-every 100` copies only."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Autocast precision of the forward passes."""
    loss: LossConfig = field(default_factory=LossConfig)

    def check(self) -> None:
        """One sentence for every value that cannot work."""
        check_counts(self, ("batch_size", "n_step"))
        check_not_negative(self, ("prior_learning_rate", "weight_decay"))
        check_not_negative(self.loss, (weight.name for weight in fields(self.loss)))
        for name in ("learning_rate", "max_grad_norm"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be above 0")
        self._check_target()
        if not 0 <= self.gamma <= 1:
            raise UserError(f"--gamma {self.gamma} must lie between 0 and 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError("--betas {} {} must both be at least 0 and below 1".format(*self.betas))

    def _check_target(self) -> None:
        if not 0 <= self.target_update_rate <= 1:
            raise UserError(f"--target-update-rate {self.target_update_rate} must lie between 0 and 1")
        if self.target_update_every < 0:
            raise UserError(f"--target-update-every {self.target_update_every} must be 0 (no copies) or more")
        if self.target_update_rate == self.target_update_every == 0:
            raise UserError(
                "--target-update-rate 0 and --target-update-every 0 leave the target as it starts; give one of them"
            )

    def copies_after(self, updates: int) -> bool:
        """Whether the target becomes a whole copy after update number `updates` = 1, 2, ..."""
        return self.target_update_every > 0 and updates % self.target_update_every == 0


def optimizer_for(model: WorldModel, config: LearnerConfig, capturable: bool = False) -> torch.optim.AdamW:
    """AdamW with decay on tensors of two dimensions or more; priors are a group where they have a rate of their own."""
    priors = {id(p) for attention in model.attentions() for p in attention.prior.parameters()}
    apart = priors if config.prior_learning_rate is not None else set()
    others = [p for p in model.parameters() if id(p) not in apart]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    if priors and config.prior_learning_rate is not None:
        own = [p for p in model.parameters() if id(p) in priors]
        groups.append({"params": own, "weight_decay": 0.0, "lr": config.prior_learning_rate})
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=config.betas, eps=1e-8, fused=True, capturable=capturable
    )


def learn(
    model: WorldModel, target: WorldModel, optimizer: torch.optim.Optimizer, sequences: Sequences,
    config: LearnerConfig, loss: Loss = losses,
) -> Metrics:  # fmt: skip
    """An update on sequences as they are stored: the target network gives their values first."""

    def values(observation: Tensor, action: Tensor, lengths: Tensor) -> Tensor:
        return target_values(target, observation, action, lengths)

    with _autocast(sequences.action, config):
        batch = make_batch(sequences, values, config.gamma, config.n_step)
    return update(model, target, optimizer, batch, config, loss)


def update(
    model: WorldModel, target: WorldModel, optimizer: torch.optim.Optimizer, batch: Batch,
    config: LearnerConfig, loss: Loss = losses,
) -> Metrics:  # fmt: skip
    """One gradient step on `model`, then one step of `target` towards it; metrics stay on the device.

    `loss` computes what `losses` does, however it is executed.
    """
    model.train()
    with _autocast(batch.action, config):
        wanted = target_latents(target, batch.observation)
        total, metrics = loss(model, batch, wanted, config.loss)
    penalty = model.regularisation()
    optimizer.zero_grad(set_to_none=True)
    (total + penalty).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm, foreach=True)
    optimizer.step()
    model.project()
    follow(model, target, config.target_update_rate)
    return metrics | {"losses/regularisation": penalty.detach(), "grad/norm": norm.detach()}


def _autocast(like: Tensor, config: LearnerConfig) -> torch.autocast:
    return torch.autocast(like.device.type, torch.bfloat16, enabled=config.precision == "bfloat16")


def make_target(model: WorldModel) -> WorldModel:
    """A copy of the model, buffers included, that no gradient reaches."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def target_latents(target: WorldModel, observation: Tensor) -> Tensor:
    """What the next latents are compared with, (B, T, D): the target encoder in training mode.

    Batch normalisation then uses the batch's own statistics, as the online encoder does, and the target
    keeps running statistics of its own; they are not copied from the model.
    """
    target.train()
    return target.encode(observation)


@torch.no_grad()
def target_values(target: WorldModel, observation: Tensor, action: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Values (B, S) of S observations on the scale of returns, in evaluation mode (running statistics, no dropout).

    One teacher-forced pass over S <= horizon steps, so the k-th value has k earlier steps as its context.
    """
    target.eval()
    return target.values(target.encode(observation), action, lengths)


@torch.no_grad()
def follow(model: nn.Module, target: nn.Module, rate: float) -> None:
    """Move the target's parameters (not its buffers) towards the model's by `rate`, in place."""
    torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), rate)
