"""Adam as the world model and the agent both have it."""

from __future__ import annotations

import torch
from torch import nn


def adam(parameters: list[nn.Parameter], rate: float, epsilon: float, capturable: bool) -> torch.optim.Adam:
    """Fused Adam, whose step size `dqn_memory.learner.set_rate` can change; a tensor where a graph captures it."""
    lr = torch.tensor(rate, device=parameters[0].device) if capturable else rate
    group = {"params": parameters, "lr": lr, "first_lr": rate}
    return torch.optim.Adam([group], lr=lr, eps=epsilon, fused=True, capturable=capturable)
