"""Lambda returns of imagined trajectories."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from world_models.distributions import wide

Form = Literal["textbook", "released"]


def lambda_return(
    reward: Tensor, value: Tensor, terminated: Tensor, gamma: float, lam: float, form: Form = "textbook"
) -> Tensor:
    """Returns of H steps: R_t = r_t + gamma c_t ((1 - lam) V_{t+1} + lam R_{t+1}), from R_H = V_H backwards.

    c_t is 0 where the step ended the episode (`terminated`) and 1 elsewhere (Sutton and Barto 2018, section 12.1;
    Hafner et al. 2021, eq. 4). `released` has V_t in the place of V_{t+1}, as the code of STORM and GLAM does.

    Rewards (H, ...), values (H + 1, ...) of the states before each step and after the last, ends (H, ...) as truth
    values or as numbers from 0 to 1: returns (H, ...), float32 or wider.
    """
    value = wide(value)
    discount = gamma * (1 - terminated.to(value.dtype))  # (H, ...)
    beside = value[:-1] if form == "released" else value[1:]
    short = wide(reward) + discount * (1 - lam) * beside  # all of R_t but the part of R_{t+1}
    later, returns = value[-1], []
    for t in reversed(range(len(reward))):
        later = short[t] + discount[t] * lam * later
        returns.append(later)
    return torch.stack(returns[::-1])
