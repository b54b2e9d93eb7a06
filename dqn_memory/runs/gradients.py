"""Clip gradients by their global norm, measure the norm of each part of the networks, and list them for histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from envs.spaces import Array

Parts = Mapping[str, Sequence[nn.Parameter]]  # trained parameters by the part that holds them


def parts_of(network: nn.Module, names: Mapping[str, str] | None = None) -> dict[str, list[nn.Parameter]]:
    """List the trained parameters of each top-level part of a network, in the network's order.

    `names` gives parts other names; parts of one name are one.
    """
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        part = name.partition(".")[0]
        if parameter.requires_grad:
            parts.setdefault((names or {}).get(part, part), []).append(parameter)
    return parts


@torch.no_grad()
def clip(parts: Parts, max_norm: float) -> dict[str, Tensor]:
    """Scale all gradients by one factor, so that their global L2 norm is at most `max_norm`.

    Returns:
        The norms before, scalars on the device: `grad/norm` of all parts, and `grad/<part>` of each.
    """
    gradients = [[each.grad for each in part if each.grad is not None] for part in parts.values()]
    every = list(chain.from_iterable(gradients))
    norms = torch.stack(torch._foreach_norm(every))
    total = torch.linalg.vector_norm(norms)
    torch._foreach_mul_(every, (max_norm / (total + 1e-6)).clamp(max=1.0))  # without a branch, which would wait
    by_part = torch._foreach_norm(norms.split([len(part) for part in gradients]))
    return {"grad/norm": total} | {f"grad/{name}": norm for name, norm in zip(parts, by_part, strict=True)}


def trained_values(networks: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Array]:
    """Copy the parameters that are trained, and their newest gradients after the clip, by network and name."""
    groups = chain.from_iterable(optimizer.param_groups for optimizer in optimizers)
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    values: dict[str, Array] = {}
    for part, network in networks.items():
        for name, parameter in network.named_parameters():
            if id(parameter) in trained:
                values[f"parameters/{part}.{name}"] = parameter.detach().float().cpu().numpy()
                if parameter.grad is not None:
                    values[f"gradients/{part}.{name}"] = parameter.grad.float().cpu().numpy()
    return values
