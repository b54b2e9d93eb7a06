"""Reanalysis: policy targets of stored steps, searched anew with the current network (Schrittwieser et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from world_models.unizero.engine import Planning, make_planning
from world_models.unizero.networks import WorldModel
from world_models.unizero.replay import Contexts, Sequences
from world_models.unizero.search import SearchConfig, SearchNumbers, search
from world_models.unizero.window import Window


def is_due(update: int, share: float) -> bool:
    """Whether the batch of update number `update` = 0, 1, ... is searched anew, all of it or nothing.

    The share of such updates is exact in the long run. One search of many roots takes an accelerator hardly longer than
    one of few, so that a whole batch now and then costs far less than the same number of sequences one by one.
    """
    return int((update + 1) * share) > int(update * share)


def windows(contexts: Contexts, latent: Tensor) -> tuple[Window, Tensor]:
    """Roots of a search at every step: latents (B, W + T, D) -> histories of B x T rows and their latents."""
    batch, steps = contexts.count.shape
    pairs = latent.shape[1] - steps
    count = contexts.count.flatten()  # (B T,)
    first = torch.arange(steps, device=count.device).repeat(batch) + pairs - count  # the oldest that counts
    # entries behind `count` are padding; the clamp only keeps them inside the tensor
    place = (first.unsqueeze(1) + torch.arange(pairs, device=count.device)).clamp(max=pairs + steps - 1)  # (B T, W)
    row = torch.arange(batch, device=count.device).repeat_interleave(steps)
    rows = row.unsqueeze(1)
    return Window(latent[rows, place], contexts.action[rows, place], count), latent[:, pairs:].flatten(0, 1)


@torch.no_grad()
def search_again(
    model: WorldModel, contexts: Contexts, numbers: SearchNumbers, config: SearchConfig,
    planning: Planning | None = None,
) -> Tensor:  # fmt: skip
    """Policies (B, T, A) from one search of B x T roots, for which `numbers` holds a row each; sets evaluation mode.

    `planning` executes the model (None: eagerly).
    """
    model.eval()
    planning = make_planning("eager", model) if planning is None else planning
    history, latent = windows(contexts, planning.encode(contexts.observation))
    return search(planning.functions, history, latent, numbers, config).policy.unflatten(0, contexts.count.shape)


def reanalysed(sequences: Sequences, policy: Tensor) -> Sequences:
    """The sequences with other policy targets (B, T, A)."""
    return replace(sequences, policy=policy.to(sequences.policy.dtype))
