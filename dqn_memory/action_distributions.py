"""The distribution of an agent's actions that a network's outputs describe: draws, probabilities, entropy.

Choices are categorical, switches are Bernoulli, and real numbers are normal around a mean with a learned spread. All
parts are independent of one another given the outputs. The outputs of `Actions.outputs` numbers stand in this order:
logits of all choices, logits of the switches, means, logarithms of the spreads.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dqn_memory.runs  # noqa: F401 - checks that `envs` is ours
from dqn_memory.blocks.embeddings import ActionHistoryEmbedding
from envs.actions import Actions

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def draw(actions: Actions, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw actions (N, ...) by outputs (N, O)."""
    if actions.count:  # the argmin of exponential times whose rates are the probabilities
        times = torch.empty_like(outputs).exponential_(generator=generator)
        return (outputs.softmax(1) / times).argmax(1)
    choices, switches, mean, log_spread = _parts(actions, outputs)
    times = torch.empty_like(choices).exponential_(generator=generator)
    chosen = (choices.softmax(-1) / times).argmax(-1) if actions.sizes else choices
    on = torch.empty_like(switches).uniform_(generator=generator) < switches.sigmoid()
    real = mean + log_spread.exp() * torch.empty_like(mean).normal_(generator=generator)
    return torch.cat((chosen.to(real.dtype), on.to(real.dtype), real), -1)


def best(actions: Actions, outputs: Tensor) -> Tensor:
    """Take the most probable actions (N, ...) by outputs (N, O); of real numbers the mean."""
    if actions.count:
        return outputs.argmax(-1)
    choices, switches, mean, _ = _parts(actions, outputs)
    chosen = choices.argmax(-1) if actions.sizes else choices
    return torch.cat((chosen.to(mean.dtype), (switches > 0).to(mean.dtype), mean), -1)


def log_prob(actions: Actions, outputs: Tensor, action: Tensor) -> Tensor:
    """Compute the logarithm of the probability, or density, of actions (..., [a]) by outputs (..., O): (...).

    The density is that of the number between the bounds if `squash` is tanh, in units of half their distance.
    """
    if actions.count:
        return outputs.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    choices, switches, mean, log_spread = _parts(actions, outputs)
    chosen, on, real = actions.split(action)
    total = outputs.new_zeros(outputs.shape[:-1])
    if actions.sizes:
        total = total + choices.log_softmax(-1).gather(-1, chosen.long().unsqueeze(-1)).squeeze(-1).sum(-1)
    if actions.switches:
        total = total - F.binary_cross_entropy_with_logits(switches, on, reduction="none").sum(-1)
    if actions.low:
        density = -0.5 * ((real - mean) / log_spread.exp()).square() - log_spread - HALF_LOG_TWO_PI
        if actions.squash == "tanh":  # the slope of tanh is 4 / (e^x + e^-x)^2
            slope = 2 * (math.log(2) - real - F.softplus(-2 * real))
            density = density - torch.where(actions.constants(real.device).bounded, slope, 0.0)
        total = total + density.sum(-1)
    return total


def entropy(actions: Actions, outputs: Tensor) -> Tensor:
    """Compute the entropy (...) of the policies of outputs (..., O); of a squashed number that before squashing."""
    if actions.count:
        return _categorical_entropy(outputs)
    choices, switches, _, log_spread = _parts(actions, outputs)
    total = outputs.new_zeros(outputs.shape[:-1])
    if actions.sizes:
        total = total + _categorical_entropy(choices).sum(-1)
    if actions.switches:
        total = total + F.binary_cross_entropy_with_logits(switches, switches.sigmoid(), reduction="none").sum(-1)
    return total + (log_spread + HALF_LOG_TWO_PI + 0.5).sum(-1)


def _parts(actions: Actions, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split outputs (..., O) into logits of the choices (..., C, n), of the switches, means and spreads.

    Choices of fewer values than the largest are filled up with -inf.
    """
    count, reals = sum(actions.sizes), len(actions.low)
    flat, switches, mean, log_spread = outputs.split((count, actions.switches, reals, reals), -1)
    if not actions.sizes:
        return flat, switches, mean, log_spread
    parts = flat.split(actions.sizes, -1)
    largest = max(actions.sizes)
    padded = [F.pad(part, (0, largest - part.shape[-1]), value=-math.inf) for part in parts]
    return torch.stack(padded, -2), switches, mean, log_spread


def _categorical_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy (...) of logits (..., n); values of logit -inf have no part in it, nor in its gradient."""
    log_probs = logits.log_softmax(-1)
    log_probs = log_probs.masked_fill(log_probs == -math.inf, 0.0)
    return -(log_probs.exp() * log_probs).sum(-1)


# ---- networks --------------------------------------------------------------------------------------------------------
class Spread(nn.Module):
    """Append the learned logarithms of the spreads of `reals` real numbers to a network's outputs (..., O - reals)."""

    def __init__(self, reals: int) -> None:
        super().__init__()
        self.log_spread = nn.Parameter(torch.zeros(reals))

    def forward(self, outputs: Tensor) -> Tensor:
        return torch.cat((outputs, self.log_spread.to(outputs.dtype).expand(*outputs.shape[:-1], -1)), -1)


class ActionRowEmbedding(nn.Module):
    """Embed the row of the action that led to each observation by one linear map; "no action yet" gives zeros."""

    def __init__(self, actions: Actions, width: int) -> None:
        super().__init__()
        self.actions = actions
        first = itertools.accumulate(actions.sizes, initial=0)
        self.register_buffer("first", torch.tensor(list(first)[:-1]), persistent=False)  # (C,), column of each value 0
        self.linear = nn.Linear(sum(actions.sizes) + actions.switches + len(actions.low), width, bias=False)

    def forward(self, action: Tensor) -> Tensor:  # (..., a) -> (..., width)
        known = ~action.isnan()
        choices, switches, reals = self.actions.split(action.nan_to_num(0.0))
        chosen = F.one_hot(choices.long() + self.first, self.linear.in_features).sum(-2) if self.actions.sizes else 0
        rest = torch.cat((switches, self.actions.inside(reals)), -1)
        features = F.pad(rest, (sum(self.actions.sizes), 0)) + chosen
        return self.linear(features.to(self.linear.weight.dtype)) * known[..., :1]


def previous_action_embedding(actions: Actions, width: int) -> nn.Module:
    """Make the embedding of an action that may be "no action yet"."""
    return ActionHistoryEmbedding(actions.count, width) if actions.count else ActionRowEmbedding(actions, width)
