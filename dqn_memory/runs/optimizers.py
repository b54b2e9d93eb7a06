"""Set learning rates of optimisers, and restore their states from checkpoints."""

from typing import Any

import torch
from torch import Tensor

from dqn_memory.runs.checkpoint import check_form

HUGE = 1e300  # far above any setting of an optimiser


def set_learning_rate(optimizer: torch.optim.Optimizer, final_fraction: float, progress: float) -> None:
    """Set the learning rates at the fraction `progress` of a run.

    They fall linearly from each parameter group's `first_lr` to `final_fraction` times that rate.
    """
    for group in optimizer.param_groups:
        value = group["first_lr"] * (1 + (final_fraction - 1) * min(progress, 1.0))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a `state_dict` that was read onto the CPU, perhaps after a save on another device.

    `capturable`, and the type of the learning rates (float or tensor), stay as they are.
    """
    groups = []
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for name in ("lr", "first_lr"):
            if name in own and not isinstance(saved.get(name), float | Tensor):
                raise TypeError(f"the optimizer's {name} is no number")
        others = {name: value for name, value in own.items() if name not in ("lr", "first_lr", "params", "capturable")}
        saved = others | saved  # another version of torch may have fewer settings
        for name, value in others.items():
            number = isinstance(value, int | float)
            if number and not (isinstance(saved[name], int | float) and abs(saved[name]) < HUGE):
                raise TypeError(f"the optimizer's {name} is no number")
            check_form(saved[name], None if number else value, f"the optimizer's {name}.")
        lr = torch.tensor(float(saved["lr"])) if isinstance(own["lr"], Tensor) else float(saved["lr"])
        groups.append(saved | {"lr": lr} | {name: own[name] for name in ("capturable",) if name in own})
    optimizer.load_state_dict(state | {"param_groups": groups})
    names = {name for values in optimizer.state.values() for name in values}
    for parameter, values in optimizer.state.items():
        for name in names:
            value = values.get(name)
            if not isinstance(value, Tensor) or value.shape != (() if name == "step" else parameter.shape):
                raise TypeError(f"the optimizer's {name} does not fit its parameter")
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].to(group["params"][0].device)
