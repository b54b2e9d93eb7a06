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


def rows_due(update: int, batch: int, share: float) -> int:
    """How many sequences of update number `update` = 0, 1, ... are searched anew.

    Their share is exact in the long run also where it is less than one row a batch.
    """
    return int((update + 1) * batch * share) - int(update * batch * share)


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
    """The sequences with other policy targets (b, T, A) in their first b <= B rows, which are as random as any."""
    fresh = policy.to(sequences.policy.dtype)
    return replace(sequences, policy=torch.cat((fresh, sequences.policy[len(fresh) :])))
