"""One double-DQN update on windows of history (van Hasselt et al. 2016; DTQN, Esslinger et al. 2022, section 3).

What is drawn, the step that the optimiser takes, and the copies that follow it; `td_loss.py` holds the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dqn_memory.config import LearnerConfig
from dqn_memory.network import QNetwork, trimmed_width
from dqn_memory.replay import Prefixes, Replay, Windows
from dqn_memory.runs.cuda_graph import Captured
from dqn_memory.runs.settings import Engine
from dqn_memory.td_loss import LossFunction, Metrics, td_loss


def optimizer_for(network: QNetwork, config: LearnerConfig, capturable: bool = False) -> torch.optim.Adam:
    """Adam with default moments, fused; learned priors are a group of their own where they have their own rate.

    Step sizes are tensors where a graph captures them, so that `set_rate` reaches the graph.
    """
    priors = network.prior_parameters()
    known = {id(p) for p in priors}
    groups = [([p for p in network.parameters() if id(p) not in known], config.learning_rate)]
    groups += (
        [(priors, config.learning_rate if config.prior_learning_rate is None else config.prior_learning_rate)]
        if priors
        else []
    )
    device = next(network.parameters()).device

    def rate(value: float) -> float | Tensor:
        return torch.tensor(value, device=device) if capturable else value

    named = [{"params": params, "lr": rate(value), "first_lr": value} for params, value in groups]
    return torch.optim.Adam(named, lr=rate(config.learning_rate), fused=True, capturable=capturable)


class Fading(Protocol):
    """What a learner's config says of the end of a run."""

    @property
    def final_lr_fraction(self) -> float:
        """Step size at the end, as a share of the first."""
        ...


def set_rate(optimizer: torch.optim.Optimizer, config: Fading, share: float) -> None:
    """Step sizes after `share` of the run; every group has its `first_lr`."""
    for group in optimizer.param_groups:
        value = group["first_lr"] * (1 + (config.final_lr_fraction - 1) * min(share, 1.0))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict` that was read onto a CPU; step sizes that are tensors go where a captured graph looks."""
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].to(group["params"][0].device)


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
        drawn, _ = replay.draw(config.batch_size * ends, context, generator, terminal_share=config.terminal_fraction)
        return replay.prefixes(drawn, context, config.gamma, config.n_step)
    around = config.window_placement == "around"
    drawn, longest = replay.draw(config.batch_size, context, generator, around, config.terminal_fraction)
    if (
        config.tail_fraction < 1
    ):  # the rows that keep their tails are the first, and so are those that end at terminal steps
        drawn = drawn[torch.randperm(config.batch_size, generator=generator)]
    # an unmasked loss is a mean over padding too, and a shifted window reads one observation more
    fixed = not config.mask_padding or config.targets == "shifted" or not trim
    tokens = context if fixed else trimmed_width(longest + 1, context)
    windows = replay.windows(drawn, context, tokens, None if config.mask_padding else generator)
    windows.terminal_weight.fill_(config.terminal_weight_at(updates))
    return windows


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
    norm = nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm, foreach=True)
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


def make_update(
    engine: Engine,
    network: QNetwork,
    target: QNetwork,
    optimizer: torch.optim.Optimizer,
    config: LearnerConfig,
) -> Callable[[Windows | Prefixes], Metrics]:
    """The update of one batch, `batch -> metrics`: eagerly (the tested reference), compiled or captured."""
    loss = torch.compile(td_loss, dynamic=False) if engine == "compile" else td_loss

    def work(batch: Windows | Prefixes) -> Metrics:
        return update(network, target, optimizer, batch, config, loss)

    return Captured(work, (network,), optimizer) if engine == "cudagraph" else work
